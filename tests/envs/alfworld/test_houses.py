"""Procedural houses: they can be won, they are what their knobs say, and unseen ones are unseen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfworld import floorplans, houses, package
from envs.alfworld.floorplans import (
    CHANGE,
    KINDS,
    LAMPS,
    LEAST_RECEPTACLES,
    SEEN_PLANS,
    TASK_TYPES,
    UNSEEN_PLANS,
    Scene,
    all_pairs,
    floor_plan,
    homes,
    pairs,
    task_kinds,
)
from envs.alfworld.houses import HouseOptions, make_house
from envs.alfworld.rules import house_of
from envs.alfworld.world import World
from runs.errors import ConfigError, EnvError

types = st.sampled_from(TASK_TYPES)
seeds = st.integers(0, 2**40)
knobs = st.builds(
    HouseOptions,
    rooms=st.integers(1, 4),
    receptacles=st.integers(LEAST_RECEPTACLES, 16),
    objects=st.integers(0, 25),
    distractors=st.integers(0, 6),
)
ROOT = Path(__file__).resolve().parents[3]
PLAIN = HouseOptions()
FOUR_ROOMS = HouseOptions(rooms=4)
# Lengths that every type of task has.
LENGTHS = {
    "pick_and_place_simple": (4, 6),
    "look_at_obj_in_light": (3, 5),
    "pick_clean_then_place_in_recep": (6, 8),
    "pick_heat_then_place_in_recep": (6, 8),
    "pick_cool_then_place_in_recep": (6, 8),
    "pick_two_obj_and_place": (8, 11),
}


def world_of(game: dict) -> World:
    return World(house_of(game, "the house"))


def pair_of(trajectory: dict) -> tuple[str, str]:
    given = trajectory["pddl_params"]
    return given["object_target"], given["parent_target"] or given["toggle_target"]


def counted(world: World) -> tuple[int, int]:
    """(receptacles, things)"""
    return len(world.house.at), len(world.house.types)


@settings(max_examples=120, deadline=None)
@given(types, seeds, knobs, st.booleans())
def test_the_walkthrough_wins_and_nothing_is_won_before(task_type, seed, options, unseen):
    game, trajectory = make_house(task_type, seed, options, unseen)
    world = world_of(game)
    assert game["solvable"] is True and not world.won
    for command in game["walkthrough"]:
        assert not world.won
        assert command in world.admissible
        world.step(command)
    assert world.won
    least, most = LENGTHS[task_type]
    assert least <= len(game["walkthrough"]) <= most
    assert trajectory["task_type"] == task_type


@settings(max_examples=60, deadline=None)
@given(types, seeds, knobs, st.booleans())
def test_a_house_begins_shut_dark_and_undone(task_type, seed, options, unseen):
    game, trajectory = make_house(task_type, seed, options, unseen)
    house = world_of(game).house
    target, place = (f"{name}type".lower() for name in pair_of(trajectory))
    assert house.states["opened"] == house.states["istoggled"] == set()
    for done in ("isclean", "ishot", "iscool", "issliced"):
        assert house.states[done] == set()
    targets = [thing for thing, kinds in house.types.items() if target in kinds]
    assert len(targets) == (2 if task_type == "pick_two_obj_and_place" else 1)
    _, appliance = CHANGE.get(task_type, ("", "none"))
    for receptacle, things in house.inside.items():
        if house.kinds[receptacle] & {place, f"{appliance}type".lower()}:
            assert not things & set(targets)
        for thing in things:
            if thing not in house.states["toggleable"]:
                assert house.accepts(receptacle, thing)
    if appliance != "none":
        assert any(f"{appliance}type".lower() in kinds for kinds in house.kinds.values())
    lamps = house.states["toggleable"]
    if task_type == "look_at_obj_in_light":
        assert sum(place in house.types[lamp] for lamp in lamps) == 1
        assert len(lamps) == (2 if options.distractors else 1)
    else:
        assert not lamps
    assert not lamps & house.states["pickupable"]
    vessels = {"bowl", "box", "cup", "mug", "plate", "pan", "pot"}
    assert house.states["isreceptacleobject"] == {
        thing for thing in house.types if thing.split("_bar_")[0] in vessels
    }


@settings(max_examples=40, deadline=None)
@given(types, seeds, knobs, st.booleans())
def test_a_house_is_what_its_knobs_say(task_type, seed, options, unseen):
    game, trajectory = make_house(task_type, seed, options, unseen)
    world = world_of(game)
    receptacles, things = counted(world)
    rooms = trajectory["scene"]["rooms"]
    assert len(set(rooms)) == len(rooms) == options.rooms
    assert trajectory["scene"]["scene_num"] in rooms
    assert KINDS[rooms_kind(trajectory["scene"]["scene_num"])] in task_kinds(task_type)
    spread = options.receptacles // 5
    least, most = options.receptacles - spread, options.receptacles + spread
    assert options.rooms * least <= receptacles <= options.rooms * most
    about = 2 if task_type in ("pick_two_obj_and_place", "look_at_obj_in_light") else 1
    assert things == about + options.objects + options.distractors


def rooms_kind(scene_number: int) -> int:
    """Index of the kind of room, from ALFRED's number: 7, 207, 307, 407."""
    return max(0, scene_number // 100 - 1)


@settings(max_examples=40, deadline=None)
@given(types, seeds, knobs, st.booleans())
def test_a_house_depends_on_its_arguments_alone(task_type, seed, options, unseen):
    first = make_house(task_type, seed, options, unseen)
    make_house(task_type, seed + 1, options, not unseen)
    assert make_house(task_type, seed, options, unseen) == first
    length = len(first[0]["walkthrough"])
    same = HouseOptions(
        options.rooms, options.receptacles, options.objects, options.distractors, (length, length)
    )
    # Bounds choose among houses, so those that the first one meets leave it as it is.
    assert make_house(task_type, seed, same, unseen) == first
    assert make_house(task_type, seed + 1, options, unseen) != first


def test_a_house_is_the_same_in_another_process():
    """Sets are ordered differently there; a golden value would break with every new table."""
    code = (
        "from envs.alfworld.houses import *; import hashlib; o = HouseOptions(rooms=3);"
        "print([hashlib.sha256(repr(make_house(t, 5, o, True)).encode()).hexdigest()"
        " for t in TASK_TYPES])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_unseen_houses_share_no_floor_plan_and_no_pair(task_type):
    plans: dict[bool, set[int]] = {False: set(), True: set()}
    found: dict[bool, set[tuple[str, str]]] = {False: set(), True: set()}
    for unseen in (False, True):
        for seed in range(60):
            _, trajectory = make_house(task_type, seed, HouseOptions(rooms=2), unseen)
            plans[unseen] |= set(trajectory["scene"]["rooms"])
            found[unseen].add(pair_of(trajectory))
    assert not plans[False] & plans[True]
    assert not found[False] & found[True]
    assert {number % 100 for number in plans[True]} <= set(UNSEEN_PLANS)
    assert {number % 100 for number in plans[False]} <= set(SEEN_PLANS)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_pairs_are_split_once_and_both_sides_have_enough(task_type):
    seen, unseen = pairs(task_type, False), pairs(task_type, True)
    assert sorted(seen + unseen) == list(all_pairs(task_type))
    assert not set(seen) & set(unseen)
    assert len(unseen) >= 3
    assert len(unseen) / len(seen + unseen) == pytest.approx(0.2, abs=0.02)
    for target, place in all_pairs(task_type):
        assert place in LAMPS or target in floorplans.holds(place)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("receptacles", [LEAST_RECEPTACLES, 8, 40])
def test_floor_plans_of_a_kind_are_all_different(kind, receptacles):
    plans = {floor_plan(Scene(kind, number), receptacles) for number in range(1, 31)}
    assert len(plans) == 30
    known = package.constants().RECEPTACLES
    assert all(set(plan) <= known for plan in plans)


@pytest.mark.parametrize("task_type", TASK_TYPES)
@pytest.mark.parametrize("unseen", [False, True])
def test_small_rooms_are_large_enough_for_every_task(task_type, unseen):
    for receptacles in (LEAST_RECEPTACLES, 6, 7, 8, 16, 40):
        playable = [
            pair for pair in pairs(task_type, unseen) if homes(task_type, pair, receptacles, unseen)
        ]
        assert len(playable) >= 3


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_length_of_a_path_can_be_asked_for(task_type):
    for length in range(LENGTHS[task_type][0], LENGTHS[task_type][1] + 1):
        options = HouseOptions(receptacles=12, path_length=(length, length))
        for unseen in (False, True):
            game, _ = make_house(task_type, 3, options, unseen)
            assert len(game["walkthrough"]) == length


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_a_path_that_no_house_has_is_refused_by_name(task_type, monkeypatch):
    monkeypatch.setattr(houses, "TRIES", 100)
    beyond = LENGTHS[task_type][1] + 1
    with pytest.raises(ConfigError, match=r"env\.house\.path_length=\[\d+, 99\].*to \d+ commands"):
        make_house(task_type, 1, HouseOptions(path_length=(beyond, 99)), False)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("rooms", 0),
        ("rooms", 13),
        ("rooms", True),
        ("receptacles", 4),
        ("receptacles", 8.5),
        ("objects", -1),
        ("objects", "many"),
        ("distractors", -1),
        ("distractors", None),
        ("path_length", 4),
        ("path_length", (4,)),
        ("path_length", "48"),
        ("path_length", (5, 4)),
        ("path_length", (0, 4)),
        ("path_length", (4, 6.5)),
    ],
)
def test_each_refusal_names_its_key_and_a_fix(knob, value):
    with pytest.raises(ConfigError, match=rf"env\.house\.{knob}=.*: (use|give)"):
        HouseOptions(**{knob: value})


