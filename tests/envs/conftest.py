"""Real games for the tests, built once and kept where runs keep theirs."""

from pathlib import Path

import pytest

from envs.base import Task
from envs.textworld.splits import CHECKOUT, find_tasks
from tests.envs.food import make_food_game

CACHE = CHECKOUT / ".cache"
SHARED = CHECKOUT.parent / "shared" / "data" / "textworld"


@pytest.fixture(scope="session")
def custom() -> list[Task]:
    """w2-o3-q4 with seeds 1 to 3."""
    return find_tasks("w2-o3-q4", 1, 3, "sparse", CACHE)


@pytest.fixture(scope="session")
def two_quests() -> Task:
    """A w2-o3-q4 game whose score counts two quests."""
    return find_tasks("w2-o3-q4", 50001, 1, "sparse", CACHE)[0]


@pytest.fixture(scope="session")
def food(tmp_path_factory) -> Task:
    """A game in which the food of the quest can be eaten, so that winning becomes impossible."""
    return make_food_game(tmp_path_factory.mktemp("food") / "food.z8")


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the public test data lies beside the checkout on some machines only")
    return SHARED
