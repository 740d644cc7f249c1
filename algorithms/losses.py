"""Losses over flat action tokens: sums of per-token terms times weights that are given.

A is the number of sampled tokens in a micro-batch. The weights of a *minibatch* (all the tokens
that one gradient step sees) are fixed by `minibatch_weights` before it is cut into micro-batches;
every loss here is then a plain weighted sum, so the gradients of the micro-batches add up to the
minibatch's however it was cut, padded or ordered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.credit import AlgorithmError
from algorithms.divergence import LOG_RATIO_BOUND, kl_k3

FORMS = ("clipped", "cispo")
RATIOS = ("token", "turn", "sequence")
NORMALISATIONS = ("token", "sequence", "constant")


def minibatch_weights(
    weight: Tensor,
    value_at: Tensor,
    episode: Tensor | None = None,
    normalise: str = "token",
    constant: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Weights of a whole minibatch: weight[A], value_at[A] bool -> policy[A], value[A], float32.

    With `Credit.weight` of 1, A tokens and E episodes in the minibatch (episode[A] int64 says
    whose a token is; not needed for "token"):
    "token": 1 / A, so an episode weighs as many tokens as it sampled (token-mean; DAPO, arXiv
    2503.14476, eq. 8). "sequence": 1 / (E · its tokens), so every episode weighs the same, and
    a token of a long one less (GRPO, arXiv 2402.03300, eq. 3). "constant": 1 / (E · `constant`),
    so a token weighs the same in every minibatch (Dr. GRPO, arXiv 2503.20783, eq. 3).
    An episode without variance in its group counts in A and E as any other. The critic's weights
    are equal over the entries where it was read (one a turn at turn level, one a token at token
    level) and 0 elsewhere.

    Raises AlgorithmError when no token has weight: a loss over nothing would be a silent 0.

    >>> minibatch_weights(torch.ones(4), torch.tensor([True, False, True, False]))
    (tensor([0.2500, 0.2500, 0.2500, 0.2500]), tensor([0.5000, 0.0000, 0.5000, 0.0000]))
    >>> whose = torch.tensor([0, 0, 0, 1])
    >>> minibatch_weights(torch.ones(4), torch.zeros(4), whose, "sequence")[0]
    tensor([0.1667, 0.1667, 0.1667, 0.5000])
    >>> minibatch_weights(torch.ones(4), torch.zeros(4), whose, "constant", 10)[0]
    tensor([0.0500, 0.0500, 0.0500, 0.0500])
    """
    policy, total = weight.double(), weight.double().sum()
    if total <= 0:
        raise AlgorithmError("a minibatch has no token to train on; every loss mask is empty")
    if normalise == "token":
        policy = policy / total
    elif episode is None:
        raise AlgorithmError(f"algo.normalise={normalise} needs to know whose every token is")
    else:
        _, of, lengths = _segments(episode, policy)
        share = policy / lengths[of] if normalise == "sequence" else policy / constant
        policy = share / int((lengths > 0).sum())
    value = (value_at.double() / value_at.double().sum().clamp(min=1.0)).float()
    return policy.float(), value


