"""What a person is told while a run works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from runs.progress import Pace

ROOT = Path(__file__).resolve().parents[2]


def test_time_left_leaves_out_the_first_iteration() -> None:
    pace = Pace(first=0)
    assert pace.left(1, 36, now=640.0) is None  # it built the games
    assert pace.left(2, 36, now=680.0) == 34 * 40.0
    assert pace.left(4, 36, now=760.0) == 32 * 40.0


def test_time_left_of_a_resumed_run_counts_only_what_happened_here() -> None:
    pace = Pace(first=12)
    assert pace.left(13, 36, now=50.0) is None
    assert pace.left(14, 36, now=80.0) == 22 * 30.0


def test_work_goes_on_when_nobody_reads_the_output_any_more(tmp_path: Path) -> None:
    code = (
        "from runs.progress import Display\n"
        "display = Display()\n"
        "for line in range(20_000): display.say(f'line {line}')\n"
        f"open(r'{tmp_path / 'done'}', 'w').write('yes')"
    )
    command = f'"{sys.executable}" -c "$CODE" | head -1'
    shown = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env={"CODE": code}, capture_output=True, text=True
    )
    assert shown.stdout == "line 0\n"
    assert "Error" not in shown.stderr
    assert (tmp_path / "done").read_text() == "yes"
