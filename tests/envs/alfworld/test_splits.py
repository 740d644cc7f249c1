"""Splits: houses made here by type, weight and seed, and the official folders as they may be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.games import GAME, TRAJECTORY
from envs.alfworld.splits import MIXTURES, SIZES, knows
from envs.base import Task
from envs.suites import SPLITS, find_tasks, make_suites
from runs.errors import ConfigError, EnvError
from tests.envs.alfworld.made import PLACE, TWO
from tests.envs.alfworld.official import HELD, config, ids, official, types

# --- houses made here ---


def test_counts_by_type(tmp_path: Path) -> None:
    suites = make_suites(config(tmp_path))
    assert types(suites.train.tasks) == dict.fromkeys(TASK_TYPES, 2)
    for split in ("validation", "test", "sft"):
        assert types(suites.get(split).tasks) == dict.fromkeys(TASK_TYPES, 1)
    every = [task for split in SPLITS for task in suites.get(split).tasks]
    assert len({task.sha256 for task in every}) == len({task.id for task in every}) == len(every)
    assert all(task.id.endswith("-unseen") for task in suites.test.tasks)
    assert all(Path(task.file).is_file() and task.optimal_length > 2 for task in every)


def test_the_same_again_and_from_the_cache(tmp_path: Path) -> None:
    first, cached, elsewhere = (
        make_suites(config(cache)) for cache in (tmp_path / "a", tmp_path / "a", tmp_path / "b")
    )
    for split in SPLITS:
        assert first.get(split).tasks == cached.get(split).tasks
        assert [t.sha256 for t in first.get(split).tasks] == [
            t.sha256 for t in elsewhere.get(split).tasks
        ]


def test_a_damaged_game_is_made_again(tmp_path: Path) -> None:
    before = make_suites(config(tmp_path)).test.tasks
    Path(before[0].file).write_text("{")
    Path(before[1].file).unlink()
    after = make_suites(config(tmp_path)).test.tasks
    assert after == before
    assert all(json.loads(Path(task.file).read_text())["solvable"] for task in after)


@pytest.mark.parametrize(("name", "held"), MIXTURES.items())
def test_mixtures_by_name(tmp_path: Path, name: str, held: tuple[str, ...]) -> None:
    suites = make_suites(config(tmp_path, f"env.game={name}"))
    assert types(suites.train.tasks) == dict.fromkeys(held, 12 // len(held))


def test_training_on_some_types_and_testing_on_all(tmp_path: Path) -> None:
    suites = make_suites(config(tmp_path, "env.mixture=single"))
    assert types(suites.train.tasks) == {PLACE: 12}
    # Demonstrations are of what is trained on.
    assert types(suites.sft.tasks) == {PLACE: 6}
    assert types(suites.test.tasks) == dict.fromkeys(TASK_TYPES, 1)


def test_mixtures_by_weight(tmp_path: Path) -> None:
    weights = f"env.mixture=[{{task: {PLACE}, weight: 3}}, {{task: {TWO}, weight: 1}}]"
    suites = make_suites(config(tmp_path, weights))
    assert types(suites.train.tasks) == {PLACE: 9, TWO: 3}
    drawn = [suites.train.draw(0, iteration, 8) for iteration in range(60)]
    assert types(t for one in drawn for t in one)[PLACE] / 480 == pytest.approx(0.75, abs=0.06)
    assert drawn == [suites.train.draw(0, iteration, 8) for iteration in range(60)]
    assert drawn != [suites.train.draw(1, iteration, 8) for iteration in range(60)]
    assert len({task.id for one in drawn for task in one}) == 12


REFUSED = [
    ("env.game=chess", "env.game=chess is no task of ALFWorld"),
    ("env.mixture=chess", "env.mixture=chess is no task of ALFWorld"),
    ("env.mixture=[{task: chess, weight: 1}]", "env.mixture holds chess"),
    (
        f"env.mixture=[{{task: {PLACE}, weight: 1}}, {{task: {PLACE}, weight: 2}}]",
        "env.mixture names a task twice",
    ),
    ("env.expert=oracle", "env.expert=oracle is no expert"),
    ("env.first_seed.train=5", "train and test overlap .* env.first_seed"),
    ("env.first_seed.sft=45001", "validation and sft overlap"),
    ("env.house.rooms=0", "env.house.rooms=0"),
    ("env.house.receptacles=three", "env.house.receptacles=three"),
    ("env.house.objects=-1", "env.house.objects=-1"),
    ("env.house.distractors=1.5", "env.house.distractors=1.5"),
    ("env.house.path_length=[9,3]", "env.house.path_length=.*smaller number first"),
    ("reward.name=balanced", "reward=balanced .* sparse, dense"),
    ("env.data=nowhere", "env.data=nowhere is no folder: run alfworld-download"),
]


@pytest.mark.parametrize(("override", "said"), REFUSED)
def test_refused_before_a_house_is_made(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_suites(config(tmp_path, override))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("env.house.path_length=[30,40]", "env.house.path_length=.*widen it"),
        ("env.tasks.train=3", "env.tasks.train=3 is too few games for 6 tasks"),
        ("env.tasks.train=0", "suite train is empty: raise env.tasks.train"),
    ],
)
def test_refused_when_houses_are_made(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _ = make_suites(config(tmp_path, override)).train


def test_no_demonstrations_are_an_empty_suite(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="suite sft is empty: raise sft.demos"):
        _ = make_suites(config(tmp_path, "sft.demos=0")).sft


# --- the official games ---


def test_official_splits(data: Path) -> None:
    suites = official(data)
    # Of three games of a type, one is demonstrated and two are trained on.
    assert types(suites.train.tasks) == dict.fromkeys(TASK_TYPES, 2)
    for split in ("validation", "test", "sft"):
        assert types(suites.get(split).tasks) == dict.fromkeys(TASK_TYPES, 1)
    folders = {split: {Path(t.file).parts[-4] for t in suites.get(split).tasks} for split in SPLITS}
    assert folders == {
        "train": {"train"}, "sft": {"train"}, "validation": {"valid_seen"},
        "test": {"valid_unseen"},
    }  # fmt: skip
    assert not {t.sha256 for t in suites.train.tasks} & {t.sha256 for t in suites.sft.tasks}
    one = suites.train.tasks[0]
    assert one.id == "/".join(Path(one.file).parts[-3:-1])


def test_fewer_games_are_the_same_ones(data: Path) -> None:
    few = ids(official(data, "env.tasks={train: 6, validation: 6, test: 6}"))
    more = ids(official(data, "env.tasks={train: 12, validation: 12, test: 12}"))
    for split in ("train", "validation", "test"):
        assert set(few[split]) < set(more[split])
        assert [one for one in more[split] if one in few[split]] == few[split]


def test_the_order_is_not_that_of_the_disk(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = "env.tasks={train: 12, validation: 24, test: 12}"
    before = ids(official(data, every))
    for split, found in before.items():
        by_type = [[one for one in found if one.startswith(kind)] for kind in TASK_TYPES]
        assert found == [one for group in by_type for one in sorted(group)], split
    listed = Path.rglob

    def backwards(path: Path, pattern: str) -> Any:
        return reversed(list(listed(path, pattern)))

    monkeypatch.setattr(Path, "rglob", backwards)
    assert ids(official(data, every)) == before


def test_a_count_that_is_not_alfworlds_is_said(data: Path, caplog) -> None:
    _ = official(data).test
    assert f"holds 12 games, ALFWorld's own has {SIZES['valid_unseen']}" in caplog.text
    assert "left out" not in caplog.text


def test_the_official_counts_are_not_remarked(data: Path, caplog, monkeypatch) -> None:
    monkeypatch.setattr("envs.alfworld.splits.SIZES", {folder: 6 * n for folder, n in HELD.items()})
    ids(official(data))
    assert caplog.text == ""


def test_fewer_games_than_asked_for_are_said(data: Path, caplog) -> None:
    suites = official(data, "env.tasks.test=60")
    assert types(suites.test.tasks) == dict.fromkeys(TASK_TYPES, 2)
    assert "has 2 games" in caplog.text and "not 10" in caplog.text


def unsolvable(trial: Path) -> None:
    game = json.loads((trial / GAME).read_text())
    (trial / GAME).write_text(json.dumps(game | {"solvable": False}))


def without_a_verdict(trial: Path) -> None:
    game = json.loads((trial / GAME).read_text())
    del game["solvable"]
    (trial / GAME).write_text(json.dumps(game))


def sliced(trial: Path) -> None:
    trial.parent.rename(trial.parent.with_name(f"{PLACE}-AppleSliced-None-Place-0"))


def movable(trial: Path) -> None:
    name = "pick_and_place_with_movable_recep-Pen-Mug-Shelf-0"
    trial.parent.rename(trial.parent.with_name(name))


def another_type(trial: Path) -> None:
    told = json.loads((trial / TRAJECTORY).read_text())
    (trial / TRAJECTORY).write_text(json.dumps(told | {"task_type": "sweep_the_floor"}))


def no_game(trial: Path) -> None:
    (trial / GAME).unlink()


LEFT_OUT: list[tuple[Callable[[Path], None], str]] = [
    (unsolvable, "not known to be solvable"),
    (without_a_verdict, "not known to be solvable"),
    (sliced, "movable receptacles and slices"),
    (movable, "movable receptacles and slices"),
    (another_type, "its type sweep_the_floor is none of the six"),
    (no_game, "the download is not complete"),
]


@pytest.mark.parametrize(("spoil", "said"), LEFT_OUT)
def test_what_is_left_out_is_said(data: Path, caplog, spoil: Any, said: str) -> None:
    split = data / "json_2.1.2" / "valid_unseen"
    spoil(split / f"{PLACE}-Thing-None-Place-0" / "trial_T200")
    suites = official(data, "env.tasks.test=12")
    assert types(suites.test.tasks) == dict.fromkeys(TASK_TYPES, 2) | {PLACE: 1}
    assert "1 games left out" in caplog.text and said in caplog.text
    assert "holds 11 games" in caplog.text


def test_a_damaged_file_stops_the_run(data: Path) -> None:
    trial = data / "json_2.1.2" / "valid_unseen" / f"{PLACE}-Thing-None-Place-0" / "trial_T200"
    whole = (trial / GAME).read_text()
    (trial / GAME).write_text(whole[:1000])
    with pytest.raises(EnvError, match=f"{trial / GAME} is not whole JSON.*alfworld-download -f"):
        _ = official(data).test
    (trial / GAME).write_text(whole)
    (trial / TRAJECTORY).write_text("{}")
    with pytest.raises(EnvError, match=f"{trial / TRAJECTORY} is damaged.*alfworld-download -f"):
        _ = official(data).test


def no_games_at_all(root: Path) -> None:
    for game in root.rglob(GAME):
        game.unlink()


def one_folder_without_games(root: Path) -> None:
    no_games_at_all(root / "json_2.1.2" / "valid_unseen")


def no_test_folder(root: Path) -> None:
    shutil.rmtree(root / "json_2.1.2" / "valid_unseen")


def empty_folder(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def empty_splits(root: Path) -> None:
    empty_folder(root)
    for folder in HELD:
        (root / "json_2.1.2" / folder).mkdir(parents=True)


def gone(root: Path) -> None:
    shutil.rmtree(root)


USELESS: list[tuple[Callable[[Path], None], str]] = [
    (no_games_at_all, "no game.tw-pddl: the download is not complete"),
    (one_folder_without_games, "valid_unseen holds no game that can be played"),
    (no_test_folder, "valid_unseen does not exist"),
    (empty_folder, "holds neither json_2.1.2 nor json_2.1.1, nor train"),
    (empty_splits, "no game.tw-pddl"),
    (gone, "is no folder"),
]


@pytest.mark.parametrize(("spoil", "said"), USELESS)
def test_what_cannot_be_used_is_refused(data: Path, spoil: Any, said: str) -> None:
    spoil(data)
    with pytest.raises(ConfigError, match=f"{said}.*alfworld-download"):
        _ = official(data).test


def test_where_the_official_data_is_looked_for(data: Path, monkeypatch) -> None:
    expected = ids(official(data))
    monkeypatch.setenv("ALFWORLD_DATA", str(data))
    assert ids(official(data, "env.data=official")) == expected
    # A path to the version's own folder, and data of the older version, do as well.
    assert ids(official(data / "json_2.1.2")) == expected
    (data / "json_2.1.2").rename(data / "json_2.1.1")
    assert ids(official(data)) == expected
    monkeypatch.setenv("ALFWORLD_DATA", str(data / "gone"))
    with pytest.raises(
        ConfigError,
        match="env.data=official means .*gone where .* is no folder",
    ):
        official(data, "env.data=official")


def test_both_versions_side_by_side(data: Path) -> None:
    """The newer one counts."""
    shutil.copytree(data / "json_2.1.2", data / "json_2.1.1")
    assert all("json_2.1.2" in task.file for task in official(data).test.tasks)


# --- games outside of a run ---


def test_find_tasks(tmp_path: Path, data: Path) -> None:
    made = find_tasks("single", 5, 2, "sparse", tmp_path)
    assert [(task.type, task.seed) for task in made] == [(PLACE, 5), (PLACE, 6)]
    folder = data / "json_2.1.2" / "train"
    assert len(find_tasks(str(folder), 1, 5, "sparse", tmp_path)) == 18
    file = sorted(folder.rglob(GAME))[0]
    (one,) = find_tasks(str(file), 1, 5, "sparse", tmp_path)
    assert isinstance(one, Task) and one.file == str(file) and one.type in one.id
    assert knows(str(folder)) and knows("six") and not knows("w2-o3-q4")
    with pytest.raises(EnvError, match="nowhere.tw-pddl does not exist"):
        find_tasks("nowhere.tw-pddl", 1, 1, "sparse", tmp_path)
    file.with_name(TRAJECTORY).unlink()
    with pytest.raises(EnvError, match="traj_data.json is not beside"):
        find_tasks(str(file), 1, 1, "sparse", tmp_path)
