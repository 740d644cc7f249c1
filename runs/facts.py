"""What a run was made with and on: versions, git state, this process."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors"),
    *("textworld", "jericho", "alfworld", "numpy"),
)


def versions() -> dict[str, str]:
    """Python, the machine and the packages that numbers depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state(checkout: Path) -> dict[str, Any]:
    """Commit and whether the tree differs from it; commit None outside a repository."""
    commit = _git(checkout, "rev-parse", "HEAD")
    changes = _git(checkout, "status", "--porcelain") if commit else None
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def this_process() -> dict[str, Any]:
    """Enough to find out later whether this process still lives."""
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
    }


def is_alive(process: dict[str, Any] | None) -> bool:
    """True when the process that `this_process` described still runs, or is on another host."""
    if process is None:
        return False
    if process["host"] != platform.node():
        return True
    try:
        return abs(psutil.Process(process["pid"]).create_time() - process["started"]) < 1.0
    except psutil.NoSuchProcess:
        return False


def _git(checkout: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(checkout), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
