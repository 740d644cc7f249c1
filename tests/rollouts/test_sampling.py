"""Inverse-CDF draws worked by hand, and the trie of allowed answers."""

import math

import numpy as np
import pytest
import torch

from rollouts.sampling import Trie, draw, restrict, uniforms
from runs.errors import ConfigError


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 4), (1 - 2**-53, 4)]
)
def test_draw_inverts_the_cumulative_distribution(uniform, token):
    probability = torch.tensor([[0.0, 0.5, 0.25, 0.0, 0.25, 0.0]])
    ids, logp = draw(probability.log(), torch.tensor([uniform], dtype=torch.float64), 1.0)
    assert ids.tolist() == [token]
    assert logp.item() == pytest.approx(math.log(probability[0, token]))


def test_draw_is_at_the_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0])
    expected = torch.softmax(logits / 0.7, 0)
    uniform = torch.from_numpy((np.arange(10_000) + 0.5) / 10_000)
    ids, logp = draw(logits.expand(10_000, 3), uniform, 0.7)
    assert torch.bincount(ids) / 10_000 == pytest.approx(expected, abs=2e-4)
    assert logp.exp() == pytest.approx(expected[ids], rel=1e-5)


def test_greedy_takes_the_best_and_reports_temperature_one():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    ids, logp = draw(logits, torch.tensor([0.999]), 0.0)
    assert ids.tolist() == [1]
    assert logp.item() == pytest.approx(torch.log_softmax(logits, -1)[0, 1].item())


def test_uniforms_depend_on_their_key_alone():
    one, two = ("sample", 3, "task", 0, 0), ("sample", 3, "task", 1, 0)
    both = uniforms([(7, *one), (7, *two)], 5)
    assert torch.equal(both[1], uniforms([(7, *two)], 5)[0])
    assert not torch.equal(both[0], both[1])
    assert not torch.equal(both[0], uniforms([(8, *one)], 5)[0])
    assert torch.equal(both[:, :3], uniforms([(7, *one), (7, *two)], 3))


def test_trie_offers_what_continues_an_answer():
    trie = Trie([[5, 6], [5, 7, 8], [5]], stop_ids=[1, 2], max_tokens=4)
    assert trie.allowed == [5]
    trie.step(5)
    assert trie.allowed == [1, 2, 6, 7]
    trie.step(7)
    assert trie.allowed == [8]


def test_trie_leaves_out_what_cannot_be_finished():
    trie = Trie([[5, 6, 7], [4]], stop_ids=[1], max_tokens=3)
    assert trie.allowed == [4]
    with pytest.raises(ConfigError, match="policy.max_tokens"):
        Trie([[5, 6, 7]], stop_ids=[1], max_tokens=3)


def test_restrict_renormalises_over_the_allowed():
    bounded = restrict(torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]), [[0, 2], None])
    assert bounded.tolist() == [[1.0, -math.inf, 3.0], [1.0, 2.0, 3.0]]