def test_another_task_is_refused():
    with pytest.raises(ConfigError, match=r"env\.game=stack_two.*pick_two_obj_and_place"):
        make_house("stack_two", 1, PLAIN, False)


def test_a_list_of_bounds_is_as_good_as_a_tuple():
    assert HouseOptions(path_length=[4, 5]) == HouseOptions(path_length=(4, 5))  # type: ignore[arg-type]


@pytest.mark.parametrize("task_type", [t for t in TASK_TYPES if t in CHANGE])
def test_distractors_make_the_first_useful_thing_wrong(task_type):
    """The share of houses in which whatever could be changed and placed is the right thing."""
    right = {}
    for distractors in (0, 4):
        only = 0
        for seed in range(30):
            options = HouseOptions(distractors=distractors)
            game, _ = make_house(task_type, seed, options, False)
            house = world_of(game).house
            ability = f"{CHANGE[task_type][0].lower()}"
            goals = [r for r, kinds in house.kinds.items() if house.goal.receptacle in kinds]
            useful = {t for t in house.states[ability] if house.accepts(goals[0], t)}
            only += useful == set(house.targets())
        right[distractors] = only
    assert right[0] == 30
    assert right[4] <= 5


def test_more_rooms_and_receptacles_are_more_places_to_look_in():
    def places(options: HouseOptions) -> float:
        games = [make_house("pick_two_obj_and_place", seed, options, False) for seed in range(20)]
        return sum(counted(world_of(game))[0] for game, _ in games) / 20

    one = places(PLAIN)
    assert places(HouseOptions(rooms=3)) > 2.5 * one
    assert places(HouseOptions(receptacles=16)) > 1.7 * one


