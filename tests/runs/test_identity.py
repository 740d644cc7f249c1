"""What makes two runs one run, and what does not."""

import copy
from pathlib import Path

import pytest

from runs.identity import code_hash, fingerprint, run_id, slug

ROOT = Path(__file__).resolve().parents[2]


def changed(config: dict, key: str, value: object) -> dict:
    other = copy.deepcopy(config)
    *path, last = key.split(".")
    node = other
    for part in path:
        node = node[part]
    node[last] = value
    return other


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 1), ("threads", 2), ("algo.gamma", 0.99), ("env.show_score", True)],
)
def test_what_changes_numbers_changes_the_run(config: dict, key: str, value: object):
    assert run_id(config, ROOT)[1] != run_id(changed(config, key, value), ROOT)[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [("run.accept_stale", True), ("paths.runs", "elsewhere"), ("paths.cache", "elsewhere")],
)
def test_what_changes_no_number_does_not(config: dict, key: str, value: object):
    assert run_id(config, ROOT) == run_id(changed(config, key, value), ROOT)


def test_equal_numbers_and_other_orders_are_one_run(config: dict):
    same = changed(config, "algo.gamma", 1)
    same = dict(reversed(list(same.items())))
    assert run_id(config, ROOT) == run_id(same, ROOT)
    assert fingerprint({"a": True}) != fingerprint({"a": 1})


def test_a_game_enters_by_content_and_not_by_name(config: dict, tmp_path: Path):
    for name, text in (("a", "{1}"), ("b", "{1}"), ("c", "{2}")):
        (tmp_path / f"{name}.z8").write_bytes(name.encode())
        (tmp_path / f"{name}.json").write_text(text)
    a, b, c = (
        run_id(changed(config, "env.game", str(tmp_path / f"{name}.z8")), ROOT)[1] for name in "abc"
    )
    assert a == b != c


def test_weights_enter_by_content(config: dict, tmp_path: Path):
    ids = []
    for name, weights in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        ids.append(run_id(changed(config, "policy.path", str(tmp_path / name)), ROOT)[1])
    assert ids[0] == ids[1] != ids[2]


def test_the_slug_is_readable_and_a_file_name(config: dict):
    assert slug(config) == "w1-o1-q1-dense-ppo-tiny-small-s0"
    odd = changed(config, "env.game", "a folder/it's=a,[game].z8")
    assert slug(odd) == "it-s-a-game-dense-ppo-tiny-small-s0"


def test_code_hash_sees_edits_and_ignores_litter(tmp_path: Path):
    (tmp_path / "envs" / "__pycache__").mkdir(parents=True)
    (tmp_path / "envs" / "env.py").write_text("a = 1")
    (tmp_path / "constraints.txt").write_text("torch==1")
    first = code_hash(tmp_path)
    (tmp_path / "envs" / "__pycache__" / "env.pyc").write_text("x")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("x")
    assert code_hash(tmp_path) == first
    (tmp_path / "constraints.txt").write_text("torch==2")
    second = code_hash(tmp_path)
    (tmp_path / "envs" / "env.py").write_text("a = 2")
    assert len({first, second, code_hash(tmp_path)}) == 3
