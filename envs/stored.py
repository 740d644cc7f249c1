"""Folders of made things in a cache that several processes fill at once.

A folder appears by one rename, so nobody ever sees half of it, and two processes that make the
same one agree.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STALE_SECONDS = 3600.0


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_folder(folder: Path, fill: Callable[[Path], None], last: str) -> None:
    """`fill` writes into a folder aside, which then becomes `folder`; `last` is a file that a
    whole folder has."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    work = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        fill(work)
        try:
            work.rename(folder)
        except OSError:
            # Another process was faster: what it made is this.
            if not (folder / last).is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def discard(folder: Path) -> None:
    """Takes a damaged folder out of the way."""
    aside = folder.with_name(f".making-broken-{folder.name}-{os.getpid()}-{time.time_ns()}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Removes what interrupted builds left behind."""
    for path in parent.glob(".making-*"):
        try:
            old = time.time() - path.stat().st_mtime > STALE_SECONDS
        except FileNotFoundError:
            continue
        if old:
            shutil.rmtree(path, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a file by one rename, so that no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).rename(path)
