"""The door, from outside: what it refuses, and what happens to a grid when cells go wrong.

Grids use `tests/runs/stand_in`, a training loop that learns nothing, in real child processes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import run

ROOT = Path(__file__).resolve().parents[1]
STAND_IN = ROOT / "tests" / "runs" / "stand_in"

REFUSALS = {
    "algo=xxx": "algo=xxx does not exist; choose one of",
    "engine=vllm": "engine=vllm does not exist; choose one of torch",
    "foo=1": "foo is not a key",
    "+foo=1": "foo is not a key",
    "env.gme=w1-o1-q1": "did you mean env.game?",
    "+env.gme=w1-o1-q1": "did you mean env.game?",
    "~env.game": "env.game is missing",
    "env=null": "string or a list",
    "algo=[": "--help",
    "algo=ppo,grpo": "add -m for a grid",
    "tracking=wandb": "tracking is not available yet",
    "+sweep=table10": "+sweep= needs -m",
    "optim.lr=${nope}": "'nope' not found",
    "env.game=???": "Missing mandatory value: game",
    "algo=grpo algo.group_size=1": "algo.group_size=1",
    "algo=rloo algo.group_size=1": "algo.group_size=1",
    "algo=ppo algo.advantage_granularity=trajectory": "algo.advantage_granularity=trajectory",
    "algo=grpo algo.truncation=bootstrap": "algo.truncation=bootstrap",
    "algo=grpo compat.group_of_one=true": "algo.group_size=1",
    "algo=sft": "sft.demos",
    "algo=none sft.demos=3": "sft.demos=3",
    "policy=hf": "policy.path",
    "policy=hf policy.path=./nowhere": "policy.path=./nowhere does not exist",
    "policy.path=no/where": "policy.path=no/where does not exist",
    "env.game=nowhere.z8": "nowhere.z8",
    "env.game=w0-o1-q1": "w0-o1-q1",
    "env.game=chess": "chess",
    "env.mixture=[{task:w1-o1-q1}]": "env.mixture",
    "env.mixture=[{task:w1-o1-q1,weight:0}]": "weight",
    "env.family=alfworld": "env.family",
    "env.first_seed.test=50010": "seeds 50010 to",
    "env.first_seed.test=60001": "base policy",
    "sft.demos=6000": "env.first_seed.sft",
    "reward=balanced": "reward=balanced",
    "env.history_window=0": "env.history_window=0",
    "env.max_turns=5 env.history_window=6": "env.max_turns=5",
    "policy.context=16": "policy.context=16",
    "policy.temperature=0": "policy.temperature=0",
    "policy.critic=none": "policy.critic=none",
    "threads=0": "threads=0",
    "train.tasks=abc": "train.tasks=abc",
    "train.tasks=9 env.tasks.train=8": "env.tasks.train=8",
    "train.tasks=1 algo.minibatches=9": "algo.minibatches=9",
    "eval.suites=[train]": "train is not a suite to evaluate",
    "eval.suites=[]": "eval.suites=[]",
    "eval.greedy=3": "eval.greedy=3",
    "optim.lr=nan": "optim.lr=nan",
    "optim.final_share=null": "optim.final_share=None",
    "optim.final_share=2": "optim.final_share=2",
    "algo.epochs=null": "algo.epochs=None",
    "algo.minibatches=null": "algo.minibatches=None",
    "algo=grpo algo.value_clip=0.2": "algo.value_clip has no meaning",
    "env.tasks=3": "env.tasks is a group of keys",
    "policy.name=foo": "policy.name=foo",
    "engine.name=foo": "engine.name=foo",
    "policy.temperature=1e-300": "policy.temperature=1e-300",
    "env.mixture=[{task:w1-o1-q1,weight:1e400}]": "weight",
    "paths.cache=null": "paths.cache=None",
}


@pytest.mark.parametrize("overrides", REFUSALS, ids=str)
def test_bad_input_gets_one_sentence_that_names_the_key(
    overrides: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", *overrides.split(), f"paths.runs={tmp_path}/out"])
    assert run.main() == run.REFUSED
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("trivet: ") and error.count("\n") == 1
    assert REFUSALS[overrides] in error
    assert list(tmp_path.iterdir()) == []


def test_a_grid_is_refused_before_any_cell_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    cells = ["-m", "algo=ppo,grpo", "algo.group_size=4,1", f"paths.runs={tmp_path}/out"]
    monkeypatch.setattr(sys, "argv", ["run.py", *cells])
    assert run.main() == run.REFUSED
    assert "algo.group_size=1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def start(tmp_path: Path, *arguments: str, **trouble: int) -> subprocess.Popen[str]:
    """run.py with the stand-in loop, started in `tmp_path`."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TRIVET_")
    }
    environment |= {
        "PYTHONPATH": str(STAND_IN),
        "TRIVET_STAND_IN": json.dumps(trouble),
        "COLUMNS": "200",
    }
    command = [sys.executable, str(ROOT / "run.py"), *arguments, "scale=smoke"]
    # Somebody may be editing this checkout while its tests run.
    command.append("run.accept_stale=true")
    return subprocess.Popen(
        [*command, f"paths.runs={tmp_path}/out"],
        cwd=tmp_path, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(tmp_path: Path, *arguments: str, **trouble: int) -> tuple[int, str, str]:
    process = start(tmp_path, *arguments, **trouble)
    out, error = process.communicate(timeout=600)
    return process.returncode, out, error


def records(tmp_path: Path) -> dict[int, dict]:
    """run.json by seed."""
    found = {}
    for path in sorted((tmp_path / "out").glob("*-s*/run.json")):
        record = json.loads(path.read_text())
        found[int(record["id"].rsplit("-", 2)[1].removeprefix("s"))] = record
    return found


def test_a_failing_cell_touches_no_other_and_only_it_is_run_again(tmp_path: Path):
    code, out, error = finish(tmp_path, "-m", "seed=0,1,2", fail=1)
    assert code == run.FAILED, error
    assert {s: r["status"] for s, r in records(tmp_path).items()} == {
        0: "finished", 1: "failed", 2: "finished",
    }  # fmt: skip
    assert "cell 2 of 3: seed=1" in out and "the model caught fire" in error
    (named,) = [line for line in out.splitlines() if line.startswith("failed ")]
    assert "seed=1" in named and "the model caught fire" in named
    assert "CPU" in out and "load average" in out and "over the base, 2 seeds" in out

    code, out, error = finish(tmp_path, "-m", "seed=0,1,2")
    assert code == 0, error
    assert {s: r["attempts"] for s, r in records(tmp_path).items()} == {0: 1, 1: 2, 2: 1}
    assert out.count("finished before") == 2 and "going on after iteration 1" in out
    assert "ppo dense seed 2" in out and len(list((tmp_path / "out").glob("figures/*.png"))) == 2
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"out"}, "Hydra left something in the working directory"
    assert not list((tmp_path / "out").rglob("multirun.yaml"))


