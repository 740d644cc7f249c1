"""Where each second of a default cell goes.

    python -m benchmarks.cell [OVERRIDES]      the tree of this checkout
    python -m benchmarks.cell --of DIRECTORY   another checkout of Trivet, an older one say

Runs `run.py`'s training loop once, games built before, and adds up CPU seconds by what they were
spent on. Parts are measured where they are called, so a part never holds another.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

CHECKOUT = Path(__file__).resolve().parents[1]
# What is measured: the part, the module, the class ("" for the module itself) and the name.
PLACES = (
    ("playing: model", "policies.policy", "Policy", "hidden"),
    ("playing: model", "policies.policy", "Policy", "packed_hidden"),
    ("playing: model", "policies.policy", "Policy", "logits"),
    ("playing: engine around it", "rollouts.torch_engine", "TorchEngine", "generate"),
    ("playing: engine around it", "rollouts.torch_engine", "TorchEngine", "advance"),
    ("playing: chat and rows", "rollouts.conversation", "Conversation", "observe"),
    ("playing: rest", "rollouts.player", "Player", "_play"),
    ("training: forward, backward, step", "training.step", "Learner", "update"),
    ("training: credit", "training.loop", "", "assign"),
)
WORKERS, START, REST = "playing: games, in workers", "start: imports, weights", "rest: records"


class Parts:
    """CPU seconds of this thread by part; what is inside another part is taken off that one."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inside: list[float] = []

    def watch(self, part: str, call: Callable) -> Callable:
        def watched(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time()
            self._inside.append(0.0)
            try:
                return call(*args, **kwargs)
            finally:
                spent = time.thread_time() - begun
                within = self._inside.pop()
                # The model is called in training too, and belongs to that part there.
                outer = self._inside and part == "playing: model" and self._training
                if not outer:
                    self.seconds[part] += spent - within
                    if self._inside:
                        self._inside[-1] += spent
                elif self._inside:
                    self._inside[-1] += within

        return watched

    def train(self, call: Callable) -> Callable:
        def training(*args: Any, **kwargs: Any) -> Any:
            self._training = True
            try:
                return call(*args, **kwargs)
            finally:
                self._training = False

        return training

    _training = False


def measure(overrides: list[str]) -> dict[str, float]:
    """CPU seconds by part of one run of the checkout that comes first on the path."""
    import importlib

    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    parts = Parts()
    for part, module, owner, name in PLACES:
        holder = importlib.import_module(module)
        holder = getattr(holder, owner) if owner else holder
        if hasattr(holder, name):
            watched = parts.watch(part, getattr(holder, name))
            setattr(holder, name, parts.train(watched) if part.startswith("training") else watched)
    from runs.directory import Run
    from runs.progress import Display
    from runs.store import Store
    from training.loop import train

    root = Path(importlib.import_module("run").__file__).parent  # type: ignore[arg-type]
    with (
        TemporaryDirectory(prefix="trivet-cell-") as folder,
        initialize_config_dir(str(root / "recipes"), version_base="1.3"),
    ):
        paths = [f"paths.runs={folder}", f"paths.cache={root / '.cache'}"]
        config = compose("config", [*paths, *overrides])
        plain: Any = OmegaConf.to_container(config, resolve=True)
        found = Store(Path(folder), root).claim(plain, overrides)
        start = time.process_time()
        children = _Children()
        train(config, Run(found.directory, config, Display()))
        whole = time.process_time() - start
    parts.seconds[START] = start
    parts.seconds[WORKERS] = children.seconds()
    parts.seconds[REST] = whole - sum(
        seconds for part, seconds in parts.seconds.items() if part not in (START, WORKERS)
    )
    return dict(parts.seconds)


class _Children:
    """CPU seconds of the processes that this one starts and waits for."""

    def __init__(self) -> None:
        self._before = self._ended()

    def seconds(self) -> float:
        return self._ended() - self._before

    def _ended(self) -> float:
        times = psutil.Process().cpu_times()
        return times.children_user + times.children_system  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", type=Path, default=CHECKOUT, help="checkout to measure")
    parser.add_argument("overrides", nargs="*", help="as for run.py")
    options = parser.parse_args()
    here = options.of.resolve()
    if here != CHECKOUT:
        sys.path.insert(0, str(here))
        os.chdir(here)
    seconds = measure(options.overrides)
    whole = sum(seconds.values())
    order = [START, *dict.fromkeys(part for part, *_ in PLACES), WORKERS, REST]
    for part in order:
        print(f"{part:36} {seconds.get(part, 0):7.1f} s  {seconds.get(part, 0) / whole:6.1%}")
    print(f"{'whole':36} {whole:7.1f} s CPU; load {os.getloadavg()[0]:.1f}")
    results = CHECKOUT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    (results / f"cell-{here.name}.json").write_text(json.dumps(seconds, indent=2))


if __name__ == "__main__":
    main()
