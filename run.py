"""The one door: Hydra composes a configuration, one run happens; with -m, a grid of them.

python run.py                                             one run
python run.py -m algo=ppo,grpo,rloo reward=dense,sparse   a run for every combination
python run.py --help                                      the groups to choose from
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from runs.config import check_keys, check_values, known_keys, unknown_key
from runs.errors import ConfigError, RunError, TrivetError
from runs.grid import HAND_OVER, Cell, Outcome, run_cells, thread_environment
from runs.identity import game_files
from runs.progress import Screen
from runs.store import Found, Store

# Whatever imports torch is imported inside functions, after the thread variables are set.

CHECKOUT = Path(__file__).resolve().parent
RECIPES = CHECKOUT / "recipes"
REFUSED, FAILED, INTERRUPTED = 2, 1, 130


def main() -> int:
    """Compose, refuse what cannot run, then run; returns the exit code."""
    out = Screen(soft_wrap=True, highlight=False, markup=False)
    try:
        cells, is_grid = handed_over() or compose()
        for cell in cells:
            check_keys(cell.config, RECIPES)
            settle_paths(cell.config)
            check_values(cell.config)
        if cells:
            os.environ.update(thread_environment(max(c.config["threads"] for c in cells)))
        for cell in cells:
            check_parts(cell.config)
        if not cells:
            return 0
        return run_grid(cells, out) if is_grid else run_one(cells[0], out)
    except KeyboardInterrupt:
        return INTERRUPTED
    except TrivetError as error:
        print(f"trivet: {error}", file=sys.stderr)
        return REFUSED if isinstance(error, ConfigError) else FAILED


def handed_over() -> tuple[list[Cell], bool] | None:
    """The one cell that a grid gave to this process, or None when a person started it."""
    path = os.environ.pop(HAND_OVER, None)
    return ([Cell.read(Path(path))], False) if path else None


def compose() -> tuple[list[Cell], bool]:
    """The cells that the command line asks for, and whether it asks for a grid.

    Hydra only composes; it finishes before anything runs and leaves nothing. There are no cells
    after --help and the like. Raises `ConfigError` for a group, key or value that Hydra refuses.
    """
    composed: list[tuple[list[str], DictConfig]] = []
    modes: set[RunMode] = set()

    @hydra.main(config_path=str(RECIPES), config_name="config", version_base="1.3")
    def collect(config: DictConfig) -> None:
        settings = HydraConfig.get()
        modes.add(settings.mode or RunMode.RUN)
        overrides = OmegaConf.to_container(settings.overrides.task, resolve=False)
        composed.append(([str(override) for override in overrides], config))  # pyright: ignore

    with TemporaryDirectory(prefix="trivet-hydra-") as folder:
        os.environ["TRIVET_HYDRA_DIR"] = folder
        # Without this Hydra prints its own report and exits.
        os.environ["HYDRA_FULL_ERROR"] = "1"
        try:
            collect()
            cells = [Cell(overrides, resolved(config)) for overrides, config in composed]
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise ConfigError(one_sentence(error)) from error
    return cells, RunMode.MULTIRUN in modes


def resolved(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain values; interpolations are gone."""
    content = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return {str(key): value for key, value in dict(content).items()}  # pyright: ignore


