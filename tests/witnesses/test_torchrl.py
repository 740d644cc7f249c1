"""torchrl's estimators and losses, an independent witness, on inputs where definitions coincide.

An optional group, skipped where torchrl is not installed: docs/algorithms.md says how to run it.
Where definitions do not coincide, the test that comes nearest says why.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

INSTALL = "an independent witness: `pip install torchrl==0.14.1` and run this file again"
functional = pytest.importorskip("torchrl.objectives.value.functional", reason=INSTALL)
llm = pytest.importorskip("torchrl.objectives.llm", reason=INSTALL)
tensordict = pytest.importorskip("tensordict", reason=INSTALL)

from algorithms.credit import (  # noqa: E402
    discounts,
    gae,
    group_advantages,
    returns_to_go,
    token_rewards,
    turn_gae,
)
from algorithms.divergence import kl_k3  # noqa: E402
from algorithms.grpo import grpo_advantages  # noqa: E402
from algorithms.losses import Surrogate, minibatch_weights, policy_loss  # noqa: E402

SEEDS = range(10)


def numbers(seed: int, *sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def column(entries: Tensor) -> Tensor:
    """torchrl's shape: one episode [N] as [1, N, 1]."""
    return entries.reshape(1, -1, 1)


def ends(length: int) -> Tensor:
    last = torch.zeros(length, dtype=torch.bool)
    last[-1] = True
    return column(last)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-6) -> None:
    """1e-6: torchrl multiplies gamma with whole-number masks, which makes it a float32."""
    torch.testing.assert_close(ours, theirs.reshape(ours.shape), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cut_short", [False, True], ids=["terminated", "truncated"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "name", ["generalized_advantage_estimate", "vec_generalized_advantage_estimate"]
)
def test_gae(name: str, seed: int, cut_short: bool) -> None:
    """torchrl takes V(s_{t+1}) of every step and two flags; ours is one episode and one number.

    They coincide when V(s_{t+1}) is the next entry of V, the last one is our `final_value`, and
    `terminated` is False at the last entry exactly where the episode was cut short. lam = 0 is
    left out: torchrl's vectorised form fails there.
    """
    length = 1 + seed % 7
    rewards, values, final = numbers(seed, length, length, 1)
    gamma, lam = 0.1 * (1 + seed % 10), 0.1 * (1 + seed % 10)
    after = torch.cat([values[1:], final])
    done = ends(length)
    terminated = torch.zeros_like(done) if cut_short else done
    advantages, returns = getattr(functional, name)(
        gamma, lam, column(values), column(after), column(rewards), done, terminated
    )
    ours = gae(rewards, values, gamma, lam, final.item() if cut_short else 0.0)
    close(ours[0], advantages)
    close(ours[1], returns)


@pytest.mark.parametrize("seed", SEEDS)
def test_gae_with_a_discount_of_its_own_between_any_two_entries(seed: int) -> None:
    """`discounts` at token level with `algo.discount=turn`: torchrl takes a tensor for gamma."""
    counts = [1 + seed % 3, 2, 1 + seed % 2]
    length = sum(counts)
    rewards, values = numbers(seed, length, length)
    time = discounts(0.9, counts, "token", "turn")
    after, done = torch.cat([values[1:], torch.zeros(1).double()]), ends(length)
    advantages, returns = functional.generalized_advantage_estimate(
        column(time), 0.8, column(values), column(after), column(rewards), done, done
    )
    ours = gae(rewards, values, time, 0.8)
    close(ours[0], advantages)
    close(ours[1], returns)


