"""Rows with their credit, micro-batches under a token budget, and the forward pass they share.

Padding exists only inside `score`: what comes back is flat over action tokens, in the order of
the rows, so no statistic and no loss can see it (design, rules 5 and 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.divergence import entropy
from policies.policy import Policy
from rollouts.types import Episode, Row
from runs.errors import InvariantError


@dataclass
class PlacedRow:
    """One row, and where its A action tokens stand among the sampled tokens of the whole batch.

    index[A] int64: offset of the episode plus the token's place in it, counted in turn order.
    length: tokens that must be read to predict the last action token, counted before padding.
    """

    row: Row
    episode: int
    index: Tensor
    length: int


@dataclass
class Scores:
    """What the policy says of A action tokens, each read from the state *before* the token.

    logp[A] and entropy[A] at the sampling temperature, over the allowed ids where decoding was
    constrained; values[A] of the critic and reference[A] log-probabilities when asked for.
    """

    logp: Tensor
    entropy: Tensor
    values: Tensor | None = None
    reference: Tensor | None = None


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
    """Rows sorted by length, cut so that rows x longest row stays within `budget` tokens.

    A row longer than the budget is a micro-batch of its own. `whole_episodes` keeps the rows of
    an episode together, for a loss in which its tokens share a number.
    """
    units: dict[int, list[PlacedRow]] = {}
    for place, placed in enumerate(rows):
        units.setdefault(placed.episode if whole_episodes else place, []).append(placed)

    def size(unit: list[PlacedRow]) -> tuple[int, int, int]:
        return max(s.length for s in unit), unit[0].row.group, unit[0].row.member

    batches: list[list[PlacedRow]] = []
    for unit in sorted(units.values(), key=size):
        if batches and (len(batches[-1]) + len(unit)) * size(unit)[0] <= budget:
            batches[-1] += unit
        else:
            batches.append(list(unit))
    return batches


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
) -> Scores:
    """One forward pass over a micro-batch of B rows, T tokens wide after right padding.

    `blind` (compat.prompt_attention) hides all but the last B tokens of every prompt.

    The head sees the A states before action tokens only, never [B, T, V]. `want` may name
    "values", "reference" and "entropy" (then with gradient; else it is measured only).
    """
    ids, positions, mask = _pad(policy, _cut(rows))
    if blind:
        for place, placed in enumerate(rows):
            mask[place, : max(0, int(placed.row.action.nonzero()[0]) - len(rows))] = False
    at = _states_before_actions(rows, ids.shape[1], ids.device)
    targets = torch.cat([placed.row.ids[placed.row.action] for placed in rows]).to(ids.device)
    allowed = _allowed(rows)
    hidden = policy.hidden(ids, positions, mask)
    logits = _restricted(policy.logits(hidden.flatten(0, 1)[at]).float() / temperature, allowed)
    with torch.set_grad_enabled(torch.is_grad_enabled() and "entropy" in want):
        spread = entropy(logits)
    scores = Scores(_of_targets(logits, targets), spread)
    if "values" in want:
        trunk = hidden if policy.shares_trunk else policy.critic_hidden(ids, positions, mask)
        scores.values = policy.values(trunk.flatten(0, 1)[at]).float()
    if "reference" in want:
        with torch.no_grad():
            states = policy.hidden(ids, positions, mask, model=policy.reference)
            states = states.flatten(0, 1)[at]
            logits = policy.logits(states, model=policy.reference).float() / temperature
            scores.reference = _of_targets(_restricted(logits, allowed), targets)
    return scores


def read_values(policy: Policy, rows: Sequence[PlacedRow], budget: int, total: int) -> Tensor:
    """Values [total] of the critic before every sampled token, without gradient."""
    values = torch.zeros(total)
    with torch.no_grad():
        for batch in micro_batches(rows, budget):
            ids, positions, mask = _pad(policy, _cut(batch))
            at = _states_before_actions(batch, ids.shape[1], ids.device)
            states = policy.critic_hidden(ids, positions, mask).flatten(0, 1)[at]
            index = torch.cat([placed.index for placed in batch])
            values[index] = policy.values(states).float().cpu()
    return values


def read_final_values(policy: Policy, prompts: Sequence[list[int]], budget: int) -> list[float]:
    """The critic's value after the last token of each prompt, without gradient."""
    values = [0.0] * len(prompts)
    by_length = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    with torch.no_grad():
        while by_length:
            longest = len(prompts[by_length[-1]])
            chosen = by_length[-max(1, budget // longest) :]
            del by_length[-len(chosen) :]
            ids, positions, mask = _pad(policy, [torch.tensor(prompts[c]) for c in chosen])
            last = torch.tensor([len(prompts[c]) - 1 for c in chosen], device=ids.device)
            states = policy.critic_hidden(ids, positions, mask)
            states = states[torch.arange(len(chosen), device=ids.device), last]
            for place, value in zip(chosen, policy.values(states).tolist(), strict=True):
                values[place] = value
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
    want = frozenset({"reference"} if reference else ())
    with torch.no_grad():
        for batch in micro_batches(rows, budget):
            scores = score(policy, batch, temperature, want)
            read = scores.reference if reference else scores.logp
            assert read is not None
            logp[torch.cat([placed.index for placed in batch])] = read.float().cpu()
    return logp


def _cut(rows: Sequence[PlacedRow]) -> list[Tensor]:
    """Rows before their last action token: nothing is predicted from what follows."""
    return [placed.row.ids[: placed.length] for placed in rows]


def _pad(policy: Policy, sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """ids, positions (int64) and mask (bool), each [B, T], padded on the right.

    The mask is True everywhere: padding comes after all that is read, so causal attention never
    sees it, and without a mask to apply attention takes its fast causal kernel.
    """
    longest = max(len(sequence) for sequence in sequences)
    ids = torch.zeros((len(sequences), longest), dtype=torch.long)
    for place, sequence in enumerate(sequences):
        ids[place, : len(sequence)] = sequence
    positions = torch.arange(longest).expand(len(sequences), longest)
    device = next(policy.model.parameters()).device
    ids = ids.to(device)
    return ids, positions.to(device), torch.ones_like(ids, dtype=torch.bool)


def _states_before_actions(rows: Sequence[PlacedRow], width: int, device: torch.device) -> Tensor:
    """Places [A] in the flattened [B * T] states: the position before each action token."""
    places = [
        placed.row.action.nonzero()[:, 0] - 1 + place * width for place, placed in enumerate(rows)
    ]
    return torch.cat(places).to(device)


def _allowed(rows: Sequence[PlacedRow]) -> list[list[int] | None] | None:
    """The allowed ids of every action token, or None when nothing was constrained."""
    if all(placed.row.allowed is None for placed in rows):
        return None
    allowed: list[list[int] | None] = []
    for placed in rows:
        count = len(placed.index)
        allowed += [None] * count if placed.row.allowed is None else placed.row.allowed
    return allowed


def _restricted(logits: Tensor, allowed: list[list[int] | None] | None) -> Tensor:
    """Logits [A, V] with -inf on the ids that a token could not be drawn from."""
    if allowed is None:
        return logits
    refused = torch.zeros_like(logits, dtype=torch.bool)
    for place, ids in enumerate(allowed):
        if ids is not None:
            refused[place] = True
            refused[place, ids] = False
    return logits.masked_fill(refused, -torch.inf)


def _of_targets(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities [A] of the targets [A] under logits [A, V]."""
    return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
