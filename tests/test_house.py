"""House rules that a machine can check: import direction, sizes, excepts, paths, packages."""

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Who may import whom: run.py -> training -> rollouts -> policies, envs -> runs;
# training -> algorithms; algorithms knows nothing of ours.
MAY_IMPORT = {
    "run": {"training", "rollouts", "policies", "envs", "algorithms", "runs", "analysis"},
    "training": {"rollouts", "policies", "envs", "algorithms", "runs"},
    "rollouts": {"policies", "envs", "runs"},
    "policies": {"runs"},
    "envs": {"runs"},
    "analysis": {"runs"},
    "benchmarks": {"training", "rollouts", "policies", "envs", "algorithms", "runs"},
    "algorithms": set(),
    "runs": set(),
}


@cache
def project_files() -> list[Path]:
    """Files that git tracks or would track; every file that is not ignored in a plain copy."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        ignored = {".venv", "outputs", ".cache", "__pycache__", ".git", "build", "dist"}
        files = [p for p in ROOT.rglob("*") if not ignored & set(p.relative_to(ROOT).parts)]
    return [path for path in files if path.is_file()]


def python_files() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_roots(source: str) -> set[str]:
    """Top-level names that `source` imports anywhere, inside functions and `if` too."""
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.split(".")[0])
    return roots


def imported_modules(source: str) -> set[str]:
    """Dotted names that `source` imports; `from a import b` counts as `a` and as `a.b`."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules.add(node.module)
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def wrong_imports(name: str, source: str) -> set[str]:
    """What of ours the file `name` imports against the direction of the house."""
    layer = name.split("/")[0].removesuffix(".py")
    if layer not in MAY_IMPORT:
        return set()
    allowed = MAY_IMPORT[layer] | {layer}
    if name.startswith("policies/base/"):
        # The script that makes the base weights is a door of its own: it plays games for them,
        # and nothing imports it.
        allowed |= {"envs"}
    return (imported_roots(source) & set(MAY_IMPORT)) - allowed


def test_imports_point_one_way():
    wrong = {name_of(p): wrong_imports(name_of(p), p.read_text()) for p in python_files()}
    assert {name: roots for name, roots in wrong.items() if roots} == {}


def test_the_import_scan_sees_hidden_imports():
    hidden = "def f():\n    if True:\n        from training.loop import train\n    return train\n"
    assert wrong_imports("rollouts/player.py", hidden) == {"training"}
    assert wrong_imports("algorithms/losses.py", "import runs.errors") == {"runs"}
    assert wrong_imports("training/loop.py", "from algorithms import losses") == set()


def test_environments_do_not_import_torch():
    """Environment workers are many small processes: torch would cost each 200 MB and a second."""
    heavy = {"torch", "transformers"}
    found = {
        name_of(p): imported_roots(p.read_text()) & heavy
        for p in python_files()
        if name_of(p).split("/")[0] in {"envs", "runs"}
    }
    assert {name: roots for name, roots in found.items() if roots} == {}


def test_only_the_door_reads_the_summary():
    """`analysis` reads what runs left; of the rest only `run.py` may call it, for its table."""
    for path in python_files():
        layer = name_of(path).split("/")[0]
        if layer in {"analysis", "tests"}:
            continue
        used = {m for m in imported_modules(path.read_text()) if m.startswith("analysis.")}
        allowed = {"analysis.summary"} if name_of(path) == "run.py" else set()
        outside = {m for m in used if not any(m.startswith(a) for a in allowed)}
        assert not outside, f"{name_of(path)} imports {sorted(outside)}"


def test_files_have_at_most_400_lines():
    long = {name_of(p): n for p in python_files() if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}


def test_functions_have_at_most_60_lines():
    long = {}
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long[f"{name_of(path)}:{node.name}"] = lines
    assert long == {}


def test_no_bare_except():
    bare = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert bare == []


# Written so that the patterns do not find themselves.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:root|home|Users|work)/[\w.]")
REGISTRY_HOST = re.compile(r"\b(?:pypi\.org|files\.pythonhosted\.org|registry\.npmjs\.org)\b")


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY_HOST], ids=["path", "registry"])
def test_nothing_names_a_machine(pattern: re.Pattern[str]):
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name_of(path)}: {match.group()}" for match in pattern.finditer(text)]
    assert found == []


def test_the_machine_patterns_find_what_they_should():
    home = "/".join(["", "home", "someone", "trivet"])
    assert MACHINE_PATH.search(f"path: {home}")
    assert not MACHINE_PATH.search("see docs/home/index and ../work/plan")


def test_every_package_is_listed():
    listed = set(PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
    folders = {p.parent for p in python_files() if p.parent != ROOT}
    packages = {name_of(f).split("/")[0] for f in folders} - {"tests"}
    assert {p for p in packages if not {p, f"{p}.*"} <= listed} == set()
    assert packages | {"recipes"} == {entry.removesuffix(".*") for entry in listed}


def test_every_package_folder_has_an_init():
    folders = {p.parent for p in python_files() if p.parent != ROOT}
    packages = {f for f in folders if name_of(f).split("/")[0] != "tests"}
    assert [name_of(f) for f in sorted(packages) if not (f / "__init__.py").is_file()] == []


def test_constraints_pin_every_dependency_and_leave_spacy_out():
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    pins = dict(re.fullmatch(r"([\w.-]+)==([\w.]+)", line).groups() for line in lines)  # type: ignore[union-attr]
    pinned = {name.lower().replace("_", "-") for name in pins}
    project = PROJECT["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.match(r"[\w-]+", entry).group().lower() for entry in wanted}  # type: ignore[union-attr]
    assert names - pinned == set()
    assert {"jericho", "setuptools"} <= pinned
    assert not {name for name in pinned if "spacy" in name}
