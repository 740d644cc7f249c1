"""`benchmarks.growth`: the fits can fail."""

from __future__ import annotations

import pytest

from benchmarks.growth import LARGEST_EXPONENT, LARGEST_GROWTH, TURNS, exponent, growth
from benchmarks.pairs import MeasureError


def test_linear_and_quadratic_work_are_told_apart() -> None:
    assert exponent(TURNS, [120 + 25 * k for k in TURNS]) < LARGEST_EXPONENT
    assert exponent(TURNS, [25.0 * k for k in TURNS]) == pytest.approx(1)
    assert exponent(TURNS, [120 * k + 12 * k * k for k in TURNS]) > LARGEST_EXPONENT


def test_a_leak_shows_and_the_warm_up_does_not() -> None:
    warm = [(k, 300.0 + 5 * k) for k in range(50)]
    flat = warm + [(k, 550.0 + (k % 2)) for k in range(50, 200)]
    leak = warm + [(k, 550.0 + 0.2 * (k - 50)) for k in range(50, 200)]
    assert abs(growth(flat, 200)["share_to_the_end"]) < 0.001
    assert growth(leak, 200)["share_to_the_end"] > LARGEST_GROWTH
    assert growth(leak, 200)["mib_an_iteration"] == pytest.approx(0.2)
    with pytest.raises(MeasureError, match="fewer than 10"):
        growth(warm, 200)
