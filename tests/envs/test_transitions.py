"""Known steps are answered from memory: the same episodes, less work, a bound on what is kept."""

import mmap
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs.process
import envs.workers
from envs.base import Step
from envs.transitions import Transitions
from envs.workers import EnvPool, EnvSpec
from tests.envs.test_workers import TOY, said
from tests.envs.toys import task


def logged(tmp_path):
    """A toy that writes each reset down, and how many there were."""
    log = tmp_path / "resets"
    log.touch()
    spec = EnvSpec(TOY.target, {"log": str(log)}, "sparse")
    return spec, lambda: len(log.read_text().splitlines())


def test_a_known_episode_never_reaches_an_environment(tmp_path):
    spec, resets = logged(tmp_path)
    with EnvPool(spec, 1, timeout=30) as pool:
        for _ in range(3):
            assert said(pool.reset({0: task()})) == {0: "toy"}
            assert said(pool.step({0: "a"})) == {0: "toy a"}
            assert said(pool.step({0: "win"})) == {0: "toy a win"}
            pool.release([0])
        assert resets() == 1
        assert pool.counts == {
            "resets": 3, "resets_saved": 2, "resets_repeated": 0,
            "steps": 6, "steps_saved": 4, "steps_repeated": 0,
        }  # fmt: skip


def test_a_group_that_does_the_same_asks_once(tmp_path):
    spec, resets = logged(tmp_path)
    with EnvPool(spec, 2, timeout=30) as pool:
        assert set(said(pool.reset(dict.fromkeys(range(8), task()))).values()) == {"toy"}
        answers = pool.step(dict.fromkeys(range(8), "a"))
        assert resets() == 1
        assert all(answer is answers[0] for answer in answers.values())
        assert (pool.counts["resets_saved"], pool.counts["steps_saved"]) == (7, 7)
        assert said(pool.step({3: "b"})) == {3: "toy a b"}
        assert (resets(), pool.counts["steps_repeated"]) == (2, 1)


@pytest.mark.parametrize("trouble", ["hang", "die", "raise"])
def test_trouble_is_not_remembered_and_costs_who_asked_for_it(trouble, tmp_path):
    kind = {"hang": "hung", "die": "died", "raise": "raised"}[trouble]
    with EnvPool(TOY, 2, timeout=2) as pool:
        pool.reset(dict.fromkeys(range(4), task()))
        pool.step(dict.fromkeys(range(4), "a"))
        answers = pool.step({0: trouble, 1: trouble, 2: "b", 3: "b"})
        assert said(answers) == {0: kind, 1: kind, 2: "toy a b", 3: "toy a b"}
        assert said(pool.step({2: "c"})) == {2: "toy a b c"}
        pool.reset({0: task()})
        pool.step({0: "a"})
        assert said(pool.step({0: trouble})) == {0: kind}


def test_episodes_answered_from_memory_survive_the_death_of_a_worker():
    with EnvPool(TOY, 1, timeout=30) as pool:
        pool.reset(dict.fromkeys(range(3), task()))
        pool.step({0: "a"})
        assert said(pool.step({1: "die"})) == {1: "died"}
        assert said(pool.step({2: "a"})) == {2: "toy a"}
        assert said(pool.step({0: "b", 2: "b"})) == {0: "toy a b", 2: "toy a b"}


class Fickle:
    """Says how often this process has played; nothing may be remembered of it."""

    deterministic = False
    played = 0

    def reset(self, task):
        Fickle.played += 1
        return Step(str(Fickle.played), "")

    def step(self, action):
        return self.reset(None)

    def close(self):
        pass


def make_fickle(options, reward):
    return Fickle()


def test_what_is_not_deterministic_is_always_asked():
    with EnvPool(EnvSpec("tests.envs.test_transitions:make_fickle", {}, ""), 1, 30) as pool:
        assert said(pool.reset({0: task(), 1: task()})) == {0: "1", 1: "2"}
        assert said(pool.step({0: "a", 1: "a"})) == {0: "3", 1: "4"}
        assert pool.counts["steps_saved"] == pool.counts["resets_saved"] == 0


