"""Losses: values worked by hand, and gradients that know nothing of batching or padding."""

import math

import pytest
import torch

from algorithms import ActionTokens, AlgorithmError, make_algorithm, minibatch_weights
from algorithms.divergence import entropy, kl_k3
from algorithms.losses import Surrogate, policy_loss, value_loss


def config(name, **changes):
    base = {"name": name, "advantage_granularity": "turn", "group_size": 4, "clip": 0.2}
    base |= {"entropy_coef": 0.01, "kl_coef": 0.1, "whiten": False}
    extra = {"ppo": {"gamma": 1.0, "lam": 0.95, "value_coef": 0.5}, "grpo": {"std_normalise": True}}
    return base | extra.get(name, {}) | changes


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),  # fresh weights: the gradient of A log pi
        (1.5, 1.0, 1.2, 0.0),  # gone far enough up: held
        (0.5, 1.0, 0.5, 0.5),  # gone the wrong way: pulled back
        (0.5, -1.0, -0.8, 0.0),  # gone far enough down: held
        (1.5, -1.0, -1.5, -1.5),  # gone the wrong way: pulled back
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, objective, slope):
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, stats = policy_loss(
        logp, torch.zeros(1), torch.tensor([advantage]), torch.ones(1), Surrogate()
    )
    loss.backward()
    assert logp.grad is not None
    assert loss.item() == pytest.approx(-objective, abs=1e-6)
    assert logp.grad.item() == pytest.approx(-slope, abs=1e-6)
    assert stats["clip_fraction"] == (1.0 if slope == 0 else 0.0)
    assert stats["ratio_max"] == pytest.approx(ratio, rel=1e-6)
    assert stats["approx_kl"] == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)


def test_a_broken_token_without_advantage_stays_finite():
    loss, stats = policy_loss(
        torch.tensor([0.0]), torch.tensor([-1e4]), torch.zeros(1), torch.ones(1), Surrogate()
    )
    assert loss.item() == 0.0
    assert stats["ratio_max"] == pytest.approx(math.exp(20), rel=1e-4)


def test_value_loss_reads_only_where_the_estimator_did():
    values = torch.tensor([1.0, 1e6, 0.0], requires_grad=True)
    weights = minibatch_weights(torch.ones(3), torch.tensor([True, False, True]))[1]
    loss = value_loss(values, torch.tensor([3.0, 0.0, 1.0]), weights)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * (4 + 1) / 2)
    assert values.grad is not None
    assert values.grad.tolist() == [-1.0, 0.0, -0.5]


def test_entropy_of_allowed_ids_only_and_its_gradient():
    logits = torch.tensor([[0.0, math.log(3.0), -torch.inf], [5.0, -torch.inf, -torch.inf]])
    logits.requires_grad_()
    spread = entropy(logits)
    # p = 1/4, 3/4; and one single choice
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    torch.testing.assert_close(spread, torch.tensor([expected, 0.0]))
    spread.sum().backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


def test_k3_is_unbiased_and_its_gradient_is_of_the_reverse_divergence():
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.4, -0.5], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    policy = logp.detach().exp()
    estimates = kl_k3(logp, reference)
    assert (estimates >= 0).all()
    expectation = (policy * estimates).sum()
    assert expectation.item() == pytest.approx((policy * (logp - reference)).sum().item())
    [mine] = torch.autograd.grad(expectation, logits, retain_graph=True)
    [reverse] = torch.autograd.grad((reference.exp() * (reference - logp)).sum(), logits)
    torch.testing.assert_close(mine, reverse)


def test_k3_of_a_policy_with_itself_is_exactly_nothing():
    logp = torch.tensor([-0.1, -30.0, -1e-9])
    assert torch.equal(kl_k3(logp, logp), torch.zeros(3))


def test_weights_of_a_minibatch():
    policy, value = minibatch_weights(
        torch.tensor([1.0, 1.0, 0.0, 6.0]), torch.tensor([True, False, False, True])
    )
    assert policy.tolist() == [0.125, 0.125, 0.0, 0.75]
    assert value.tolist() == [0.5, 0.0, 0.0, 0.5]


def test_a_minibatch_without_tokens_is_refused():
    with pytest.raises(AlgorithmError, match="no token to train on"):
        minibatch_weights(torch.zeros(3), torch.zeros(3, dtype=torch.bool))


