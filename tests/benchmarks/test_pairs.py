"""`benchmarks.pairs`: the clock sees children, rounds alternate, ratios are of neighbours."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.pairs import Measured, MeasureError, compare, measure, spread, tree_cpu_seconds

BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


def test_rounds_alternate_after_one_warm_up_each(tmp_path: Path) -> None:
    calls: list[str] = []

    def side(name: str):
        def run() -> Measured:
            calls.append(name)
            return Measured(1, 1, 1)

        return run

    compare("order", {"a": side("a"), "b": side("b")}, "units", rounds=3, results=tmp_path)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"


def test_ratios_are_medians_over_rounds_of_neighbours(tmp_path: Path) -> None:
    """A machine that slows down threefold midway changes rates, not ratios."""
    paces = {name: iter([1, 1, 1, 3, 3, 3]) for name in ("ours", "theirs")}

    def side(name: str, seconds: float):
        return lambda: Measured(60, seconds * next(paces[name]), 2.0)

    sides = {"ours": side("ours", 1.0), "theirs": side("theirs", 4.0)}
    report = compare("drift", sides, "tokens", rounds=5, results=tmp_path)
    theirs = report["sides"]["theirs"]
    assert theirs["ratio"]["median"] == pytest.approx(0.25)
    assert theirs["first_over"]["median"] == pytest.approx(4)
    assert report["sides"]["ours"]["ratio"]["median"] == 1
    assert report["sides"]["ours"]["rate"]["max"] == 60
    assert report["sides"]["ours"]["wall_rate"]["median"] == 30


def test_the_file_holds_what_is_needed_to_judge_the_numbers(tmp_path: Path, capsys) -> None:
    compare(
        "facts",
        {"ours": lambda: Measured(10, 1, 1)},
        "steps",
        about={"games": 16},
        missing={"peer": "python peer.py: no such module"},
        results=tmp_path,
    )
    written = json.loads((tmp_path / "facts.json").read_text())
    assert written["about"] == {"games": 16}
    assert written["machine"]["cores"] >= 1 and "torch" in written["machine"]["versions"]
    assert len(written["machine"]["load_before"]) == 3 and "commit" in written["machine"]["git"]
    assert len(written["sides"]["ours"]["rounds"]) == 5
    assert not list(tmp_path.glob("*.new"))
    printed = capsys.readouterr().out
    assert "steps / CPU s" in printed
    assert "not compared: peer: python peer.py: no such module" in printed


def burn(seconds: float) -> float:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return 7


def test_the_clock_is_of_cpu_not_of_wall() -> None:
    slept = measure(lambda: (time.sleep(0.3), burn(0.1))[1])
    assert slept.units == 7
    assert 0.05 <= slept.cpu_seconds < 0.3 <= slept.wall_seconds


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "living"])
def test_the_clock_sees_children(ends: bool) -> None:
    before = tree_cpu_seconds()
    code = BURN.format(0.4) + "print('burnt', flush=True)\n" + ("" if ends else "input()\n")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        if ends:
            child.wait()
        spent = tree_cpu_seconds() - before
        child.stdin.close()
    assert 0.35 <= spent < 5


def test_work_that_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="at least one side"):
        compare("none", {}, "steps", results=tmp_path)
    with pytest.raises(MeasureError, match="at least one side and one round"):
        compare("none", {"a": lambda: 1}, "steps", rounds=0, results=tmp_path)
    with pytest.raises(MeasureError, match="a round of idle did 0"):
        compare("idle", {"idle": lambda: Measured(0, 1, 1)}, "steps", results=tmp_path)
    with pytest.raises(MeasureError, match="give it more work"):
        compare("fast", {"fast": lambda: Measured(1, 0, 1)}, "steps", results=tmp_path)
    assert not list(tmp_path.iterdir())


def test_spread_of_one_and_of_many() -> None:
    assert spread([2.0]) == {"median": 2, "lower": 2, "upper": 2, "min": 2, "max": 2}
    five = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert five == {"median": 3, "lower": 2, "upper": 4, "min": 1, "max": 5}