def one_sentence(error: Exception) -> str:
    """What Hydra said, in one line that names the key."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        return f"{group}={choice} does not exist; choose one of {', '.join(error.options)}."
    text = " ".join(str(error).split())
    if unknown := re.search(r"Could not override '([^']+)'", text):
        return unknown_key(unknown[1].split("@")[0], known_keys(RECIPES))
    if several := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{several[1]} names several values; add -m for a grid, or write [ ] for a list."
    text = re.split(r" (?:See https|Set the environment|full_key:|To append)", text)[0]
    return f"{text.rstrip('.')}; `python run.py --help` lists the groups, recipes/ the keys."


def settle_paths(config: dict[str, Any]) -> None:
    """Make paths absolute: ours start at the checkout, the user's where the command was given.

    A policy or a game is looked for in the checkout as well.
    """
    for name, path in config["paths"].items():
        if not isinstance(path, str) or not path.strip():
            raise ConfigError(f"paths.{name}={path} must name a directory.")
        config["paths"][name] = str(CHECKOUT / Path(path).expanduser())
    policy, env = config["policy"], config["env"]
    if isinstance(policy.get("path"), str):
        policy["path"] = _settled(policy["path"])
    env["game"] = _settled_game(env["game"])
    for part in env["mixture"] if isinstance(env["mixture"], list) else []:
        if isinstance(part, dict) and "task" in part:
            part["task"] = _settled_game(part["task"])


def check_parts(config: dict[str, Any]) -> None:
    """Refusals of the parts themselves; a folder of games gets its full path. Raises
    `ConfigError`."""
    from algorithms import AlgorithmError, make_algorithm
    from envs.suites import family_module, make_suites

    try:
        make_algorithm(config["algo"], [name for name, on in config["compat"].items() if on])
    except AlgorithmError as error:
        raise ConfigError(f"{error}.") from error
    env = config["env"]
    if env.get("data") not in (None, "generated"):
        found = family_module(env["family"], "splits").data_folder(_settled(str(env["data"])))
        env["data"] = str(found.absolute())
    # Builds nothing yet: game names, files, overlap and the reward are checked.
    make_suites(OmegaConf.create(config))


def run_one(cell: Cell, out: Console) -> int:
    """Create or continue the run of a configuration, unless it is finished."""
    from analysis.summary import headline, load, type_lines

    store = Store(Path(cell.config["paths"]["runs"]), CHECKOUT)
    found = store.claim(cell.config, cell.overrides)
    if found.state == "stale":
        out.print(f"  made by other code, moved to stale/ and run again: {found.id}")
    if found.state != "finished" and not work(cell, found, store, out):
        return INTERRUPTED
    before = "finished before, " if found.state == "finished" else ""
    result = load(found.directory)
    out.print(f"  {before}{headline(result)}")
    for line in type_lines(result):
        out.print(f"    {line}")
    out.print(f"  {found.directory}")
    return 0


def work(cell: Cell, found: Found, store: Store, out: Console) -> bool:
    """Train in a claimed directory and record how it ended; False after an interruption."""
    from runs.directory import Run
    from runs.progress import Display
    from training.loop import train

    config = OmegaConf.create(cell.config)
    OmegaConf.set_struct(config, True)
    OmegaConf.set_readonly(config, True)
    display = Display(out)
    status, error = "failed", None
    try:
        train(config, Run(found.directory, config, display))
        status = "finished"
    except KeyboardInterrupt:
        status, error = "interrupted", "interrupted by the user"
        display.say(f"  interrupted; the same command goes on from here: {found.directory}")
    except BaseException as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        display.close()
        store.finish(found.directory, status, error)
    return status == "finished"


def run_grid(cells: Sequence[Cell], out: Console) -> int:
    """Run the cells, print what they found, and say which failed by the exit code."""
    began = time.monotonic()
    store = Store(Path(cells[0].config["paths"]["runs"]), CHECKOUT)
    for cell in cells:
        with suppress(RunError):  # the cell itself will fail with it, and alone
            if (found := store.find(cell.config)).state == "stale":
                out.print(f"made by other code, will be run again: {found.id}")
    jobs = max(cell.config["run"]["jobs"] for cell in cells)
    outcomes, stopped = run_cells(cells, store, Path(__file__).resolve(), out.print, jobs)
    report(outcomes, store.root, out)
    out.print(usage(time.monotonic() - began))
    if stopped:
        out.print(f"interrupted after {len(outcomes)} of {len(cells)} cells; start it again")
        return INTERRUPTED
    return 0 if all(outcome.good for outcome in outcomes) else FAILED


def report(outcomes: Sequence[Outcome], root: Path, out: Console) -> None:
    """Table, figure, and the path of each run; cells that did not finish are named."""
    from analysis.summary import arm_lines, learning_curves, load, tables

    good = list(dict.fromkeys(outcome.directory for outcome in outcomes if outcome.good))
    if good:
        results = [load(directory) for directory in good]
        Console(width=out.width if out.is_terminal else 140).print(*tables(results))
        for line in arm_lines(results):
            out.print(line)
        name = hashlib.sha256("".join(path.name for path in good).encode()).hexdigest()[:8]
        figure = root / "figures" / f"learning-{name}.png"
        learning_curves(results, figure)
        out.print(f"learning curves: {figure}")
    for outcome in outcomes:
        why = f": {outcome.error}" if outcome.error else ""
        out.print(f"{outcome.status:11} {outcome.directory} ({outcome.cell}){why}")


def usage(wall: float) -> str:
    """Wall and CPU seconds, load and peak memory of the cells of this command."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(use.ru_utime + use.ru_stime for use in spent)
    unit = 2**30 if sys.platform == "darwin" else 2**20
    peak = max(use.ru_maxrss for use in spent) / unit
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{wall:.0f} s wall, {cpu:.0f} s CPU, load average {load} on {os.cpu_count()} cores, "
        f"largest process {peak:.1f} GB"
    )


def _settled(path: str) -> str:
    for candidate in (Path(path).expanduser(), CHECKOUT / path):
        if candidate.exists():
            return str(candidate.absolute())
    return path


def _settled_game(game: Any) -> Any:
    if isinstance(game, list):
        return [_settled(one) if isinstance(one, str) else one for one in game]
    return _settled(game) if isinstance(game, str) and game_files(game) else game


def _interrupt(signum: int, frame: object) -> None:
    # Once is enough: a second signal must not break into writing down where the run is.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    sys.exit(main())