class Reader(torch.nn.Module):
    """A causal toy policy with a critic: ids[B, T] -> states[B, T, D] read before the next id."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(7, 8)
        self.read = torch.nn.GRU(8, 8, batch_first=True)
        self.head = torch.nn.Linear(8, 7)
        self.value = torch.nn.Linear(8, 1)
        self.double()

    def forward(self, ids):
        return self.read(self.embed(ids))[0]


def make_rows():
    """Eight rows of different lengths: ids[T], action[T], and what a loss needs of each action."""
    torch.manual_seed(1)
    rows = []
    for length in (5, 9, 4, 12, 7, 3, 6, 10):
        action = torch.rand(length) < 0.6
        action[0], action[-1] = False, True
        count = int(action.sum())
        rows.append(
            {
                "ids": torch.randint(0, 7, (length,)),
                "action": action,
                "old_logp": torch.randn(count).double() * 0.3 - 1.9,
                "reference_logp": torch.randn(count).double() * 0.3 - 1.9,
                "advantages": torch.randn(count).double(),
                "returns": torch.randn(count).double(),
                "weight": torch.ones(count),
                "value_at": torch.rand(count) < 0.5,
            }
        )
    return rows


def gradient(algorithm, rows, micro, extra_padding=0):
    """Gradient [P] and summed statistics of one minibatch, `micro` rows at a time."""
    model = Reader()
    sizes = [len(row["weight"]) for row in rows]
    policy, value = minibatch_weights(
        torch.cat([row["weight"] for row in rows]), torch.cat([row["value_at"] for row in rows])
    )
    policy, value = policy.split(sizes), value.split(sizes)
    sums: dict[str, float] = {}
    for start in range(0, len(rows), micro):
        part = rows[start : start + micro]
        width = max(len(row["ids"]) for row in part) + extra_padding
        ids = torch.stack(
            [torch.nn.functional.pad(row["ids"], (0, width - len(row["ids"]))) for row in part]
        )
        states = model(ids)
        before = torch.cat(
            [states[place, row["action"].nonzero()[:, 0] - 1] for place, row in enumerate(part)]
        )
        targets = torch.cat([row["ids"][row["action"]] for row in part])
        logits = model.head(before)

        def flat(key, part=part):
            return torch.cat([row[key] for row in part])

        batch = ActionTokens(
            logp=logits.log_softmax(-1).gather(1, targets[:, None])[:, 0],
            old_logp=flat("old_logp"),
            advantages=flat("advantages"),
            weights=torch.cat(policy[start : start + micro]),
            entropy=entropy(logits),
            reference_logp=flat("reference_logp"),
            values=model.value(before)[:, 0],
            returns=flat("returns"),
            value_weights=torch.cat(value[start : start + micro]),
        )
        loss, stats = algorithm.loss(batch)
        loss.backward()
        for key, number in stats.items():
            together = max if key == "ratio_max" else lambda a, b: a + b
            sums[key] = together(sums.get(key, 0.0), number)
    return (
        torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]),
        sums,
    )


@pytest.mark.parametrize("name", ["ppo", "grpo", "rloo", "sft"])
def test_gradients_know_nothing_of_micro_batches_padding_or_row_order(name):
    algorithm = make_algorithm({"name": "sft"} if name == "sft" else config(name))
    rows = make_rows()
    whole, stats = gradient(algorithm, rows, micro=8)
    assert whole.abs().max() > 1e-3
    shuffled = [rows[place] for place in (3, 0, 7, 5, 1, 6, 2, 4)]
    for changed in (
        gradient(algorithm, rows, micro=1),
        gradient(algorithm, rows, micro=3),
        gradient(algorithm, shuffled, micro=3),
        gradient(algorithm, rows, micro=8, extra_padding=5),
    ):
        torch.testing.assert_close(changed[0], whole, atol=1e-7, rtol=1e-6)
        assert changed[1] == pytest.approx(stats, rel=1e-5, abs=1e-7)


def test_gradient_does_not_depend_on_how_an_episode_is_cut_into_rows():
    """The toy reads one token back only, so cutting a row keeps every token's context."""
    torch.manual_seed(2)
    embed = torch.nn.Embedding(7, 7).double()
    ids = torch.randint(0, 7, (9,))
    advantages = torch.randn(8).double()
    algorithm = make_algorithm(config("rloo", entropy_coef=0.0, kl_coef=0.0))
    weights = minibatch_weights(torch.ones(8), torch.zeros(8, dtype=torch.bool))[0]
    gradients = []
    for cuts in ([8], [3, 5], [1] * 8):
        embed.zero_grad()
        start = 0
        for count in cuts:
            here = slice(start, start + count)
            logp = embed(ids[here]).log_softmax(-1)
            logp = logp.gather(1, ids[start + 1 : start + count + 1, None])[:, 0]
            tokens = ActionTokens(logp, logp.detach(), advantages[here], weights[here])
            algorithm.loss(tokens)[0].backward()
            start += count
        gradients.append(embed.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients[2], gradients[0], atol=1e-12, rtol=0)


