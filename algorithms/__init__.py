"""Algorithms as pure functions: episodes in, credit out; action tokens in, a loss out.

A new algorithm is one file here that defines `ALGORITHM`, and one YAML in recipes/algo/.
This package imports torch and nothing of ours.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from typing import Any

from algorithms.base import ActionTokens, Algorithm, Credit, EpisodeCredit
from algorithms.credit import AlgorithmError
from algorithms.losses import minibatch_weights
from algorithms.sft import sft_loss

__all__ = [
    "ActionTokens",
    "Algorithm",
    "AlgorithmError",
    "Credit",
    "EpisodeCredit",
    "algorithm_names",
    "make_algorithm",
    "minibatch_weights",
    "sft_loss",
]

SHARED_MODULES = ("base", "credit", "divergence", "gradient", "group", "losses", "reading")


def algorithm_names() -> list[str]:
    """Names that `algo.name` may take: the files of this folder that define an algorithm.

    >>> algorithm_names()[:3]
    ['cispo', 'dapo', 'dr_grpo']
    """
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if name not in SHARED_MODULES)


def make_algorithm(config: Mapping[str, Any], faults: Collection[str] = ()) -> Algorithm:
    """The algorithm that the `algo` group of a config describes.

    `faults` are the switches of `compat` that are on; "group_of_one" and "cut_returns" are read.

    Raises AlgorithmError, with the key in its one sentence, for an unknown name, a granularity
    or truncation that the algorithm does not take, a group too small for it, a number out of
    range, or a key that has no meaning for it.

    >>> make_algorithm({"name": "none"}).plays
    False
    """
    name = config.get("name")
    if name not in algorithm_names():
        raise AlgorithmError(
            f"algo.name={name} is not an algorithm; choose one of {', '.join(algorithm_names())}"
        )
    return importlib.import_module(f"algorithms.{name}").ALGORITHM(config, faults)
