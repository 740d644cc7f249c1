"""Checkpoints: actor, critic and optimiser as safetensors, the rest as JSON, never a pickle.

A checkpoint is written into a folder aside, flushed, and renamed: a kill while saving leaves the
one before. `state.json` holds the sha256 of every file, so a damaged one is found and passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor

from runs.directory import Run
from runs.errors import RunError
from training.step import Learner

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
REFERENCE = "reference.safetensors"
KEPT = 2


def save(run: Run, learner: Learner, iteration: int) -> Path:
    """Write the checkpoint after `iteration` updates and drop all but the newest two.

    Raises `RunError` when it cannot be written; the checkpoints before stay.
    """
    final = run.checkpoint_dir(iteration)
    aside = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        _write(aside, learner, iteration)
        if final.exists():
            shutil.rmtree(final)
        os.rename(aside, final)
        _flush(final.parent)
        for _, old in run.checkpoints()[KEPT:]:
            shutil.rmtree(old)
    except OSError as error:
        raise RunError(
            f"the checkpoint after iteration {iteration} cannot be written to {final}: {error}"
        ) from error
    return final


def restore(run: Run, learner: Learner) -> int | None:
    """Load the newest checkpoint that is whole; returns its iteration, None when there is none."""
    for iteration, directory in run.checkpoints():
        if not whole(directory):
            run.display.say(f"  checkpoint {directory.name} is damaged; trying the one before")
            continue
        load(directory, learner)
        return iteration
    return None


def load(directory: Path, learner: Learner) -> None:
    """Put the weights, optimiser state and version of a whole checkpoint into `learner`."""
    policy, optimizer = learner.policy, learner.optimizer
    policy.restore(directory)
    if policy.reference is not None:
        load_model(policy.reference, directory / REFERENCE)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in load_file(directory / OPTIMIZER).items():
        index, entry = name.split(".", 1)
        state.setdefault(int(index), {})[entry] = value
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )
    policy.version = json.loads((directory / STATE).read_text())["version"]


def whole(directory: Path) -> bool:
    """True when every file of the checkpoint is there with the contents it was written with."""
    try:
        files = json.loads((directory / STATE).read_text())["files"]
        return all(_digest(directory / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _write(directory: Path, learner: Learner, iteration: int) -> None:
    """Every file of a checkpoint, `state.json` with their digests last, all flushed to disk."""
    policy = learner.policy
    policy.save(directory)
    if policy.reference is not None:
        # Demonstrations before RL move the reference away from `policy.path`.
        save_model(policy.reference, str(directory / REFERENCE))
    tensors = {
        f"{index}.{entry}": value.contiguous()
        for index, entries in learner.optimizer.state_dict()["state"].items()
        for entry, value in entries.items()
    }
    save_file(tensors, directory / OPTIMIZER)
    files = {
        path.relative_to(directory).as_posix(): _digest(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    state = {"iteration": iteration, "version": policy.version, "files": files}
    (directory / STATE).write_text(json.dumps(state, indent=2))
    for path in directory.rglob("*"):
        _flush(path)
    _flush(directory)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
