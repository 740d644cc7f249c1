"""Houses of every task type, made here, and the real games where they lie beside the checkout."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from envs.alfworld.floorplans import TASK_TYPES
from envs.alfworld.games import make
from envs.alfworld.houses import HouseOptions, make_house
from envs.base import Task
from envs.suites import CHECKOUT
from tests.envs.alfworld.official import HELD, SMALL, write_game

REAL = CHECKOUT.parent / "shared" / "data" / "alfworld"
Game = dict[str, Any]


@pytest.fixture(scope="session")
def generated() -> dict[tuple[str, int], Game]:
    """Two houses of each type, by type and seed."""
    options = HouseOptions(receptacles=6, objects=6)
    return {(t, s): make_house(t, s, options, s == 2)[0] for t in TASK_TYPES for s in (1, 2)}


@pytest.fixture(scope="session")
def small() -> list[Game]:
    """Two small houses of each type."""
    return [make_house(t, seed, SMALL, False)[0] for t in TASK_TYPES for seed in (1, 2)]


@pytest.fixture(scope="session")
def tasks(tmp_path_factory) -> list[Task]:
    """One small house of each type, on disk."""
    cache = tmp_path_factory.mktemp("alfworld")
    return [make(t, 1, SMALL, False, cache) for t in TASK_TYPES]


@pytest.fixture(scope="session")
def real() -> list[Path]:
    """The 36 real games, sorted by path, so by split and type."""
    found = sorted((REAL / "json_2.1.2").rglob("game.tw-pddl"))
    if not found:
        pytest.skip("the public test data lies beside the checkout on some machines only")
    return found


@pytest.fixture(scope="session")
def older(real) -> list[Path]:
    """Six of them as first published, with the older words."""
    return sorted((REAL / "json_2.1.1").rglob("game.tw-pddl"))


@pytest.fixture(scope="session")
def downloaded(tmp_path_factory) -> Path:
    """Made once; `data` is a copy that a test may change."""
    root = tmp_path_factory.mktemp("official")
    for split, count in HELD.items():
        for task_type in TASK_TYPES:
            for number in range(count):
                place = root / "json_2.1.2" / split / f"{task_type}-Thing-None-Place-{number}"
                seed = number + 100 * list(HELD).index(split)
                write_game(place / f"trial_T{seed}", task_type, seed, split == "valid_unseen")
    return root


@pytest.fixture
def data(downloaded: Path, tmp_path_factory) -> Path:
    # Not tmp_path, whose name holds that of the test.
    return Path(shutil.copytree(downloaded, tmp_path_factory.mktemp("data") / "alfworld"))
