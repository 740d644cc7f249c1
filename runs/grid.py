"""A grid of runs: each cell is a child process, so that nothing happens to its neighbours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runs.errors import RunError
from runs.store import Found, Store, read_record, update_record

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
GRACE_SECONDS = 60
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


def run_cells(
    cells: Sequence[Cell], store: Store, entry: Path, say: Callable[[str], None]
) -> list[Outcome]:
    """Run every cell that is not finished, one after the other; never raises for a cell.

    After Ctrl-C the rest is left out: fewer outcomes than cells come back, the last of them
    interrupted.
    """
    outcomes: list[Outcome] = []
    shared = set.intersection(*(set(cell.overrides) for cell in cells))
    for number, cell in enumerate(cells, 1):
        axes = [override for override in cell.overrides if override not in shared]
        say(f"cell {number} of {len(cells)}: {' '.join(axes) or cell}")
        try:
            found = store.find(cell.config)
        except RunError as error:
            outcomes.append(Outcome(cell, store.root, "failed", str(error)))
            continue
        if found.state == "finished":
            say(f"  finished before: {found.directory}")
            outcomes.append(Outcome(cell, found.directory, "skipped"))
            continue
        outcome, stop = _run_cell(cell, found, entry)
        outcomes.append(outcome)
        if stop:
            break
    return outcomes


def _run_cell(cell: Cell, found: Found, entry: Path) -> tuple[Outcome, bool]:
    # The overrides are there for whoever lists processes; the child reads the file.
    command = [sys.executable, str(entry), *cell.overrides]
    with TemporaryDirectory(prefix="trivet-cell-") as folder:
        path = Path(folder) / "cell.json"
        cell.write(path)
        environment = os.environ | thread_environment(cell.config["threads"])
        child = subprocess.Popen(command, env=environment | {HAND_OVER: str(path)})
        try:
            code, stop = child.wait(), False
        except KeyboardInterrupt:
            code, stop = _end(child), True
    return _outcome(cell, found.directory, code), stop


def _end(child: subprocess.Popen[bytes]) -> int:
    """Let the child write down where it is; a terminal's Ctrl-C may have reached it already."""
    child.send_signal(signal.SIGINT)
    try:
        return child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _outcome(cell: Cell, directory: Path, code: int) -> Outcome:
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
