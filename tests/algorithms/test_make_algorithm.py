"""What a config may ask for, what is refused and by which key; doctests; the package's shape."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import algorithms
from algorithms import AlgorithmError, algorithm_names, make_algorithm

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes" / "algo"
MODULES = [
    "algorithms",
    *(f"algorithms.{m.name}" for m in pkgutil.iter_modules(algorithms.__path__)),
]
VALID = {
    "ppo": ["turn", "token"],
    "grpo": ["trajectory", "turn"],
    "rloo": ["trajectory", "turn"],
}


def recipe(name, **changes):
    return OmegaConf.merge(OmegaConf.load(RECIPES / f"{name}.yaml"), changes)


def test_an_algorithm_is_one_file_and_one_recipe():
    assert algorithm_names() == ["grpo", "none", "ppo", "rloo", "sft"]
    assert sorted(path.stem for path in RECIPES.glob("*.yaml")) == algorithm_names()
    for name in algorithm_names():
        assert make_algorithm(recipe(name)).name == name


@pytest.mark.parametrize(
    ("name", "plays", "critic", "group"),
    [
        ("ppo", True, True, False),
        ("grpo", True, False, True),
        ("rloo", True, False, True),
        ("sft", False, False, False),
        ("none", False, False, False),
    ],
)
def test_what_an_algorithm_needs(name, plays, critic, group):
    algorithm = make_algorithm(recipe(name))
    assert (algorithm.plays, algorithm.needs_critic, algorithm.needs_group) == (
        plays,
        critic,
        group,
    )
    assert not algorithm.needs_reference


def test_a_reference_is_needed_for_kl_only():
    assert make_algorithm(recipe("grpo", kl_coef=0.01)).needs_reference
    assert make_algorithm(recipe("ppo", entropy_coef=0.01)).needs_entropy


@pytest.mark.parametrize("name", VALID)
@pytest.mark.parametrize("granularity", ["trajectory", "turn", "token", "step", None])
def test_granularities_of_rule_7(name, granularity):
    config = recipe(name, advantage_granularity=granularity)
    if granularity in VALID[name]:
        assert make_algorithm(config).granularity == granularity
    else:
        with pytest.raises(AlgorithmError, match=r"algo\.advantage_granularity=.*choose"):
            make_algorithm(config)


@pytest.mark.parametrize("name", ["sft", "none"])
def test_sft_and_none_ignore_a_granularity_but_not_a_typo(name):
    assert make_algorithm({"name": name, "advantage_granularity": "turn"}).name == name
    with pytest.raises(AlgorithmError, match=r"algo\.advantage_granularity=trun"):
        make_algorithm({"name": name, "advantage_granularity": "trun"})


@pytest.mark.parametrize("name", ["dapo", "base", "losses", "", None, "../ppo"])
def test_other_names_are_refused(name):
    with pytest.raises(AlgorithmError, match=r"algo\.name=.*grpo, none, ppo, rloo, sft"):
        make_algorithm({"name": name})


@pytest.mark.parametrize("name", ["ppo", "grpo", "rloo", "sft", "none"])
def test_other_truncation_modes_are_refused(name):
    with pytest.raises(AlgorithmError, match=r"algo\.truncation=bootstrap .*choose terminal"):
        make_algorithm(recipe(name, truncation="bootstrap"))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("grpo", "group_size", 1),
        ("rloo", "group_size", 1),
        ("ppo", "group_size", 0),
        ("ppo", "group_size", 2.5),
        ("ppo", "gamma", 1.1),
        ("ppo", "gamma", None),
        ("ppo", "lam", -0.1),
        ("ppo", "value_coef", 0.0),
        ("ppo", "clip", 0.0),
        ("rloo", "clip", "wide"),
        ("rloo", "entropy_coef", -0.1),
        ("grpo", "kl_coef", float("nan")),
        ("grpo", "kl_coef", True),
        ("grpo", "std_normalise", "yes please"),
        ("ppo", "whiten", None),
        ("grpo", "gamma", 0.9),
        ("rloo", "std_normalise", True),
        ("ppo", "std_normalise", True),
    ],
)
def test_a_wrong_key_is_named_in_one_sentence(name, key, value):
    with pytest.raises(AlgorithmError, match=rf"algo\.{key}[= ]") as caught:
        make_algorithm(recipe(name, **{key: value}))
    assert "\n" not in str(caught.value)


def test_ppo_takes_a_group_of_one():
    assert make_algorithm(recipe("ppo", group_size=1)).group_size == 1


@pytest.mark.parametrize("name", ["sft", "none"])
def test_what_plays_nothing_gives_no_credit(name):
    with pytest.raises(AlgorithmError, match=f"algo={name} plays no episodes"):
        make_algorithm({"name": name}).credit([])


def test_none_has_no_loss():
    with pytest.raises(AlgorithmError, match="algo=none has no loss"):
        make_algorithm({"name": "none"}).loss(None)


@pytest.mark.parametrize("name", MODULES)
def test_the_worked_examples_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_algorithms_import_torch_and_nothing_of_ours():
    allowed = {"__future__", "algorithms", "torch", "collections", "dataclasses", "typing"}
    allowed |= {"importlib", "math", "pkgutil"}
    for path in (ROOT / "algorithms").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path.name


def test_every_pure_function_has_a_worked_example():
    for module in ("credit", "losses"):
        tree = ast.parse((ROOT / "algorithms" / f"{module}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                assert ">>>" in (ast.get_docstring(node) or ""), node.name
