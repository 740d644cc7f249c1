"""Hanging, dying and raising environments cost their own episode only."""

import os
import signal
import subprocess
import sys
import time

import pytest

import envs.workers
from envs.base import Step
from envs.workers import EnvFailure, EnvPool, EnvSpec
from runs.errors import EnvError
from tests.envs.toys import task

TOY = EnvSpec("tests.envs.toys:make_toy", {}, "sparse")


def said(answers: dict) -> dict[int, str]:
    return {
        slot: answer.observation if isinstance(answer, Step) else answer.kind
        for slot, answer in answers.items()
    }


@pytest.mark.parametrize(
    ("trouble", "kind"), [("hang", "hung"), ("die", "died"), ("raise", "raised")]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_trouble_costs_one_episode(trouble, kind, workers):
    with EnvPool(TOY, workers, timeout=3) as pool:
        pool.reset({slot: task(f"t{slot}") for slot in range(4)})
        pool.step(dict.fromkeys(range(4), "a"))
        answers = pool.step({0: "b", 1: trouble, 2: "b", 3: "b"})
        assert said(answers) == {0: "t0 a b", 1: kind, 2: "t2 a b", 3: "t3 a b"}
        with pytest.raises(EnvError, match="reset it"):
            pool.step({1: "again"})
        assert said(pool.step({0: "c", 2: "c", 3: "c"})) == {
            0: "t0 a b c",
            2: "t2 a b c",
            3: "t3 a b c",
        }
        assert said(pool.reset({1: task("new")})) == {1: "new"}


def test_worker_killed_between_turns_costs_nothing():
    with EnvPool(TOY, 1, timeout=30) as pool:
        pool.reset({0: task("t0"), 1: task("t1")})
        pid = int(said(pool.step({0: "pid"}))[0].split()[-1])
        pool.release([0])
        pool.step({1: "a"})
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert said(pool.step({1: "b"})) == {1: "t1 a b"}


def test_replay_that_differs_is_a_failure():
    with EnvPool(TOY, 1, timeout=30) as pool:
        pool.reset({0: task("t0"), 1: task("t1")})
        pool.step({0: "pid", 1: "a"})
        assert said(pool.step({1: "die"})) == {1: "died"}
        assert said(pool.step({0: "a"})) == {0: "diverged"}


def test_finished_episode_is_not_stepped_and_pays_once():
    with EnvPool(TOY, 1, timeout=30) as pool:
        pool.reset({0: task()})
        won = pool.step({0: "win"})[0]
        assert isinstance(won, Step)
        assert won.won and won.reward == 1.0
        with pytest.raises(EnvError, match="plays no episode"):
            pool.step({0: "win"})


def test_workers_know_nothing_of_torch():
    with EnvPool(TOY, 1, timeout=30) as pool:
        pool.reset({0: task("t")})
        assert said(pool.step({0: "modules"})) == {0: "t modules []"}


def test_recycling_keeps_episodes(monkeypatch, tmp_path):
    monkeypatch.setattr(envs.workers, "RESETS_BEFORE_RECYCLING", 3)
    log = tmp_path / "resets"
    spec = EnvSpec(TOY.target, {"log": str(log)}, "sparse")
    with EnvPool(spec, 1, timeout=30) as pool:
        pool.reset({0: task("long")})
        pool.step({0: "a"})
        for number in range(6):
            assert said(pool.reset({1: task(f"t{number}")})) == {1: f"t{number}"}
        assert said(pool.step({0: "b"})) == {0: "long a b"}
    played = [line.split() for line in log.read_text().splitlines()]
    pids = list(dict.fromkeys(pid for pid, _ in played))
    by_worker = [[name for pid, name in played if pid == worker] for worker in pids]
    assert by_worker == [["long", "t0", "t1"], ["t2", "t3", "t4"], ["t5", "long"]]


def test_broken_environment_is_told_at_the_start():
    with pytest.raises(EnvError, match="the toy box is empty"):
        EnvPool(EnvSpec(TOY.target, {"broken": "yes"}, "sparse"), 1, timeout=30)


def test_no_process_is_left():
    pool = EnvPool(TOY, 2, timeout=30)
    children = [worker.child.process for worker in pool._workers]
    pool.close()
    assert all(child.returncode is not None for child in children)


def test_worker_ends_when_its_parent_is_killed_even_while_it_hangs(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "from envs.workers import EnvPool, EnvSpec\n"
        "from tests.envs.toys import task\n"
        f"pool = EnvPool({TOY!r}, 1, timeout=1000)\n"
        "pool.reset({0: task()})\n"
        "print(pool._workers[0].child.process.pid, flush=True)\n"
        "pool.step({0: 'hang'})\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while running(worker) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not running(worker)


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_failures_say_what_happened():
    with EnvPool(TOY, 1, timeout=30) as pool:
        pool.reset({0: task(), 1: task()})
        answers = pool.step({0: "raise", 1: "die"})
    assert answers[0] == EnvFailure("raised", "IndexError: no such toy")
    assert answers[1] == EnvFailure("died", "exit code 3")
