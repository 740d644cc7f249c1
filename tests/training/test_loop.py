"""The whole loop on a toy: resumption is invisible, a seed is a result, records are complete."""

import json
import os

import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from runs.directory import Run
from runs.errors import RunError
from tests.fakes import FakePool, toy_task
from tests.training.test_sft import shown
from tests.training.toy import config_for, pays_unequally, policy_for
from training import checkpoint, loop, sft
from training.step import Learner

TIMES = ("seconds", "cpu_seconds")
RECORD = {"status": "running", "code": "", "fingerprint": ""}


class ToySuite:
    def __init__(self, name, count):
        self.name, self.tasks = name, [toy_task(f"{name}{number}") for number in range(count)]

    def draw(self, seed, iteration, n):
        start = iteration * n
        return [self.tasks[(start + place) % len(self.tasks)] for place in range(n)]


class ToySuites:
    def get(self, name):
        return ToySuite(name, 5)


class Stopped(Exception):
    """Stands for a kill."""


@pytest.fixture
def toy(monkeypatch):
    """The loop with a toy policy, toy suites and a scripted environment in this process."""
    real = loop.Player
    # Nothing here survives a power cut; on a busy disk the flushes would take minutes.
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(loop, "make_suites", lambda config, progress: ToySuites())
    monkeypatch.setattr(loop, "Player", lambda *args: real(*args, pool=FakePool(pays_unequally)))
    monkeypatch.setattr(sft, "make_env_spec", lambda config: None)
    monkeypatch.setattr(
        sft, "demonstrations", lambda tasks, *rest: [shown(task.id) for task in tasks]
    )

    def start(config, directory):
        monkeypatch.setattr(loop, "load_policy", lambda *args: policy_for(config))
        directory.mkdir(exist_ok=True)
        if not (directory / "run.json").exists():
            (directory / "run.json").write_text(json.dumps(RECORD))
        run = Run(directory, config)
        loop.train(config, run)
        return run

    return start


def small(algo="ppo", **changes):
    if algo not in ("sft", "none"):
        changes = {"algo__group_size": 3, "algo__minibatches": 2, "algo__epochs": 2} | changes
    config = config_for(
        algo, **({"train__iterations": 4, "optim__warmup": 20, "eval__every": 2} | changes)
    )
    config.env.show_admissible = False
    return config


def weights(directory):
    return {path.name: load_file(path) for path in sorted(directory.glob("*.safetensors"))}


def lines(directory):
    """Metrics without times."""
    read = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if not name.endswith(TIMES)} for line in read
    ]


def assert_same_run(one, other):
    assert lines(one) == lines(other)
    for table in ("eval.parquet", "episodes.parquet"):
        ours, theirs = (pq.read_table(d / table).drop(["run_id"]) for d in (one, other))
        assert ours.equals(theirs)
    ours, theirs = (weights(d / "checkpoints" / "000004") for d in (one, other))
    assert ours.keys() == theirs.keys()
    for file in ours:
        assert ours[file].keys() == theirs[file].keys()
        assert all(torch.equal(ours[file][name], theirs[file][name]) for name in ours[file])


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_two_iterations_and_two_more_are_four(algo, toy, tmp_path, monkeypatch):
    config = small(algo)
    toy(config, tmp_path / "whole")
    again = small(algo)
    update = Learner.update

    def stopping(self, batch, iteration):
        if iteration == 2:
            raise Stopped
        return update(self, batch, iteration)

    monkeypatch.setattr(Learner, "update", stopping)
    with pytest.raises(Stopped):
        toy(again, tmp_path / "parts")
    monkeypatch.setattr(Learner, "update", update)
    toy(again, tmp_path / "parts")
    assert [line["iteration"] for line in lines(tmp_path / "whole")][-1] == 4
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_demonstrations_before_rl_survive_resumption(toy, tmp_path, monkeypatch):
    config = small("rloo", sft__demos=3, algo__kl_coef=0.1)
    config.train.iterations = 3
    toy(config, tmp_path / "whole")
    update = Learner.update

    def stopping(self, batch, iteration):
        if iteration == 2:
            raise Stopped
        return update(self, batch, iteration)

    monkeypatch.setattr(Learner, "update", stopping)
    with pytest.raises(Stopped):
        toy(config, tmp_path / "parts")
    monkeypatch.setattr(Learner, "update", update)
    toy(config, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    taught = next(line for line in lines(tmp_path / "whole") if "train/sft_loss" in line)
    assert taught["iteration"] == 1
    assert taught["cost_units"] == 10 * 5


def test_the_base_policy_is_evaluated_before_anything_is_learned(toy, tmp_path):
    config = small("sft", sft__demos=5, sft__epochs=2, eval__samples=2)
    toy(config, tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "eval.parquet").to_pandas()
    assert sorted(table.iteration.unique()) == [0, 2]
    for _, part in table.groupby("iteration"):
        assert sorted(zip(part["sample"], part.temperature, strict=True)) == sorted(
            [(0, 0.7)] * 5 + [(1, 0.7)] * 5 + [(0, 0.0)] * 5
        )
    other = small("none", eval__samples=2)
    toy(other, tmp_path / "none")
    base = pq.read_table(tmp_path / "none" / "eval.parquet").to_pandas()
    columns = [name for name in base if name != "run_id"]
    first = table[table.iteration == 0]
    assert first[columns].equals(base[columns])


def test_a_damaged_checkpoint_is_passed_over_and_only_two_are_kept(toy, tmp_path):
    config = small("rloo")
    run = toy(config, tmp_path / "run")
    assert [iteration for iteration, _ in run.checkpoints()] == [4, 3]
    newest = run.checkpoint_dir(4)
    data = bytearray((newest / "optimizer.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "optimizer.safetensors").write_bytes(bytes(data))
    assert not checkpoint.whole(newest)
    learner = Learner(policy_for(config), loop.make_algorithm(config.algo), config)
    assert checkpoint.restore(run, learner) == 3
    assert learner.policy.version == 3


def test_a_kill_while_saving_leaves_the_checkpoint_before(toy, tmp_path, monkeypatch):
    config = small("rloo")
    run = toy(config, tmp_path / "run")
    learner = Learner(policy_for(config), loop.make_algorithm(config.algo), config)

    def torn(path, *rest):
        raise Stopped

    monkeypatch.setattr(checkpoint, "save_file", torn)
    with pytest.raises(Stopped):
        checkpoint.save(run, learner, 5)
    assert [iteration for iteration, _ in run.checkpoints()] == [4, 3]
    assert checkpoint.restore(run, learner) == 4


def test_a_checkpoint_that_cannot_be_written_fails_the_run(toy, tmp_path, monkeypatch):
    config = small("rloo")
    run = toy(config, tmp_path / "run")
    learner = Learner(policy_for(config), loop.make_algorithm(config.algo), config)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "rename", full)
    with pytest.raises(RunError, match="after iteration 5 cannot be written.*No space left"):
        checkpoint.save(run, learner, 5)
    assert checkpoint.restore(run, learner) == 4


def test_another_seed_is_another_run(toy, tmp_path):
    toy(small("rloo"), tmp_path / "one")
    other = small("rloo")
    OmegaConf.update(other, "seed", 1)
    toy(other, tmp_path / "other")
    assert lines(tmp_path / "one") != lines(tmp_path / "other")
