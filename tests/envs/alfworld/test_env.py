"""ALFWorld as the player meets it: the contract of `TextEnv`, worker processes, rewards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from envs.alfworld.env import AlfWorldEnv, AlfWorldOptions, make_env
from envs.alfworld.expert import EXPERTS, winning_commands
from envs.alfworld.world import NOTHING
from envs.base import Step, Task
from envs.experts import demonstrations
from envs.rewards import RewardedEnv
from envs.suites import CHECKOUT, env_spec
from envs.workers import EnvFailure, EnvPool, EnvSpec
from runs.errors import ConfigError, EnvError
from tests.envs.alfworld.made import LIGHT, TWO, game_of, goal_of, problem

SPEC = env_spec("dense", admissible=True, family="alfworld", shaping=0.5)
TURNS = 12


def shortest(task: Task) -> list[str]:
    commands = winning_commands(Path(task.file))
    assert commands
    return commands


def act(step: Step, rng: Random) -> str:
    doing = [c for c in step.admissible if c.split()[0] not in ("go", "look", "help", "examine")]
    return rng.choice(doing if rng.random() < 0.6 else step.admissible)


def transcripts(pool: EnvPool, tasks: list[Task]) -> dict[int, list[Step | EnvFailure]]:
    """One episode a task, side by side; what is done depends on the slot and on what was seen."""
    rngs = {slot: Random(slot) for slot in range(len(tasks))}
    seen: dict[int, list[Step | EnvFailure]] = {
        slot: [step] for slot, step in pool.reset(dict(enumerate(tasks))).items()
    }
    for _ in range(TURNS):
        actions = {}
        for slot, steps in seen.items():
            last = steps[-1]
            if isinstance(last, Step) and not last.terminated:
                actions[slot] = act(last, rngs[slot])
        for slot, step in pool.step(actions).items():
            seen[slot].append(step)
    return seen


@pytest.fixture(scope="module")
def alone(tasks: list[Task]) -> dict[int, list[Step | EnvFailure]]:
    with EnvPool(SPEC, 1, timeout=60) as pool:
        return transcripts(pool, tasks * 2)


@pytest.mark.parametrize(("workers", "remember"), [(2, 100), (3, 100), (1, 0), (2, 0)])
def test_results_do_not_depend_on_the_workers(
    tasks: list[Task], alone: dict[int, list[Step | EnvFailure]], workers: int, remember: int
) -> None:
    assert all(isinstance(step, Step) for steps in alone.values() for step in steps)
    with EnvPool(SPEC, workers, timeout=60, remember=remember) as pool:
        assert transcripts(pool, tasks * 2) == alone


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_costs_no_episode(tasks: list[Task], workers: int) -> None:
    commands = {slot: shortest(task) for slot, task in enumerate(tasks)}
    with EnvPool(SPEC, workers, timeout=60, remember=0) as pool:
        pool.reset(dict(enumerate(tasks)))
        for turn in range(max(map(len, commands.values()))):
            if turn == 2:
                child = pool._workers[0].child.process
                os.kill(child.pid, signal.SIGKILL)
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            actions = {slot: c[turn] for slot, c in commands.items() if turn < len(c)}
            for slot, step in pool.step(actions).items():
                assert isinstance(step, Step)
                assert step.won == (turn == len(commands[slot]) - 1)


def test_two_processes_play_one_game(tasks: list[Task]) -> None:
    commands = shortest(tasks[0])
    with EnvPool(SPEC, 1, timeout=60) as one, EnvPool(SPEC, 1, timeout=60) as other:
        assert one.reset({0: tasks[0]}) == other.reset({0: tasks[0]})
        for command in commands:
            idle = other.step({0: "look"})[0]
            assert isinstance(idle, Step) and idle.events["score"] == 0
            last = one.step({0: command})[0]
        assert isinstance(last, Step) and last.won


def test_a_step_is_what_the_game_says(tasks: list[Task]) -> None:
    env = AlfWorldEnv(AlfWorldOptions(admissible=True))
    first = env.reset(tasks[0])
    assert first.observation.startswith("You are in the middle of a room. Looking quickly around")
    trajectory = json.loads(Path(tasks[0].file).with_name("traj_data.json").read_text())
    assert first.objective == trajectory["turk_annotations"]["anns"][0]["task_desc"]
    assert "Welcome" not in first.observation and first.objective not in first.observation
    assert (first.reward, first.terminated, first.invalid) == (0.0, False, None)
    go = next(command for command in first.admissible if command.startswith("go to"))
    there = env.step(f"  {go}\n")
    assert there.observation.startswith(f"You arrive at {go.removeprefix('go to ')}.")
    assert there.invalid is None
    again = env.step(go)
    assert (again.observation, again.invalid) == (NOTHING, "not admissible")
    assert again.admissible == there.admissible
    assert AlfWorldEnv(AlfWorldOptions()).reset(tasks[0]).admissible == ()


@pytest.mark.parametrize(
    "action",
    ["", " ", "\0", "go to\\nowhere", "LOOK", "look\nlook", "x" * 10_000, "\U0001f6aa", "restart"],
)
def test_nonsense_is_an_invalid_turn(tasks: list[Task], action: str) -> None:
    env = AlfWorldEnv(AlfWorldOptions(admissible=True))
    before = env.reset(tasks[0])
    step = env.step(action)
    assert (step.observation, step.invalid) == (NOTHING, "not admissible")
    assert (step.events, step.admissible) == (before.events, before.admissible)


def test_out_of_order(tasks: list[Task]) -> None:
    env = make_env({}, "sparse")
    with pytest.raises(EnvError, match="reset\\(task\\) comes before"):
        env.step("look")
    env.reset(tasks[0])
    for command in shortest(tasks[0]):
        last = env.step(command)
    assert last.won and last.terminated and last.reward == 1.0
    with pytest.raises(EnvError, match="has ended"):
        env.step("look")
    env.close()
    with pytest.raises(EnvError, match="comes before"):
        env.step("look")
    assert not env.reset(tasks[0]).terminated
    with EnvPool(SPEC, 1, timeout=60) as pool:
        pool.reset({0: tasks[0]})
        for command in shortest(tasks[0]):
            pool.step({0: command})
        with pytest.raises(EnvError, match="plays no episode"):
            pool.step({0: "look"})


def written(folder: Path, task: Task, content: dict) -> Task:
    file = folder / "game.tw-pddl"
    file.write_text(json.dumps(content))
    return replace(task, file=str(file), sha256="made")


def test_a_game_that_cannot_be_played_costs_its_episode(tasks: list[Task], tmp_path: Path) -> None:
    lost = replace(tasks[0], file=str(tmp_path / "gone.tw-pddl"), sha256="gone")
    won = written(
        tmp_path,
        tasks[0],
        game_of(problem({"Shelf 1": 1}, {"Pen 1": "Shelf 1"}, goal_of(TWO, "Pen", "Shelf")).replace(
            "(inReceptacle Pen_bar_1", "(inReceptacle Pen_bar_2 Shelf_bar_1) (objectType Pen_bar_2 "
            "PenType) (inReceptacle Pen_bar_1")),
    )  # fmt: skip
    with EnvPool(SPEC, 1, timeout=60) as pool:
        answers = pool.reset({0: lost, 1: won, 2: tasks[1]})
    assert isinstance(answers[2], Step)
    told = [answer.message for answer in answers.values() if isinstance(answer, EnvFailure)]
    assert "cannot be read (No such file or directory)" in told[0]
    assert "is won before it begins: leave it out" in told[1]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("reward", ["sparse", "dense"])
def test_a_win_totals_one_and_nothing_else_does(
    tasks: list[Task], number: int, reward: str
) -> None:
    env, total = make_env({"admissible": True}, reward), 0.0
    assert env.reset(tasks[number]).reward == 0.0
    for command in shortest(tasks[number]):
        assert total < 1
        step = env.step(command)
        total += step.reward
        assert step.reward >= 0
        assert reward == "dense" or step.won or step.reward == 0
    assert step.won
    assert total == pytest.approx(1)


@pytest.mark.parametrize("number", range(6))
def test_undoing_takes_back_what_was_paid(tasks: list[Task], number: int) -> None:
    """Up to the take; then the thing is put back, taken and put back again."""
    env = make_env({"admissible": True}, "dense")
    env.reset(tasks[number])
    commands = shortest(tasks[number])
    taking = next(i for i, command in enumerate(commands) if command.startswith("take"))
    for command in commands[:taking]:
        env.step(command)
    _, thing, place = commands[taking].replace("take ", "from ").split("from ")
    back = f"move {thing.strip()} to {place.strip()}"
    paid = [env.step(command).reward for command in [commands[taking], back] * 2]
    assert paid[0] > 0
    assert paid[1] == pytest.approx(-paid[0])
    assert sum(paid[2:]) == pytest.approx(0)


def test_a_lamp_that_is_left_is_taken_back(tasks: list[Task], tmp_path: Path) -> None:
    things = {"Pen 1": "Shelf 1", "DeskLamp 1": "Desk 1"}
    goal = goal_of(LIGHT, "Book", "DeskLamp")
    made = problem({"Shelf 1": 1, "Desk 1": 2}, {**things, "Book 1": "Shelf 1"}, goal)
    env = make_env({}, "dense")
    env.reset(written(tmp_path, tasks[0], game_of(made)))
    commands = ["go to shelf 1", "go to desk 1", "use desklamp 1", "go to shelf 1"]
    commands += ["take book 1 from shelf 1", "go to desk 1"]
    # The book is found; the lamp is found; it is on and beside us; left; the book in hand; a win.
    paid = [env.step(command).reward * 5 for command in commands]
    assert paid == pytest.approx([1, 1, 2, -1, 1, 1])


@pytest.mark.parametrize("number", range(6))
def test_shaping_tells_how_far_a_win_is(tasks: list[Task], number: int) -> None:
    env = make_env({"policy_length": True, "shaping": 0.5}, "sparse")
    start = env.reset(tasks[number])
    commands = shortest(tasks[number])
    assert start.potential == -0.5
    assert start.events["policy_length"] == len(commands)
    for left in range(len(commands) - 1, -1, -1):
        step = env.step(commands[-1 - left])
        assert step.potential == pytest.approx(-0.5 * left / len(commands))
    assert step.potential == 0 and step.reward == 1.0


def test_a_dead_end_is_worth_the_beginning(tasks: list[Task], tmp_path: Path) -> None:
    goal = goal_of(TWO, "Pen", "Drawer")
    things = {"Pen 1": "Sofa 1", "Pen 2": "Drawer 1", "Kettle 1": "Sofa 1"}
    task = written(tmp_path, tasks[0], game_of(problem({"Sofa 1": 1, "Drawer 1": 2}, things, goal)))
    env = make_env({"policy_length": True, "shaping": 1.0}, "dense")
    env.reset(task)
    nearer = env.step("go to sofa 1")
    assert nearer.potential is not None and nearer.potential > -1
    dead = env.step("take kettle 1 from sofa 1")
    assert (dead.potential, dead.events["policy_length"]) == (-1.0, None)
    assert not dead.lost and not dead.terminated


@pytest.mark.parametrize("expert", EXPERTS)
def test_experts_win_through_the_pool(tasks: list[Task], expert: str) -> None:
    spec = EnvSpec(SPEC.target, {"admissible": True}, "sparse")
    shown = demonstrations(tasks, spec, 60, expert=expert)
    # An expert that has to look for things fails now and then; the planner never does.
    assert len(shown) == len(tasks) if expert == "planner" else len(shown) >= 4
    for one in shown:
        assert len(one.actions) >= one.task.optimal_length
        assert all(a in seen for a, seen in zip(one.actions, one.admissible, strict=True))


def test_an_expert_that_nobody_knows(tasks: list[Task]) -> None:
    with pytest.raises(ConfigError, match="env.expert=oracle"):
        winning_commands(Path(tasks[0].file), expert="oracle")


def run(*arguments: str, told: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=CHECKOUT, input=told, capture_output=True, text=True, timeout=300
    )


def test_validate(tmp_path: Path) -> None:
    done = run("envs.validate", "six", "--tasks", "2", "--cache", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "All good."
    assert len(lines) == 6 * 2 * 2 and all(line.endswith("good") for line in lines)


def test_play_commands_from_a_pipe(tmp_path: Path) -> None:
    arguments = ("envs.play", TWO, "--seed", "3", "--admissible", "--cache", str(tmp_path))
    looked = run(*arguments, told="look\nfly\n")
    assert looked.returncode == 0, looked.stderr
    assert looked.stdout.endswith("The game goes on.\n")
    assert "> fly\nNothing happens.\n[reward +0.000, in all 0.000]" in looked.stdout
    (file,) = tmp_path.rglob("game.tw-pddl")
    commands = winning_commands(file)
    assert commands
    won = run(*arguments, told="\n".join(commands))
    assert won.returncode == 0, won.stderr
    assert won.stdout.endswith("You won.\n") and "in all 1.000]" in won.stdout


def test_playing_imports_little_and_leaves_nothing(tasks: list[Task], tmp_path: Path) -> None:
    """No torch, nothing of the package `alfworld`, and no folder in the user's home."""
    script = (
        "import sys\n"
        "from envs.alfworld.env import make_env\n"
        "from envs.base import Task\n"
        f"make_env({{}}, 'dense').reset({tasks[0]!r})\n"
        "print({'torch', 'alfworld', 'textworld'} & set(sys.modules))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "ALFWORLD_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=CHECKOUT,
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "set()\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_rewarded_env_is_what_workers_get() -> None:
    env = make_env({"admissible": True, "policy_length": False, "shaping": 0.0}, "dense")
    assert isinstance(env, RewardedEnv) and env.deterministic