@pytest.mark.parametrize("seed", SEEDS)
def test_targets_are_lambda_returns(seed: int) -> None:
    """The critic's target A + V is TD(lambda)'s return; at lam = 0 TD(0)'s, at lam = 1 TD(1)'s."""
    length = 1 + seed % 6
    rewards, values, final = numbers(seed, length, length, 1)
    after, done = column(torch.cat([values[1:], final])), ends(length)
    cut = torch.zeros_like(done)
    for lam, theirs in (
        (0.7, functional.td_lambda_return_estimate(0.9, 0.7, after, column(rewards), done, cut)),
        (0.0, functional.td0_return_estimate(0.9, after, column(rewards), cut)),
        (1.0, functional.td1_return_estimate(0.9, after, column(rewards), done, cut)),
    ):
        close(gae(rewards, values, 0.9, lam, final.item())[1], theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_returns_to_go(seed: int) -> None:
    """float32: torchrl's convolution gives no more."""
    length = 1 + seed % 8
    (rewards,) = numbers(seed, length)
    theirs = functional.reward2go(column(rewards.float()), ends(length), 0.9)
    close(returns_to_go(rewards, 0.9).float(), theirs, 1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_turn_level_is_gae_of_the_turns(seed: int) -> None:
    """torchrl has no turns: what it sees here are first-token values and rewards of turns."""
    counts = [1 + seed % 4, 1, 3]
    rewards, values = numbers(seed, 3, sum(counts))
    read = values[[0, counts[0], counts[0] + 1]]
    after, done = torch.cat([read[1:], torch.zeros(1).double()]), ends(3)
    theirs, _ = functional.generalized_advantage_estimate(
        0.9, 0.8, column(read), column(after), column(rewards), done, done
    )
    ours = turn_gae(rewards, values, counts, 0.9, 0.8)[0]
    close(ours, theirs.flatten().repeat_interleave(torch.tensor(counts)))


def test_credit_crosses_the_observation() -> None:
    """[2 act][2 obs][2 act], reward 1 at the end: 1 everywhere.

    torchrl has no mask in its estimators; it agrees once the observation is no entry at all.
    """
    rewards = token_rewards(torch.tensor([0.0, 1.0]), [2, 2])
    done = ends(4)
    zeros = column(torch.zeros(4))
    theirs, _ = functional.generalized_advantage_estimate(
        1.0, 1.0, zeros, zeros, column(rewards), done, done
    )
    assert theirs.flatten().tolist() == [1.0, 1.0, 1.0, 1.0]
    close(gae(rewards, torch.zeros(4), 1.0, 1.0)[0], theirs)


def mc_advantages(members: list[Tensor]) -> list[Tensor]:
    """torchrl's MCAdvantage over a group of episodes: n times [K_i] -> n times [K_i]."""
    transform = llm.MCAdvantage(len(members), prompt_key="group", trajectory_return="sum")
    written = None
    for rewards in members:
        following = tensordict.TensorDict(
            {"reward": rewards.reshape(-1, 1), "done": ends(len(rewards))[0]}, [len(rewards)]
        )
        episode = {"group": torch.zeros(len(rewards)), "next": following}
        written = transform.inv(tensordict.TensorDict(episode, [len(rewards)]))
    assert written is not None
    return list(written["advantage"].flatten().split([len(rewards) for rewards in members]))


@pytest.mark.parametrize("seed", SEEDS)
def test_grpo(seed: int) -> None:
    """Sum of an episode's rewards, sample deviation, one number for the whole episode.

    torchrl divides by max(std, 1e-6), we by std + 1e-6: equal up to 1e-6 of the advantage unless
    the deviation is that small; equal returns give 0 in both.
    """
    members = numbers(seed, 1 + seed % 3, 2, 5, 1)
    ours = group_advantages(members, grpo_advantages, "trajectory")
    for mine, theirs in zip(ours, mc_advantages(members), strict=True):
        close(mine, theirs, 1e-5)


def test_grpo_of_equal_returns_and_of_one() -> None:
    same = [torch.ones(2), torch.tensor([2.0])]
    assert [a.tolist() for a in mc_advantages(same)] == [[0.0, 0.0], [0.0]]
    assert grpo_advantages(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="grpo_size >= 2"):
        mc_advantages([torch.ones(2)])
    with pytest.raises(ValueError, match="group of one"):
        grpo_advantages(torch.ones(1))


class Scripted(torch.nn.Module):
    """An actor whose log-probabilities are given: what torchrl's losses ask of a policy."""

    def __init__(self, logp: Tensor, mask: Tensor) -> None:
        super().__init__()
        self.logp, self.mask = logp, mask

    def get_dist(self, tensordict, logits_key: str = "logits") -> Scripted:
        return self

    def log_prob(self, action: Tensor) -> Tensor:
        return self.logp


def their_loss(kind, logp: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **options):
    """Outputs of a torchrl loss on padded [B, T] tensors."""
    loss = kind(Scripted(logp, mask), entropy_bonus=False, **options)
    batch = tensordict.TensorDict(
        {
            ("tokens", "full"): torch.zeros(logp.shape, dtype=torch.int64),
            ("log_probs", "full"): old,
            "advantage": advantages.unsqueeze(-1),
            ("next", "ref_log_probs", "full"): old,
        },
        [len(logp)],
    )
    return loss(batch)


def padded(seed: int, wide: float = 0.3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two episodes of 5 and 3 sampled tokens in one padded batch."""
    old, step, advantages = (n.reshape(2, 5) for n in numbers(seed, 10, 10, 10))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    return -old.abs(), wide * step, advantages, mask


@pytest.mark.parametrize("aggregation", ["token_mean", "prompt_mean"])
@pytest.mark.parametrize("seed", SEEDS)
def test_clipped_surrogate_with_room_upwards(seed: int, aggregation: str) -> None:
    """torchrl's DAPO loss (GRPO's with its own bound upwards): loss and gradient.

    Its "prompt_mean" is our normalise=sequence, its "token_mean" our token. What it calls
    clip_fraction counts tokens outside the bounds whatever the sign, and padding, so it is not
    compared.
    """
    old, step, advantages, mask = padded(seed)
    options = {"clip_epsilon": (0.2, 0.28), "aggregation": aggregation}
    theirs = (old + step).requires_grad_()
    out = their_loss(llm.DAPO, theirs, old, advantages, mask, **options)
    out.loss_objective.sum().backward()

    mine = (old + step).requires_grad_()
    normalise = "token" if aggregation == "token_mean" else "sequence"
    whose = torch.tensor([[0], [1]]).expand(2, 5)[mask]
    weights, _ = minibatch_weights(torch.ones(8), torch.zeros(8), whose, normalise)
    rule = Surrogate(low=0.2, high=0.28)
    loss, _ = policy_loss(mine[mask], old[mask], advantages[mask], weights, rule)
    loss.backward()
    close(loss.detach(), out.loss_objective.detach())
    assert theirs.grad is not None and mine.grad is not None
    close(mine.grad, theirs.grad)


@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_within_the_bounds_only(seed: int) -> None:
    """Gradients coincide while no ratio is clipped; the losses never do.

    torchrl's CISPOLoss is −clamp(ρ) A, without logp and with the gradient inside the clamp, so a
    clipped token has none. The paper (arXiv 2506.13585, eq. 4 and 5) stops the gradient at the
    clamp and multiplies by logp, so that no token loses it, as ours does.
    """
    rule = Surrogate(low=0.2, high=0.28, form="cispo")
    for scale in (0.01, 2.0):
        old, step, advantages, mask = padded(seed, scale)
        theirs, mine = (old + step).requires_grad_(), (old + step).requires_grad_()
        out = their_loss(llm.CISPOLoss, theirs, old, advantages, mask, clip_epsilon=(0.2, 0.28))
        out.loss_objective.backward()
        weights = torch.full((8,), 1 / 8)
        policy_loss(mine[mask], old[mask], advantages[mask], weights, rule)[0].backward()
        assert theirs.grad is not None and mine.grad is not None
        held = ((step.exp() < 0.8) | (step.exp() > 1.28)) & mask
        close(mine.grad[~held], theirs.grad[~held])
        assert (theirs.grad[held] == 0).all()
        assert (mine.grad[held] != 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_k3(seed: int) -> None:
    """k3 of the policy against a reference; torchrl's mean counts padding in its denominator."""
    old, step, advantages, mask = padded(seed)
    out = their_loss(llm.GRPOLoss, old + step, old, advantages, mask, kl_to_ref_coeff=0.1)
    ours = kl_k3((old + step)[mask], old[mask]).sum() / mask.numel()
    close(ours, out.kl_to_ref)
    close(0.1 * ours, out.loss_kl_to_ref)
