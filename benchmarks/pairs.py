"""Compare sides that do the same work: alternating rounds in one session, medians, ratios.

    from benchmarks.pairs import Measured, compare

    compare("stepping", {"ours": ours, "bare": bare}, unit="steps")

A side is called once a round, does its share of work and returns how many units it did. Its clock
is the CPU time (user + system) of this process and of all its descendants, living or ended; wall
time stands beside it. A side that knows better which part of its round counts (set-up left out,
or decoding apart from reading) returns `Measured` instead.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from runs.errors import TrivetError
from runs.facts import git_state, versions

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results"


class MeasureError(TrivetError):
    """A comparison that cannot be made; the message names the side and what to change."""


@dataclass(frozen=True)
class Measured:
    """A round as its side measured it: units of work, and the seconds that count for them."""

    units: float
    cpu_seconds: float
    wall_seconds: float


Side = Callable[[], "float | Measured"]


def tree_cpu_seconds() -> float:
    """CPU seconds, user and system, of this process and its descendants, living or ended.

    A descendant that ended is counted once its parent has waited for it; one that is detached
    (its parent died before it) is lost.
    """
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
        # What ended and was waited for; not known on every system.
        total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def measure(side: Side) -> Measured:
    """One round of one side on the clock."""
    gc.collect()
    cpu, wall = tree_cpu_seconds(), time.perf_counter()
    done = side()
    if isinstance(done, Measured):
        return done
    return Measured(float(done), tree_cpu_seconds() - cpu, time.perf_counter() - wall)


def compare(
    name: str,
    sides: Mapping[str, Side],
    unit: str,
    rounds: int = 5,
    *,
    about: dict[str, Any] | None = None,
    missing: dict[str, str] | None = None,
    results: Path = RESULTS,
) -> dict[str, Any]:
    """Run every side `rounds` times after one warm-up each, print a table, write a JSON file.

    Sides alternate, in order and in reverse by turns, so that drift of the machine falls on all
    of them. Ratios are of neighbours: of the same round, and the median over rounds is shown.

    Args:
        name: of the comparison; the file is `<results>/<name>.json`.
        sides: by name; the first is the one that the others are compared with.
        unit: what the sides count, in the plural ("steps", "generated tokens").
        rounds: measured rounds of each side.
        about: settings worth keeping with the numbers (sizes, dtype, seeds).
        missing: sides that could not run here and why, with the failing command: not compared.
        results: folder of the JSON file.

    Returns:
        What was written: `machine`, `about`, `missing` and, by side, `rounds`, `rate` (units a CPU
        second: median, lower and upper quartile, min, max), `wall_rate`, `ratio` (this side's rate
        over the first's) and `first_over` (the first's over this side's).

    Raises:
        MeasureError: there is no side or no round, or a side did nothing or took no time.
    """
    if not sides or rounds < 1:
        raise MeasureError(f"{name}: give compare() at least one side and one round")
    before = os.getloadavg()
    for side_name, side in sides.items():
        _checked(name, side_name, measure(side))
    taken: dict[str, list[Measured]] = {side: [] for side in sides}
    for number in range(rounds):
        order = list(sides)[:: 1 if number % 2 == 0 else -1]
        for side in order:
            taken[side].append(_checked(name, side, measure(sides[side])))
    first = taken[next(iter(sides))]
    report = {
        "name": name,
        "unit": unit,
        "machine": machine(before),
        "about": about or {},
        "missing": missing or {},
        "sides": {side: _statistics(rows, first) for side, rows in taken.items()},
    }
    write(report, results)
    show(report)
    return report


def machine(load_before: tuple[float, float, float] | None = None) -> dict[str, Any]:
    """What numbers depend on: cores, load (before, and now), threads, versions, commit."""
    torch = sys.modules.get("torch")
    return {
        "cores": os.cpu_count(),
        "cores_allowed": len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else os.cpu_count(),
        "cpu": _cpu_name(),
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "threads": torch.get_num_threads() if torch else None,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "versions": versions(),
        "git": git_state(CHECKOUT),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def write(report: dict[str, Any], results: Path = RESULTS) -> Path:
    """`<results>/<name>.json`, replaced as a whole."""
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{report['name']}.json"
    aside = path.with_suffix(".json.new")
    aside.write_text(json.dumps(report, indent=2) + "\n")
    aside.replace(path)
    return path


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """The report as a table; sides that are missing are named below it."""
    console = console or Console()
    sides = report["sides"]
    first = next(iter(sides))
    facts = report["machine"]
    load = facts["load_before"]
    table = Table(title=report["name"], title_justify="left", caption_justify="left")
    table.caption = (
        f"{facts['cores']} cores ({facts['cores_allowed']} allowed), threads {facts['threads']}, "
        f"load {load[0]:.1f} before and {facts['load_after'][0]:.1f} after; "
        f"spread: quartiles of {len(sides[first]['rounds'])} rounds"
    )
    table.add_column("side")
    for title in (
        f"{report['unit']} / CPU s",
        "spread",
        "/ wall s",
        f"÷ {first}",
        f"{first} ÷ it",
    ):
        table.add_column(title, justify="right")
    for side, row in sides.items():
        rate = row["rate"]
        table.add_row(
            side,
            _short(rate["median"]),
            f"{_short(rate['lower'])} to {_short(rate['upper'])}",
            _short(row["wall_rate"]["median"]),
            f"{row['ratio']['median']:.2f}",
            f"{row['first_over']['median']:.2f}",
        )
    console.print(table)
    for side, reason in report["missing"].items():
        console.print(f"not compared: {side}: {reason}", markup=False)


def _statistics(rows: list[Measured], first: list[Measured]) -> dict[str, Any]:
    rates = [row.units / row.cpu_seconds for row in rows]
    base = [row.units / row.cpu_seconds for row in first]
    return {
        "rounds": [vars(row) for row in rows],
        "rate": spread(rates),
        "wall_rate": spread([row.units / row.wall_seconds for row in rows]),
        "ratio": spread([mine / theirs for mine, theirs in zip(rates, base, strict=True)]),
        "first_over": spread([theirs / mine for mine, theirs in zip(rates, base, strict=True)]),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    lower, _, upper = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {
        "median": statistics.median(values),
        "lower": lower,
        "upper": upper,
        "min": min(values),
        "max": max(values),
    }


def _checked(name: str, side: str, row: Measured) -> Measured:
    if row.units <= 0 or row.cpu_seconds <= 0 or row.wall_seconds <= 0:
        raise MeasureError(
            f"{name}: a round of {side} did {row.units} units in {row.cpu_seconds} CPU seconds and "
            f"{row.wall_seconds} of wall time; give it more work (CPU time has steps of 0.01 s)"
        )
    return row


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cpu_name() -> str | None:
    """The processor as Linux names it; None elsewhere."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return None
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0].split(":", 1)[1].strip() if names else None
