"""Create, skip, resume, go stale: one directory a run, and nothing is ever deleted."""

import copy
import json
from pathlib import Path

import pytest

from runs.errors import ConfigError, RunError
from runs.grid import Cell, Outcome, run_cells
from runs.store import Store, read_record, update_record


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "env.py").write_text("a = 1")
    return tmp_path


@pytest.fixture
def store(checkout: Path) -> Store:
    return Store(checkout / "outputs", checkout)


def test_a_new_run_is_claimed_once(store: Store, config: dict):
    found = store.claim(config, ["seed=0"])
    record = read_record(found.directory)
    assert found.state == "absent" and record["status"] == "running"
    assert record["overrides"] == ["seed=0"] and record["versions"]["torch"]
    assert (found.directory / "config.yaml").is_file()
    with pytest.raises(RunError, match="another process"):
        store.claim(config, [])


def test_a_finished_run_is_skipped_and_remembers_every_sweep(store: Store, config: dict):
    first = store.claim(config, [], ["a"])
    store.finish(first.directory, "finished")
    assert store.claim(config, [], ["b"]).state == "finished"
    assert read_record(first.directory)["sweeps"] == ["a", "b"]
    assert read_record(first.directory)["status"] == "finished"


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_an_unfinished_run_goes_on_in_its_directory(store: Store, config: dict, status: str):
    first = store.claim(config, [])
    (first.directory / "metrics.jsonl").write_text("")
    store.finish(first.directory, status, "why")
    again = store.claim(config, [])
    assert (again.state, again.status, again.directory) == ("unfinished", status, first.directory)
    record = read_record(first.directory)
    assert (record["status"], record["error"], record["attempts"]) == ("running", None, 2)
    assert (first.directory / "metrics.jsonl").exists()


def test_a_dead_process_left_an_interrupted_run(store: Store, config: dict):
    found = store.claim(config, [])
    process = read_record(found.directory)["process"]
    # The same number, but another process: it started at another time.
    update_record(found.directory, process=process | {"started": process["started"] - 100})
    assert store.find(config).status == "interrupted"
    assert store.claim(config, []).state == "unfinished"


def test_runs_of_other_code_are_moved_aside(checkout: Path, store: Store, config: dict):
    first = store.claim(config, [])
    store.finish(first.directory, "finished")
    (first.directory / "metrics.jsonl").write_text("precious")
    (checkout / "envs" / "env.py").write_text("a = 2")
    later = Store(store.root, checkout)
    accepting = copy.deepcopy(config)
    accepting["run"]["accept_stale"] = True
    assert later.find(accepting).state == "finished"
    assert later.claim(config, []).state == "stale"
    kept = store.root / "stale" / f"{first.id}-1"
    assert (kept / "metrics.jsonl").read_text() == "precious"
    assert read_record(first.directory)["code"] == later.code
    assert not (first.directory / "metrics.jsonl").exists()


def test_a_directory_that_is_no_run_is_left_alone(store: Store, config: dict):
    found = store.find(config)
    found.directory.mkdir(parents=True)
    with pytest.raises(RunError, match="move"):
        store.claim(config, [])
    (found.directory / "run.json").write_text(json.dumps({"status": "finished"}))
    with pytest.raises(RunError, match="not the record"):
        store.find(config)


def test_a_damaged_record_fails_its_own_cell_and_no_other(
    store: Store, config: dict, monkeypatch: pytest.MonkeyPatch
):
    damaged = store.claim(config, [])
    (damaged.directory / "run.json").write_text("{")
    other = {**config, "seed": 7}
    played = []

    class Played:
        running = False

        def __init__(self, cell, directory, entry, label):
            self.cell, self.directory = cell, directory
            played.append(cell.config["seed"])

        def outcome(self):
            return Outcome(self.cell, self.directory, "finished")

    monkeypatch.setattr("runs.grid.Child", Played)
    cells = [Cell(["seed=0"], config), Cell(["seed=7"], other)]
    outcomes, stopped = run_cells(cells, store, Path("run.py"), lambda text: None)
    assert not stopped
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    assert outcomes[0].error is not None and "run.json" in outcomes[0].error
    assert played == [7]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, config: dict):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"paths\.runs=.*file.* cannot be written to"):
        Store(tmp_path / "file", tmp_path).claim(config, [])
