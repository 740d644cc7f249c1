"""A bandit ladder: tiny games of which one knows which algorithms must solve them.

A policy here is a table of logits and a critic a table of values, for many seeds at once; credit,
weights and loss are those of `algorithms`, put together as in training/step.py. Every loss is a
weighted sum and Adam works element by element, so the seeds' losses are added and learn apart.
What is scored is the exact chance of the right choice under the final table, not a sample of it.

S seeds, N episodes of a seed (tasks × group, a group after the other), A tokens and K turns of an
episode; every episode of a rung has the same turns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algorithms import (
    ActionTokens,
    Algorithm,
    Credit,
    EpisodeCredit,
    make_algorithm,
    minibatch_weights,
)
from algorithms.divergence import kl_k1

BETAS = (0.9, 0.95)  # training/step.py


class Rung:
    """A game: `tokens` of each turn, what is seen before a token, what a turn pays.

    A *state* is all that the table can tell apart. `noise`[S, N, K] are whole numbers below
    `noises`, drawn for every turn; `said`[S, N, p] are the tokens before position p.
    """

    tasks = 1
    tokens: tuple[int, ...] = (1,)
    actions = 4
    states = 1
    noises = 1
    group = 8
    iterations = 25
    lr = 0.4
    value_lr = 0.4

    def state(self, task: Tensor, noise: Tensor, said: Tensor) -> Tensor:
        """What is seen before the next token: -> [S, N]."""
        return torch.zeros_like(task)

    def pay(self, task: Tensor, said: Tensor) -> Tensor:
        """Rewards of the turns of whole episodes, said[S, N, A]: -> [S, N, K]."""
        raise NotImplementedError

    def right(self, chances: Tensor) -> Tensor:
        """Chance of doing the right thing, from chances[S, states, actions]: -> [S]."""
        return chances[:, 0, 0]


class Constant(Rung):
    """One token is right, always."""

    iterations = 15

    def pay(self, task: Tensor, said: Tensor) -> Tensor:
        return (said == 0).float()


class Conditional(Rung):
    """Two tokens, and which are right depends on what is observed; `blind` hides it."""

    tasks = 3
    tokens = (2,)
    actions = 3
    states = 6
    iterations = 22
    lr = 0.2

    def __init__(self, blind: bool = False) -> None:
        self.blind = blind

    def state(self, task: Tensor, noise: Tensor, said: Tensor) -> Tensor:
        return 2 * (0 if self.blind else 1) * task + said.shape[-1]

    def pay(self, task: Tensor, said: Tensor) -> Tensor:
        return (said == self.wanted(task)).all(-1, keepdim=True).float()

    def wanted(self, task: Tensor) -> Tensor:
        return torch.stack([task, (task + 1) % 3], -1)

    def right(self, chances: Tensor) -> Tensor:
        tasks = torch.arange(3)
        said = self.wanted(tasks)
        seen = torch.zeros_like(tasks) if self.blind else tasks
        return (chances[:, 2 * seen, said[:, 0]] * chances[:, 2 * seen + 1, said[:, 1]]).mean(1)


class Delayed(Rung):
    """The first token of five turns decides what the last one pays; in between is noise.

    Nothing that is observed later, by policy or critic, tells what was said first.
    """

    tokens = (2, 1, 1, 2, 1)
    actions = 3
    noises = 3
    states = 1 + 3 * 6
    group = 6

    def state(self, task: Tensor, noise: Tensor, said: Tensor) -> Tensor:
        place = said.shape[-1]
        turn = sum(place >= end for end in (2, 3, 4, 6))
        return task if place == 0 else 1 + 3 * (place - 1) + noise[..., turn]

    def pay(self, task: Tensor, said: Tensor) -> Tensor:
        paid = torch.zeros(*said.shape[:-1], 5)
        paid[..., -1] = (said[..., 0] == 0).float()
        return paid


class Offset(Rung):
    """A variance trap: 11 for the right token, 10 for any other."""

    group = 6
    iterations = 20

    def pay(self, task: Tensor, said: Tensor) -> Tensor:
        return 10.0 + (said == 0).float()


class Stakes(Rung):
    """A variance trap: one game pays 10 for token 0, two games that look like it pay 1 for token 1.

    Token 0 earns 10 / 3 on average, token 1 earns 2 / 3. Who divides by each group's deviation
    hears three voices of equal weight, two of them for token 1.
    """

    tasks = 3
    actions = 2
    group = 6
    lr = 0.2

    def pay(self, task: Tensor, said: Tensor) -> Tensor:
        large, small = 10.0 * (said == 0), 1.0 * (said == 1)
        return torch.where(task[..., None] == 0, large, small)


class Cut(Rung):
    """A truncation trap: two turns of a life that goes on.

    At home, staying (token 0) pays 0.5 and leaving (1) costs 1 but leads abroad, where every turn
    pays 1 for ever. Within two turns leaving never pays off; for ever, at a discount of 0.9, it
    is worth 8 and staying 5. Episodes begin at home or abroad; nobody sees the clock.
    """

    tasks = 2
    tokens = (1, 1)
    actions = 2
    states = 2
    gamma = 0.9
    iterations = 36
    lr = 0.12
    value_lr = 1.0

    def state(self, task: Tensor, noise: Tensor, said: Tensor) -> Tensor:
        return (task.bool() | (said == 1).any(-1)).long()

    def pay(self, task: Tensor, said: Tensor) -> Tensor:
        left = torch.cumsum(said == 1, -1)
        abroad = (task[..., None] == 1) | (left - (said == 1).long() > 0)
        return torch.where(abroad, 1.0, torch.where(said == 1, -1.0, 0.5))

    def right(self, chances: Tensor) -> Tensor:
        """Chance to leave: right for ever, wrong within two turns."""
        return chances[:, 0, 1]

    def within_limit(self, leave: Tensor) -> Tensor:
        """Reward of two turns from home for a chance to leave."""
        worth, abroad = torch.zeros_like(leave), 0.0
        for _ in self.tokens:
            worth = leave * (-1.0 + abroad) + (1.0 - leave) * (0.5 + worth)
            abroad += 1.0
        return worth

    def for_ever(self, leave: Tensor) -> Tensor:
        """Discounted reward from home, without a limit."""
        abroad = 1.0 / (1.0 - self.gamma)
        now = leave * (-1.0 + self.gamma * abroad) + (1.0 - leave) * 0.5
        return now / (1.0 - self.gamma * (1.0 - leave))


@dataclass
class Tables:
    """logits[S, states, actions] and values[S, states], learnt by one Adam."""

    logits: Tensor
    values: Tensor
    optimizer: torch.optim.Optimizer

    @classmethod
    def fresh(cls, rung: Rung, seeds: int) -> Tables:
        logits = torch.zeros(seeds, rung.states, rung.actions, requires_grad=True)
        values = torch.zeros(seeds, rung.states, requires_grad=True)
        groups = [{"params": [logits], "lr": rung.lr}, {"params": [values], "lr": rung.value_lr}]
        return cls(logits, values, torch.optim.Adam(groups, betas=BETAS))

    def logp(self, state: Tensor) -> Tensor:
        """Log-probabilities of all actions in state[S, ...]: -> [S, ..., actions]."""
        return self.logits.log_softmax(-1)[self._seed(state), state]

    def value(self, state: Tensor) -> Tensor:
        return self.values[self._seed(state), state]

    def _seed(self, state: Tensor) -> Tensor:
        return torch.arange(len(state)).view(-1, *[1] * (state.ndim - 1)).expand_as(state)


@dataclass
class Played:
    """Episodes of all seeds: state, said, logp [S, N, A], rewards [S, N, K], after [S, N]."""

    state: Tensor
    said: Tensor
    logp: Tensor
    rewards: Tensor
    after: Tensor


@torch.no_grad()
def play(rung: Rung, tables: Tables, random: torch.Generator) -> Played:
    """`group` episodes of every task and seed."""
    seeds = len(tables.logits)
    task = torch.arange(rung.tasks).repeat_interleave(rung.group).expand(seeds, -1)
    noise = torch.randint(rung.noises, (*task.shape, len(rung.tokens)), generator=random)
    said, states, logps = torch.zeros(*task.shape, 0, dtype=torch.int64), [], []
    for _ in range(sum(rung.tokens)):
        states.append(rung.state(task, noise, said))
        logp = tables.logp(states[-1])
        chances = logp.exp().flatten(0, 1)
        token = torch.multinomial(chances, 1, generator=random).view(*task.shape, 1)
        logps.append(logp.gather(-1, token))
        said = torch.cat([said, token], -1)
    return Played(
        torch.stack(states, -1),
        said,
        torch.cat(logps, -1),
        rung.pay(task, said),
        rung.state(task, noise, said),
    )


class Scorer:
    """What the losses need to know of the episodes of a rung, from `algorithm.credit`.

    Whitening looks at all of a seed's episodes, so every seed is credited by itself. Where credit
    depends on a group's rewards and states alone, equal groups are scored once: estimators are
    pure functions.
    """

    def __init__(self, rung: Rung, algorithm: Algorithm) -> None:
        self.rung, self.algorithm = rung, algorithm
        self.pure = not (algorithm.whiten or algorithm.needs_critic or algorithm.kl_in_reward)
        self.known: dict[Any, list[Credit]] = {}

    @torch.no_grad()
    def columns(self, tables: Tables, played: Played) -> dict[str, Tensor]:
        """Advantages, weights and critic's targets, seed by seed: name -> [S · N · A]."""
        algorithm, columns = self.algorithm, defaultdict(list)
        for episodes in self._episodes(tables, played):
            flat = self._credit(episodes)
            whose = torch.arange(len(flat)).repeat_interleave(sum(self.rung.tokens))
            weights, value_weights = minibatch_weights(
                torch.cat([credit.weight for credit in flat]),
                torch.cat([credit.value_at for credit in flat]),
                whose,
                algorithm.normalise,
                algorithm.constant,
            )
            columns["weights"].append(weights)
            columns["value_weights"].append(value_weights)
            columns["advantages"] += [credit.advantages for credit in flat]
            if algorithm.needs_critic:
                columns["returns"] += [credit.returns for credit in flat]
        return {name: torch.cat(parts) for name, parts in columns.items()}

    def _episodes(self, tables: Tables, played: Played) -> Iterator[list[dict[str, Any]]]:
        """The fields of `EpisodeCredit` of every episode of a seed, a seed at a time."""
        algorithm, counts = self.algorithm, list(self.rung.tokens)
        first = [sum(counts[:turn]) for turn in range(len(counts))]
        fields: dict[str, Any] = {"rewards": played.rewards}
        if algorithm.needs_critic:
            fields["values"] = tables.value(played.state)
        if algorithm.kl_in_reward:
            uniform = torch.full_like(played.logp, -math.log(self.rung.actions))
            fields["kl"] = kl_k1(played.logp, uniform)
        if algorithm.needs_states:
            fields["states"] = played.state[..., first].tolist()
        if algorithm.bootstraps:
            fields["final_value"] = tables.value(played.after).tolist()
        for seed in range(len(played.said)):
            yield [
                {name: field[seed][place] for name, field in fields.items()}
                for place in range(played.said.shape[1])
            ]

    def _credit(self, episodes: list[dict[str, Any]]) -> list[Credit]:
        size, counts = self.rung.group, list(self.rung.tokens)
        groups = [episodes[start : start + size] for start in range(0, len(episodes), size)]

        def scored(groups: list[list[dict[str, Any]]]) -> list[Credit]:
            made = [[EpisodeCredit(tokens_per_turn=counts, **e) for e in group] for group in groups]
            return [credit for group in self.algorithm.credit(made) for credit in group]

        if not self.pure:
            return scored(groups)
        flat = []
        for group in groups:
            key = str([(e["rewards"].tolist(), e.get("states")) for e in group])
            if key not in self.known:
                self.known[key] = scored([group])
            flat += self.known[key]
        return flat