def test_on_fresh_weights_the_gradient_is_reinforce():
    logp = torch.tensor([-0.5, -2.0, -1.0], requires_grad=True)
    advantages = torch.tensor([1.0, -2.0, 0.5])
    weights = torch.full((3,), 1 / 3)
    policy_loss(logp, logp.detach(), advantages, weights, Surrogate())[0].backward()
    torch.testing.assert_close(logp.grad, -advantages / 3)


def test_tokens_of_a_group_without_variance_only_share_the_mean():
    """Token-mean, as documented: they add no gradient and take their share of the weight."""
    gradients = []
    for extra in (0, 3):
        logp = torch.tensor([-0.5, -2.0, -1.0] + [-1.0] * extra, requires_grad=True)
        advantages = torch.tensor([1.0, -2.0, 0.5] + [0.0] * extra)
        weights = minibatch_weights(torch.ones(3 + extra), torch.zeros(3 + extra).bool())[0]
        policy_loss(logp, logp.detach(), advantages, weights, Surrogate())[0].backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(gradients[1][:3], gradients[0] * 3 / 6)
    assert torch.equal(gradients[1][3:], torch.zeros(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entropy_coef": 0.1}, r"algo\.entropy_coef"),
        ({"kl_coef": 0.1}, r"algo\.kl_coef"),
    ],
)
def test_a_coefficient_without_its_tensor_is_refused(changes, message):
    algorithm = make_algorithm(config("rloo", **{"entropy_coef": 0.0, "kl_coef": 0.0} | changes))
    one = torch.ones(1)
    with pytest.raises(AlgorithmError, match=message):
        algorithm.loss(ActionTokens(one, one, one, one))


def test_ppo_refuses_a_loss_without_its_critic():
    algorithm = make_algorithm(config("ppo", entropy_coef=0.0, kl_coef=0.0))
    one = torch.ones(1)
    with pytest.raises(AlgorithmError, match="values, returns and value weights"):
        algorithm.loss(ActionTokens(one, one, one, one))


def test_the_total_is_the_sum_of_its_parts():
    algorithm = make_algorithm(config("ppo", entropy_coef=0.1, kl_coef=0.2, value_coef=0.5))
    half = torch.tensor([0.5, 0.5])
    batch = ActionTokens(
        logp=torch.zeros(2),
        old_logp=torch.zeros(2),
        advantages=torch.tensor([1.0, 3.0]),
        weights=half,
        entropy=torch.tensor([1.0, 2.0]),
        reference_logp=torch.tensor([math.log(2.0), 0.0]),
        values=torch.tensor([0.0, 0.0]),
        returns=torch.tensor([2.0, 0.0]),
        value_weights=torch.tensor([1.0, 0.0]),
    )
    loss, stats = algorithm.loss(batch)
    k3 = (2 - math.log(2) - 1) / 2
    assert loss.item() == pytest.approx(-2.0 - 0.1 * 1.5 + 0.2 * k3 + 0.5 * 2.0)
    assert stats["policy_loss"] == pytest.approx(-2.0)
    assert stats["entropy"] == pytest.approx(1.5)
    assert stats["kl"] == pytest.approx(k3)
    assert stats["value_loss"] == pytest.approx(2.0)


def test_sft_is_the_mean_negative_log_likelihood():
    sft = make_algorithm({"name": "sft"})
    logp = torch.tensor([-1.0, -2.0, -6.0])
    weights = minibatch_weights(torch.ones(3), torch.zeros(3, dtype=torch.bool))[0]
    loss, stats = sft.loss(ActionTokens(logp, logp, torch.zeros(3), weights))
    assert loss.item() == pytest.approx(3.0)
    assert stats == {"sft_loss": pytest.approx(3.0)}
