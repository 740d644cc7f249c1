"""GRPO: the return against the group's mean, in units of its standard deviation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from torch import Tensor

from algorithms.credit import EPS, AlgorithmError, centre
from algorithms.gradient import PolicyGradient
from algorithms.group import GroupBaseline
from algorithms.reading import read_bool


def grpo_advantages(returns: Tensor, std_normalise: bool = True) -> Tensor:
    """Standardised returns of a group: returns[n] -> [n].

    A_i = (R_i − mean R) / (std R + EPS) (Shao et al. 2024, arXiv 2402.03300, section 4.1.2);
    without `std_normalise` only the mean comes off. The standard deviation is the sample's
    (n − 1), which the paper leaves open. EPS makes a group without variance exactly 0 and a
    difference of 1e-9 small instead of ±1.

    Raises AlgorithmError for a group of fewer than two.

    >>> grpo_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), std_normalise=False)
    tensor([ 0.5000, -0.5000, -0.5000,  0.5000])
    >>> grpo_advantages(torch.tensor([1.0, 3.0, 5.0]))  # sample std 2
    tensor([-1.0000,  0.0000,  1.0000])
    """
    if len(returns) < 2:
        raise AlgorithmError("GRPO cannot score a group of one; set algo.group_size to 2 or more")
    centred = centre(returns)
    if std_normalise:
        centred = centred / ((centred.square().sum() / (len(returns) - 1)).sqrt() + EPS)
    return centred.to(returns.dtype)


class GRPO(GroupBaseline):
    """Shao et al. 2024 (arXiv 2402.03300), with the clipped surrogate."""

    name: ClassVar[str] = "grpo"
    keys: ClassVar[frozenset[str]] = PolicyGradient.keys | {"std_normalise"}

    def __init__(self, config: Mapping[str, Any], faults: Collection[str] = ()) -> None:
        super().__init__(config, faults)
        self.std_normalise = read_bool(config, "std_normalise")

    def compare(self, returns: Tensor) -> Tensor:
        return grpo_advantages(returns, self.std_normalise)


ALGORITHM = GRPO