def learn(scorer: Scorer, tables: Tables, played: Played, epochs: int) -> None:
    """`epochs` steps on what was played, each over all of a seed's episodes."""
    algorithm, counts = scorer.algorithm, torch.tensor(scorer.rung.tokens)
    columns = scorer.columns(tables, played)
    turn = torch.arange(len(counts)).repeat_interleave(counts)
    part = turn if algorithm.surrogate.ratio == "turn" else torch.zeros_like(turn)
    episode = torch.arange(played.after.numel())[:, None]
    for _ in range(epochs):
        logp = tables.logp(played.state).gather(-1, played.said[..., None]).flatten()
        batch = ActionTokens(
            logp=logp,
            old_logp=played.logp.flatten(),
            segment=(episode * len(counts) + part).flatten(),
            values=tables.value(played.state).flatten() if algorithm.needs_critic else None,
            **columns,
        )
        tables.optimizer.zero_grad()
        algorithm.loss(batch)[0].backward()
        tables.optimizer.step()


def climb(
    rung: Rung,
    config: Mapping[str, Any],
    faults: tuple[str, ...] = (),
    seeds: int = 10,
    longer: int = 1,
) -> Tensor:
    """Train from a uniform policy; the chance of doing right at the end, by seed: -> [S]."""
    algorithm = make_algorithm(config, faults) if faults else make_algorithm(config)
    scorer, tables = Scorer(rung, algorithm), Tables.fresh(rung, seeds)
    random = torch.Generator().manual_seed(7)
    for _ in range(longer * rung.iterations):
        learn(scorer, tables, play(rung, tables, random), config["epochs"])
    return rung.right(tables.logits.detach().softmax(-1))
