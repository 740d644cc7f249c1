"""Losses over flat action tokens: sums of per-token terms times weights that are given.

A is the number of sampled tokens in a micro-batch. The weights of a *minibatch* (all the tokens
that one gradient step sees) are normalised to sum to 1 by `minibatch_weights` before it is cut
into micro-batches; every loss here is then a plain weighted sum, so the gradients of the
micro-batches add up to the minibatch's however it was cut, padded or ordered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algorithms.credit import AlgorithmError

LOG_RATIO_BOUND = 20.0


def minibatch_weights(weight: Tensor, value_at: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of a whole minibatch: weight[A], value_at[A] bool -> policy[A], value[A], float32.

    Token-mean: with `Credit.weight` of 1 each token weighs 1/A, so an episode weighs in
    proportion to the tokens it sampled, and an episode without variance in its group still
    counts in A. The critic's weights are equal over the entries where it was read (one a turn
    at turn level, one a token at token level) and 0 elsewhere.

    Raises AlgorithmError when no token has weight: a loss over nothing would be a silent 0.

    >>> minibatch_weights(torch.ones(4), torch.tensor([True, False, True, False]))
    (tensor([0.2500, 0.2500, 0.2500, 0.2500]), tensor([0.5000, 0.0000, 0.5000, 0.0000]))
    """
    total = weight.double().sum()
    if total <= 0:
        raise AlgorithmError("a minibatch has no token to train on; every loss mask is empty")
    policy = (weight.double() / total).float()
    value = (value_at.double() / value_at.double().sum().clamp(min=1.0)).float()
    return policy, value


def policy_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, weights: Tensor, clip: float
) -> tuple[Tensor, dict[str, float]]:
    """Clipped surrogate, token by token: logp, old_logp, advantages, weights, all [A] -> scalar.

    −Σ w min(ρ A, clamp(ρ, 1−clip, 1+clip) A) with ρ = exp(logp − old_logp)
    (Schulman et al. 2017, arXiv 1707.06347, eq. 7). The log-ratio is held within ±20 so that
    one broken token gives a large number, not an infinity times 0.

    The second result has `clip_fraction`, the weighted share of tokens whose gradient the clip
    removed, `approx_kl`, the k3 estimate of KL(old ‖ new), and `ratio_max`.

    >>> ratio = torch.tensor([1.5, 1.0, 0.5])
    >>> advantages, thirds = torch.tensor([1.0, 1.0, -1.0]), torch.full((3,), 1 / 3)
    >>> loss, stats = policy_loss(ratio.log(), torch.zeros(3), advantages, thirds, clip=0.2)
    >>> round(loss.item(), 4)  # -(1.2 + 1.0 - 0.8) / 3
    -0.4667
    >>> round(stats["clip_fraction"], 4), stats["ratio_max"]
    (0.6667, 1.5)
    """
    log_ratio = (logp - old_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip) * advantages
    loss = -(weights * torch.minimum(unclipped, clipped)).sum()
    with torch.no_grad():
        stats = {
            "clip_fraction": (weights * (clipped < unclipped)).sum().item(),
            "approx_kl": (weights * kl_k3(old_logp, logp)).sum().item(),
            "ratio_max": ratio.max().item(),
        }
    return loss, stats


def value_loss(values: Tensor, returns: Tensor, weights: Tensor) -> Tensor:
    """Half the weighted squared error of the critic: values, returns, weights, all [A] -> scalar.

    (Schulman et al. 2017, arXiv 1707.06347, eq. 9, unclipped.) `weights` is 0 where the
    estimator did not read the critic, so those entries change nothing.

    >>> value_loss(torch.tensor([1.0, 9.0]), torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]))
    tensor(2.)
    """
    return 0.5 * (weights * (values - returns).square()).sum()


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


def kl_k3(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """KL(policy ‖ reference) estimated at tokens of the policy: logp[A], reference_logp[A] -> [A].

    q − log q − 1 with q = reference / policy: unbiased and never negative (Schulman,
    "Approximating KL divergence", 2020, k3; Shao et al. 2024, arXiv 2402.03300, eq. 4).
    In a loss its expected gradient is that of KL(reference ‖ policy).

    >>> kl_k3(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.5, 1.0]).log())  # 0, 1 - log 2
    tensor([0.0000, 0.3069])
    """
    log_q = (reference_logp - logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return log_q.expm1() - log_q
