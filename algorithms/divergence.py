"""Entropy and KL estimates of single tokens, and what their gradients are.

Three estimates of KL(policy ‖ reference) at tokens of the policy (Schulman, "Approximating KL
divergence", 2020). They agree in expectation up to second order and differ in their gradients,
which is what a training run feels:

| estimate | in the loss | in the reward |
|---|---|---|
| k1 | nothing: its expected gradient is 0 | KL(policy ‖ reference), unbiased |
| k2 | KL(policy ‖ reference) | of no divergence |
| k3 | KL(reference ‖ policy) | of no divergence |
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0

# (where the KL enters, which estimate) -> the divergence whose gradient that is, in expectation.
KL_GRADIENT = {
    ("loss", "k2"): "KL(policy || reference)",
    ("loss", "k3"): "KL(reference || policy)",
    ("reward", "k1"): "KL(policy || reference)",
}


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each token's distribution in nats: logits[A, V] -> [A].

    `logits` are divided by the sampling temperature already; -inf marks ids that were not
    allowed, which then have no part in it.

    >>> entropy(torch.tensor([[0.0, 0.0, -torch.inf]]))
    tensor([0.6931])
    """
    logp = torch.log_softmax(logits, dim=-1)
    probability = logp.exp()
    return -(probability * logp.masked_fill(probability == 0, 0.0)).sum(-1)


def kl_k1(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """KL(policy ‖ reference) as the plain difference: logp[A], reference_logp[A] -> [A].

    log policy − log reference: unbiased, of either sign. Its own gradient is ∇ log policy, which
    is 0 in expectation: in a loss it pulls nowhere. Taken off the reward it gives the policy
    gradient of KL(policy ‖ reference).

    >>> kl_k1(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.5, 1.0]).log())
    tensor([ 0.0000, -0.6931])
    """
    return logp - reference_logp


def kl_k2(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Half the squared difference: logp[A], reference_logp[A] -> [A].

    Biased by third order, never negative. In a loss its expected gradient is that of
    KL(policy ‖ reference).

    >>> kl_k2(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.5, 1.0]).log())
    tensor([0.0000, 0.2402])
    """
    return 0.5 * (logp - reference_logp).square()


def kl_k3(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """KL(policy ‖ reference) without negative values: logp[A], reference_logp[A] -> [A].

    q − log q − 1 with q = reference / policy: unbiased and never negative (Schulman,
    "Approximating KL divergence", 2020, k3; Shao et al. 2024, arXiv 2402.03300, eq. 4).
    In a loss its expected gradient is that of KL(reference ‖ policy).

    >>> kl_k3(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.5, 1.0]).log())  # 0, 1 - log 2
    tensor([0.0000, 0.3069])
    """
    log_q = (reference_logp - logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return log_q.expm1() - log_q


KL_ESTIMATES = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
