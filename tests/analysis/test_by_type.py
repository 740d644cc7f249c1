"""Success by type of game, against values worked by hand."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from analysis.by_type import short_names, type_lines, type_table
from analysis.scores import RunResult, arm_interval, load
from analysis.summary import arm_lines, headline, tables
from tests.analysis.written import write_run

CLEAN, HEAT = "pick_clean_then_place_in_recep", "pick_heat_then_place_in_recep"
GAMES = {CLEAN: 10, HEAT: 1}
# Greedy passes and the evaluation in between are there to be told apart from what is shown.
WINS = {
    (0, 0.7): {CLEAN: 2, HEAT: 0},
    (0, 0.0): {CLEAN: 9, HEAT: 1},
    (4, 0.7): {CLEAN: 8, HEAT: 0},
    (8, 0.7): {CLEAN: 5, HEAT: 1},
    (8, 0.0): {CLEAN: 1, HEAT: 0},
}


def rows(view: Table | None) -> list[list[str]]:
    assert view is not None
    return [list(row) for row in zip(*(column.cells for column in view.columns), strict=True)]  # type: ignore[arg-type]


def headers(view: Table | None) -> list[str]:
    assert view is not None
    return [str(column.header) for column in view.columns]


def seeds(root: Path, *wins: dict, **more: object) -> list[RunResult]:
    return [
        load(write_run(root, "ppo", "dense", seed, won, **({"n": GAMES} | more)))  # type: ignore[arg-type]
        for seed, won in enumerate(wins)
    ]


def test_a_run_shows_base_final_and_interval_of_each_type(tmp_path: Path):
    runs = seeds(tmp_path, WINS)
    view = type_table(runs)
    assert headers(view) == ["run", "clean\nn = 10", "heat\nn = 1"]
    # Wilson by hand, z = 1.96: 5 of 10 gives 0.24 to 0.76, 1 of 1 gives 1 / (1 + z²) = 0.21 to 1.
    assert rows(view) == [
        ["ppo dense seed 0", "0.20 → 0.50\n[0.24, 0.76]", "0.00 → 1.00\n[0.21, 1.00]"]
    ]
    assert type_lines(runs[0]) == [
        f"{CLEAN}  success 0.50 [0.24, 0.76], base 0.20, n = 10",
        f"{HEAT}   success 1.00 [0.21, 1.00], base 0.00, n = 1",
    ]


def test_the_title_names_suite_and_how_games_were_shown(tmp_path: Path):
    view = type_table(seeds(tmp_path, WINS, history_window=2))
    assert view is not None and view.title == (
        "Success by type on the test games, base → final, with 95 % intervals\n"
        "admissible commands hidden, decoding free, history window of 2 turns"
    )


def test_one_type_has_no_table_of_types(tmp_path: Path):
    one = load(write_run(tmp_path, "ppo", "dense", 0, {(0, 0.7): 2}))
    # Each of these runs has one type; a table of types would only repeat the other.
    other = load(write_run(tmp_path, "ppo", "dense", 1, {(0, 0.7): {HEAT: 2}}, n={HEAT: 4}))
    more = tmp_path / "more"
    more.mkdir()
    assert type_table([one, other]) is None and type_lines(one) == []
    assert len(tables([one, other])) == 1
    assert len(tables([*seeds(more, WINS), one])) == 2


def test_a_base_that_was_not_measured_is_no_number(tmp_path: Path):
    late = {key: won for key, won in WINS.items() if key[0] > 0}
    runs = seeds(tmp_path, late, WINS)
    cells = [row[1].split("\n")[0] for row in rows(type_table(runs))]
    assert cells == ["– → 0.50", "0.20 → 0.50", "– → 0.50"]
    assert type_lines(runs[0])[0] == f"{CLEAN}  success 0.50 [0.24, 0.76], n = 10"


def test_a_policy_that_was_only_evaluated_has_no_before(tmp_path: Path):
    runs = seeds(tmp_path, {(0, 0.7): {CLEAN: 5, HEAT: 0}})
    assert rows(type_table(runs))[0][1:] == ["0.50\n[0.24, 0.76]", "0.00\n[0.00, 0.79]"]
    assert type_lines(runs[0])[1] == f"{HEAT}   success 0.00 [0.00, 0.79], n = 1"


def test_runs_with_other_games_say_how_many_in_their_cells(tmp_path: Path):
    both = seeds(tmp_path, WINS)
    wins = {(0, 0.7): {CLEAN: 1}, (8, 0.7): {CLEAN: 2}}
    fewer = load(write_run(tmp_path, "grpo", "dense", 0, wins, n={CLEAN: 4}))
    view = type_table([*both, fewer])
    assert headers(view) == ["run", "clean", "heat\nn = 1"]
    assert rows(view) == [
        ["ppo dense seed 0", "0.20 → 0.50\n[0.24, 0.76]\nn = 10", "0.00 → 1.00\n[0.21, 1.00]"],
        ["grpo dense seed 0", "0.25 → 0.50\n[0.15, 0.85]\nn = 4", "–"],
    ]


def test_seeds_are_followed_by_their_arm(tmp_path: Path):
    n = {CLEAN: 4, HEAT: 2}
    runs = seeds(
        tmp_path,
        {(0, 0.7): {CLEAN: 0, HEAT: 2}, (8, 0.7): {CLEAN: 2, HEAT: 0}},
        {(0, 0.7): {CLEAN: 1, HEAT: 2}, (8, 0.7): {CLEAN: 4, HEAT: 0}},
        n=n,
    )
    first, second, arm = rows(type_table(runs))
    assert [row[0] for row in (first, second)] == ["ppo dense seed 0", "ppo dense seed 1"]
    assert (first[1][:11], second[1][:11]) == ("0.00 → 0.50", "0.25 → 1.00")
    shares = [run.wins(8, task_type=CLEAN) for run in runs]
    interval = arm_interval([share for share in shares if share is not None])
    assert interval.low < 0.75 < interval.high
    assert arm == [
        "ppo dense, 2 seeds",
        f"0.12 → 0.75\n[{interval.low:.2f}, {interval.high:.2f}]",
        "1.00 → 0.00\n[0.00, 0.00]",
    ]


def test_the_six_types_of_alfworld_are_told_apart_in_a_word_or_three():
    expected = {
        "look_at_obj_in_light": "look at light",
        "pick_and_place_simple": "simple",
        CLEAN: "clean",
        HEAT: "heat",
        "pick_cool_then_place_in_recep": "cool",
        "pick_two_obj_and_place": "two",
    }
    assert short_names(list(expected)) == expected


def test_a_word_said_twice_in_one_name_is_still_its_own():
    assert short_names(["two_by_two_boxes", "one_box_boxes"]) == {
        "two_by_two_boxes": "two by two", "one_box_boxes": "one box",
    }  # fmt: skip


def test_a_name_of_which_all_or_nothing_is_shared_stays_whole():
    names = ["w1-o1-q1", "w2-o3-q4", "pick_place", "pick_two_place"]
    assert list(short_names(names).values()) == ["w1-o1-q1", "w2-o3-q4", "pick_place", "two"]


@given(st.lists(st.text("ab_- ", max_size=6), unique=True, max_size=8))
def test_short_names_never_clash(types: list[str]):
    short = short_names(types)
    assert list(short) == types and len(set(short.values())) == len(types)
    for name, kept in short.items():
        if kept != name:
            others = {w for other in types if other != name for w in re.split("[_ -]+", other)}
            assert kept and not set(kept.split(" ")) & others


def test_what_demonstrations_made_of_the_base_stands_between(tmp_path: Path):
    games = {CLEAN: 10, HEAT: 2}
    taught = WINS | {(1, 0.7): {CLEAN: 3, HEAT: 2}}
    (run,) = seeds(tmp_path, taught, n=games, demos=300)
    view = type_table([run])
    assert view is not None and "base → demonstrations → final" in str(view.title)
    assert [cell.split("\n")[0] for cell in rows(view)[0][1:]] == [
        "0.20 → 0.30 → 0.50",
        "0.00 → 1.00 → 0.50",
    ]
    assert "base 0.20, after demonstrations 0.30, n = 10" in type_lines(run)[0]
    # 2, 5 and 6 of 12 games: 4 more than the base, 1 more than what was shown.
    (line,) = arm_lines([run])
    assert line.startswith("ppo dense: +0.33 [") and ", +0.08 [" in line and "of it by RL" in line
    assert ", base 0.17, after demonstrations 0.42, greedy 0.08" in headline(run)


def test_imitation_alone_has_nothing_between(tmp_path: Path):
    run = load(
        write_run(tmp_path, "sft", "dense", 0, WINS | {(1, 0.7): {CLEAN: 3, HEAT: 1}}, GAMES, 9)
    )
    assert run.taught is None
    assert "demonstrations" not in headline(run)
