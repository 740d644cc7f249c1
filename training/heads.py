"""What a policy says of single tokens, read from the states before them.

Logits are the largest thing in training: A tokens of V ids each. They exist for the states that
predict an action token only, and where they are many for a part of those at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Logits held at once. More are computed in parts, and those again in the backward pass.
MOST_LOGITS = 2**24
# exp of less is 0 in float32: what is not allowed at all has no part in an entropy.
LEAST_LOGP = -200.0

Allowed = Sequence["list[int] | None"]


def read_tokens(
    head: Callable[[Tensor], Tensor],
    vocabulary: int,
    states: Tensor,
    place: Tensor,
    targets: Tensor,
    allowed: Allowed | None,
    learn_entropy: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [A] of `targets`[A] and the entropies [A] of what they were drawn from.

    `head` maps states [S, D] to logits [S, V] at the sampling temperature; place[A] says which
    state is before each token. `allowed` has the ids that each *state* may go on with, None for
    all. The entropy has a gradient if `learn_entropy`.
    """

    def read(states: Tensor, place: Tensor, targets: Tensor, allowed: Allowed | None):
        logp = _restricted(head(states), allowed).log_softmax(-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and learn_entropy):
            entropy = -(logp.exp() * logp.clamp(min=LEAST_LOGP)).sum(-1)
        return logp[place, targets], entropy[place]

    step = max(1, MOST_LOGITS // vocabulary)
    if len(states) <= step:
        return read(states, place, targets, allowed)
    parts, order = [], []
    for first in range(0, len(states), step):
        chosen = ((place >= first) & (place < first + step)).nonzero()[:, 0]
        part = slice(first, first + step)
        of_part = None if allowed is None else allowed[part]
        arguments = states[part], place[chosen] - first, targets[chosen], of_part
        order.append(chosen)
        parts.append(
            checkpoint(read, *arguments, use_reentrant=False)
            if torch.is_grad_enabled()
            else read(*arguments)
        )
    back = torch.cat(order).argsort()
    logp, entropy = (torch.cat(column)[back] for column in zip(*parts, strict=True))
    return logp, entropy


def _restricted(logits: Tensor, allowed: Allowed | None) -> Tensor:
    """Logits [S, V] with -inf on the ids that a state could not go on with."""
    if allowed is None:
        return logits
    refused = torch.zeros_like(logits, dtype=torch.bool)
    for place, ids in enumerate(allowed):
        if ids is not None:
            refused[place] = True
            refused[place, ids] = False
    return logits.masked_fill(refused, -torch.inf)
