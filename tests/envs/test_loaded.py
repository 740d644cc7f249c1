"""Shared games say what TextWorld's own environment says, in any order of episodes."""

import random
from pathlib import Path

import psutil
import pytest
import textworld

from envs.suites import env_spec
from envs.textworld.env import TextWorldEnv, TextWorldOptions, start_game
from envs.textworld.expert import walkthrough
from envs.textworld.loaded import Games, _pattern
from envs.textworld.text import observation
from envs.workers import EnvPool

MODES = [(False, False), (False, True), (True, False), (True, True)]


def own(task, commands, admissible, policy):
    """What TextWorld's own environment answers."""
    game = start_game(Path(task.file), admissible=admissible, policy=policy)
    state = game.reset()
    objective, seen = state["objective"], []
    for command in [None, *commands]:
        if command is not None:
            state, _, _ = game.step(command)
        length = len(state["policy_commands"]) or None if policy else None
        seen.append(
            (
                observation(state["feedback"], objective, True),
                state["score"],
                state["max_score"],
                (bool(state["won"]), bool(state["lost"])),
                0 if policy and state["won"] else length,
                tuple(state["admissible_commands"]) if admissible else (),
            )
        )
    game.close()
    return seen


def facts(step):
    return (
        step.observation,
        step.events["score"],
        step.events["max_score"],
        (step.won, step.lost),
        step.events.get("policy_length"),
        step.admissible,
    )


def walks(task):
    """The winning commands, and walks that leave them at some point."""
    winning = walkthrough(Path(task.file))
    rng = random.Random(task.id)
    idle = ["look", "inventory", "go north", "go south", "go east", "go west", "open chest"]
    return [winning] + [
        winning[: rng.randrange(len(winning))] + rng.choices(idle, k=5) for _ in range(3)
    ]


@pytest.mark.parametrize(("admissible", "policy"), MODES)
def test_interleaved_episodes_say_what_textworld_says(admissible, policy, custom, two_quests, food):
    options = TextWorldOptions(admissible, policy, show_score=True)
    for task in [custom[0], two_quests, food]:
        paths = walks(task) * 2
        environments = [TextWorldEnv(options) for _ in paths]
        seen = [[facts(env.reset(task))] for env in environments]
        for turn in range(max(map(len, paths))):
            for env, path, said in zip(environments, paths, seen, strict=True):
                if turn < len(path):
                    said.append(facts(env.step(path[turn])))
        expected = [own(task, path, admissible, policy) for path in paths[: len(paths) // 2]]
        assert seen == expected * 2
        for env in environments:
            env.close()


def test_what_is_forgotten_is_played_again_alike(custom):
    infos = textworld.EnvInfos(score=True, policy_commands=True)
    games = Games(loaded=2, places=6)
    first = games.take(Path(custom[0].file), infos)
    at = [first.step(first.start, "look"), first.step(first.start, "go north")]
    held = first.step(at[1], "look")
    for task in custom[1:]:
        other = games.take(Path(task.file), infos)
        for command in ("look", "inventory", "go north"):
            other.step(other.start, command)
    assert len(games._games) == 2
    assert sum(game.places for game in games._games.values()) <= 8
    assert games.take(Path(custom[0].file), infos) is not first
    again = first.step(first.start, "go north")
    assert first.step(again, "look").state["feedback"] == held.state["feedback"]
    path = ["go north", "look", "go south"]
    back = first.step(held, path[-1]).state["feedback"]
    seen = observation(back, first.start.state["objective"], True)
    assert seen == own(custom[0], path, False, False)[-1][0]


def test_a_changed_file_is_another_game(custom, tmp_path):
    infos, games = textworld.EnvInfos(), Games()
    file = tmp_path / "game.z8"
    texts = []
    for task in custom[:2]:
        source = Path(task.file)
        file.write_bytes(source.read_bytes())
        json = source.with_suffix(".json").read_text()
        file.with_suffix(".json").write_text(json + " " * len(texts))
        texts.append(games.take(file, infos).start.state["feedback"])
    assert texts[0] != texts[1]


def test_patterns_of_events():
    pattern = _pattern("inserting the {o} into the {c}")
    assert pattern.fullmatch("Inserting the old key into the chest")
    assert not pattern.fullmatch("putting the old key on the table")
    assert not _pattern("going east").fullmatch("going eastward")


def grown(pool, tasks, resets):
    """Megabytes of the worker after so many resets, each with a few steps."""
    for number in range(resets):
        pool.reset({0: tasks[number % len(tasks)]})
        for action in ("look", f"take thing {number}", "go north"):
            pool.step({0: action})
    return psutil.Process(pool._workers[0].child.process.pid).memory_info().rss / 2**20


def test_workers_do_not_grow(custom, monkeypatch):
    monkeypatch.setattr("envs.workers.RESETS_BEFORE_RECYCLING", 10_000)
    with EnvPool(env_spec("dense"), 1, 60, remember=0) as pool:
        early = grown(pool, custom, 50)
        full = grown(pool, custom, 450)
        # Places fill up to their bound (about 2000 here) and no further.
        assert full - early < 60
        assert grown(pool, custom, 500) - full < 15
