"""Refusals of the configuration: keys that the chosen groups have, bounds, mixtures, data."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from runs.config import check_keys, check_values
from runs.errors import ConfigError


def change(config: dict[str, Any], key: str, value: Any) -> None:
    *groups, name = key.split(".")
    for group in groups:
        config = config.setdefault(group, {})
    config[name] = value


def remove(config: dict[str, Any], key: str) -> None:
    *groups, name = key.split(".")
    for group in groups:
        config = config[group]
    del config[name]


def refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_values(config)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("key", ["env.timeout", "env.show_score", "policy.critic", "algo.epochs"])
def test_a_key_that_the_chosen_groups_do_not_have_is_not_missed(config: dict, key: str):
    remove(config, key)
    check_values(config)


@pytest.mark.parametrize("key", ["env.timeout", "env.show_score", "policy.critic", "algo.epochs"])
def test_a_key_that_they_have_needs_a_value(config: dict, key: str):
    change(config, key, None)
    refused(config, f"{key}=None must be ")


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("env.house.rooms", [1, 30], [0, 1.5, True]),
        ("env.house.receptacles", [1], [0]),
        ("env.house.objects", [0, 5], [-1, "many"]),
        ("env.house.distractors", [0], [-1]),
        ("optim.lr", [1e-9], [0, 0.0, -1, float("inf"), float("nan")]),
        ("optim.final_share", [0, 0.5, 1], [-0.1, 1.001]),
        ("policy.lora.rank", [0, 4096], [4097]),
    ],
)
def test_numbers_keep_their_bounds(config: dict, key: str, good: list, bad: list):
    for value in good:
        change(config, key, value)
        check_values(config)
    for value in bad:
        change(config, key, value)
        refused(config, f"{key}={value} must be ")


@pytest.mark.parametrize(
    "mixture", [None, "some-name", [{"task": "w1-o1-q1", "weight": 2}, {"task": "x", "weight": 1}]]
)
def test_a_mixture_is_nothing_a_name_or_a_list(config: dict, mixture: Any):
    config["env"]["mixture"] = mixture
    check_values(config)


@pytest.mark.parametrize(
    ("mixture", "sentence"),
    [
        (5, "env.mixture must be null, a name, or a list"),
        ({}, "env.mixture must be null, a name, or a list"),
        (False, "env.mixture must be null, a name, or a list"),
        ([], "env.mixture is empty"),
        (["heat"], "env.mixture: heat must have a task and a weight"),
        ([{"task": "heat"}], "env.mixture: {'task': 'heat'} must have a task and a weight"),
        ([{"task": "heat", "weight": 0}], "env.mixture: the weight of heat"),
        ([{"task": "", "weight": 1}], "env.mixture= must be the name of a game"),
    ],
)
def test_any_other_mixture_is_refused(config: dict, mixture: Any, sentence: str):
    config["env"]["mixture"] = mixture
    refused(config, sentence)


def test_where_there_is_data_it_has_a_name(config: dict):
    config["env"]["data"] = "generated"
    check_values(config)
    for value in (None, "", 3, ["a"]):
        config["env"]["data"] = value
        refused(config, f"env.data={value} must be ")


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """Two families: a flat has rooms and data where a cave has depth."""
    (tmp_path / "env").mkdir()
    common = {"game": "", "turns": 3}
    cave = common | {"family": "cave", "depth": 2, "light": 1}
    flat = common | {"family": "flat", "house": {"rooms": 1}, "data": "x"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"seed": 0}))
    (tmp_path / "env" / "cave.yaml").write_text(yaml.safe_dump(cave))
    (tmp_path / "env" / "flat.yaml").write_text(yaml.safe_dump(flat))
    return tmp_path


@pytest.mark.parametrize("choice", ["cave", "flat"])
def test_each_choice_needs_all_of_its_own_keys_and_none_of_the_others(recipes: Path, choice: str):
    def chosen() -> dict[str, Any]:
        return {"seed": 0, "env": yaml.safe_load((recipes / "env" / f"{choice}.yaml").read_text())}

    check_keys(chosen(), recipes)
    other = {"cave": "flat", "flat": "cave"}[choice]
    own = {"cave": ["env.depth", "env.light"], "flat": ["env.house.rooms", "env.data"]}[choice]
    for key in ["seed", "env.game", *own]:
        config = chosen()
        remove(config, key)
        if key == "env.house.rooms":
            del config["env"]["house"]
        who = "config.yaml" if key == "seed" else f"env.family={choice}"
        with pytest.raises(ConfigError, match=f"^{key} is missing; {who} needs it"):
            check_keys(config, recipes)
    # To name another family is not to choose it.
    with pytest.raises(ConfigError, match=f"is missing; env.family={other} needs it"):
        check_keys({"seed": 0, "env": chosen()["env"] | {"family": other}}, recipes)
    # What there is no family for is refused where families are known.
    check_keys({"seed": 0, "env": chosen()["env"] | {"family": "tent"}}, recipes)


def test_what_every_choice_has_is_needed_whatever_the_family(recipes: Path):
    env = yaml.safe_load((recipes / "env" / "cave.yaml").read_text())
    for family in ({"family": "tent"}, {}):
        given = {key: value for key, value in env.items() if key not in ("family", "game")}
        with pytest.raises(ConfigError, match="is missing; env needs it"):
            check_keys({"seed": 0, "env": given | family}, recipes)
