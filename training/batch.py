"""Rows with their credit, micro-batches under a token budget, and the forward pass they share.

Rows are packed, never padded, and what comes back is flat over action tokens, in the order of the
rows: no statistic and no loss can see how they were laid out (design, rules 5 and 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from policies.attention import attend_spans
from policies.policy import Policy
from rollouts.types import Episode, Row
from runs.errors import InvariantError
from training.blind import blind_states
from training.heads import read_tokens
from training.pack import Pack, as_key, cut, pack


@dataclass
class PlacedRow:
    """One row, and where its A action tokens stand among the sampled tokens of the whole batch.

    index[A] int64: offset of the episode plus the token's place in it, counted in turn order.
    length: tokens that must be read to predict the last action token.
    """

    row: Row
    episode: int
    index: Tensor
    length: int

    @property
    def read(self) -> Tensor:
        """The ids before the last action token: nothing is predicted from what follows."""
        return self.row.ids[: self.length]


@dataclass
class Scores:
    """What the policy says of A action tokens, each read from the state *before* the token.

    logp[A] and entropy[A] at the sampling temperature, over the allowed ids where decoding was
    constrained; values[A] of the critic when asked for.
    """

    logp: Tensor
    entropy: Tensor
    values: Tensor | None = None


def lay_out(episodes: Sequence[Episode]) -> list[list[PlacedRow]]:
    """Placed rows of every episode, indexed into the concatenation of all their sampled tokens.

    Raises `InvariantError` unless every sampled token is in exactly one row.
    """
    laid_out, offset = [], 0
    for place, episode in enumerate(episodes):
        starts = torch.tensor([0] + [len(turn.ids) for turn in episode.turns]).cumsum(0)
        seen = torch.zeros(int(starts[-1]), dtype=torch.long)
        rows = []
        for row in episode.rows:
            turns = row.turn[row.action].contiguous()
            if not len(turns):
                continue
            index = starts[turns] + torch.arange(len(turns)) - torch.searchsorted(turns, turns)
            seen.index_add_(0, index, torch.ones_like(index))
            length = int(row.action.nonzero()[-1])
            rows.append(PlacedRow(row, place, index + offset, length))
        if not bool((seen == 1).all()):
            raise InvariantError(
                f"task {episode.task.id}, member {episode.member}: a sampled token is in no row "
                "or in several; every sampled token is trained in exactly one row"
            )
        offset += len(seen)
        laid_out.append(rows)
    return laid_out


def micro_batches(
    rows: Sequence[PlacedRow], budget: int, whole_episodes: bool = False
) -> list[list[PlacedRow]]:
    """Rows sorted by their ids, cut so that at most `budget` tokens are computed at a time.

    Sorted, rows that begin alike are neighbours, and what they have in common counts once. A row
    longer than the budget is a micro-batch of its own. `whole_episodes` keeps the rows of an
    episode together, for a loss in which its tokens share a number.
    """
    units: dict[int, list[PlacedRow]] = {}
    for at in _sorted([placed.read.numpy() for placed in rows]):
        units.setdefault(rows[at].episode if whole_episodes else at, []).append(rows[at])
    ids = [[placed.read.numpy() for placed in unit] for unit in units.values()]
    flat = list(units.values())
    return [[row for at in part for row in flat[at]] for part in cut(ids, budget)]


def _sorted(ids: Sequence[np.ndarray]) -> list[int]:
    keys = [as_key(one) for one in ids]
    return sorted(range(len(ids)), key=keys.__getitem__)


def segments(rows: Sequence[PlacedRow], ratio: str) -> Tensor:
    """Which action tokens share a probability ratio: equal numbers [A] for those that do.

    `ratio` is "sequence" (the tokens of an episode) or "turn".
    """
    most = 1 + max(int(placed.row.turn.max()) for placed in rows)
    labels = []
    for placed in rows:
        turns = placed.row.turn[placed.row.action]
        labels.append(placed.episode * most + (turns if ratio == "turn" else 0 * turns))
    return torch.cat(labels)


def score(
    policy: Policy,
    rows: Sequence[PlacedRow],
    temperature: float,
    want: frozenset[str] = frozenset(),
    blind: bool = False,
    reference: bool = False,
) -> Scores:
    """One forward pass over a micro-batch; of the policy, or of its reference.

    The head sees the states before action tokens only, never all of them. `want` may name
    "values" and "entropy" (then with gradient; else it is measured only). `blind`
    (compat.prompt_attention) hides all but the last tokens of every prompt, one a row.
    """
    lay = blind_states if blind else _packed_states
    with policy.referring(reference) as model:
        states, place = lay(policy, rows, model)
        allowed = _allowed(rows)
        if allowed is not None:  # tokens of one state need not have the same choice
            states, place = states[place], torch.arange(len(place), device=states.device)
        targets = torch.cat([placed.row.ids[placed.row.action] for placed in rows])
        logp, spread = read_tokens(
            lambda part: policy.logits(part, model).float().div_(temperature),
            policy.vocabulary,
            states,
            place,
            targets.to(states.device),
            allowed,
            "entropy" in want,
        )
    scores = Scores(logp, spread)
    if "values" in want:
        trunk = policy.critic_trunk
        if trunk is not None:
            states, place = lay(policy, rows, trunk)
        scores.values = policy.values(states)[place].float()
    return scores


def read_values(policy: Policy, rows: Sequence[PlacedRow], budget: int, total: int) -> Tensor:
    """Values [total] of the critic before every sampled token, without gradient."""
    values = torch.zeros(total)
    with torch.no_grad():
        for batch in micro_batches(rows, budget):
            states, place = _packed_states(policy, batch, policy.critic_trunk or policy.model)
            index = torch.cat([placed.index for placed in batch])
            values[index] = policy.values(states)[place].float().cpu()
    return values


def read_final_values(policy: Policy, prompts: Sequence[list[int]], budget: int) -> list[float]:
    """The critic's value after the last token of each prompt, without gradient."""
    values = [0.0] * len(prompts)
    ids = [torch.tensor(prompt) for prompt in prompts]
    order = _sorted([one.numpy() for one in ids])
    with torch.no_grad():
        for part in cut([[ids[at].numpy()] for at in order], budget):
            chosen = [order[at] for at in part]
            packed = pack([ids[at] for at in chosen])
            states = _hidden(policy, packed, policy.critic_trunk or policy.model)
            last = torch.stack([where[-1] for where in packed.where]).to(states.device)
            for at, value in zip(chosen, policy.values(states[last]).tolist(), strict=True):
                values[at] = value
    return values


