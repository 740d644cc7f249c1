"""Every loss and its gradient against plain Python written from its definition."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import ActionTokens, make_algorithm, minibatch_weights
from algorithms.divergence import KL_ESTIMATES, KL_GRADIENT
from algorithms.losses import Surrogate, policy_loss, shared_log_ratio
from tests.algorithms.references import BOUND, Token, close, loss_of, recipe, weights_of

LOSSES = settings(max_examples=5)
seeds = st.integers(0, 2**32)

LOSS_ARMS = {
    "clipped": {},
    "clip-higher": {"clip_high": 0.28},
    "dual clip": {"dual_clip": 1.5},
    "cispo": {"surrogate": "cispo", "clip": 1.0, "clip_high": 0.28},
    "turn ratio": {"ratio": "turn"},
    "sequence ratio": {"ratio": "sequence", "clip": 0.05, "clip_high": 0.1, "dual_clip": 1.2},
    "cispo of turns": {"ratio": "turn", "surrogate": "cispo"},
    "behaviour cap": {"behaviour_cap": 1.1},
    "k2": {"kl_coef": 0.3, "kl_estimator": "k2"},
    "k3": {"kl_coef": 0.3, "kl_estimator": "k3"},
    "all": {"dual_clip": 1.5, "behaviour_cap": 1.1, "kl_coef": 0.1, "entropy_coef": 0.2},
}


@st.composite
def sampled(draw):
    """Tokens of a few segments; seven digits keep ratios off the edges of the clip."""
    chance = random.Random(draw(seeds))

    def about(centre, width):
        return round(chance.uniform(centre - width, centre + width), 7)

    tokens = []
    for _ in range(chance.randint(1, 7)):
        old = about(-2, 1)
        tokens.append(
            Token(
                logp=old + about(0, 0.6),
                old=old,
                advantage=chance.choice([0.0, 1.0, -1.0, 2.5, -0.3]),
                weight=chance.choice([0.0, 0.125, 0.5]),
                segment=chance.randint(0, 2),
                behaviour=old + about(0, 0.3),
                entropy=about(1.5, 1.5),
                reference=about(-2, 1),
                value=about(0, 2),
                target=about(0, 3),
                value_weight=chance.choice([0.0, 0.25]),
                old_value=about(0, 2),
            )
        )
    return tokens


def actions(tokens, dtype):
    def of(field):
        return torch.tensor([getattr(token, field) for token in tokens], dtype=dtype)

    fields = {
        "logp": "logp",
        "old_logp": "old",
        "advantages": "advantage",
        "weights": "weight",
        "entropy": "entropy",
        "segment": "segment",
        "reference_logp": "reference",
        "behaviour_logp": "behaviour",
        "values": "value",
        "returns": "target",
        "old_values": "old_value",
        "value_weights": "value_weight",
    }
    batch = ActionTokens(**{name: of(field) for name, field in fields.items()})
    batch.segment = batch.segment.long()
    batch.logp.requires_grad_()
    batch.values.requires_grad_()
    return batch


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("changes", LOSS_ARMS.values(), ids=LOSS_ARMS)
@LOSSES
@given(tokens=sampled())
def test_loss_and_gradient_are_those_of_token_by_token(changes, dtype, tokens):
    config = recipe("ppo", **changes)
    batch = actions(tokens, dtype)
    loss, _ = make_algorithm(config).loss(batch)
    loss.backward()
    total, slopes, value_slopes = loss_of(config, tokens)
    close(loss.detach()[None], [total], dtype, scale=10.0)
    close(batch.logp.grad, slopes, dtype, scale=10.0)
    close(batch.values.grad, value_slopes, dtype, scale=10.0)


@LOSSES
@given(tokens=sampled(), clip=st.sampled_from([0.1, 0.5, 1.0]))
def test_value_clipping_is_its_definition(tokens, clip):
    config = recipe("ppo", value_clip=clip)
    batch = actions(tokens, torch.float64)
    loss, _ = make_algorithm(config).loss(batch)
    loss.backward()
    total, _, value_slopes = loss_of(config, tokens)
    close(loss.detach()[None], [total], torch.float64)
    close(batch.values.grad, value_slopes, torch.float64)


@LOSSES
@given(
    gaps=st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=6),
    advantage=st.sampled_from([1.0, -2.0]),
)
def test_the_sequence_ratio_has_the_gradient_of_gspo_where_advantages_are_equal(gaps, advantage):
    """The paper's sequence objective, differentiated by finite differences."""

    def paper(numbers):
        mean = math.exp(sum(numbers) / len(numbers))
        return -min(mean * advantage, min(max(mean, 0.8), 1.2) * advantage)

    count, step = len(gaps), 1e-6
    logp = torch.tensor(gaps, dtype=torch.float64, requires_grad=True)
    same = torch.full((count,), advantage, dtype=torch.float64)
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    whose = torch.zeros(count, dtype=torch.int64)
    rule = Surrogate(ratio="sequence")
    loss, _ = policy_loss(logp, torch.zeros(count).double(), same, weights, rule, whose)
    loss.backward()
    assert loss.item() == pytest.approx(paper(gaps), abs=1e-9)
    for place in range(count):
        up, down = ([*gaps[:place], gaps[place] + d, *gaps[place + 1 :]] for d in (step, -step))
        slope = (paper(up) - paper(down)) / (2 * step)
        if abs(abs(math.exp(sum(gaps) / count) - 1) - 0.2) > 1e-5:
            assert logp.grad[place].item() == pytest.approx(slope, abs=1e-6)


