"""Game files: real ones of both versions are read, and every fault is one clear sentence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfworld.house import read_house
from envs.alfworld.planner import plan
from envs.alfworld.rules import load
from envs.alfworld.world import NOTHING, World
from runs.errors import EnvError
from tests.envs.alfworld.made import LIGHT, PLACE, game_of, goal_of, problem, world_of

PROBLEM = problem(
    {"Shelf 1": 1, "Drawer 1": 2}, {"Pen 1": "Shelf 1"}, goal_of(PLACE, "Pen", "Drawer")
)
GAME = game_of(PROBLEM, "put some pen on drawer")
# How version 2.1.1 said it.
_OLDER = {
    '"rhs": "You arrive at {r.name}. ': '"rhs": "You arrive at {lend.name}. ',
    "You move the {o.name} to the {r.name}.": "You put the {o.name} in/on the {r.name}.",
    'template :: "move {o} to {r}";': 'template :: "put {o} in/on {r}";',
}


def write(folder: Path, content: Any) -> Path:
    file = folder / "game.tw-pddl"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def without_help(game: dict[str, Any], domain: bool = True, grammar: bool = True) -> dict[str, Any]:
    rules = re.sub(r"\(:action help.*?\n\)\n", "", game["pddl_domain"], flags=re.DOTALL)
    words = re.sub(r'action help \{.*?""";\s*\}', "", game["grammar"], flags=re.DOTALL)
    assert rules != game["pddl_domain"] and words != game["grammar"]
    game = game | ({"pddl_domain": rules} if domain else {})
    return game | ({"grammar": words} if grammar else {})


def test_older_files_are_what_alfworld_makes_of_them(older: list[Path]) -> None:
    assert len(older) == 6
    for file in older:
        converted = Path(str(file).replace("json_2.1.1", "json_2.1.2"))
        assert "put {o} in/on {r}" in file.read_text().replace("\\", "")
        assert load(file) == load(converted)


def test_real_files_are_read(real: list[Path]) -> None:
    for file in real:
        house = load(file)
        assert house.helps
        assert json.loads(file.read_text())["grammar"].count(house.objective) == 1
        assert plan(World(house))


def test_older_words_are_converted(tmp_path: Path) -> None:
    """And a file of that time gets the command that it did not have."""
    words = GAME["grammar"]
    for new, old in _OLDER.items():
        assert new in words
        words = words.replace(new, old)
    old = without_help(GAME | {"grammar": words})
    assert load(write(tmp_path, old)) == world_of(GAME).house


def test_a_rule_for_receptacles_that_no_house_has_is_no_other_rule(tmp_path: Path) -> None:
    """Some files clean things in a SinkType as well, which the package has commented out."""
    commented = ";(receptacleType ?r SinkType)"
    file = write(tmp_path, changed("pddl_domain", commented, commented[1:]))
    assert load(file) == world_of(GAME).house


def test_help_is_a_command_only_where_the_file_has_it() -> None:
    assert "help" in world_of(GAME).commands
    without = world_of(without_help(GAME))
    assert "help" not in without.commands
    assert without.step("help") == NOTHING


def changed(key: str, old: str, new: str) -> dict[str, Any]:
    assert old in GAME[key]
    return GAME | {key: GAME[key].replace(old, new)}


