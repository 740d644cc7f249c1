"""What a person sees while a run works: a live bar on a terminal, a plain line elsewhere."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

PLAIN_SECONDS = 15.0


def clock(seconds: float) -> str:
    """`75` -> `1:15`; hours appear when there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Screen(Console):
    """A console that falls silent when nobody reads it any more (`… | head -1`, a pager closed).

    What reads the output must not decide whether a run of an hour goes on.
    """

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass
class Pace:
    """Seconds an iteration takes in this process, for the time left.

    The clock starts when the first iteration here has ended: that one also built games and loaded
    what the others find loaded, and would promise hours.
    """

    first: int
    started: float = 0.0

    def left(self, done: int, total: int, now: float) -> float | None:
        """Seconds until `total`, or None until two iterations have ended here."""
        timed = done - self.first - 1
        if timed <= 0:
            self.started = now
            return None
        return (now - self.started) / timed * (total - done)


class Display:
    """Shows what a run is doing. Plain text is throttled, so that a log stays readable."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Screen(file=sys.stdout, soft_wrap=True, highlight=False)
        self._live: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._spoke: dict[str, float] = {}
        self._pace: Pace | None = None

    def say(self, text: str) -> None:
        """One line, above the live bars when there are any."""
        console = self._live.console if self._live else self.console
        console.print(text, markup=False)

    def report(self, what: str, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` units of `what` are finished; a full bar disappears."""
        if self.console.is_terminal:
            self._show(what, done, total, note)
        else:
            self._print(what, done, total, note)

    def begin(self, done: int) -> None:
        """The first iteration of this process is about to start, `done` were made before."""
        self._pace = Pace(done)

    def iteration(self, done: int, total: int, success: float | None, seen: str = "") -> None:
        """An iteration ended; `success` is the training success of its episodes."""
        left = self._pace.left(done, total, time.monotonic()) if self._pace else None
        parts = [f"success {success:.2f}" if success is not None else "", seen]
        parts.append(f"{clock(left)} left" if left is not None and done < total else "")
        note = " · ".join(part for part in parts if part)
        if self.console.is_terminal:
            self._show("iteration", done, total, note)
        else:
            self.say(f"  iteration {done} of {total} · {note}")

    def close(self) -> None:
        """Stop the live display; printing goes on as usual."""
        if self._live is not None:
            self._live.stop()
        self._live, self._bars = None, {}

    def _show(self, what: str, done: int, total: int, note: str) -> None:
        if self._live is None:
            self._live = Progress(
                TextColumn("  {task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=True,
            )
            self._live.start()
        if what not in self._bars:
            self._bars[what] = self._live.add_task(what, total=total, note=note)
        self._live.update(self._bars[what], completed=done, total=total, note=note)
        if done >= total:
            self._live.remove_task(self._bars.pop(what))

    def _print(self, what: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        first = what not in self._spoke
        spoke = self._spoke.setdefault(what, now)
        if done >= total:
            del self._spoke[what]
        if not first and now - spoke >= PLAIN_SECONDS:
            self.say(f"  {what}: {done} of {total}{' · ' + note if note else ''}")
            if done < total:
                self._spoke[what] = now
