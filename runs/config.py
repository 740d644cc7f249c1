"""Refusals that need nothing but the resolved configuration: one sentence each, naming the key.

Checks that need an environment, an algorithm or a model live with those; `run.py` calls them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from runs.errors import ConfigError
from runs.identity import game_files

Config = Mapping[str, Any]


class Number(NamedTuple):
    """A whole or real number from `least`, or strictly above it when `open`, up to `most`."""

    least: float
    whole: bool = True
    open: bool = False
    most: float = math.inf


COUNT, SIZE, RATE, POSITIVE = Number(0), Number(1), Number(0, False), Number(0, False, True)
SHARE = Number(0, False, most=1)
NUMBERS: dict[str, Number] = {
    "seed": COUNT,
    "threads": SIZE,
    "run.jobs": SIZE,
    "optim.lr": POSITIVE,
    "optim.critic_lr": POSITIVE,
    "optim.weight_decay": RATE,
    "optim.warmup": COUNT,
    "optim.final_share": SHARE,
    "optim.grad_clip": POSITIVE,
    "optim.micro_tokens": SIZE,
    "sft.demos": COUNT,
    "sft.epochs": SIZE,
    "sft.lr": POSITIVE,
    "sft.batch": SIZE,
    "sft.mistakes": Number(0, False, most=0.5),
    "train.iterations": SIZE,
    "train.tasks": SIZE,
    "train.checkpoint_every": COUNT,
    "eval.every": COUNT,
    "eval.samples": SIZE,
    "eval.transcripts": COUNT,
    "env.max_turns": SIZE,
    "env.workers": SIZE,
    "env.timeout": POSITIVE,
    "env.tasks.train": SIZE,
    "env.tasks.validation": SIZE,
    "env.tasks.test": SIZE,
    "env.first_seed.train": COUNT,
    "env.first_seed.validation": COUNT,
    "env.first_seed.test": COUNT,
    "env.first_seed.sft": COUNT,
    **dict.fromkeys(("env.house.rooms", "env.house.receptacles"), SIZE),
    **dict.fromkeys(("env.house.objects", "env.house.distractors"), COUNT),
    "reward.shaping": RATE,
    "algo.epochs": SIZE,
    "algo.minibatches": SIZE,
    # Colder than this the logits overflow; greedy play is eval.greedy.
    "policy.temperature": Number(0.001, False),
    "policy.max_tokens": SIZE,
    "policy.context": SIZE,
    "policy.lora.rank": Number(0, most=4096),
    "policy.lora.alpha": POSITIVE,
    "engine.max_batch": SIZE,
    "engine.lag": COUNT,
}
# Known faults of the paper's released code, and the check that reproducing each switches off.
FAULTS = {
    "wins_only": "failing may pay more than winning (rule 10)",
    "done_is_won": "a lost game counts as won (rule 10)",
    "group_of_one": "a group has no second member (rule 3)",
    "cut_returns": "no credit crosses observations (rule 5)",
    "prompt_attention": "recomputed log-probabilities are not the behaviour ones (rule 4)",
}
SWITCHES = (
    "run.accept_stale",
    "eval.greedy",
    "env.show_admissible",
    "env.constrain",
    "env.show_score",
    "policy.checkpointing",
    *(f"compat.{fault}" for fault in FAULTS),
)
CHOICES = {
    "policy.name": ("tiny", "hf"),
    "policy.critic": ("shared", "separate"),
    "engine.name": ("torch",),
    "optim.minibatch": ("episodes", "groups"),
}
EVALUATED = ("test", "validation")
# The base policies that ship learned from games with these seeds.
BASE_SEEDS = range(60_001, 70_000)


def check_keys(config: Config, recipes: Path) -> None:
    """Raise `ConfigError` for a key that no recipe has, or one that was taken away."""
    present, known = set(leaves(config)), known_keys(recipes)
    for key in leaves(config):
        if key not in known:
            raise ConfigError(unknown_key(key, known))
    for group, choices in _recipe_keys(recipes).items():
        kind = next((k for k in (f"{group}.family", f"{group}.name") if k in present), None)
        chosen = [keys for name, keys in choices if kind and name == lookup(config, kind)]
        who = f"{kind}={lookup(config, kind)}" if kind and chosen else group or "config.yaml"
        needed = set.intersection(*(chosen or [keys for _, keys in choices]))
        for key in sorted(needed - present):
            raise ConfigError(f"{key} is missing; {who} needs it.")


def check_values(config: Config) -> None:
    """Raise `ConfigError` with the first value that is wrong. Needs `check_keys` to have passed."""
    for check in CHECKS:
        for problem in check(config):
            raise ConfigError(problem)


def known_keys(recipes: Path) -> set[str]:
    """Dotted names of every key that a file in `recipes` defines."""
    choices = [choice for listed in _recipe_keys(recipes).values() for choice in listed]
    return {key for _, keys in choices for key in keys}


def _recipe_keys(recipes: Path) -> dict[str, list[tuple[Any, set[str]]]]:
    """By group ("" for config.yaml), family or name and keys of each choice.

    Files that only change keys of other groups (`@package`) define none.
    """
    found: dict[str, list[tuple[Any, set[str]]]] = {}
    for path in sorted(recipes.glob("*.yaml")) + sorted(recipes.glob("*/*.yaml")):
        group = path.parent.relative_to(recipes).as_posix().replace(".", "")
        text = path.read_text()
        if "@package" in text:
            continue
        content = yaml.safe_load(text)
        for base in content.get("defaults", []):
            # `shared@_here_: x` takes in group/shared/x.yaml, whose keys are this file's too.
            if isinstance(base, Mapping) and "shared@_here_" in base:
                shared = path.parent / "shared" / f"{base['shared@_here_']}.yaml"
                content = yaml.safe_load(shared.read_text()) | content
        keys = set(leaves({k: v for k, v in content.items() if k not in ("defaults", "hydra")}))
        named = {f"{group}.{key}" if group else key for key in keys}
        found.setdefault(group, []).append((content.get("family", content.get("name")), named))
    return found


def leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of the values in nested mappings; a list is one value."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def lookup(config: Config, key: str) -> Any:
    """Value at a dotted key; None when the chosen groups do not have it."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def unknown_key(key: str, known: set[str]) -> str:
    """The sentence for a key or group that there is not."""
    top = key.split(".")[0].split("/")[0]
    if top == "sweep":
        return (
            "+sweep= needs -m and a file of sweeps, which are not available yet; "
            "write the grid out, for example `python run.py -m seed=0,1,2`."
        )
    if top == "tracking":
        return "tracking is not available yet; remove it, metrics are in metrics.jsonl."
    if key in known:
        # Hydra refuses it because the file that was chosen does not have it.
        return f"{key} has no meaning with the {top} that was chosen; remove it."
    if any(name.startswith(f"{key}.") for name in known):
        return f"{key} is a group of keys; set one of them, or leave it as it is."
    near = difflib.get_close_matches(key, sorted(known), 1)
    hint = f"did you mean {near[0]}?" if near else "recipes/ lists every key."
    return f"{key} is not a key or group here; {hint}"


