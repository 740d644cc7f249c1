"""The numbers of the summary table, against values worked by hand or published."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from rich.console import Console

from analysis.summary import (
    arm_interval,
    arm_lines,
    arms,
    headline,
    learning_curves,
    load,
    pass_at_k,
    table,
    wilson,
)


def write_run(
    root: Path, algo: str, reward: str, seed: int, wins: dict[tuple[int, float], int], n: int = 10
) -> Path:
    """A finished run that won `wins[iteration, temperature]` of n games."""
    directory = root / f"{algo}-{reward}-{seed}"
    directory.mkdir()
    config = {
        "seed": seed, "algo": {"name": algo}, "reward": {"name": reward},
        "eval": {"suites": ["test"]}, "run": {"accept_stale": bool(seed)},
    }  # fmt: skip
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [
        {
            "iteration": iteration, "suite": "test", "task_id": f"game-{task}", "sample": 0,
            "temperature": temperature, "ended": "won" if task < won else "lost",
            "won": task < won, "return": float(task < won), "turns": 4,
        }
        for (iteration, temperature), won in wins.items()
        for task in range(n)
    ]  # fmt: skip
    pd.DataFrame(lines).to_parquet(directory / "eval.parquet")
    last = {"episodes": 1280, "tokens_generated": 5, "seconds": 61.2, "cpu_seconds": 59.9}
    (directory / "metrics.jsonl").write_text(json.dumps(last) + "\n")
    return directory


def test_wilson_is_the_published_interval():
    # Newcombe 1998, table I, method 3: 81 of 263 gives 0.2553 to 0.3662, 0 of 20 0 to 0.1611.
    score = wilson(81, 263)
    assert (round(score.low, 4), round(score.high, 4)) == (0.2553, 0.3662)
    assert (wilson(0, 20).low, round(wilson(0, 20).high, 4)) == (0.0, 0.1611)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_value(case: tuple[int, int]):
    score = wilson(*case)
    assert 0 <= score.low <= score.value <= score.high <= 1


def test_pass_at_k_by_hand():
    # Of 4 samples 1 wins: of the 6 pairs, 3 hold it.
    assert pass_at_k(1, 4, 2) == pytest.approx(0.5)
    assert pass_at_k(0, 4, 4) == 0.0 and pass_at_k(1, 4, 4) == 1.0
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(1, 2, 3)


def test_an_arm_widens_with_the_spread_of_its_seeds():
    tasks = pd.Series([0.0, 1.0] * 50)
    alike = arm_interval([tasks, tasks, tasks])
    apart = arm_interval([tasks * 0, tasks, tasks * 0 + 1])
    assert alike.value == apart.value == pytest.approx(0.5)
    assert apart.high - apart.low > 2 * (alike.high - alike.low)


def test_the_gain_is_paired_over_tasks(tmp_path: Path):
    runs = [
        load(write_run(tmp_path, "ppo", "dense", seed, {(0, 0.7): 2, (8, 0.7): 7, (0, 0.0): 3}))
        for seed in range(3)
    ]
    (line,) = arm_lines(runs)
    assert line.startswith("ppo dense: +0.50 [") and "3 seeds, 3 positive" in line
    assert "sharpens" not in line


def test_a_gain_below_the_greedy_base_only_sharpens(tmp_path: Path):
    wins = {(0, 0.7): 2, (8, 0.7): 5, (0, 0.0): 5, (8, 0.0): 5}
    (line,) = arm_lines([load(write_run(tmp_path, "ppo", "dense", 0, wins))])
    assert "only sharpens" in line


def test_table_and_headline_show_base_and_greedy(tmp_path: Path):
    wins = {(0, 0.7): 2, (8, 0.7): 5, (0, 0.0): 3, (8, 0.0): 6}
    run = load(write_run(tmp_path, "ppo", "dense", 0, wins))
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table([run]))
    row = next(line for line in capture.get().splitlines() if "ppo dense seed 0" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1:] == [
        "0.50 [0.24, 0.76]", "0.20", "0.60", "0.30", "0.50", "4.0", "1,280", "5", "61", "60",
    ]  # fmt: skip
    assert headline(run) == (
        "success 0.50 [0.24, 0.76], base 0.20, greedy 0.60 on test after 8 updates"
    )


def test_arms_are_runs_that_differ_in_the_seed_only(tmp_path: Path):
    wins = {(0, 0.7): 2}
    runs = [load(write_run(tmp_path, "ppo", "dense", seed, wins)) for seed in (0, 1)]
    other = load(write_run(tmp_path, "ppo", "dense", 2, wins))
    other.config["algo"]["gamma"] = 0.9
    names = {name: len(members) for name, members in arms([*runs, other]).items()}
    assert names == {"ppo dense algo.gamma=None": 2, "ppo dense algo.gamma=0.9": 1}


def test_a_run_with_a_known_fault_is_an_arm_of_its_own_and_no_result(tmp_path: Path):
    wins = {(0, 0.7): 2, (8, 0.7): 7}
    runs = [load(write_run(tmp_path, "ppo", "dense", seed, wins)) for seed in (0, 1)]
    runs[0].config["compat"] = {"cut_returns": False}
    runs[1].config["compat"] = {"cut_returns": True}
    assert set(arms(runs)) == {"ppo dense", "ppo dense compat.cut_returns"}
    assert set(arms(runs[1:])) == {"ppo dense compat.cut_returns"}
    assert "no result" not in headline(runs[0])
    assert headline(runs[1]).endswith("no result, it has compat.cut_returns")


def test_the_figure_has_a_panel_for_each_reward(tmp_path: Path):
    wins = {(0, 0.7): 2, (8, 0.7): 7}
    dense = [load(write_run(tmp_path, a, "dense", 0, wins)) for a in ("ppo", "grpo")]
    sparse = load(write_run(tmp_path, "ppo", "sparse", 0, wins))
    learning_curves(dense, tmp_path / "one.png")
    learning_curves([*dense, sparse], tmp_path / "figures" / "two.png")
    one, two = imread(tmp_path / "one.png"), imread(tmp_path / "figures" / "two.png")
    assert two.shape[1] > 1.5 * one.shape[1] and one.std() > 0