SLICED = goal_of(PLACE, "Pen", "Drawer").replace(
    "(inReceptacle ?o ?r)", "(inReceptacle ?o ?r) (isSliced ?o)"
)
# What is wrong, and what the sentence says beside the file's name.
FAULTS: dict[str, tuple[Any, list[str]]] = {
    "cut": (json.dumps(GAME)[:-200], ["cut short or damaged", "alfworld-download -f"]),
    "empty": ("", ["cut short or damaged", "alfworld-download -f"]),
    "deep": ("[" * 100_000, ["cut short or damaged", "alfworld-download -f"]),
    "a list": ([GAME], ["no ALFWorld game", "pddl_domain, grammar, pddl_problem"]),
    "a number": ("3", ["no ALFWorld game", "pddl_problem"]),
    "no problem": ({"pddl_domain": "", "grammar": ""}, ["no ALFWorld game", "pddl_problem"]),
    "problem is null": (GAME | {"pddl_problem": None}, ["no ALFWorld game", "pddl_problem"]),
    "no task": (changed("grammar", "Your task is to", "Please"), ["does not say what its task"]),
    "another word": (
        changed("grammar", "You pick up the", "You grab the"),
        ["other words (grammar) than ALFWorld 0.4.2", "You pick up the", "alfworld-generate"],
    ),
    "another template": (
        changed("grammar", '"take {o} from {r}"', '"pick {o} from {r}"'),
        ["other words (grammar)", "take {o} from {r}", "alfworld-generate"],
    ),
    "another rule": (
        changed("pddl_domain", "(not (holdsAny ?a))  ; agent's hands are empty.", ""),
        ["other rules (pddl_domain) than ALFWorld 0.4.2", "holdsAny", "alfworld-generate"],
    ),
    "no rules": (GAME | {"pddl_domain": ""}, ["help` in one of its two rule books"]),
    "help without a rule": (without_help(GAME, grammar=False), ["`help` in one of its two"]),
    "help without words": (without_help(GAME, domain=False), ["`help` in one of its two"]),
    "unknown fact": (
        changed("pddl_problem", "(pickupable ", "(lickable "),
        ["cannot be played", "a fact that ALFWorld does not: lickable pen_bar_1"],
    ),
    "fact of another arity": (
        changed("pddl_problem", "(pickupable Pen_bar_1)", "(pickupable Pen_bar_1 Pen_bar_1)"),
        ["cannot be played", "pickupable pen_bar_1 pen_bar_1"],
    ),
    "bare word for a fact": (
        changed("pddl_problem", "(:init", "(:init pickupable"),
        ["cannot be played", "'pickupable' is no fact"],
    ),
    "bracket left open": (
        GAME | {"pddl_problem": PROBLEM.rstrip()[:-1]},
        ["cannot be played", "before its last bracket is closed"],
    ),
    "bracket too many": (
        GAME | {"pddl_problem": ")" + PROBLEM},
        ["cannot be played", "closes a bracket that it did not open"],
    ),
    "empty problem": (GAME | {"pddl_problem": "; nothing"}, ["cannot be played", "empty"]),
    "problem of one word": (GAME | {"pddl_problem": "define"}, ["cannot be played", "empty"]),
    "no init": (changed("pddl_problem", "(:init", "(:start"), ["cannot be played", "no :init"]),
    "no agent": (
        changed("pddl_problem", "(atLocation agent1 loc_bar_0)", ""),
        ["cannot be played", "where the agent is"],
    ),
    "goal with slices": (
        GAME | {"pddl_problem": PROBLEM.replace(goal_of(PLACE, "Pen", "Drawer"), SLICED)},
        ["cannot be played", "none of ALFWorld's six task types"],
    ),
    "goal with a choice": (
        changed("pddl_problem", "(inReceptacle ?o ?r)", "(or (inReceptacle ?o ?r) (full ?r))"),
        ["cannot be played", "the goal holds or"],
    ),
    "goal of one word": (
        changed("pddl_problem", "(inReceptacle ?o ?r)", "done"),
        ["cannot be played", "done"],
    ),
    "empty goal": (
        GAME | {"pddl_problem": PROBLEM.replace(goal_of(PLACE, "Pen", "Drawer"), "(:goal))")},
        ["cannot be played", "six task types"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_one_sentence(tmp_path: Path, fault: str) -> None:
    content, said = FAULTS[fault]
    file = write(tmp_path, content)
    with pytest.raises(EnvError) as error:
        load(file)
    told = str(error.value)
    assert told.startswith(f"The game file {file} ")
    assert [words for words in said if words not in told] == []
    assert told.endswith(".")
    assert "\n" not in told


def _missing(file: Path) -> None:
    assert not file.exists()


def _folder(file: Path) -> None:
    file.mkdir()


def _link_to_nowhere(file: Path) -> None:
    file.symlink_to(file.with_name("nowhere"))


@pytest.mark.parametrize(
    ("make", "said"),
    [(_missing, "No such file"), (_folder, "Is a directory"), (_link_to_nowhere, "No such file")],
)
def test_what_is_no_file(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    file = tmp_path / "game.tw-pddl"
    make(file)
    with pytest.raises(EnvError, match=f"{re.escape(str(file))} cannot be read .*{said}"):
        load(file)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, GAME)
    # Whom no mode of a file stops.
    if os.geteuid() == 0:

        def refuse(*_: Any, **__: Any) -> str:
            raise PermissionError(13, "Permission denied", str(file))

        monkeypatch.setattr(Path, "read_text", refuse)
    else:
        file.chmod(0)
    with pytest.raises(EnvError, match="cannot be read .*Permission denied"):
        load(file)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "game.tw-pddl"
    file.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(EnvError, match="cut short or damaged"):
        load(file)


def test_a_house_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    file = write(tmp_path, GAME)
    first = load(file)
    assert load(file) is first
    write(tmp_path, game_of(PROBLEM, "put the pen away"))
    os.utime(file, ns=(0, 0))
    assert load(file).objective == "put the pen away"


def test_a_fault_is_not_remembered(tmp_path: Path) -> None:
    file = write(tmp_path, json.dumps(GAME)[:500])
    with pytest.raises(EnvError):
        load(file)
    write(tmp_path, GAME)
    assert load(file) == world_of(GAME).house


def test_case_comments_and_costs_mean_nothing() -> None:
    shouted = PROBLEM.upper().replace("(:INIT", "(:init ; what is true\n(= (total-cost) 0)")
    assert read_house(shouted, "x", True) == read_house(PROBLEM, "x", True)


def test_goals_are_read() -> None:
    lamp = problem({"Desk 1": 1}, {"Pen 1": "Desk 1"}, goal_of(LIGHT, "Pen", "DeskLamp"))
    goal = read_house(lamp, "x", True).goal
    assert (goal.target, goal.lamp, goal.receptacle) == ("pentype", "desklamptype", None)
    goal = read_house(PROBLEM, "x", True).goal
    assert (goal.target, goal.receptacle, goal.count) == ("pentype", "drawertype", 1)


_TOKENS = re.findall(r"[()]|[^\s()]+", PROBLEM)


@given(st.data())
@settings(max_examples=300)
def test_a_damaged_problem_is_refused_or_played(data: st.DataObject) -> None:
    """Never another error: words and brackets are left out, moved and swapped."""
    tokens = list(_TOKENS)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(tokens) - 1))
        if data.draw(st.booleans()):
            # A whole bracket, so that what is left still has its brackets in pairs.
            end = next((i for i in range(place, len(tokens)) if tokens[i] == ")"), place)
            begin = max((i for i in range(end) if tokens[i] == "("), default=end)
            del tokens[begin : end + 1]
        elif tokens[place] not in "()" or data.draw(st.booleans()):
            tokens[place] = data.draw(st.sampled_from(["(", ")", "and", "pen_bar_1", "()", ""]))
    text = " ".join(tokens)
    try:
        world = World(read_house(text, "x", True))
    except EnvError:
        return
    for command in world.admissible:
        world.step(command)
