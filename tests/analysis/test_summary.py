"""The numbers of the summary table, against values worked by hand or published."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from rich.console import Console

from analysis.scores import arm_interval, arms, load, pass_at_k, shown, wilson
from analysis.summary import arm_lines, headline, learning_curves, table, tables
from tests.analysis.written import write_run


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


def test_the_title_says_how_games_were_shown(tmp_path: Path):
    wins = {(0, 0.7): 2}
    runs = [load(write_run(tmp_path, "ppo", "dense", seed, wins)) for seed in (0, 1)]
    assert table(runs).title == (
        "Success on the test games, with 95 % intervals\n"
        "admissible commands hidden, decoding free, full history"
    )
    for run in runs:
        run.config["env"] = {"show_admissible": True, "constrain": True, "history_window": 3}
    assert shown(runs) == (
        "admissible commands shown, decoding constrained to admissible commands, "
        "history window of 3 turns"
    )


def test_what_runs_were_shown_apart_is_in_their_names_and_not_in_the_title(tmp_path: Path):
    wins = {(0, 0.7): 2}
    ppo = load(write_run(tmp_path, "ppo", "dense", 0, wins, constrain=True))
    grpo = load(write_run(tmp_path, "grpo", "dense", 0, wins))
    assert shown([ppo, grpo]) == "admissible commands hidden, full history"
    assert set(arms([ppo, grpo])) == {
        "ppo dense env.constrain=true", "grpo dense env.constrain=false",
    }  # fmt: skip
    ppo.config["env"] |= {"show_admissible": True, "history_window": 2}
    assert table([ppo, grpo]).title == "Success on the test games, with 95 % intervals"
    assert set(arms([ppo, grpo])) == {
        "ppo dense env.constrain=true env.history_window=2 env.show_admissible=true",
        "grpo dense env.constrain=false env.history_window=null env.show_admissible=false",
    }


def test_nothing_in_a_table_is_bold(tmp_path: Path):
    kinds = {"pick_clean": 2, "pick_heat": 2}
    run = load(write_run(tmp_path, "ppo", "dense", 0, {(0, 0.7): kinds}, n=kinds))
    console = Console(width=160, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(*tables([run]))
    text = capture.get()
    assert "ppo dense seed 0" in text and "clean" in text and "\x1b[3m" in text
    assert "\x1b[1m" not in text and "\x1b[1;" not in text


def test_the_figure_has_a_panel_for_each_reward(tmp_path: Path):
    wins = {(0, 0.7): 2, (8, 0.7): 7}
    dense = [load(write_run(tmp_path, a, "dense", 0, wins)) for a in ("ppo", "grpo")]
    sparse = load(write_run(tmp_path, "ppo", "sparse", 0, wins))
    learning_curves(dense, tmp_path / "one.png")
    learning_curves([*dense, sparse], tmp_path / "figures" / "two.png")
    one, two = imread(tmp_path / "one.png"), imread(tmp_path / "figures" / "two.png")
    assert two.shape[1] > 1.5 * one.shape[1] and one.std() > 0
