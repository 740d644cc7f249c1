"""`Run`: records grow, are cut back to the checkpoint, and never hold half of anything."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from omegaconf import OmegaConf

from runs.directory import Run
from runs.errors import RunError
from tests.runs.stand_in.episodes import episode


def make(tmp_path: Path, **algo: object) -> Run:
    config = OmegaConf.create(
        {
            "algo": {"name": "ppo"} | algo,
            "policy": {"temperature": 0.7},
            "train": {"iterations": 5, "checkpoint_every": 2},
            "eval": {"every": 2, "transcripts": 1},
            "sft": {"demos": 0, "epochs": 3},
        }
    )
    directory = tmp_path / "a-run"
    if not directory.exists():
        directory.mkdir(parents=True)
        record = {"status": "running", "code": "", "fingerprint": "", "suites": {}}
        (directory / "run.json").write_text(json.dumps(record))
    return Run(directory, config)


def test_what_demonstrations_made_is_evaluated_before_rl(tmp_path: Path):
    run = make(tmp_path / "rl")
    run.config.eval.every, run.config.sft.demos = 0, 8
    # Five updates of RL after the one by imitation.
    assert [i for i in range(8) if run.wants_evaluation(i)] == [0, 1, 6]
    run.config.sft.demos = 0
    assert [i for i in range(8) if run.wants_evaluation(i)] == [0, 5]
    alone = make(tmp_path / "alone", name="sft")
    alone.config.eval.every, alone.config.sft.demos = 0, 8
    assert [i for i in range(8) if alone.wants_evaluation(i)] == [0, 3]


def play(run: Run, iteration: int) -> None:
    members = [episode(iteration, True), episode(iteration, False)]
    group = SimpleNamespace(index=0, task=members[0].task, episodes=members, alive=members)
    run.record_episodes(iteration, [group], [[[1.0, 3.0], [-2.0, -2.0]]])
    run.log(iteration, play=[group], update={"tokens_trained": 4, "gradient_steps": 2, "loss": 0.5})
    if run.wants_evaluation(iteration):
        for temperature in (0.7, 0.0):
            run.record_evaluation(
                iteration, "test", [episode(0, True), episode(1, False)], temperature
            )
    if run.wants_checkpoint(iteration):
        run.checkpoint_dir(iteration).mkdir()


def lines(run: Run) -> list[dict]:
    return [json.loads(x) for x in (run.directory / "metrics.jsonl").read_text().splitlines()]


def test_a_run_evaluates_and_saves_when_it_should(tmp_path: Path):
    run = make(tmp_path)
    assert list(run.iterations()) == [0, 1, 2, 3, 4]
    assert [i for i in range(6) if run.wants_evaluation(i)] == [0, 2, 4, 5]
    assert [i for i in range(1, 6) if run.wants_checkpoint(i)] == [2, 4, 5]


def test_totals_of_other_algorithms(tmp_path: Path):
    assert make(tmp_path, name="none").total == 0
    assert make(tmp_path, name="sft").total == 3


def test_counters_and_columns(tmp_path: Path):
    run = make(tmp_path)
    for iteration in (1, 2):
        play(run, iteration)
    last = lines(run)[-1]
    assert {name: last[name] for name in list(last)[1:8]} == {
        "episodes": 4, "games": 2, "env_steps": 4, "tokens_generated": 8, "tokens_trained": 8,
        "gradient_steps": 4, "cost_units": 4,
    }  # fmt: skip
    trained = next(line for line in lines(run) if "train/loss" in line)
    assert trained["train/success"] == 0.5 and "train/gradient_steps" not in trained
    episodes = pd.read_parquet(run.directory / "episodes.parquet")
    assert episodes["advantage_mean"].tolist() == [2.0, -2.0] * 2
    assert episodes["advantage_std"].tolist() == [1.0, 0.0] * 2
    assert set(episodes["group_return_mean"]) == set(episodes["group_return_std"]) == {0.5}
    tests = pd.read_parquet(run.directory / "eval.parquet")
    assert list(tests.columns) == [
        "run_id", "iteration", "suite", "task_id", "task_sha256", "task_type", "optimal_length",
        "actions_mean", "sample", "temperature", "ended", "won", "return", "turns", "tokens",
        "invalid",
    ]  # fmt: skip
    assert tests["won"].tolist() == [True, False] * 2


def of_type(number: int, won: bool, kind: str) -> SimpleNamespace:
    one = episode(number, won)
    one.task.type = kind
    return one


def train_on(run: Run, iteration: int, *groups: list[SimpleNamespace]) -> dict:
    """The line of an iteration that played these groups."""
    played = [
        SimpleNamespace(
            index=index, task=members[0].task, episodes=members,
            alive=[member for member in members if member.ended != "error"],
        )
        for index, members in enumerate(groups)
    ]  # fmt: skip
    run.record_episodes(iteration, played, None)
    run.log(iteration, play=played)
    return lines(run)[-1]


def by_type(line: dict) -> dict:
    """What a line says of types, without `train/` or `eval/`."""
    names = {name: name.split("/", 1)[1] for name in line if name.count("/") >= 2}
    return {short: line[name] for name, short in names.items()}


def test_training_on_a_mixture_is_logged_by_type(tmp_path: Path):
    run = make(tmp_path)
    heat = [of_type(1, True, "heat"), of_type(1, True, "heat")]
    failed = of_type(2, False, "clean")
    failed.ended = "error"
    clean = [of_type(2, True, "clean"), of_type(2, False, "clean"), failed]
    both = train_on(run, 1, heat, clean)
    assert by_type(both) == {
        "episodes/clean": 3, "episodes/heat": 2, "success/clean": 1 / 3, "success/heat": 1.0,
    }  # fmt: skip
    assert both["train/success"] == 3 / 5


def test_training_on_one_type_is_not_and_a_type_left_out_later_is_there_as_none(tmp_path: Path):
    run = make(tmp_path)
    heat = [of_type(1, True, "heat"), of_type(1, False, "heat")]
    clean = [of_type(2, False, "clean"), of_type(2, False, "clean")]
    assert by_type(train_on(run, 1, heat)) == {}
    assert set(by_type(train_on(run, 2, heat, clean))) == {
        "episodes/clean", "episodes/heat", "success/clean", "success/heat",
    }  # fmt: skip
    run.checkpoint_dir(2).mkdir()
    alone = {"episodes/clean": 0, "episodes/heat": 2, "success/heat": 0.5}
    assert by_type(train_on(run, 3, heat)) == alone
    again = make(tmp_path)
    again.resume_from(2)
    assert by_type(train_on(again, 3, heat)) == alone


def test_an_evaluation_of_several_types_is_logged_by_type(tmp_path: Path):
    run = make(tmp_path)
    games = [of_type(0, True, "heat"), of_type(1, False, "clean"), of_type(2, True, "clean")]
    run.record_evaluation(0, "test", games, 0.7)
    run.record_evaluation(0, "test", [games[0]], 0.0, sample=1)
    several, one = lines(run)
    assert several["eval/test/sample0/success/heat"] == 1.0
    assert several["eval/test/sample0/success/clean"] == 0.5
    assert several["eval/test/sample0/success"] == 2 / 3
    assert one["eval/test/greedy/success"] == 1.0
    assert not [name for name in one if "success/" in name]


def test_resuming_gives_the_records_of_a_run_that_was_never_interrupted(tmp_path: Path):
    whole = make(tmp_path / "whole")
    for iteration in range(1, 6):
        play(whole, iteration)
    for stop in range(1, 6):
        folder = tmp_path / str(stop)
        first = make(folder)
        for iteration in range(1, stop + 1):
            play(first, iteration)
        with (first.directory / "metrics.jsonl").open("a") as file:
            file.write('{"iteration": 9, "torn')
        second = make(folder)
        second.resume_from(second.checkpoints()[0][0] if second.checkpoints() else None)
        for iteration in second.iterations():
            play(second, iteration + 1)
        same = [
            [{k: v for k, v in line.items() if not k.endswith("seconds")} for line in lines(run)]
            for run in (whole, second)
        ]
        assert same[0] == same[1]
        for name in ("eval.parquet", "episodes.parquet"):
            one, two = (pd.read_parquet(run.directory / name) for run in (whole, second))
            assert one.equals(two)
        one, two = (
            sorted(path.name for path in (run.directory / "transcripts").iterdir())
            for run in (whole, second)
        )
        assert one == two


def test_an_evaluation_before_the_checkpoint_is_not_repeated(tmp_path: Path):
    run = make(tmp_path)
    play(run, 1)
    play(run, 2)
    again = make(tmp_path)
    again.resume_from(2)
    assert not again.wants_evaluation(2) and again.wants_evaluation(4)
    assert list(again.iterations()) == [2, 3, 4]


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path):
    run = make(tmp_path)
    with pytest.raises(RunError, match="train/loss"):
        run.log(1, update={"loss": float("nan")})
    assert lines(run) == []


def test_an_evaluation_of_errors_only_is_no_zero(tmp_path: Path):
    failed = episode(0, False)
    failed.ended, failed.error = "error", "the worker hung"
    with pytest.raises(RunError, match="the worker hung"):
        make(tmp_path).record_evaluation(0, "test", [failed], 0.7)


def test_other_games_in_a_resumed_run_are_refused(tmp_path: Path):
    make(tmp_path).record_evaluation(0, "test", [episode(0, True)], 0.7)
    with pytest.raises(RunError, match="changed"):
        make(tmp_path).record_evaluation(0, "test", [episode(1, True)], 0.7)


def test_half_a_checkpoint_is_not_one(tmp_path: Path):
    run = make(tmp_path)
    run.checkpoint_dir(2).mkdir()
    (run.directory / "checkpoints" / ".000004.77").mkdir()
    assert [iteration for iteration, _ in run.checkpoints()] == [2]
