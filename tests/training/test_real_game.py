"""End to end on the smallest real TextWorld games, with the base policy that ships."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_dir

from runs.directory import Run
from tests.training.test_loop import RECORD, lines
from training.loop import train

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def run_of(directory: Path, cache: Path, *overrides: str) -> Path:
    with initialize_config_dir(str(RECIPES), version_base="1.3"):
        config = compose("config", ["scale=smoke", f"paths.cache={cache}", *overrides])
    directory.mkdir()
    (directory / "run.json").write_text(json.dumps(RECORD))
    train(config, Run(directory, config))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "sft"])
def test_the_same_seed_gives_the_same_metrics(algo, tmp_path, cache):
    demos = ["sft.demos=3"] if algo == "sft" else ["sft.demos=0"]
    one = run_of(tmp_path / "one", cache, f"algo={algo}", *demos)
    two = run_of(tmp_path / "two", cache, f"algo={algo}", *demos)
    other = run_of(tmp_path / "other", cache, f"algo={algo}", *demos, "seed=1")
    assert lines(one) == lines(two)
    assert lines(one) != lines(other)
    ours, theirs = (pq.read_table(d / "eval.parquet").drop(["run_id"]) for d in (one, two))
    assert ours.equals(theirs)
    sampled, greedy = (
        ours.filter([(t > 0) == wanted for t in ours["temperature"].to_pylist()])["iteration"]
        for wanted in (True, False)
    )
    assert set(sampled.to_pylist()) >= {0, 1}
    assert len(sampled) == 4 * len(set(sampled.to_pylist()))
    assert sorted(greedy.to_pylist()) == [0] * 4 + [max(sampled.to_pylist())] * 4
