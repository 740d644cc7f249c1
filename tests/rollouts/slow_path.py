"""Generation as anyone would write it first: the whole history again for every token, alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from policies.policy import Policy
from rollouts.engine import Request, Sample
from rollouts.sampling import Answer, draw_next


class SlowEngine:
    """`Engine` without a cache, a batch, a shared prompt or a schedule.

    `margins[key of the request]` has, for each token, how far the number it was drawn with lay
    from where another token would have been drawn (greedy: by how much the best logit led).
    """

    def __init__(self, policy: Policy, max_tokens: int) -> None:
        self.policy, self.max_tokens = policy, max_tokens
        self.prefilled = 0
        self.margins: dict[tuple[int | str, ...], list[float]] = {}
        self._asked: list[Request] = []

    def add(self, requests: Sequence[Request]) -> None:
        self._asked += requests

    def advance(self, temperature: float) -> dict[int, Sample]:
        asked, self._asked = self._asked, []
        return {request.slot: self._answer(request, temperature) for request in asked}

    def release(self, slots: Sequence[int]) -> None:
        pass

    @torch.no_grad()
    def _answer(self, request: Request, temperature: float) -> Sample:
        answer = Answer(request, self.max_tokens, self.policy.stop_ids)
        ids, margins = list(request.prompt), self.margins.setdefault(request.key, [])
        while True:
            row = torch.tensor([ids])
            positions = torch.arange(len(ids))[None]
            hidden = self.policy.hidden(row, positions, torch.ones_like(row).bool())[:, -1]
            self.prefilled += len(ids)
            logits = self.policy.logits(hidden)
            margins.append(_margin(logits[0], answer.uniform, temperature))
            values = self.policy.values(hidden).tolist() if self.policy.shares_trunk else [None]
            (token,), (logp,) = draw_next([answer], logits, temperature)
            sample = answer.take(token, logp, values[0])
            if sample is not None:
                return sample
            ids.append(token)


def _margin(logits: torch.Tensor, uniform: float, temperature: float) -> float:
    if temperature == 0:
        best, second = logits.topk(2).values.tolist()
        return best - second
    edges = (logits.double() / temperature).softmax(-1).cumsum(-1)
    return float((edges - uniform).abs().min())
