"""RLOO: the return against the mean of the other members of the group."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from algorithms.credit import AlgorithmError, centre
from algorithms.group import GroupBaseline


def rloo_advantages(returns: Tensor) -> Tensor:
    """Returns against the leave-one-out mean: returns[n] -> [n].

    A_i = R_i − Σ_{j≠i} R_j / (n − 1) = n / (n − 1) · (R_i − mean R)
    (Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al.
    2024, arXiv 2402.14740, the RLOO estimator).

    Raises AlgorithmError for a group of fewer than two.

    >>> rloo_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]))
    tensor([ 0.6667, -0.6667, -0.6667,  0.6667])
    """
    n = len(returns)
    if n < 2:
        raise AlgorithmError("RLOO cannot score a group of one; set algo.group_size to 2 or more")
    return (centre(returns) * n / (n - 1)).to(returns.dtype)


class RLOO(GroupBaseline):
    """Ahmadian et al. 2024 (arXiv 2402.14740) with the clipped surrogate.

    With one epoch and one minibatch the ratio is 1 and the gradient is REINFORCE's, as in the
    paper; with more, the clip bounds how far old samples are trusted.
    """

    name: ClassVar[str] = "rloo"

    def compare(self, returns: Tensor) -> Tensor:
        return rloo_advantages(returns)


ALGORITHM = RLOO
