"""SFT: maximum likelihood of demonstrated actions. Plays nothing."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from algorithms.base import ActionTokens, Algorithm


def sft_loss(logp: Tensor, weights: Tensor) -> Tensor:
    """Weighted negative log-likelihood of action tokens: logp[A], weights[A] -> scalar.

    −Σ w log π(a) (Ouyang et al. 2022, arXiv 2203.02155, section 3.5); observation and prompt
    tokens are not among the A. Weights come from `minibatch_weights`, as for every loss.

    >>> sft_loss(torch.tensor([-1.0, -3.0]), torch.tensor([0.5, 0.5]))
    tensor(2.)
    """
    return -(weights * logp).sum()


class SFT(Algorithm):
    """Supervised fine-tuning on demonstrations; `advantages` and `old_logp` are not read."""

    name: ClassVar[str] = "sft"

    def loss(self, batch: ActionTokens) -> tuple[Tensor, dict[str, float]]:
        """`sft_loss` of the batch and its value; both add up over micro-batches."""
        total = sft_loss(batch.logp, batch.weights)
        return total, {"sft_loss": total.item()}


ALGORITHM = SFT
