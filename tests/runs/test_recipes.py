"""Every key is commented where it stands, read by something, and there are not too many."""

import ast
import re
from itertools import product
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from algorithms import make_algorithm
from runs.config import NUMBERS, check_keys, check_values, known_keys, leaves, lookup

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
GROUPS = ("env", "reward", "algo", "policy", "engine")
# 80 for the main job, 10 for credit, losses and their switches (issue 3); ALFWorld's own: data,
# who demonstrates, how often wrongly, and five knobs of a house.
MOST_KEYS = 98
# Which choice a file is, and what it builds on.
KINDS = ("name", "family", "defaults")
READERS = ("run.py", "envs", "policies", "algorithms", "rollouts", "training", "runs")


def files() -> list[Path]:
    """The files that define keys; scale/, sized/, fitted/ and tuned/ only change them."""
    found = [RECIPES / "config.yaml"]
    return found + [path for group in GROUPS for path in sorted((RECIPES / group).rglob("*.yaml"))]


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (RECIPES / group).glob("*.yaml"))


def test_there_are_not_too_many_keys():
    keys = known_keys(RECIPES)
    assert {"seed", "algo.lam", "env.first_seed.sft"} <= keys
    assert len(keys) <= MOST_KEYS


def uncommented(text: str) -> list[str]:
    """Keys with a value and no comment on their line."""
    text = text.split("\nhydra:")[0]
    text = re.sub(r"^defaults:\n(  - .*\n)*", "", text, flags=re.M)
    lines = [line for line in text.splitlines() if re.match(r"\s*\w+:\s*[^\s#]", line)]
    return [line.strip() for line in lines if "#" not in line]


@pytest.mark.parametrize("path", files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_key_is_commented_where_it_stands(path: Path):
    if path.parent.name in ("algo", "policy", "env", "engine"):
        # `name` and `family` say which choice this is; the file's first line describes it.
        assert path.read_text().startswith("# ")
    bare = uncommented(path.read_text())
    assert [line for line in bare if line.split(":")[0] not in KINDS] == []


def test_the_comment_test_sees_a_bare_key():
    assert uncommented("a: 1  # one\nb: 2\nc:\n  d: 3\n") == ["b: 2", "d: 3"]


def names_read(sources: list[str]) -> set[str]:
    """Words that code reads a configuration by: attributes and parts of strings."""
    words: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                words.add(str(node.slice.value))
            elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
                words.add(str(node.left.value))  # `"wins_only" in faults`
            elif isinstance(node, ast.Call):
                constants = [a.value for a in node.args if isinstance(a, ast.Constant)]
                words |= {value for value in constants if isinstance(value, str)}
    return words


def test_every_key_is_read_by_something():
    paths = [ROOT / name for name in READERS]
    sources = [p for root in paths for p in ([root] if root.is_file() else root.rglob("*.py"))]
    # Refusing a value is not reading it.
    sources = [path for path in sources if path != ROOT / "runs" / "config.py"]
    read = names_read([path.read_text() for path in sources])
    unread = {key for key in known_keys(RECIPES) if key.split(".")[-1] not in read}
    # `first_seed[split]` and `tasks[split]` are read by the name of the split.
    unread -= {key for key in unread if key.startswith(("env.first_seed.", "env.tasks."))}
    assert unread == set()
    assert "no_such_key" not in read


@pytest.mark.parametrize("family", choices("env"))
def test_every_number_has_bounds(family: str):
    with initialize_config_dir(str(RECIPES), version_base="1.3"):
        config = OmegaConf.to_container(compose("config", [f"env={family}"]), resolve=True)
    numbers = {
        key
        for key in leaves(config)  # type: ignore[arg-type]
        if isinstance(value := lookup(config, key), int | float) and not isinstance(value, bool)  # type: ignore[arg-type]
    }
    # Those of `algo` are read and bounded by the algorithm itself.
    assert {key for key in numbers if not key.startswith("algo.")} <= set(NUMBERS)
    assert "optim.final_share" in numbers


# Composing takes half a second: in the other environments every scale and every algorithm once.
COMPOSED = [("textworld", s, a) for s, a in product(choices("scale"), choices("algo"))]
COMPOSED += [
    (env, scale, algo)
    for env in choices("env")
    for scale, algo in [(s, "ppo") for s in choices("scale")]
    + [("cpu", a) for a in choices("algo")]
    if env != "textworld"
]


@pytest.mark.parametrize(("env", "scale", "algo"), COMPOSED)
def test_every_scale_runs_with_every_algorithm(env: str, scale: str, algo: str):
    overrides = [f"env={env}", f"scale={scale}", f"algo={algo}"]
    overrides += ["sft.demos=4"] * (algo == "sft")
    with initialize_config_dir(str(RECIPES), version_base="1.3"):
        config = OmegaConf.to_container(compose("config", overrides), resolve=True)
    check_keys(config, RECIPES)  # type: ignore[arg-type]
    check_values(config)  # type: ignore[arg-type]
    algorithm = make_algorithm(config["algo"])  # type: ignore[index, call-overload]
    if scale == "paper" and algo in ("ppo", "grpo", "rloo"):
        assert algorithm.granularity == ("token" if algo == "ppo" else "trajectory")
    elif algo in ("ppo", "grpo", "rloo"):
        assert algorithm.granularity == "turn"


@pytest.mark.parametrize("folder", ["scale", "sized", "fitted", "tuned"])
def test_scales_change_only_keys_that_exist(folder: str):
    known = known_keys(RECIPES)
    for path in (RECIPES / folder).glob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        content.pop("defaults", None)
        package = path.read_text().split("@package ", 1)[1].split("\n", 1)[0]
        prefix = "" if package == "_global_" else f"{package}."
        assert {prefix + key for key in leaves(content)} <= known, path.name


@pytest.mark.parametrize(
    ("folder", "one", "other"),
    [("tuned", "scale", "algo"), ("sized", "scale", "env"), ("fitted", "policy", "env")],
)
def test_files_for_two_choices_are_named_by_them(folder: str, one: str, other: str):
    names = {path.stem for path in (RECIPES / folder).glob("*.yaml")}
    # One that is named otherwise would never be read.
    assert names <= {f"{a}_{b}" for a, b in product(choices(one), choices(other))}
