"""The smallest configuration, as plain values."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.fixture
def config() -> dict:
    with initialize_config_dir(str(RECIPES), version_base="1.3"):
        return OmegaConf.to_container(compose("config", ["scale=smoke"]), resolve=True)  # type: ignore[return-value]
