"""Suites: drawing, overlap, and what is refused before a game is built."""

import copy
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from envs.base import Task
from envs.suites import Suite, Suites, apportion, make_env_spec, make_suites
from envs.textworld.splits import deal
from runs.errors import ConfigError

BASE = {
    "env": {
        "family": "textworld",
        "game": "w2-o3-q4",
        "mixture": None,
        "show_admissible": False,
        "constrain": False,
        "show_score": False,
        "tasks": {"train": 200, "validation": 100, "test": 100},
        "first_seed": {"train": 50001, "validation": 45001, "test": 1, "sft": 40001},
    },
    "reward": {"name": "dense", "shaping": 0.0},
    "compat": {"wins_only": False, "done_is_won": False},
    "sft": {"demos": 0},
    "paths": {"cache": ".cache"},
}


def config(**changes):
    made = OmegaConf.create(copy.deepcopy(BASE))
    for key, value in changes.items():
        OmegaConf.update(made, key.replace("__", "."), value)
    return made


def task(number: int, kind: str = "custom", sha: str = "") -> Task:
    name = f"{kind}-{number}"
    return Task("textworld", name, number, "", sha or name, kind, 1, 1.0, 1)


def test_an_epoch_holds_every_task_once_and_epochs_differ():
    suite = Suite("train", [task(number) for number in range(10)])
    drawn = [one for iteration in range(10) for one in suite.draw(3, iteration, 4)]
    epochs = [drawn[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(one.seed for one in epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(one.seed for one in epoch) for epoch in epochs}) == 4


def test_drawing_is_a_function_of_its_arguments():
    suite = Suite("train", [task(number) for number in range(10)])
    later_first = suite.draw(3, 5, 4)
    assert suite.draw(3, 0, 4) != later_first
    assert suite.draw(3, 5, 4) == later_first
    assert suite.draw(4, 5, 4) != later_first


def test_mixture_respects_weights_and_epochs_of_its_parts():
    parts = [(3.0, [task(n, "easy") for n in range(7)]), (1.0, [task(n, "hard") for n in range(5)])]
    suite = Suite("train", [*parts[0][1], *parts[1][1]], parts)
    drawn = [one for iteration in range(100) for one in suite.draw(0, iteration, 8)]
    share = Counter(one.type for one in drawn)["easy"] / len(drawn)
    assert share == pytest.approx(0.75, abs=0.05)
    hard = [one.seed for one in drawn if one.type == "hard"]
    for start in range(0, len(hard) - 5, 5):
        assert sorted(hard[start : start + 5]) == list(range(5))


class Builder:
    def __init__(self, suites: dict[str, list[Task]]) -> None:
        self.kinds: set[str] = set()
        self._suites = suites
        splits = ("train", "validation", "test", "sft")
        self.planned = {split: {f"{split} {n}" for n in range(2)} for split in splits}

    def build(self, split, progress):
        return Suite(split, self._suites[split])


def test_overlap_by_content_is_refused_once_built():
    suites = Suites(Builder({"train": [task(1, sha="same")], "test": [task(2, sha="same")]}))
    assert suites.train.tasks[0].seed == 1
    with pytest.raises(ConfigError, match="overlap: custom-1 and custom-2"):
        suites.get("test")


def test_planned_overlap_is_refused_at_once():
    builder = Builder({})
    builder.planned["test"].add("train 1")
    with pytest.raises(ConfigError, match="train and test overlap"):
        Suites(builder)


def test_suites_are_built_when_needed_and_once():
    suites = Suites(Builder({"train": [task(1)]}))
    assert suites.train is suites.get("train")
    with pytest.raises(ConfigError, match="no suite exam"):
        suites.get("exam")


REFUSED = [
    ({"env__first_seed__train": 50}, "train and test overlap"),
    ({"env__first_seed__validation": 50100}, "train and validation overlap"),
    ({"env__game": "w2-o0-q4"}, "env.game=w2-o0-q4 is no game"),
    ({"env__game": "tw-simple"}, "tw-simple-brief"),
    ({"env__game": "nowhere/game.z8"}, "does not exist"),
    ({"env__game": ["nowhere/game.z8"]}, "does not exist"),
    ({"env__family": "chess"}, "env.family=chess"),
    ({"reward__name": "balanced"}, "sparse, dense"),
    ({"env__mixture": []}, "env.mixture is empty"),
    ({"env__mixture": [{"task": "w2", "weight": 1}]}, "env.mixture holds w2"),
    ({"env__mixture": [{"task": "w2-o3-q4", "weight": 0}]}, "no weight"),
    ({"env__mixture": [{"task": "w2-o3-q4", "weight": 1}] * 2}, "twice"),
    (
        {"env__mixture": [{"task": "cooking", "weight": 1}], "reward__name": "balanced"},
        "custom games",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refused_before_anything_is_built(changes, message, monkeypatch):
    monkeypatch.setattr("envs.textworld.build.Child", None)
    with pytest.raises(ConfigError, match=message):
        make_suites(config(**changes))


def game_file(folder: Path, name: str, uuid: str = "tw-other") -> Path:
    path = folder / f"{name}.z8"
    path.write_bytes(b"")
    path.with_suffix(".json").write_text(f'{{"metadata": {{"uuid": "{uuid}"}}}}')
    return path


def test_files_that_cannot_be_used(tmp_path):
    one = game_file(tmp_path, "one")
    with pytest.raises(ConfigError, match="twice"):
        make_suites(config(env__game=[str(one), str(one)]))
    with pytest.raises(ConfigError, match="sft.demos"):
        make_suites(config(env__game=str(one), sft__demos=3))
    with pytest.raises(ConfigError, match="sparse, dense"):
        make_suites(config(env__game=str(one), reward__name="balanced"))
    one.with_suffix(".json").write_text("[]")
    with pytest.raises(ConfigError, match=r"one\.json is not a TextWorld game"):
        make_suites(config(env__game=str(one)))
    one.with_suffix(".json").unlink()
    with pytest.raises(ConfigError, match=r"one\.json is not beside it"):
        make_suites(config(env__game=str(tmp_path)))
    one.unlink()
    with pytest.raises(ConfigError, match="without .z8 files"):
        make_suites(config(env__game=str(tmp_path)))


def test_one_file_is_for_the_test_suite(shared):
    file = str(shared / "tw-rewardsSparse_goalBrief.z8")
    suites = make_suites(config(env__game=file))
    (only,) = suites.test.tasks
    assert (only.type, only.optimal_length) == ("tw-simple-file", 12)
    with pytest.raises(ConfigError, match="suite train is empty"):
        suites.get("train")


def test_files_are_dealt_once_each():
    files = [Path(f"{number}.z8") for number in range(30)]
    counts = {"train": 200, "validation": 100, "test": 100}
    dealt = deal(files, counts)
    assert dealt["test"][0] == files[0]
    assert {split: len(given) for split, given in dealt.items()} == pytest.approx(
        {"train": 15, "validation": 7, "test": 7}, abs=1
    )
    assert sorted(file for given in dealt.values() for file in given) == sorted(files)
    few = deal(files, {"train": 3, "validation": 0, "test": 2})
    assert {split: len(given) for split, given in few.items()} == {
        "train": 3,
        "validation": 0,
        "test": 2,
    }


def test_apportioning():
    assert apportion(10, [3.0, 1.0]) == [8, 2]
    assert apportion(200, [1.0, 1.0, 1.0]) == [67, 67, 66]
    assert apportion(3, [98.0, 1.0, 1.0]) == [1, 1, 1]
    with pytest.raises(ConfigError, match=r"env\.tasks\.train"):
        apportion(1, [1.0, 1.0])


def test_evaluation_of_tw_simple_is_on_the_same_files_in_every_arm(monkeypatch):
    asked = {}

    def fake(spec, cache, first, count, label, progress):
        asked[label.split()[0]] = spec
        return [task(first, spec.name)], {}

    monkeypatch.setattr("envs.textworld.splits.build", fake)
    arms = {}
    for reward in ("sparse", "balanced", "dense"):
        suites = make_suites(config(env__game="tw-simple-detailed", reward__name=reward))
        ids = [suites.get(split).tasks[0].id for split in ("train", "test", "validation")]
        arms[reward] = (dict(asked), ids)
        assert dict(asked["train"].arguments)["rewards"] == reward
    assert len({arm[0]["test"] for arm in arms.values()}) == 1
    assert len({arm[0]["validation"] for arm in arms.values()}) == 1
    assert len({arm[0]["train"] for arm in arms.values()}) == 3
    assert len({tuple(arm[1]) for arm in arms.values()}) == 1


def test_worker_options_follow_the_config():
    assert make_env_spec(config()).options == {
        "admissible": False,
        "policy_length": True,
        "shaping": 0.0,
        "compat": [],
    }
    sparse = make_env_spec(config(reward__name="sparse", env__constrain=True))
    assert sparse.options["admissible"] and not sparse.options["policy_length"]
    assert make_env_spec(config(env__show_admissible=True)).options["admissible"]
    assert make_env_spec(config(env__show_score=True)).options["show_score"]
    shaped = make_env_spec(config(reward__name="sparse", reward__shaping=0.5)).options
    assert shaped["policy_length"] and shaped["shaping"] == 0.5
    assert make_env_spec(config(compat__wins_only=True)).options["compat"] == ["wins_only"]