@LOSSES
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-2, 2)), min_size=1, max_size=8))
def test_a_shared_ratio_is_the_mean_of_its_segment(entries):
    labels = torch.tensor([label for label, _ in entries])
    gaps = torch.tensor([gap for _, gap in entries], dtype=torch.float64)
    expected = []
    for label, _ in entries:
        mine = [gap for other, gap in entries if other == label]
        expected.append(sum(mine) / len(mine))
    close(shared_log_ratio(gaps, labels), expected, torch.float64)


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
@LOSSES
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    constant=st.floats(1, 100),
    order=st.randoms(use_true_random=False),
)
def test_weights_of_a_minibatch_are_their_definition(normalise, lengths, constant, order):
    whose = [place for place, length in enumerate(lengths) for _ in range(length)]
    mixed = list(range(len(whose)))
    order.shuffle(mixed)
    actual, _ = minibatch_weights(
        torch.ones(len(whose)),
        torch.zeros(len(whose)),
        torch.tensor([7 * whose[place] for place in mixed]),
        normalise,
        constant,
    )
    expected = weights_of(lengths, normalise, constant)
    close(actual, [expected[place] for place in mixed], torch.float32)


def divergence(p, q):
    return (p * (p.log() - q.log())).sum()


@pytest.mark.parametrize(("where", "estimator"), [("loss", "k1"), *KL_GRADIENT])
@LOSSES
@given(
    logits=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    reference=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
)
def test_kl_has_the_gradient_that_its_table_names(where, estimator, logits, reference):
    """Expectations over all tokens of a small vocabulary, so that nothing is estimated."""
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    fixed = torch.tensor(reference, dtype=torch.float64).log_softmax(0)
    logp = x.log_softmax(0)
    p = logp.exp()
    estimate = KL_ESTIMATES[estimator](logp, fixed)
    if where == "reward":
        felt = (p.detach() * estimate.detach() * logp).sum()
    else:
        felt = (p.detach() * estimate).sum()
    [mine] = torch.autograd.grad(felt, x, retain_graph=True)
    named = KL_GRADIENT.get((where, estimator))
    exact = {
        "KL(policy || reference)": lambda: divergence(p, fixed.exp()),
        "KL(reference || policy)": lambda: divergence(fixed.exp(), p),
        None: lambda: 0 * p.sum(),
    }[named]()
    [theirs] = torch.autograd.grad(exact, x)
    torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)
