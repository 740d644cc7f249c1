"""Games on disk: damaged caches are made again, data may lie elsewhere, content is identity."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.games import GAME, TRAJECTORY, file_task, make
from envs.base import Task
from envs.suites import CHECKOUT
from runs.errors import ConfigError, EnvError
from runs.identity import canonical
from tests.envs.alfworld.made import PLACE, TWO
from tests.envs.alfworld.official import HELD, SMALL, config, ids, official, types


def test_split_folders_may_be_links(data: Path, tmp_path_factory) -> None:
    elsewhere = tmp_path_factory.mktemp("links") / "json_2.1.2"
    elsewhere.mkdir()
    for split in HELD:
        (elsewhere / split).symlink_to(data / "json_2.1.2" / split)
    assert ids(official(elsewhere.parent)) == ids(official(data))


def test_more_demonstrations_than_games_leave_none_to_train_on(data: Path) -> None:
    suites = official(data, "sft.demos=30")
    assert types(suites.sft.tasks) == dict.fromkeys(TASK_TYPES, 3)
    with pytest.raises(ConfigError, match="suite train is empty: .*lower sft.demos"):
        _ = suites.train


def test_official_data_is_a_run_by_its_content(data: Path) -> None:
    def identity(folder: Path) -> str:
        made = OmegaConf.to_container(config(data.parent / "cache", f"env.data={folder}"))
        return canonical(made, CHECKOUT)["env"]["data"]  # type: ignore[arg-type]

    root = data / "json_2.1.2"
    before = identity(root)
    copied = Path(shutil.copytree(root, data.parent / "copied"))
    assert identity(copied) == before
    # The type of a game, which tables are by, stands beside it.
    changed = Path(shutil.copytree(root, data.parent / "changed"))
    trajectory = next(iter(sorted(changed.rglob(TRAJECTORY))))
    trajectory.write_text(trajectory.read_text().replace(TWO, PLACE).replace("look_at", "see"))
    assert identity(changed) != before
    linked = data.parent / "linked"
    linked.mkdir()
    for split in HELD:
        (linked / split).symlink_to(root / split)
    assert identity(linked) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "task.json").write_bytes(b"\xff\xfe\x00"),
        lambda folder: (folder / "task.json").write_text("{}"),
        lambda folder: (folder / "task.json").write_text('{"sha256": "x", "difficulty": {}}'),
        lambda folder: (folder / TRAJECTORY).unlink(),
        lambda folder: (folder / TRAJECTORY).write_text("{"),
        lambda folder: (folder / GAME).write_text("{"),
    ],
)
def test_a_damaged_house_in_the_cache_is_made_again(tmp_path: Path, damage: Any) -> None:
    def house() -> Task:
        return make(PLACE, 3, SMALL, False, tmp_path)

    task = house()
    content = {p.name: p.read_bytes() for p in Path(task.file).parent.iterdir()}
    damage(Path(task.file).parent)
    assert house() == task
    assert {p.name: p.read_bytes() for p in Path(task.file).parent.iterdir()} == content


def test_a_damaged_measure_is_made_again(data: Path, tmp_path: Path) -> None:
    game = next(iter(sorted(data.rglob(GAME))))
    task = file_task(game, PLACE, tmp_path)
    (remembered,) = (tmp_path / "files").iterdir()
    for broken in ("", "[]", "{}", '{"a": 1}'):
        remembered.write_text(broken)
        assert file_task(game, PLACE, tmp_path) == task


def test_a_receptacle_without_a_place_is_no_way_to_win(data: Path, tmp_path: Path) -> None:
    game = next(p for p in sorted(data.rglob(GAME)) if "pick_heat" in str(p))
    content = json.loads(game.read_text())
    lines = content["pddl_problem"].splitlines()
    kept = [line for line in lines if "receptacleAtLocation Microwave" not in line]
    assert len(kept) < len(lines)
    broken = tmp_path / GAME
    broken.write_text(json.dumps(content | {"pddl_problem": "\n".join(kept)}))
    with pytest.raises(EnvError, match="cannot be won"):
        file_task(broken, PLACE, tmp_path)
