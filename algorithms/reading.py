"""The keys of `algo`, read one at a time; what is wrong with one is said in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from algorithms.credit import AlgorithmError

TIMES = ("action", "turn", "token")


def read_choice(config: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str) -> str:
    """The word at `algo.<key>`, `default` when absent; AlgorithmError lists the choices."""
    word = config.get(key, default)
    if word not in choices:
        raise AlgorithmError(
            f"algo.{key}={word} must be {', '.join(choices[:-1])} or {choices[-1]}"
        )
    return word


def read_float(
    config: Mapping[str, Any],
    key: str,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> float:
    """The number at `algo.<key>`; AlgorithmError names the key when it is absent or out of range.

    >>> read_float({"gamma": 0.9}, "gamma", least=0.0, most=1.0)
    0.9
    """
    number = config.get(key)
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise AlgorithmError(f"algo.{key}={number} must be a number")
    if not (least <= number <= most and number > above):
        low = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        high = f" and at most {most:g}" if most < math.inf else ""
        raise AlgorithmError(f"algo.{key}={number} must be {low}{high}")
    return float(number)


def read_int(config: Mapping[str, Any], key: str, least: int) -> int:
    """The whole number at `algo.<key>`, at least `least`; AlgorithmError otherwise."""
    number = config.get(key)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise AlgorithmError(f"algo.{key}={number} must be a whole number of at least {least}")
    return number


def read_bool(config: Mapping[str, Any], key: str) -> bool:
    """The switch at `algo.<key>`; AlgorithmError when it is neither true nor false."""
    switch = config.get(key)
    if not isinstance(switch, bool):
        raise AlgorithmError(f"algo.{key}={switch} must be true or false")
    return switch