def test_cells_run_side_by_side_and_stay_apart(tmp_path: Path):
    """Two at once: one waits until it is interrupted, the others fail and finish beside it."""
    process = start(tmp_path, "-m", "seed=4,1,2,2", "run.jobs=2", wait=4, fail=1)
    assert process.stdout is not None
    lines, deadline = [], time.monotonic() + 300
    for line in process.stdout:
        lines.append(line)
        if "finished before" in line:
            break
        assert time.monotonic() < deadline
    time.sleep(2)
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=300)
    out = "".join(lines) + rest
    assert process.returncode == run.INTERRUPTED, out
    assert {s: r["status"] for s, r in records(tmp_path).items()} == {
        1: "failed", 2: "finished", 4: "interrupted",
    }  # fmt: skip
    # The second seed=2 waited for the first and had nothing to do.
    assert records(tmp_path)[2]["attempts"] == 1
    assert "seed=1: " in out and "the model caught fire" in out
    ends = [line.split()[0] for line in rest.splitlines() if " (seed=" in line]
    assert ends == ["interrupted", "failed", "finished", "skipped"], rest


def test_a_killed_run_goes_on(tmp_path: Path):
    code, out, _ = finish(tmp_path, "seed=3", kill=3)
    assert code == -signal.SIGKILL
    assert records(tmp_path)[3]["status"] == "running"
    code, out, error = finish(tmp_path, "seed=3", kill=3)
    assert code == 0, error
    assert "going on after iteration 1" in out and records(tmp_path)[3]["status"] == "finished"


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path: Path):
    process = start(tmp_path, "-m", "seed=4,5", wait=4)
    assert process.stdout is not None
    deadline = time.monotonic() + 300
    for line in process.stdout:
        if line.startswith("waiting"):
            break
        assert time.monotonic() < deadline
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == run.INTERRUPTED, out
    assert {s: r["status"] for s, r in records(tmp_path).items()} == {4: "interrupted"}
    assert "interrupted after 1 of 2 cells" in out


def test_odd_values_reach_a_cell_unchanged(tmp_path: Path):
    model = tmp_path / "a model=b,[c]'s"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"1")
    path = str(model).replace("'", "\\'")
    code, _, error = finish(tmp_path, "-m", f"policy.path='{path}'", "eval.suites=[test]")
    assert code == 0, error
    (directory,) = (tmp_path / "out").glob("*-s0-*")
    record = json.loads((directory / "run.json").read_text())
    assert any("a model=b,[c]" in override for override in record["overrides"])
    written = OmegaConf.load(directory / "config.yaml")
    assert written.policy.path == str(model)


def test_help_explains_the_groups():
    command = [sys.executable, str(ROOT / "run.py"), "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    for group in ("env", "reward", "algo", "policy", "engine", "scale"):
        for choice in (path.stem for path in (ROOT / "recipes" / group).glob("*.yaml")):
            assert choice in result.stdout
