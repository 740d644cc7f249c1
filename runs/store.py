"""Which run a configuration needs: a new one, one to go on with, or none because it is there."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from runs import facts
from runs.errors import ConfigError, RunError
from runs.identity import code_hash, run_id
from runs.records import write_aside

State = Literal["absent", "finished", "stale", "unfinished", "busy"]


@dataclass(frozen=True)
class Found:
    """What is on disk for a configuration. `stale` means that other `code` made it."""

    id: str
    fingerprint: str
    directory: Path
    state: State
    status: str | None = None


class Store:
    """The runs below `root`, made by the code of `checkout`."""

    def __init__(self, root: Path, checkout: Path) -> None:
        self.root, self.checkout = root, checkout
        self.code = code_hash(checkout)

    def find(self, config: Mapping[str, Any]) -> Found:
        """Look, change nothing. Raises `RunError` for a directory that is not such a run."""
        name, full = run_id(config, self.checkout)
        directory = self.root / name
        if not directory.exists():
            return Found(name, full, directory, "absent")
        record = read_record(directory)
        if record["fingerprint"] != full:
            raise RunError(f"{directory} belongs to another configuration; move it away.")
        status = record["status"]
        if status == "running":
            if facts.is_alive(record["process"]):
                return Found(name, full, directory, "busy", status)
            status = "interrupted"
        accept = config["run"]["accept_stale"]
        if record["code"] != self.code and not accept:
            return Found(name, full, directory, "stale", status)
        state: State = "finished" if status == "finished" else "unfinished"
        return Found(name, full, directory, state, status)

    def claim(
        self, config: Mapping[str, Any], overrides: Sequence[str], sweeps: Sequence[str] = ()
    ) -> Found:
        """Make the run's directory this process's own, unless it is finished.

        A stale run is moved to `stale/`, never deleted. Returns what was found before; the
        directory then has status `running`. Raises `RunError` when another process has it.
        """
        with self._lock():
            found = self.find(config)
            if found.state == "finished":
                record = read_record(found.directory)
                wanted = sorted({*record["sweeps"], *sweeps})
                if wanted != record["sweeps"]:
                    update_record(found.directory, sweeps=wanted)
                return found
            if found.state == "busy":
                raise RunError(f"{found.directory} is being written by another process.")
            if found.state == "stale":
                self._move_aside(found.directory)
            if found.state == "unfinished":
                self._begin(found, found.directory, overrides, sweeps)
            else:
                self._create(found, config, overrides, sweeps)
        return found

    def finish(self, directory: Path, status: str, error: str | None = None) -> None:
        """Record how a run of this process ended."""
        update_record(directory, status=status, error=error, process=None)

    def _create(
        self,
        found: Found,
        config: Mapping[str, Any],
        overrides: Sequence[str],
        sweeps: Sequence[str],
    ) -> None:
        # Made aside, so that a directory with a run's name always has its record.
        aside = self.root / f".{found.id}"
        aside.mkdir(exist_ok=True)
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        (aside / "config.yaml").write_text(text)
        self._begin(found, aside, overrides, sweeps)
        aside.rename(found.directory)

    def _begin(
        self, found: Found, directory: Path, overrides: Sequence[str], sweeps: Sequence[str]
    ) -> None:
        before = read_record(found.directory) if found.state == "unfinished" else {}
        compat = yaml.safe_load((directory / "config.yaml").read_text()).get("compat") or {}
        record = {
            "id": found.id,
            "fingerprint": found.fingerprint,
            "status": "running",
            "error": None,
            "process": facts.this_process(),
            "code": self.code,
            "versions": facts.versions(),
            "git": facts.git_state(self.checkout),
            "suites": before.get("suites", {}),
            "overrides": list(overrides),
            "sweeps": sorted({*before.get("sweeps", []), *sweeps}),
            "compat": sorted(name for name, on in compat.items() if on),
            "attempts": before.get("attempts", 0) + 1,
        }
        _write_record(directory, record)

    def _move_aside(self, directory: Path) -> None:
        shelf = self.root / "stale"
        shelf.mkdir(exist_ok=True)
        number = 1
        while (shelf / f"{directory.name}-{number}").exists():
            number += 1
        directory.rename(shelf / f"{directory.name}-{number}")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("w")
        except OSError as error:
            raise ConfigError(f"paths.runs={self.root} cannot be written to: {error}.") from error
        with lock as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def read_record(directory: Path) -> dict[str, Any]:
    """`run.json`. Raises `RunError` when it is missing or is not a run's record."""
    path = directory / "run.json"
    try:
        record = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise RunError(f"{path} cannot be read ({error}); move {directory} away.") from error
    if not isinstance(record, dict) or not {"status", "code", "fingerprint"} <= set(record):
        raise RunError(f"{path} is not the record of a run; move {directory} away.")
    return record


def update_record(directory: Path, **changes: Any) -> None:
    """Change fields of `run.json` in one step."""
    _write_record(directory, read_record(directory) | changes)


def _write_record(directory: Path, record: dict[str, Any]) -> None:
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    write_aside(directory / "run.json", text.encode())
