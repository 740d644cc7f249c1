"""A small game made by hand: put the apple on the table; eating it makes winning impossible."""

from pathlib import Path

from envs.base import Task
from envs.stored import file_sha256


def make_food_game(path: Path) -> Task:
    import textworld
    from textworld.generator import compile_game
    from textworld.generator.game import Event, Quest

    options = textworld.GameOptions()
    options.seeds = 1
    options.path = str(path)
    maker = textworld.GameMaker(options)
    kitchen, garden = maker.new_room("kitchen"), maker.new_room("garden")
    maker.connect(kitchen.east, garden.west)
    maker.set_player(kitchen)
    table = maker.new(type="s", name="table")
    garden.add(table)
    apple = maker.new(type="f", name="apple")
    apple.add_property("edible")
    kitchen.add(apple)
    maker.quests = [Quest(win_events=[Event(conditions={maker.new_fact("on", apple, table)})])]
    maker.set_walkthrough(["take apple", "go east", "put apple on table"])
    compile_game(maker.build(), options)
    sha256 = file_sha256(path.with_suffix(".json"))
    return Task("textworld", "food", 0, str(path), sha256, "custom-file", 3, 5.0, 4)
