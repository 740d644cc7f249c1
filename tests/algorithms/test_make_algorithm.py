"""What a config may ask for, what is refused and by which key; doctests; the package's shape."""

import ast
import doctest
import importlib
import pkgutil
from functools import cache
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
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
    "ppo": ("turn", "token"),
    **dict.fromkeys(["grpo", "rloo", "dr_grpo", "gspo", "dapo", "cispo"], ("trajectory", "turn")),
    **dict.fromkeys(["reinforce", "reinforce_pp"], ("trajectory", "turn", "token")),
    "gigpo": ("turn",),
}


NAMES = ["cispo", "dapo", "dr_grpo", "gigpo", "grpo", "gspo", "none", "ppo"]
NAMES += ["reinforce", "reinforce_pp", "rloo", "sft"]


@cache
def composed(name):
    with initialize_config_dir(str(ROOT / "recipes"), version_base="1.3"):
        return OmegaConf.to_container(compose("config", [f"algo={name}", "~tuned"]).algo)


def recipe(name, **changes):
    """The `algo` group as run.py composes it, with changes that need not be keys of it."""
    return {**composed(name), **changes}


def test_an_algorithm_is_one_file_and_one_recipe():
    assert algorithm_names() == NAMES
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


@pytest.mark.parametrize("name", ["dpo", "base", "losses", "reading", "", None, "../ppo"])
def test_other_names_are_refused(name):
    with pytest.raises(AlgorithmError, match=r"algo\.name=.*grpo, gspo, none, ppo"):
        make_algorithm({"name": name})


@pytest.mark.parametrize("name", NAMES)
def test_only_a_critic_can_value_what_would_have_come(name):
    with pytest.raises(AlgorithmError, match=r"algo\.truncation=never .*choose terminal"):
        make_algorithm(recipe(name, truncation="never"))
    if name == "ppo":
        assert make_algorithm(recipe(name, truncation="bootstrap")).bootstraps
    else:
        with pytest.raises(AlgorithmError, match=r"algo\.truncation=bootstrap needs a critic"):
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
        ("ppo", "surrogate", "cut"),
        ("ppo", "ratio", "word"),
        ("ppo", "discount", "day"),
        ("ppo", "value_clip", 0.0),
        ("rloo", "clip_high", 0.0),
        ("rloo", "dual_clip", 1.0),
        ("cispo", "dual_clip", 3.0),
        ("grpo", "normalise", "row"),
        ("dr_grpo", "constant", None),
        ("grpo", "behaviour_cap", -1.0),
        ("grpo", "kl_in", "advantage"),
        ("grpo", "kl_estimator", "k4"),
        ("grpo", "kl_estimator", "k1"),  # no gradient in the loss
        ("reinforce_pp", "kl_estimator", "k3"),  # no divergence's gradient in the reward
        ("gigpo", "step_weight", -1.0),
        ("gigpo", "group_size", 1),
        ("sft", "clip", 0.2),
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
    assert doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch}).failed == 0


def test_the_worked_examples_of_the_page_hold():
    result = doctest.testfile(str(ROOT / "docs" / "algorithms.md"), module_relative=False)
    assert result.failed == 0 and result.attempted > 40


def test_algorithms_import_torch_and_nothing_of_ours():
    allowed = {"__future__", "algorithms", "torch", "collections", "dataclasses", "typing"}
    allowed |= {"importlib", "math", "pkgutil"}
    for path in (ROOT / "algorithms").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path.name


def test_every_pure_function_has_a_worked_example():
    for module in ("credit", "losses", "divergence", "gigpo", "reinforce"):
        tree = ast.parse((ROOT / "algorithms" / f"{module}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                assert ">>>" in (ast.get_docstring(node) or ""), node.name
