"""A made-up copy of the official data, and configurations that read it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from envs.alfworld.games import GAME, TRAJECTORY
from envs.alfworld.houses import HouseOptions, make_house
from envs.suites import CHECKOUT, SPLITS, Suites, make_suites

# Few places to look in and things to carry: a walk in such a house tries most of what can be done.
SMALL = HouseOptions(receptacles=5, objects=3, distractors=1)
# Games of each type in the made-up data.
HELD = {"train": 3, "valid_seen": 4, "valid_unseen": 2}
_HOUSE = ["rooms: 1", f"receptacles: {SMALL.receptacles}", "objects: 3", "distractors: 1"]


def config(cache: Path, *overrides: str) -> Any:
    few = [f"paths.cache={cache}", "env.tasks={train: 12, validation: 6, test: 6}", "sft.demos=6"]
    house = f"env.house={{{', '.join(_HOUSE)}, path_length: null}}"
    with initialize_config_dir(str(CHECKOUT / "recipes"), version_base=None):
        made = compose("config", ["env=alfworld", "reward=dense", *few, house, *overrides])
    OmegaConf.resolve(made)
    return made


def write_game(folder: Path, task_type: str, seed: int, unseen: bool) -> None:
    game, trajectory = make_house(task_type, seed, SMALL, unseen)
    folder.mkdir(parents=True)
    (folder / GAME).write_text(json.dumps(game))
    (folder / TRAJECTORY).write_text(json.dumps(trajectory))


def official(data: Path, *overrides: str) -> Suites:
    return make_suites(config(data.parent / "cache", f"env.data={data}", *overrides))


def ids(suites: Suites) -> dict[str, list[str]]:
    return {split: [task.id for task in suites.get(split).tasks] for split in SPLITS}


def types(tasks: Any) -> dict[str, int]:
    return dict(Counter(task.type for task in tasks))
