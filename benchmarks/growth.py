"""Does work grow linearly with turns, and memory not at all with iterations?

    python -m benchmarks.growth

Model tokens an episode (read and decoded, as the engine counts them) for 4 to 40 turns of a
scripted environment that never ends, beside what re-reading the history would take, with the
exponents of both; then the memory of a run over 200 iterations. Exits with 1 where a bound breaks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import matplotlib
import numpy as np
import psutil

from benchmarks.ours import Ours
from benchmarks.pairs import CHECKOUT, MeasureError, machine, write
from envs.base import Step, Task

TURNS = (4, 8, 12, 20, 30, 40)
TOKENS = 8
LARGEST_EXPONENT = 1.1
WARM_SHARE = 0.25  # of the iterations, before memory is looked at
LARGEST_GROWTH = 0.03  # of memory, from there to the end
FIGURE = CHECKOUT / "docs" / "figures" / "growth.png"
OPENING = "Your task: find the way out. You stand in a large hall. " * 8


class Endless:
    """A pool whose games answer every command and never end."""

    counts: ClassVar = {"resets_saved": 0, "steps_saved": 0}

    def __init__(self) -> None:
        self._turn: dict[int, int] = {}

    def reset(self, slots: dict[int, Task]) -> dict[int, Step]:
        self._turn.update(dict.fromkeys(slots, 0))
        return {slot: Step(OPENING, "leave") for slot in slots}

    def step(self, actions: dict[int, str]) -> dict[int, Step]:
        for slot in actions:
            self._turn[slot] += 1
        return {
            slot: Step(f"You are in room {self._turn[slot]}. You see a door here.", "leave")
            for slot in actions
        }

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self._turn.pop(slot, None)

    def close(self) -> None:
        self._turn.clear()


def tokens_by_turns(turns: tuple[int, ...] = TURNS) -> dict[str, list[float]]:
    """Model tokens an episode for each number of turns: ours as counted, re-reading as it sums."""
    ours, reread = [], []
    for count in turns:
        settings = [f"env.max_turns={count}", "train.tasks=2", "algo.group_size=4"]
        limits = [f"policy.max_tokens={TOKENS}", "policy.context=2048", "env.tasks.train=4"]
        with Ours([*settings, *limits], pool=Endless()) as side:
            out = side.play()
            if out["turns"] != count * len(side.rows):
                raise MeasureError(f"growth: {out['turns']} turns played, not {count} an episode")
            # The last token of a turn is fed with the next observation, where it is counted.
            decoded = out["units"] - out["turns"]
            ours.append((out["prefilled"] + decoded) / len(side.rows))
            reread.append(sum(map(_reread, side.rows)) / len(side.rows))
    return {"ours": ours, "re-reads": reread}


def exponent(turns: tuple[int, ...], tokens: list[float]) -> float:
    """p of tokens ~ turns^p, by least squares over the logarithms."""
    return float(np.polyfit(np.log(turns), np.log(tokens), 1)[0])


def draw(turns: tuple[int, ...], curves: dict[str, list[float]], path: Path) -> None:
    """Both curves, with their exponents, into a PNG."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, tokens in curves.items():
        label = f"{name}: turns^{exponent(turns, tokens):.2f}"
        axes.plot(turns, tokens, marker="o", label=label)
    axes.set(xlabel="turns of an episode", ylabel="model tokens an episode", ylim=(0, None))
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the date and version: the same numbers give the same file.
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def memory_by_iteration(iterations: int) -> list[tuple[int, float]]:
    """(iterations done, MiB of the run and its workers), twice a second while run.py runs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "run.py", "scale=smoke", "algo=grpo", "env.game=w2-o3-q4"),
            *("env.tasks.train=100", f"train.iterations={iterations}", "eval.every=0"),
            *("train.checkpoint_every=0", "eval.greedy=false", f"paths.runs={folder}"),
        ]
        log = Path(folder, "log")
        samples: list[tuple[int, float]] = []
        with (
            log.open("w") as out,
            subprocess.Popen(command, cwd=CHECKOUT, stdout=out, stderr=subprocess.STDOUT) as child,
        ):
            while child.poll() is None:
                samples.append((_done(Path(folder)), _resident(child.pid)))
                time.sleep(0.5)
        if child.returncode:
            last = log.read_text().strip().splitlines()[-1:]
            raise MeasureError(f"growth: {' '.join(command)} failed: {' '.join(last)}")
    return [(done, size) for done, size in samples if size > 0]


def growth(samples: list[tuple[int, float]], iterations: int) -> dict[str, float]:
    """A line through the samples after the warm-up: MiB an iteration, and as a share to the end.

    Raises MeasureError where there are too few samples for a line.
    """
    start = WARM_SHARE * iterations
    later = [(done, size) for done, size in samples if start <= done < iterations]
    if len({iteration for iteration, _ in later}) < 10:
        raise MeasureError("growth: fewer than 10 samples of memory; take more iterations")
    done, size = np.array(later).T
    slope, level = np.polyfit(done, size, 1)
    first = slope * start + level
    return {
        "mib_an_iteration": float(slope),
        "mib_at_start": float(first),
        "share_to_the_end": float(slope * (iterations - start) / first),
        "samples": len(later),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args(arguments)
    curves = tokens_by_turns()
    exponents = {name: exponent(TURNS, tokens) for name, tokens in curves.items()}
    print(f"{'turns':>10} " + " ".join(f"{count:>8}" for count in TURNS) + "  exponent")
    for name, tokens in curves.items():
        numbers = " ".join(f"{count:>8.0f}" for count in tokens)
        print(f"{name:>10} {numbers}  {exponents[name]:.2f}")
    draw(TURNS, curves, options.figure)
    samples = memory_by_iteration(options.iterations)
    memory = growth(samples, options.iterations)
    report: dict[str, Any] = {
        "name": "growth",
        "machine": machine(),
        "turns": TURNS,
        "tokens": curves,
        "exponents": exponents,
        "memory": {**memory, "by_iteration": samples},
    }
    write(report)
    print(
        f"memory: {memory['mib_at_start']:.0f} MiB after the warm-up, "
        f"{memory['mib_an_iteration'] * 100:+.1f} MiB in 100 iterations, "
        f"{memory['share_to_the_end']:+.1%} to the end of {options.iterations}"
    )
    linear = exponents["ours"] <= LARGEST_EXPONENT
    flat = memory["share_to_the_end"] <= LARGEST_GROWTH
    print(f"exponent at most {LARGEST_EXPONENT}: {'met' if linear else 'NOT met'}")
    print(f"memory grows by at most {LARGEST_GROWTH:.0%}: {'met' if flat else 'NOT met'}")
    return 0 if linear and flat else 1


def _reread(row: Any) -> int:
    """Tokens that feeding the whole history every turn takes for this row."""
    starts = [int((row.turn == turn).nonzero()[0]) for turn in range(int(row.turn.max()) + 1)]
    return sum(starts) + len(starts) * (TOKENS - 1)


def _done(runs: Path) -> int:
    """Iterations in the metrics of the one run below this folder."""
    files = list(runs.glob("*/metrics.jsonl"))
    lines = files[0].read_text().splitlines() if files else []
    whole = [line for line in lines if line.endswith("}")]
    return int(json.loads(whole[-1])["iteration"]) if whole else 0


def _resident(pid: int) -> float:
    total = 0
    try:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_info().rss
    except psutil.NoSuchProcess:
        return 0.0
    return total / 2**20


if __name__ == "__main__":
    sys.exit(main())
