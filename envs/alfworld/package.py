"""What is read from the installed package `alfworld` (MIT), without importing it.

Importing it makes a folder in the user's home and loads much that is not needed. Its data files
and two of its modules stand on their own and are read by path.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from runs.errors import EnvError

VERSION = "0.4.2"
_INSTALL = f"run `pip install --no-deps alfworld=={VERSION}`"


@cache
def folder() -> Path:
    """Where the package lies. Raises `EnvError` when it is missing or of another version."""
    spec = find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise EnvError(f"ALFWorld needs the package alfworld, which is not installed: {_INSTALL}.")
    place = Path(spec.submodule_search_locations[0])
    try:
        installed = version("alfworld")
    except PackageNotFoundError:
        installed = "a copy without a version"
    if installed != VERSION:
        raise EnvError(
            f"The package alfworld is {installed}, whose rules and tables may be others than "
            f"those of {VERSION}: {_INSTALL}."
        )
    return place


@cache
def source(name: str) -> str:
    """The text of a file of the package, e.g. `data/alfred.pddl`. Raises `EnvError`."""
    path = folder() / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise EnvError(
            f"The package alfworld has no readable {name} ({error.strerror}): {_INSTALL} "
            "with --force-reinstall."
        ) from error


@cache
def constants() -> ModuleType:
    """`alfworld.gen.constants`: which types there are, what holds what, what can be done to it."""
    return _module("constants")


@cache
def goal_library() -> ModuleType:
    """`alfworld.gen.goal_library`: `gdict[task_type]` has the goal in PDDL and the sentences."""
    return _module("goal_library")


def _module(name: str) -> ModuleType:
    source(f"gen/{name}.py")  # says what to do where it is missing
    spec = spec_from_file_location(f"alfworld_{name}", folder() / "gen" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
