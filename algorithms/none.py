"""No algorithm: the policy is evaluated as it is."""

from __future__ import annotations

from typing import ClassVar

from algorithms.base import Algorithm


class NoAlgorithm(Algorithm):
    """Evaluates only; asking for credit or a loss raises AlgorithmError."""

    name: ClassVar[str] = "none"


ALGORITHM = NoAlgorithm
