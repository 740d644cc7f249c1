"""The obvious way to score rows, that the fast one must equal: every row alone, nothing shared,
all logits, transformers' own attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from policies.policy import Policy
from training.batch import PlacedRow, Scores


def slow_score(
    policy: Policy,
    rows: Sequence[PlacedRow],
    temperature: float,
    want: frozenset[str] = frozenset(),
    model: nn.Module | None = None,
) -> Scores:
    """What `training.batch.score` gives, without packing."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for placed in rows:
        row = placed.row
        ids, mask = row.ids[None], torch.ones(1, len(row.ids), dtype=torch.bool)
        positions = torch.arange(len(row.ids))[None]
        hidden = policy.hidden(ids, positions, mask, model=model)[0]
        logits = policy.logits(hidden, model).float() / temperature
        at = row.action.nonzero()[:, 0]
        choices = iter(row.allowed or [])
        for place in at.tolist():
            logit = logits[place - 1]
            if row.allowed is not None:
                allowed = torch.zeros_like(logit, dtype=torch.bool)
                allowed[next(choices)] = True
                logit = logit.masked_fill(~allowed, -torch.inf)
            logp = logit - logit.logsumexp(0)
            possible = logp[logp > -torch.inf]
            value = torch.zeros(())
            if "values" in want:
                trunk = policy.critic_trunk
                read = (
                    hidden if trunk is None else policy.hidden(ids, positions, mask, model=trunk)[0]
                )
                value = policy.values(read[place - 1])
            spread = -(possible.exp() * possible).sum()
            parts.append((logp[row.ids[place]], spread, value))
    logp, entropy, values = (torch.stack(column) for column in zip(*parts, strict=True))
    return Scores(logp, entropy, values if "values" in want else None)