def test_with_more_rooms_the_thing_is_often_in_another_one():
    away = 0
    for seed in range(40):
        game, trajectory = make_house("pick_cool_then_place_in_recep", seed, FOUR_ROOMS, False)
        world = world_of(game)
        (thing,) = world.house.targets()
        (where,) = [r for r, things in world.house.inside.items() if thing in things]
        home = trajectory["scene"]["rooms"].index(trajectory["scene"]["scene_num"]) + 1
        away += f"_bar_{home:02d}_bar_" not in where
    assert 4 <= away <= 36


def test_sentences_are_alfworlds_own():
    templates = package.goal_library().gdict
    for task_type in TASK_TYPES:
        game, trajectory = make_house(task_type, 2, PLAIN, False)
        said = re.search(r"Your task is to: (.*)\.", game["grammar"])[1]  # type: ignore[index]
        target, place = (name.lower() for name in pair_of(trajectory))
        filled = {
            template.format(obj=target, recep=place, toggle=place)
            for template in templates[task_type]["templates"]
        }
        assert said in filled
        assert trajectory["turk_annotations"]["anns"][0]["task_desc"] == said


def test_the_package_is_read_without_being_imported():
    code = (
        "import sys; from envs.alfworld import package as p; p.constants(); p.goal_library();"
        "p.source('data/alfred.pddl'); sys.exit('alfworld' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_missing_package_is_named_with_its_fix(monkeypatch):
    package.folder.cache_clear()
    monkeypatch.setattr(package, "find_spec", lambda name: None)
    with pytest.raises(EnvError, match=r"pip install --no-deps alfworld==0\.4\.2"):
        package.folder()
    monkeypatch.undo()
    monkeypatch.setattr(package, "version", lambda name: "0.3.5")
    with pytest.raises(EnvError, match=r"is 0\.3\.5.*pip install"):
        package.folder()
    monkeypatch.undo()
    package.folder.cache_clear()
    with pytest.raises(EnvError, match=r"no readable data/none\.pddl"):
        package.source("data/none.pddl")
