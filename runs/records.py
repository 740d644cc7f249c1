"""Lines of `metrics.jsonl`, `eval.parquet`, `episodes.parquet` and `transcripts/`.

Episodes and groups are taken as `rollouts.types` defines them; `runs` imports nothing above it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

EVAL_SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("iteration", pa.int32()),
        ("suite", pa.string()),
        ("task_id", pa.string()),
        ("task_sha256", pa.string()),
        ("task_type", pa.string()),
        ("optimal_length", pa.int32()),
        ("actions_mean", pa.float64()),
        ("sample", pa.int32()),
        ("temperature", pa.float64()),
        ("ended", pa.string()),
        ("won", pa.bool_()),
        ("return", pa.float64()),
        ("turns", pa.int32()),
        ("tokens", pa.int32()),
        ("invalid", pa.int32()),
    ]
)
_GROUP_COLUMNS = [
    ("group", pa.int32()),
    ("group_size", pa.int32()),
    ("group_return_mean", pa.float64()),
    ("group_return_std", pa.float64()),
    ("advantage_mean", pa.float64()),
    ("advantage_std", pa.float64()),
    ("advantage_min", pa.float64()),
    ("advantage_max", pa.float64()),
]
EPISODE_SCHEMA = pa.schema([*EVAL_SCHEMA, *(pa.field(name, kind) for name, kind in _GROUP_COLUMNS)])


def write_aside(path: Path, data: bytes) -> None:
    """Replace `path` in one step: a reader sees the old content or the new, never half."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def episode_line(
    run_id: str, iteration: int, suite: str, episode: Any, sample: int, temperature: float
) -> dict[str, Any]:
    """One line of `EVAL_SCHEMA` from a `rollouts.types.Episode`."""
    task = episode.task
    return {
        "run_id": run_id,
        "iteration": iteration,
        "suite": suite,
        "task_id": task.id,
        "task_sha256": task.sha256,
        "task_type": task.type,
        "optimal_length": task.optimal_length,
        "actions_mean": task.actions_mean,
        "sample": sample,
        "temperature": temperature,
        "ended": episode.ended,
        "won": episode.won,
        "return": float(episode.paid),
        "turns": len(episode.turns),
        "tokens": tokens(episode),
        "invalid": sum(turn.invalid is not None for turn in episode.turns),
    }


def tokens(episode: Any) -> int:
    """Sampled tokens of an episode."""
    return sum(len(turn.ids) for turn in episode.turns)


def group_columns(group: Any, advantages: Any | None) -> dict[str, Any]:
    """Group and advantage statistics of one episode; `advantages` is a flat tensor or None."""
    returns = [float(episode.paid) for episode in group.alive]
    mean = sum(returns) / len(returns) if returns else None
    spread = None
    if mean is not None:
        spread = (sum((value - mean) ** 2 for value in returns) / len(returns)) ** 0.5
    line: dict[str, Any] = {
        "group": group.index,
        "group_size": len(returns),
        "group_return_mean": mean,
        "group_return_std": spread,
    }
    names = ("advantage_mean", "advantage_std", "advantage_min", "advantage_max")
    if advantages is None or len(advantages) == 0:
        return line | dict.fromkeys(names)
    values = [float(value) for value in advantages]
    mean = sum(values) / len(values)
    std = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return line | dict(zip(names, (mean, std, min(values), max(values)), strict=True))


def transcript(episode: Any, sample: int, temperature: float) -> str:
    """An episode as one JSON line for people: what was shown, what was said, what it paid."""
    turns = [
        {
            "observation": turn.observation,
            "action": turn.action,
            "reward": turn.reward,
            "invalid": turn.invalid,
        }
        for turn in episode.turns
    ]
    return json.dumps(
        {
            "task_id": episode.task.id,
            "sample": sample,
            "temperature": temperature,
            "ended": episode.ended,
            "return": float(episode.paid),
            "error": episode.error,
            "objective": episode.objective,
            "turns": turns,
            "final_observation": episode.final_observation,
        },
        ensure_ascii=False,
    )


class Table:
    """A parquet file that grows by lines and is cut back on resumption."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self._table = pq.read_table(path) if path.exists() else schema.empty_table()

    def append(self, lines: Sequence[dict[str, Any]]) -> None:
        """Add lines and write the file aside; nothing is written for no lines."""
        if not lines:
            return
        added = pa.Table.from_pylist(list(lines), schema=self.schema)
        self._table = pa.concat_tables([self._table, added]).combine_chunks()
        self._write()

    def cut(self, last: int) -> None:
        """Keep the lines whose `iteration` is at most `last`."""
        if not self.path.exists():
            return
        self._table = self._table.filter(pc.field("iteration") <= last)
        self._write()

    def distinct(self, column: str) -> set[Any]:
        return set(self._table[column].unique().to_pylist())

    def _write(self) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(self._table, sink)
        write_aside(self.path, sink.getvalue().to_pybytes())


class Metrics:
    """`metrics.jsonl`: appended and flushed line by line, cut back on resumption."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """Every complete line; a line torn by a crash is the last one and is left out."""
        if not self.path.exists():
            return []
        lines = []
        for text in self.path.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
        return lines

    def append(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()

    def cut(self, last: int) -> dict[str, Any]:
        """Keep the lines whose `iteration` is at most `last`; return the last one kept, or {}."""
        kept: Iterable[dict[str, Any]] = [x for x in self.read() if x["iteration"] <= last]
        kept = list(kept)
        write_aside(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        return kept[-1] if kept else {}