def read_logp(
    policy: Policy,
    rows: Sequence[PlacedRow],
    temperature: float,
    budget: int,
    total: int,
    reference: bool = False,
) -> Tensor:
    """Log-probabilities [total] of every sampled token, without gradient; of the policy that is
    trained, or the reference."""
    logp = torch.zeros(total)
    with torch.no_grad():
        for batch in micro_batches(rows, budget):
            scores = score(policy, batch, temperature, reference=reference)
            logp[torch.cat([placed.index for placed in batch])] = scores.logp.float().cpu()
    return logp


def _packed_states(
    policy: Policy, rows: Sequence[PlacedRow], model: nn.Module
) -> tuple[Tensor, Tensor]:
    """States [S, D] from which action tokens are predicted, and place[A], which state of each."""
    packed = pack([placed.read for placed in rows])
    before = [
        where[placed.row.action.nonzero()[:, 0] - 1]
        for placed, where in zip(rows, packed.where, strict=True)
    ]
    at, place = torch.cat(before).unique(return_inverse=True)
    states = _hidden(policy, packed, model)
    return states[at.to(states.device)], place.to(states.device)


def _hidden(policy: Policy, packed: Pack, model: nn.Module) -> Tensor:
    device = next(model.parameters()).device
    attend = attend_spans(packed.spans)
    return policy.packed_hidden(packed.ids.to(device), packed.positions.to(device), attend, model)


def _allowed(rows: Sequence[PlacedRow]) -> list[list[int] | None] | None:
    """The allowed ids of every action token, or None when nothing was constrained."""
    if all(placed.row.allowed is None for placed in rows):
        return None
    allowed: list[list[int] | None] = []
    for placed in rows:
        count = len(placed.index)
        allowed += [None] * count if placed.row.allowed is None else placed.row.allowed
    return allowed
