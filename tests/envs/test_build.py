"""Making games: the paper's very games, a cache that is shared, interrupted and damaged."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envs.base import Task
from envs.process import Child
from envs.stored import STALE_SECONDS
from envs.textworld.build import build
from envs.textworld.games import parse_game, stored
from runs.errors import ConfigError, EnvError
from tests.envs.conftest import CACHE

SPEC = parse_game("w2-o3-q4", "sparse")
assert SPEC is not None


@pytest.fixture
def cache(tmp_path, custom) -> Path:
    """A cache of its own that holds seeds 1 to 3."""
    for task in custom:
        folder = Path(task.file).parent
        shutil.copytree(folder, tmp_path / folder.relative_to(CACHE))
    return tmp_path


def making(cache: Path) -> list[str]:
    return [path.name for path in (cache / "games" / "w2-o3-q4").glob(".making-*")]


def test_seed_1_is_the_game_of_the_papers_figure_3(custom):
    metadata = json.loads(Path(custom[0].file).with_suffix(".json").read_text())["metadata"]
    assert metadata["walkthrough"] == [
        "take type J keycard from case",
        "unlock type J chest with type J keycard",
        "open type J chest",
        "take Quote of the Day Calendar from type J chest",
    ]
    assert (custom[0].id, custom[0].optimal_length, custom[0].state_size) == ("w2-o3-q4-1", 4, 6)
    assert custom[0].actions_mean == 10.5


def test_games_are_those_of_tw_make(tmp_path, two_quests):
    tool = Path(sys.executable).with_name("tw-make")
    made = tmp_path / "made.z8"
    sizes = ["--world-size", "2", "--nb-objects", "3", "--quest-length", "4"]
    subprocess.run(
        [sys.executable, tool, "custom", *sizes, "--seed", "50001", "--output", made, "--silent"],
        check=True,
        capture_output=True,
    )
    ours = Path(two_quests.file).with_suffix(".json")
    assert made.with_suffix(".json").read_bytes() == ours.read_bytes()


def test_two_processes_that_build_the_same_game_agree(tmp_path):
    children = [Child("envs.textworld.build:serve_make") for _ in range(2)]
    try:
        for child in children:
            child.start()
        for child in children:
            child.send((SPEC, str(tmp_path), 7))
        assert [child.receive() for child in children] == [("ok", None)] * 2
    finally:
        for child in children:
            child.kill()
    assert isinstance(stored(SPEC, tmp_path, 7), Task)
    assert making(tmp_path) == []
    assert len(list((tmp_path / "games" / "w2-o3-q4").iterdir())) == 1


def test_interrupted_build_leaves_no_half_game_and_goes_on(tmp_path):
    child = Child("envs.textworld.build:serve_make")
    child.start()
    child.send((SPEC, str(tmp_path), 7))
    while not making(tmp_path):
        time.sleep(0.01)
    child.kill()
    assert stored(SPEC, tmp_path, 7) is None
    (left,) = making(tmp_path)
    past = time.time() - STALE_SECONDS - 1
    os.utime(tmp_path / "games" / "w2-o3-q4" / left, (past, past))
    tasks, skipped = build(SPEC, tmp_path, 7, 1)
    assert [task.seed for task in tasks] == [7] and skipped == {}
    assert making(tmp_path) == []


@pytest.mark.parametrize("name", ["game.z8", "game.json", "task.json"])
def test_damaged_game_is_set_aside(cache, name):
    folder = Path(stored(SPEC, cache, 2).file).parent
    with open(folder / name, "r+b") as file:
        file.truncate(100)
    assert stored(SPEC, cache, 2) is None
    assert not folder.exists()


def test_what_is_missing_is_made_and_is_the_same_game(cache, custom):
    shutil.rmtree(Path(stored(SPEC, cache, 2).file).parent)
    tasks, _ = build(SPEC, cache, 1, 3)
    assert [task.sha256 for task in tasks] == [task.sha256 for task in custom]


def fail(cache: Path, seed: int) -> None:
    folder = SPEC.folder(cache, seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps({"failed": "QuestGenerationError: none"}))


def test_seed_that_makes_no_game_is_skipped_and_told(cache):
    fail(cache, 2)
    told = []
    tasks, skipped = build(SPEC, cache, 1, 2, "some", lambda *what: told.append(what))
    assert [task.seed for task in tasks] == [1, 3]
    assert skipped == {2: "QuestGenerationError: none"}
    assert told[0] == ("some", 1, 2) and told[-1] == ("some", 2, 2)


def test_generator_that_never_succeeds_is_refused(cache):
    for seed in range(100, 140):
        fail(cache, seed)
    with pytest.raises(ConfigError, match=r"env\.game=w2-o3-q4"):
        build(SPEC, cache, 100, 1)


def test_cached_games_start_no_process(cache, monkeypatch):
    monkeypatch.setattr("envs.textworld.build.Child", None)
    assert len(build(SPEC, cache, 1, 3)[0]) == 3


def test_unwritable_cache_is_told(tmp_path):
    (tmp_path / "games").write_text("in the way")
    with pytest.raises(EnvError, match=r"set paths\.cache"):
        build(SPEC, tmp_path, 7, 1)


def test_key_tells_arguments_apart():
    detailed = parse_game("tw-simple-detailed", "dense")
    sparse = parse_game("tw-simple-detailed", "sparse")
    assert detailed.name == sparse.name
    assert detailed.folder(CACHE, 1) != sparse.folder(CACHE, 1)
    assert parse_game("w2-o3-q4", "dense") == SPEC