def _given(config: Config, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Those of the keys that the chosen groups have, with their values."""
    present = set(leaves(config))
    return ((key, lookup(config, key)) for key in keys if key in present)


def _numbers(config: Config) -> Iterator[str]:
    for key, value in _given(config, NUMBERS):
        rule = NUMBERS[key]
        kinds = (int,) if rule.whole else (int, float)
        good = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
        if good:
            good = rule.least <= value <= rule.most and not (rule.open and value == rule.least)
        if not good:
            kind = "a whole number" if rule.whole else "a number"
            bound = f"above {rule.least}" if rule.open else f"of at least {rule.least}"
            bound += f" and at most {rule.most}" if rule.most < math.inf else ""
            yield f"{key}={value} must be {kind} {bound}."


def _switches(config: Config) -> Iterator[str]:
    for key, value in _given(config, SWITCHES):
        if not isinstance(value, bool):
            yield f"{key}={value} must be true or false."
    for key, value in _given(config, CHOICES):
        if value not in CHOICES[key]:
            yield f"{key}={value} must be {' or '.join(CHOICES[key])}."


def _seeds(config: Config) -> Iterator[str]:
    env = config["env"]
    counts = dict(env["tasks"]) | {"sft": config["sft"]["demos"]}
    ranges = {
        split: range(env["first_seed"][split], env["first_seed"][split] + count)
        for split, count in counts.items()
    }
    for (one, mine), (other, theirs) in combinations(ranges.items(), 2):
        first, last = max(mine.start, theirs.start), min(mine.stop, theirs.stop) - 1
        if first <= last:
            yield (
                f"The {one} and {other} games share seeds {first} to {last}: "
                f"move env.first_seed.{one} or env.first_seed.{other}."
            )
    if config["policy"]["name"] != "tiny":
        return
    for split in EVALUATED:
        if ranges[split].start < BASE_SEEDS.stop and BASE_SEEDS.start < ranges[split].stop:
            yield (
                f"env.first_seed.{split}={ranges[split].start} reaches seeds that the base policy "
                f"learned from ({BASE_SEEDS.start} to {BASE_SEEDS.stop - 1}): choose others."
            )


def _games(config: Config) -> Iterator[str]:
    env, mixture = config["env"], config["env"]["mixture"]
    if mixture is not None and not isinstance(mixture, list | str):
        yield "env.mixture must be null, a name, or a list as [{task: w2-o3-q4, weight: 1}]."
    parts = mixture if isinstance(mixture, list) else []
    for part in parts:
        if not isinstance(part, Mapping) or set(part) != {"task", "weight"}:
            yield f"env.mixture: {part} must have a task and a weight, and nothing else."
            return
        weight = part["weight"]
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 < weight < math.inf:
            yield f"env.mixture: the weight of {part['task']} must be a number above 0."
    if mixture == []:
        yield "env.mixture is empty; name at least one task or set it to null."
    for key, game in [("env.game", env["game"]), *(("env.mixture", p["task"]) for p in parts)]:
        yield from _game(key, game)
    if "data" in env and not (isinstance(env["data"], str) and env["data"]):
        yield f"env.data={env['data']} must be the name of a set of games or their directory."


def _game(key: str, game: Any) -> Iterator[str]:
    listed = game if isinstance(game, list) else [game]
    if not listed or not all(isinstance(one, str) and one for one in listed):
        yield f"{key}={game} must be the name of a game, a game file, or a list of game files."


def _history(config: Config) -> Iterator[str]:
    env, policy = config["env"], config["policy"]
    window = env["history_window"]
    if window is None:
        pass
    elif isinstance(window, bool) or not isinstance(window, int):
        yield f"env.history_window={window} must be null or a whole number of at least 1."
    elif window < 1:
        yield f"env.history_window={window} hides the present; set it to null to see all turns."
    elif window > (turns := env["max_turns"]):
        yield f"env.history_window={window} is more than env.max_turns={turns}; set it to null."
    if policy["context"] <= policy["max_tokens"]:
        yield (
            f"policy.context={policy['context']} is too small for one turn of "
            f"policy.max_tokens={policy['max_tokens']} and its prompt; raise policy.context."
        )


def _policy(config: Config) -> Iterator[str]:
    policy, path = config["policy"], config["policy"]["path"]
    if path is None:
        if policy["name"] == "hf":
            yield "policy=hf needs policy.path=, a directory, a hub name or a GGUF file."
        return
    if not isinstance(path, str):
        yield f"policy.path={path} must be a path or a hub name."
        return
    hub = path.count("/") == 1 and path[0] not in "./~" and not path.endswith(".gguf")
    if not Path(path).expanduser().exists() and (policy["name"] == "tiny" or not hub):
        yield f"policy.path={path} does not exist; name a directory that holds a model."


def _lora(config: Config) -> Iterator[str]:
    lora, algo = config["policy"]["lora"], config["algo"]
    targets = lora["targets"]
    listed = [targets] if targets == "all-linear" else targets
    if not isinstance(listed, list) or not all(isinstance(one, str) and one for one in listed):
        yield f"policy.lora.targets={targets} must be all-linear or a list of names of layers."
    elif not listed:
        yield "policy.lora.targets is empty; set it to all-linear, or policy.lora.rank to 0."
    if lora["rank"] and algo.get("kl_coef") and config["sft"]["demos"] and algo["name"] != "sft":
        yield (
            "policy.lora.rank, sft.demos and algo.kl_coef do not go together: the reference of an "
            "adapter is the base without it, not what demonstrations made of it; train with "
            "algo=sft first and start from its checkpoint (policy.path), or set algo.kl_coef=0."
        )


def _demonstrations(config: Config) -> Iterator[str]:
    name, demos = config["algo"]["name"], config["sft"]["demos"]
    if name == "sft" and demos == 0:
        yield "algo=sft needs demonstrations; set sft.demos to 1 or more."
    if name == "none" and demos > 0:
        yield f"sft.demos={demos} has no meaning with algo=none; use algo=sft or set it to 0."
    if demos and config["sft"]["mistakes"] and config["env"].get("expert") != "seeker":
        yield "sft.mistakes needs env.expert=seeker, which goes on from them; or set it to 0."


def _training(config: Config) -> Iterator[str]:
    train, algo, available = config["train"], config["algo"], config["env"]["tasks"]["train"]
    if "group_size" not in algo:
        return
    if game_files(config["env"]["game"]) is None and train["tasks"] > available:
        yield (
            f"train.tasks={train['tasks']} is more than env.tasks.train={available}; "
            "an iteration never draws a game twice."
        )
    size = algo["group_size"]
    episodes = train["tasks"] * size if isinstance(size, int) else algo["minibatches"]
    if size and algo["minibatches"] > episodes:
        yield (
            f"algo.minibatches={algo['minibatches']} is more than the {episodes} episodes of an "
            "iteration (train.tasks x algo.group_size)."
        )
    elif config["optim"]["minibatch"] == "groups" and algo["minibatches"] > train["tasks"]:
        yield (
            f"algo.minibatches={algo['minibatches']} is more than the {train['tasks']} groups of "
            "an iteration (train.tasks); lower it, or set optim.minibatch=episodes."
        )


def _evaluation(config: Config) -> Iterator[str]:
    suites = config["eval"]["suites"]
    if not isinstance(suites, list) or not suites:
        yield f"eval.suites={suites} must be a list of {' and '.join(EVALUATED)}."
        return
    for suite in suites:
        if suite not in EVALUATED:
            yield f"eval.suites: {suite} is not a suite to evaluate; use {', '.join(EVALUATED)}."
    if len(set(suites)) < len(suites):
        yield f"eval.suites={suites} names a suite twice."


def _compat(config: Config) -> Iterator[str]:
    """A switch that could change nothing would pass for a measurement of its fault."""
    algo, compat = config["algo"], config["compat"]
    if compat["wins_only"] and config["reward"]["name"] == "sparse":
        yield "compat.wins_only=true changes nothing with reward=sparse; set reward=dense."
    if compat["group_of_one"] and algo.get("group_size") != 1:
        yield "compat.group_of_one=true changes nothing unless algo.group_size=1; set that."
    if compat["cut_returns"] and algo.get("advantage_granularity") not in ("turn", "token"):
        yield (
            "compat.cut_returns=true changes nothing unless algo.advantage_granularity is turn or "
            "token; set that."
        )
    if compat["prompt_attention"] and algo["name"] in ("none", "sft"):
        yield f"compat.prompt_attention=true changes nothing with algo={algo['name']}; set another."


CHECKS: tuple[Callable[[Config], Iterator[str]], ...] = (
    _numbers,
    _switches,
    _seeds,
    _games,
    _history,
    _policy,
    _lora,
    _demonstrations,
    _training,
    _evaluation,
    _compat,
)
