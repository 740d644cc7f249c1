"""The optimiser step: minibatches of whole episodes, micro-batches under a token budget.

The weights of a loss are normalised over the minibatch before it is cut, so the gradient depends
neither on the cut, nor on padding, nor on the order of rows (design, rule 9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithms import ActionTokens, Algorithm, minibatch_weights
from policies.policy import Policy
from runs.errors import InvariantError, TrainingError
from runs.rng import generator
from training.batch import PlacedRow, Scores, micro_batches, read_logp, score, segments
from training.credit import Batch

# Rule 4. Below fp32, generation and training round differently.
LOGP_BOUND = {torch.float32: 1e-4, torch.float64: 1e-4}
LOGP_BOUND_LOW_PRECISION = 0.1
BETAS = (0.9, 0.95)
MEANS = {"ratio_mean", "ratio_square", "clip_fraction", "approx_kl", "entropy", "kl"}

RowsLoss = Callable[[list[PlacedRow]], tuple[Tensor, dict[str, float]]]


class Tally:
    """Statistics of an update: parts of a minibatch add up, minibatches are averaged.

    Names that end in `_max` keep their largest value instead.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self.steps = 0

    def add(self, stats: dict[str, float]) -> None:
        for name, value in stats.items():
            if name.endswith("_max"):
                self._largest[name] = max(value, self._largest.get(name, value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value

    def read(self) -> dict[str, float]:
        steps = max(self.steps, 1)
        return {name: value / steps for name, value in self._sums.items()} | self._largest


class Learner:
    """A policy with its optimiser; `update` learns from a batch of credited episodes.

    One AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) over the actor and, where there is
    one, the critic; its state belongs to a checkpoint. The actor learns at `optim.lr`, at
    `sft.lr` from an algorithm that does not play.
    """

    def __init__(self, policy: Policy, algorithm: Algorithm, config: Any) -> None:
        self.policy, self.algorithm, self.config = policy, algorithm, config
        actor, *critic = policy.parameter_groups(config.optim)
        if not algorithm.plays:
            actor["lr"] = config.sft.lr
        groups = _decaying([actor, *critic], config.optim.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, betas=BETAS, fused=True)
        self._ratio = algorithm.surrogate.ratio
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._progress = 0.0

    def update(self, batch: Batch, iteration: int) -> dict[str, dict[str, float]]:
        """Train on a batch for `algo.epochs` passes; returns sections "update" and "health".

        A minibatch in which nothing teaches (no advantage, and no critic, entropy or KL term)
        takes no step. Raises `InvariantError` when log-probabilities recomputed on fresh
        weights are not the behaviour ones (rule 4) and `TrainingError` for a loss or gradient
        that is not finite, each before the step has touched a weight.
        """
        algo, tally, tokens = self.config.algo, Tally(), 0
        if self.algorithm.surrogate.behaviour_cap is not None:
            batch.proximal = self._read_logp(batch)
        if self.algorithm.needs_reference and not self._blind:
            batch.reference = self._read_logp(batch, reference=True)
        # With demonstrations before RL the first of its updates is number 1.
        self._progress = (iteration - bool(self.config.sft.demos)) / self.config.train.iterations
        for epoch in range(algo.epochs):
            order = generator(self.config.seed, "shuffle", iteration, epoch)
            for chosen in minibatches(self._units(batch), algo.minibatches, order):
                rows = [row for place in chosen for row in batch.rows[place]]
                taught = [row for row in rows if self._teaches(batch, row)]
                if not taught:
                    continue
                loss = self._loss(batch, rows, taught, fresh=tally.steps == 0)
                self.descend(taught, loss, tally, f"iteration {iteration}, epoch {epoch}")
                tokens += sum(len(row.index) for row in taught)
        self.policy.version += 1
        measured = tally.read() | explained_variance(batch) | batch.health
        if "ratio_square" in measured:
            square = measured.pop("ratio_square")
            measured["effective_sample_share"] = measured["ratio_mean"] ** 2 / square
        losses = {name: measured.pop(name) for name in sorted(measured) if name.endswith("_loss")}
        counts = {"tokens_trained": tokens, "gradient_steps": tally.steps}
        return {"update": losses | counts, "health": measured}

    def descend(self, rows: list[PlacedRow], loss: RowsLoss, tally: Tally, where: str) -> None:
        """One step on the summed losses of `rows`, taken a micro-batch at a time.

        Actor and critic are clipped apart, so that a critic far from its targets leaves the
        actor's step alone. Raises `TrainingError`, naming `where`, before a weight is touched.
        """
        optim = self.config.optim
        self.optimizer.zero_grad(set_to_none=True)
        for micro in micro_batches(rows, optim.micro_tokens, self._ratio == "sequence"):
            total, stats = loss(micro)
            if not torch.isfinite(total):
                raise TrainingError(_not_finite("loss", where))
            total.backward()
            tally.add(stats)
        for name, module in zip(("", "critic_"), self.policy.modules(), strict=False):
            norm = nn.utils.clip_grad_norm_(module.parameters(), optim.grad_clip).item()
            if not math.isfinite(norm):
                raise TrainingError(_not_finite("gradient", where))
            tally.add({f"{name}grad_norm": norm, f"{name}grad_norm_max": norm})
        self._set_rates()
        self.optimizer.step()
        tally.steps += 1

    def _set_rates(self) -> None:
        """The learning rates of the next step: up at first, then down as the run goes on.

        Adam's first steps are as long as any other, whatever the gradient, and tear at a policy
        before its moments mean something; the last ones should only settle it.
        """
        state = next(iter(self.optimizer.state.values()), None)
        taken = 0 if state is None else int(state["step"])
        optim = self.config.optim
        share = min(1.0, (taken + 1) / max(1, optim.warmup))
        share *= 1.0 - (1.0 - optim.final_share) * self._progress
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share

    def _units(self, batch: Batch) -> list[list[int]]:
        """Places of the episodes that stay together in a minibatch."""
        if self.config.optim.minibatch == "episodes":
            return [[place] for place in range(len(batch.episodes))]
        units: dict[int, list[int]] = {}
        for place, group in enumerate(batch.groups):
            units.setdefault(group, []).append(place)
        return list(units.values())

    def _read_logp(self, batch: Batch, reference: bool = False) -> Tensor:
        """The trainer's own log-probabilities [N] of what the generator sampled, or those of the
        reference: read once, before any pass, and over all rows, which have most in common."""
        rows = [row for of_episode in batch.rows for row in of_episode]
        temperature, budget = self.config.policy.temperature, self.config.optim.micro_tokens
        return read_logp(self.policy, rows, temperature, budget, len(batch.logp), reference)

    def _blind_reference(self, micro: list[PlacedRow]) -> Tensor:
        temperature = self.config.policy.temperature
        with torch.no_grad():
            return score(self.policy, micro, temperature, blind=True, reference=True).logp

    @property
    def _blind(self) -> bool:
        return "prompt_attention" in self.algorithm.faults

    def _teaches(self, batch: Batch, row: PlacedRow) -> bool:
        algorithm = self.algorithm
        if algorithm.needs_critic or algorithm.needs_reference or algorithm.needs_entropy:
            return True
        return bool(batch.advantages[row.index].any())

    def _loss(
        self, batch: Batch, rows: list[PlacedRow], taught: list[PlacedRow], fresh: bool
    ) -> RowsLoss:
        """The loss of a micro-batch of `taught`, weighted as its share of all of `rows`.

        Statistics other than losses are means over what is taught.
        """
        index = torch.cat([row.index for row in rows])
        weights, value_weights = torch.zeros(len(batch.logp)), torch.zeros(len(batch.logp))
        algorithm = self.algorithm
        weights[index], value_weights[index] = minibatch_weights(
            batch.weight[index],
            batch.value_at[index],
            torch.cat([torch.full_like(row.index, row.episode) for row in rows]),
            algorithm.normalise,
            algorithm.constant,
        )
        share = weights[torch.cat([row.index for row in taught])].sum().item()
        needs = {
            "values": self.algorithm.needs_critic,
            "entropy": self.algorithm.needs_entropy,
        }
        blind = self._blind
        want = frozenset(name for name, needed in needs.items() if needed)

        def loss(micro: list[PlacedRow]) -> tuple[Tensor, dict[str, float]]:
            scores = score(self.policy, micro, self.config.policy.temperature, want, blind)
            index = torch.cat([row.index for row in micro])
            tokens = _action_tokens(batch, scores, index, weights, value_weights)
            if blind and algorithm.needs_reference:
                # What is hidden depends on the micro-batch, so it must be the policy's.
                tokens.reference_logp = self._blind_reference(micro)
            if self._ratio != "token":
                tokens.segment = segments(micro, self._ratio).to(scores.logp.device)
            total, stats = self.algorithm.loss(tokens)
            for name in MEANS & stats.keys():
                stats[name] /= share
            if fresh and bool(torch.isfinite(total)):
                behaviour = batch.logp[index].to(scores.logp.device)
                stats["logp_error_max"] = (scores.logp.detach() - behaviour).abs().max().item()
                if not blind:
                    refuse_drift(stats["logp_error_max"], self.policy)
            return total, stats

        return loss


def minibatches(
    units: list[list[int]], parts: int, order: np.random.Generator
) -> Iterator[list[int]]:
    """Places of episodes, their units shuffled and cut into at most `parts` almost equal lists."""
    for part in np.array_split(order.permutation(len(units)), min(parts, len(units))):
        yield [place for unit in part for place in units[unit]]


def refuse_drift(error: float, policy: Policy) -> None:
    """Rule 4: raise `InvariantError` when recomputed and behaviour log-probabilities differ."""
    dtype = next(policy.model.parameters()).dtype
    bound = LOGP_BOUND.get(dtype, LOGP_BOUND_LOW_PRECISION)
    if not error <= bound:
        raise InvariantError(
            f"on fresh weights a recomputed log-probability is {error:.2e} from the behaviour "
            f"one (bound {bound:.0e} for {dtype}): generation and training do not see the same "
            "model, tokens or temperature"
        )


def explained_variance(batch: Batch) -> dict[str, float]:
    """Share of the variance of the critic's targets that its values explained, where read."""
    if batch.values is None or batch.returns is None:
        return {}
    returns, values = batch.returns[batch.value_at], batch.values[batch.value_at]
    variance = returns.var(correction=0).item()
    if variance < 1e-12:
        return {"explained_variance": 0.0}
    return {"explained_variance": 1.0 - (returns - values).var(correction=0).item() / variance}


def _decaying(groups: list[dict[str, Any]], weight_decay: float) -> list[dict[str, Any]]:
    """Each group cut in two: only matrices decay."""
    cut = []
    for group in groups:
        matrices = [p for p in group["params"] if p.ndim >= 2]
        vectors = [p for p in group["params"] if p.ndim < 2]
        cut.append({**group, "params": matrices, "weight_decay": weight_decay})
        cut.append({**group, "params": vectors, "weight_decay": 0.0})
    return cut


def _action_tokens(
    batch: Batch, scores: Scores, index: Tensor, weights: Tensor, value_weights: Tensor
) -> ActionTokens:
    device = scores.logp.device
    behaviour = batch.logp[index].to(device)
    proximal = None if batch.proximal is None else batch.proximal[index].to(device)
    reference = None if batch.reference is None else batch.reference[index].to(device)
    return ActionTokens(
        logp=scores.logp,
        old_logp=behaviour if proximal is None else proximal,
        behaviour_logp=None if proximal is None else behaviour,
        advantages=batch.advantages[index].to(device),
        weights=weights[index].to(device),
        entropy=scores.entropy,
        reference_logp=reference,
        values=scores.values,
        returns=None if batch.returns is None else batch.returns[index].to(device),
        value_weights=value_weights[index].to(device),
        old_values=None if batch.values is None else batch.values[index].to(device),
    )


def _not_finite(what: str, where: str) -> str:
    return (
        f"{where}: the {what} is not finite; the weights are as before this step. Lower optim.lr "
        "or optim.grad_clip and go on from the last checkpoint"
    )
