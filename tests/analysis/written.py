"""Finished runs, written as a run leaves them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

TYPE = "w2-o3-q4"


def write_run(
    root: Path,
    algo: str,
    reward: str,
    seed: int,
    wins: Mapping[tuple[int, float], int | Mapping[str, int]],
    n: int | Mapping[str, int] = 10,
    demos: int = 0,
    **env: Any,
) -> Path:
    """A run that won `wins[iteration, temperature]` of n games, each a number or one a type."""
    directory = root / f"{algo}-{reward}-{seed}"
    directory.mkdir()
    shown = {"show_admissible": False, "constrain": False, "history_window": None}
    config = {
        "seed": seed, "algo": {"name": algo}, "reward": {"name": reward}, "env": shown | env,
        "eval": {"suites": ["test"]}, "sft": {"demos": demos}, "run": {"accept_stale": bool(seed)},
    }  # fmt: skip
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    games = n if isinstance(n, Mapping) else {TYPE: n}
    lines = [
        {
            "iteration": iteration, "suite": "test", "task_id": f"{kind}-{task}",
            "task_type": kind, "sample": 0, "temperature": temperature,
            "ended": "won" if task < won else "lost", "won": task < won,
            "return": float(task < won), "turns": 4,
        }
        for (iteration, temperature), counts in wins.items()
        for kind, won in (counts if isinstance(counts, Mapping) else {TYPE: counts}).items()
        for task in range(games[kind])
    ]  # fmt: skip
    pd.DataFrame(lines).to_parquet(directory / "eval.parquet")
    last = {"episodes": 1280, "tokens_generated": 5, "seconds": 61.2, "cpu_seconds": 59.9}
    (directory / "metrics.jsonl").write_text(json.dumps(last) + "\n")
    return directory
