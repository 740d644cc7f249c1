"""Suites: the ordered tasks of each split of a run, which never overlap."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from envs.base import Task
from envs.rewards import FAMILIES, needs_policy, valid_rewards
from envs.workers import EnvSpec
from runs.errors import ConfigError
from runs.rng import generator

CHECKOUT = Path(__file__).resolve().parents[1]
SPLITS = ("train", "validation", "test", "sft")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Suite:
    """An ordered list of tasks for one split.

    `parts` are the (weight, tasks) of a mixture, or one part; `skipped` says which seeds made no
    game and why.
    """

    name: str
    tasks: Sequence[Task]
    parts: Sequence[tuple[float, Sequence[Task]]] = ()
    skipped: dict[str, str] = field(default_factory=dict)

    def draw(self, seed: int, iteration: int, n: int) -> list[Task]:
        """The n tasks of a (0-based) iteration, a pure function of its arguments.

        Each part is passed through in permuted order again and again, so no task of it comes
        twice before all came once; in a mixture a part is chosen by weight for each position.
        """
        parts = self.parts or ((1.0, self.tasks),)
        end = (iteration + 1) * n
        shares = np.cumsum([weight for weight, _ in parts])
        uniform = generator(seed, "mixture", self.name).random(end)
        chosen = np.searchsorted(shares / shares[-1], uniform, side="right")
        drawn = []
        for position in range(end - n, end):
            part = int(chosen[position])
            index = int((chosen[:position] == part).sum())
            tasks = parts[part][1]
            epoch, place = divmod(index, len(tasks))
            order = generator(seed, "order", self.name, part, epoch).permutation(len(tasks))
            drawn.append(tasks[int(order[place])])
        return drawn


class SplitBuilder(Protocol):
    """What a family provides: its splits are planned at once and built when asked for.

    `kinds` are the kinds of games it will play (for the rewards), `planned[split]` the
    identities (type and seed, or file) that the split intends to use.
    """

    kinds: set[str]
    planned: dict[str, set[str]]

    def build(self, split: str, progress: Progress | None) -> Suite: ...


class Suites:
    """`get(name)`, or `.train .validation .test .sft`, builds a suite when it is first needed.

    Raises `ConfigError` when two suites share a task, as planned or by content once built.
    """

    def __init__(self, builder: SplitBuilder, progress: Progress | None = None) -> None:
        self._builder = builder
        self._progress = progress
        self._built: dict[str, Suite] = {}
        for index, one in enumerate(SPLITS):
            for other in SPLITS[index + 1 :]:
                shared = builder.planned[one] & builder.planned[other]
                if shared:
                    raise ConfigError(
                        f"The suites {one} and {other} overlap (both hold {min(shared)}): change "
                        "env.first_seed or env.tasks, or env.game when it lists files."
                    )

    def get(self, name: str) -> Suite:
        if name not in SPLITS:
            raise ConfigError(f"There is no suite {name}: choose from {', '.join(SPLITS)}.")
        if name not in self._built:
            suite = self._builder.build(name, self._progress)
            self._refuse_overlap(suite)
            self._built[name] = suite
        return self._built[name]

    @property
    def train(self) -> Suite:
        return self.get("train")

    @property
    def validation(self) -> Suite:
        return self.get("validation")

    @property
    def test(self) -> Suite:
        return self.get("test")

    @property
    def sft(self) -> Suite:
        return self.get("sft")

    def _refuse_overlap(self, suite: Suite) -> None:
        for other in self._built.values():
            for known, task in _pairs(other.tasks, suite.tasks):
                raise ConfigError(
                    f"The suites {other.name} and {suite.name} overlap: {known.id} and {task.id} "
                    "are one game. Change env.first_seed, or env.game when it lists files."
                )


def _pairs(ones: Iterable[Task], others: Iterable[Task]) -> Iterable[tuple[Task, Task]]:
    by_content = {task.sha256: task for task in ones}
    by_id = {task.id: task for task in ones}
    for task in others:
        known = by_content.get(task.sha256) or by_id.get(task.id)
        if known is not None:
            yield known, task


def family_module(family: str, name: str) -> Any:
    """`envs.<family>.<name>`; raises `ConfigError` when there is no such family."""
    if family not in FAMILIES:
        valid_rewards(family, "")
    return importlib.import_module(f"envs.{family}.{name}")


def find_tasks(game: str, first_seed: int, count: int, reward: str, cache: Path) -> list[Task]:
    """Tasks outside of any run: the first `count` of a generated game, or the files at a path."""
    modules = [family_module(family, "splits") for family in FAMILIES]
    # Who knows no such game says which games there are.
    knowing = next((module for module in modules if module.knows(game)), modules[0])
    return knowing.find_tasks(game, first_seed, count, reward, cache)


def apportion(total: int, weights: Sequence[float], key: str = "env.tasks.train") -> list[int]:
    """`total` tasks shared by weight, at least one each (largest remainders, earlier ones first).

    `key` says how many there are. Raises `ConfigError` when there are fewer tasks than weights.
    """
    if total < len(weights):
        raise ConfigError(
            f"{key}={total} is too few games for {len(weights)} tasks (env.game, env.mixture): "
            f"raise {key}."
        )
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [max(1, int(share)) for share in exact]
    while sum(shares) != total:
        step = 1 if sum(shares) < total else -1
        open_parts = [i for i in range(len(shares)) if shares[i] + step >= 1]
        best = max(open_parts, key=lambda i: (step * (exact[i] - shares[i]), -i))
        shares[best] += step
    return shares


def make_suites(config: Any, progress: Progress | None = None) -> Suites:
    """The suites of a run, from `config.env`, `config.reward.name` and `config.paths.cache`.

    Checks everything that is cheap (game names, files, overlap, the reward) before any game is
    built, and raises `ConfigError`. `progress(label, done, total)` follows the building.
    """
    builder: SplitBuilder = family_module(config.env.family, "splits").make_splits(config)
    for kind in sorted(builder.kinds):
        valid = valid_rewards(config.env.family, kind)
        if config.reward.name not in valid:
            raise ConfigError(
                f"reward={config.reward.name} does not exist for {kind} games of "
                f"{config.env.family}: set reward to one of {', '.join(valid)}."
            )
    return Suites(builder, progress)


def make_env_spec(config: Any) -> EnvSpec:
    """How the workers of this run build their environments (see `envs.workers.EnvPool`)."""
    admissible = bool(config.env.show_admissible or config.env.constrain)
    spec = env_spec(
        str(config.reward.name),
        admissible,
        bool(config.env.get("show_score", False)),
        str(config.env.family),
        float(config.reward.shaping),
    )
    spec.options["compat"] = [str(name) for name, on in config.compat.items() if on]
    return spec


def env_spec(
    reward: str,
    admissible: bool = False,
    show_score: bool = False,
    family: str = "textworld",
    shaping: float = 0.0,
) -> EnvSpec:
    """The same from its parts, for a game outside of any run."""
    options: dict[str, Any] = {
        "admissible": admissible,
        "policy_length": needs_policy(family, reward, shaping),
        "shaping": shaping,
    }
    if show_score:
        options["show_score"] = True
    return EnvSpec(f"envs.{family}.env:make_env", options, reward)