def test_slots_spread_over_workers_and_games_stay_together():
    with EnvPool(TOY, 2, timeout=30) as pool:
        pool.reset({slot: task(f"t{slot // 4}") for slot in range(16)})
        pool.step({slot: f"{slot}" for slot in range(16)})
        homes = [worker.homes for worker in pool._workers]
        assert sorted(map(len, homes)) == [8, 8]
        assert all({slot // 4 for slot in mine}.isdisjoint(s // 4 for s in homes[1 - i])
                   for i, mine in enumerate(homes))  # fmt: skip
        pool.release(range(16))
        assert [worker.homes for worker in pool._workers] == [set(), set()]


PLAYS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["reset x", "reset y", "a", "b", "win", "raise", "release"]),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def pools():
    limits = {"all": (1, 1000), "none": (1, 0), "few": (2, 4)}
    opened = {name: EnvPool(TOY, w, 30, remember=n) for name, (w, n) in limits.items()}
    yield opened
    for pool in opened.values():
        pool.close()


@settings(max_examples=60, deadline=None)
@given(PLAYS)
def test_memory_and_workers_change_no_episode(pools, plays):
    seen = {}
    for name, pool in pools.items():
        pool.release(range(4))
        playing, seen[name] = set(), []
        for slot, what in plays:
            if what == "release":
                pool.release([slot])
                playing.discard(slot)
                continue
            if what.startswith("reset"):
                answers = pool.reset({slot: task(what), slot + 4: task(what)})
            else:
                both = {s: what for s in (slot, slot + 4) if s in playing}
                answers = pool.step(both)
            for member, answer in answers.items():
                over = not isinstance(answer, Step) or answer.terminated
                (playing.discard if over else playing.add)(member)
            seen[name].append(answers)
    assert seen["all"] == seen["none"] == seen["few"]
    assert len(pools["few"]._known) <= 4 and len(pools["none"]._known) == 0


def test_the_game_used_longest_ago_is_forgotten():
    known = Transitions(5)
    places = {}
    for name in "abc":
        start = known.begin(task(name), Step(name, ""))
        places[name] = known.learn(task(name), start, "go", Step(name + "go", ""))
        assert known.start(task("a")) is not None
    assert known.start(task("b")) is None
    assert known.start(task("c")) is not None and len(known) == 4
    # Who is still there plays on, off the books.
    known.learn(task("b"), places["b"], "on", Step("bgoon", ""))
    assert len(known) == 4 and places["b"].after == {}
    known.learn(task("c"), places["c"], "on", Step("cgoon", ""))
    known.learn(task("c"), places["c"], "off", Step("cgooff", ""))
    assert known.start(task("a")) is None and len(known) == 4


def test_equal_texts_are_kept_once():
    known = Transitions(9)
    start = known.begin(task(), Step("".join(["a", "b"]), "".join(["c", "d"])))
    after = known.learn(task(), start, "x", Step("".join(["a", "b"]), "".join(["c", "d"])))
    assert after.step.observation is start.step.observation
    assert after.step.objective is start.step.objective


def test_a_batch_costs_one_message(monkeypatch):
    with EnvPool(TOY, 1, timeout=30, remember=0) as pool:
        pool.reset({slot: task() for slot in range(6)})
        sent = []
        child = pool._workers[0].child
        send = child.send
        monkeypatch.setattr(child, "send", lambda jobs: sent.append(len(jobs)) or send(jobs))
        pool.step(dict.fromkeys(range(6), "a"))
        assert sent == [6]


def test_a_step_late_in_a_batch_has_its_own_time():
    with EnvPool(EnvSpec("tests.envs.test_transitions:make_slow", {}, ""), 1, 1.0) as pool:
        answers = pool.reset({slot: task(f"t{slot}") for slot in range(5)})
        assert said(answers) == dict.fromkeys(range(5), "slow")


class Slow(Fickle):
    def reset(self, task):
        time.sleep(0.4)
        return Step("slow", "")


def make_slow(options, reward):
    return Slow()


def test_marks_are_never_half_written(tmp_path):
    file = tmp_path / "marks"
    file.write_bytes(bytes(16))
    with file.open("r+b") as shared:
        marks = mmap.mmap(shared.fileno(), 16)
    begun = time.monotonic()
    envs.process._mark(marks, 0)
    child = envs.process.Child.__new__(envs.process.Child)
    child._marks = marks
    writes = (
        "import mmap, sys, time; from envs.process import _mark; number = 0\n"
        "file = open(sys.argv[1], 'r+b'); marks = mmap.mmap(file.fileno(), 16)\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end: _mark(marks, number := 1000001 - number)"
    )
    root = envs.process.__file__.rsplit("/", 2)[0]
    writer = subprocess.Popen([sys.executable, "-c", writes, str(file)], cwd=root)
    seen = set()
    while writer.poll() is None:
        number, at = child.serving
        seen.add(number)
        assert begun <= at <= time.monotonic()
    assert writer.returncode == 0
    assert {1000001} < seen <= {0, 1000001}
