"""A grid of runs: each cell is a child process, so that nothing happens to its neighbours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runs.errors import RunError
from runs.store import Store, read_record, update_record

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
GRACE_SECONDS = 60
LOOK_SECONDS = 0.1
# Names the file with a child's cell. Its configuration is not composed again: recipes may have
# been edited since the grid began, and nothing has to survive quoting.
HAND_OVER = "TRIVET_CELL"


@dataclass(frozen=True)
class Cell:
    """One point of a grid: the overrides that make it and the configuration they resolve to."""

    overrides: list[str]
    config: dict[str, Any]

    def __str__(self) -> str:
        return " ".join(self.overrides) or "the default configuration"

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"overrides": self.overrides, "config": self.config}))

    @classmethod
    def read(cls, path: Path) -> Cell:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: finished, skipped, failed or interrupted, and why if it did not finish."""

    cell: Cell
    directory: Path
    status: str
    error: str | None = None

    @property
    def good(self) -> bool:
        return self.status in ("finished", "skipped")


def thread_environment(threads: int) -> dict[str, str]:
    """Variables that numerical libraries read once, when they are first imported."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"TOKENIZERS_PARALLELISM": "false"}


class Child:
    """A cell in a process of its own. Beside others its lines carry a label, and no live bars."""

    def __init__(
        self, cell: Cell, directory: Path, entry: Path, say: Callable[[str], None] | None
    ) -> None:
        self.cell, self.directory = cell, directory
        self._folder = TemporaryDirectory(prefix="trivet-cell-")
        path = Path(self._folder.name) / "cell.json"
        cell.write(path)
        environment = os.environ | thread_environment(cell.config["threads"])
        pipe = None if say is None else subprocess.PIPE
        self._process = subprocess.Popen(
            # The overrides are there for whoever lists processes; the child reads the file.
            [sys.executable, str(entry), *cell.overrides],
            env=environment | {HAND_OVER: str(path), "PYTHONUNBUFFERED": "1"},
            stdout=pipe,
            stderr=None if say is None else subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._pass_on, args=(say,), daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def outcome(self) -> Outcome:
        """Wait for the end, and say how it was."""
        code = self._process.wait()
        self._reader.join()
        self._folder.cleanup()
        return _outcome(self.cell, self.directory, code)

    def interrupt(self) -> None:
        """Let the child write down where it is; a terminal's Ctrl-C may have reached it already."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> Outcome:
        """How it was, at most a while after `interrupt`."""
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self.outcome()

    def _pass_on(self, say: Callable[[str], None] | None) -> None:
        if say is not None and self._process.stdout is not None:
            for line in self._process.stdout:
                say(line.rstrip())


def run_cells(
    cells: Sequence[Cell], store: Store, entry: Path, say: Callable[[str], None], jobs: int = 1
) -> tuple[list[Outcome], bool]:
    """Run every cell that is not finished, `jobs` at once; never raises for a cell.

    Outcomes come in the order of the cells, and whether Ctrl-C stopped them: then the rest is left
    out, and those that were running are interrupted.
    """
    outcomes: dict[int, Outcome] = {}
    running: dict[int, Child] = {}
    stopped = False
    shared = set.intersection(*(set(cell.overrides) for cell in cells))
    try:
        for number, cell in enumerate(cells):
            _await(running, outcomes, jobs - 1)
            axes = " ".join(one for one in cell.overrides if one not in shared) or str(cell)
            say(f"cell {number + 1} of {len(cells)}: {axes}")
            label = None if jobs == 1 else _labelled(say, axes)
            started = _start(cell, store, entry, running, outcomes, label, say)
            if isinstance(started, Outcome):
                outcomes[number] = started
            else:
                running[number] = started
        _await(running, outcomes, 0)
    except KeyboardInterrupt:
        stopped = True
        for child in running.values():
            child.interrupt()
        outcomes |= {number: child.end() for number, child in running.items()}
        running.clear()
    finally:
        for child in running.values():
            child.interrupt()
    return [outcomes[number] for number in sorted(outcomes)], stopped


def _start(
    cell: Cell,
    store: Store,
    entry: Path,
    running: dict[int, Child],
    outcomes: dict[int, Outcome],
    label: Callable[[str], None] | None,
    say: Callable[[str], None],
) -> Child | Outcome:
    """A child at work on the cell, or its outcome when there is nothing to do."""
    try:
        found = store.find(cell.config)
        while any(child.directory == found.directory for child in running.values()):
            _await(running, outcomes, len(running) - 1)
            found = store.find(cell.config)
    except RunError as error:
        return Outcome(cell, store.root, "failed", str(error))
    if found.state == "finished":
        say(f"  finished before: {found.directory}")
        return Outcome(cell, found.directory, "skipped")
    return Child(cell, found.directory, entry, label)


def _await(running: dict[int, Child], outcomes: dict[int, Outcome], most: int) -> None:
    """Wait until at most `most` children run; what ended moves to the outcomes."""
    while True:
        for number in [n for n, child in running.items() if not child.running]:
            outcomes[number] = running.pop(number).outcome()
        if len(running) <= most:
            return
        time.sleep(LOOK_SECONDS)


def _labelled(say: Callable[[str], None], axes: str) -> Callable[[str], None]:
    return lambda line: say(f"{axes}: {line.strip()}")


def _outcome(cell: Cell, directory: Path, code: int) -> Outcome:
    if not (directory / "run.json").is_file() and code in (130, -signal.SIGINT):
        return Outcome(cell, directory, "interrupted", "interrupted before it began")
    if not (directory / "run.json").is_file():
        return Outcome(cell, directory, "failed", f"it ended with code {code} before it began")
    record = read_record(directory)
    if record["status"] == "running":
        why = f"the process was killed by signal {-code}" if code < 0 else f"exit code {code}"
        update_record(directory, status="interrupted", error=why, process=None)
        record = read_record(directory)
    if code == 0 and record["status"] == "finished":
        return Outcome(cell, directory, "finished")
    status = "failed" if record["status"] == "finished" else record["status"]
    return Outcome(cell, directory, status, record["error"] or f"exit code {code}")
