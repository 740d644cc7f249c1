"""What a person is told while a run works."""

from __future__ import annotations

from runs.progress import Pace


def test_time_left_leaves_out_the_first_iteration() -> None:
    pace = Pace(first=0)
    assert pace.left(1, 36, now=640.0) is None  # it built the games
    assert pace.left(2, 36, now=680.0) == 34 * 40.0
    assert pace.left(4, 36, now=760.0) == 32 * 40.0


def test_time_left_of_a_resumed_run_counts_only_what_happened_here() -> None:
    pace = Pace(first=12)
    assert pace.left(13, 36, now=50.0) is None
    assert pace.left(14, 36, now=80.0) == 22 * 30.0