@dataclass(frozen=True)
class Surrogate:
    """How far a policy may move for credit: the keys of `algo` that shape the policy's loss.

    `form` and `ratio` as in `policy_loss`; the ratio may fall to 1 − low and rise to 1 + high;
    `dual` bounds what a token of negative advantage can cost, `behaviour_cap` the correction for
    a generator whose numbers differ from the trainer's.
    """

    low: float = 0.2
    high: float = 0.2
    form: str = "clipped"
    ratio: str = "token"
    dual: float | None = None
    behaviour_cap: float | None = None


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    weights: Tensor,
    rule: Surrogate,
    segment: Tensor | None = None,
    behaviour_logp: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """−Σ w c objective(ρ, A) with ρ = exp(logp − old_logp), token by token: all [A] -> scalar.

    The objective is that of `surrogate`. With `rule.ratio` of "turn" or "sequence", `segment`[A]
    int64 says which tokens share a ratio (`shared_log_ratio`); all tokens of a segment must be in
    the call. `old_logp` is the trainer's own number for the policy that sampled. Where the
    generator's differed, `behaviour_logp` has those, and c are `behaviour_weights`; else c is 1.

    The log-ratio is held within ±20 so that one broken token gives a large number, not an
    infinity times 0. The second result has `clip_fraction`, the weighted share of tokens whose
    gradient (for "cispo": weight) was clipped, `approx_kl`, the k3 estimate of KL(old ‖ new),
    `ratio_mean` and `ratio_square`, the weighted means of ρ and ρ², and `ratio_max`.

    >>> ratio = torch.tensor([1.5, 1.0, 0.5])
    >>> advantages, thirds = torch.tensor([1.0, 1.0, -1.0]), torch.full((3,), 1 / 3)
    >>> loss, stats = policy_loss(ratio.log(), torch.zeros(3), advantages, thirds, Surrogate())
    >>> round(loss.item(), 4)  # -(1.2 + 1.0 - 0.8) / 3
    -0.4667
    >>> round(stats["clip_fraction"], 4), stats["ratio_max"]
    (0.6667, 1.5)
    """
    log_ratio = (logp - old_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    if rule.ratio != "token":
        log_ratio = shared_log_ratio(log_ratio, segment)
    ratio = log_ratio.exp()
    objective, clipped = surrogate(ratio, logp, advantages, rule)
    if rule.behaviour_cap is not None:
        objective = objective * behaviour_weights(old_logp, behaviour_logp, rule.behaviour_cap)
    with torch.no_grad():
        stats = {
            "clip_fraction": (weights * clipped).sum().item(),
            "approx_kl": (weights * kl_k3(old_logp, logp)).sum().item(),
            "ratio_mean": (weights * ratio).sum().item(),
            "ratio_square": (weights * ratio.square()).sum().item(),
            "ratio_max": ratio.max().item(),
        }
    return -(weights * objective).sum(), stats


def surrogate(
    ratio: Tensor, logp: Tensor, advantages: Tensor, rule: Surrogate
) -> tuple[Tensor, Tensor]:
    """What is maximised for each token, and whether it was clipped: all [A] -> [A], bool [A].

    "clipped": min(ρ A, clamp(ρ, 1−low, 1+high) A) (Schulman et al. 2017, arXiv 1707.06347, eq. 7;
    low ≠ high is DAPO's clip-higher, arXiv 2503.14476, eq. 10). `dual` > 1 holds it at dual · A
    or above where A < 0 (Ye et al. 2020, arXiv 1912.09729, eq. 5). "cispo":
    sg(clamp(ρ, 1−low, 1+high)) A logp: the weight is clipped and no token loses its gradient
    (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

    >>> ratio, minus = torch.tensor([0.5, 9.0]), torch.tensor([-1.0, -1.0])
    >>> surrogate(ratio, ratio.log(), minus, Surrogate(dual=3.0))
    (tensor([-0.8000, -3.0000]), tensor([True, True]))
    """
    held = ratio.clamp(1.0 - rule.low, 1.0 + rule.high)
    if rule.form == "cispo":
        return held.detach() * advantages * logp, held != ratio
    plain, kept = ratio * advantages, held * advantages
    objective, clipped = torch.minimum(plain, kept), kept < plain
    if rule.dual is not None:
        floor = rule.dual * advantages
        bounded = (advantages < 0) & (objective < floor)
        objective, clipped = torch.where(bounded, floor, objective), clipped | bounded
    return objective, clipped


def shared_log_ratio(log_ratio: Tensor, segment: Tensor | None) -> Tensor:
    """Mean of the log-ratios of each segment, with every token's own gradient: [A] -> [A].

    sg(mean) + log ρ_t − sg(log ρ_t), a geometric mean of ratios (GSPO, arXiv 2507.18071, eq. 7)
    whose tokens keep their own advantage and gradient (the paper's GSPO-token, eq. 14); for equal
    advantages it is GSPO exactly.

    >>> shared_log_ratio(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 7]))
    tensor([2., 2., 5.])
    """
    if segment is None:
        raise AlgorithmError(
            "algo.ratio=turn or sequence needs to know which tokens belong together"
        )
    fixed = log_ratio.detach()
    sums, of, counts = _segments(segment, torch.ones_like(fixed), fixed)
    return (sums / counts)[of] + (log_ratio - fixed)


def behaviour_weights(old_logp: Tensor, behaviour_logp: Tensor | None, cap: float) -> Tensor:
    """min(π_trainer / π_generator, cap) of each token, without gradient: [A], [A] -> [A].

    Truncated importance sampling (Ionides 2008; for generators whose numbers differ from the
    trainer's: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training").

    >>> behaviour_weights(torch.tensor([0.4, 0.9]).log(), torch.tensor([0.8, 0.3]).log(), 2.0)
    tensor([0.5000, 2.0000])
    """
    if behaviour_logp is None:
        raise AlgorithmError("algo.behaviour_cap needs the generator's log-probabilities")
    gap = (old_logp - behaviour_logp).detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return gap.exp().clamp(max=cap)


def value_loss(
    values: Tensor,
    returns: Tensor,
    weights: Tensor,
    old_values: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """Half the weighted squared error of the critic: all tensors [A] -> scalar.

    (Schulman et al. 2017, arXiv 1707.06347, eq. 9.) `weights` is 0 where the estimator did not
    read the critic, so those entries change nothing. With `clip`, the larger of this error and
    that of a value held within ±clip of the one the estimator read (OpenAI Baselines' PPO;
    Engstrom et al. 2020, arXiv 2005.12729, section 2).

    >>> value_loss(torch.tensor([1.0, 9.0]), torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]))
    tensor(2.)
    >>> one = torch.ones(1)
    >>> value_loss(3 * one, 3 * one, one, old_values=one, clip=0.5)  # held at 1.5: error 1.5
    tensor(1.1250)
    """
    error = (values - returns).square()
    if clip is not None:
        if old_values is None:
            raise AlgorithmError("algo.value_clip needs the values that the estimator read")
        held = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return 0.5 * (weights * error).sum()


def _segments(labels: Tensor, *numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of `numbers` over equal labels: of the last, where each entry belongs, of the first."""
    names, of = labels.unique(return_inverse=True)
    sums = [n.new_zeros(len(names)).index_add_(0, of, n) for n in numbers]
    return sums[-1], of, sums[0]
