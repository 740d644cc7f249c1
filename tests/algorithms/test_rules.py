"""The rules that the maths obeys, for every algorithm, over random episodes (docs: the design)."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import ActionTokens, AlgorithmError, make_algorithm, minibatch_weights
from tests.algorithms.references import ARMS, GROUP_ARMS, Played, recipe

QUICK = settings(max_examples=3)
seeds = st.integers(0, 2**32)
TURN_ARMS = [arm for arm in ARMS if arm[1] != "token"]


def random_play(chance, turns=None, start=None, ends=("won", "cut")):
    """One to five turns of one to four tokens, dyadic numbers; `start` is Φ of the first state."""
    tokens = [chance.randint(1, 4) for _ in range(turns or chance.randint(1, 5))]

    def some(count):
        return [chance.randint(-16, 16) / 8 for _ in range(count)]

    potentials = None if start is None else [start, *some(len(tokens))]
    return Played(
        rewards=some(len(tokens)),
        tokens=tokens,
        values=some(sum(tokens)),
        kl=some(sum(tokens)),
        states=[chance.choice("abc") for _ in tokens],
        potentials=potentials,
    )


def random_group(chance, most=5, **options):
    return [random_play(chance, **options) for _ in range(chance.randint(2, most))]


def credit(config, *groups):
    """Advantages [A] of every member of every group."""
    given_ = [[play.credit() for play in group] for group in groups]
    return [[c.advantages for c in group] for group in make_algorithm(config).credit(given_)]


def same(ours, theirs, atol=1e-9):
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-9)


def by_turn(advantages, tokens):
    """The one advantage of every turn; fails when the tokens of a turn do not share it."""
    parts = advantages.split(tokens)
    assert all(bool((part == part[0]).all()) for part in parts)
    return torch.stack([part[0] for part in parts])


def recut(chance, play):
    """The same turns said in other numbers of tokens, their values and KL kept where it counts."""
    tokens = [chance.randint(1, 6) for _ in play.tokens]
    values, kl = [], []
    for old, new, start in zip(
        play.tokens, tokens, [sum(play.tokens[:k]) for k in range(len(tokens))], strict=True
    ):
        values += [play.values[start]] + [chance.random() for _ in range(new - 1)]
        kl += [sum(play.kl[start : start + old])] + [0.0] * (new - 1)
    return replace(play, tokens=tokens, values=values, kl=kl)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize(("name", "granularity"), TURN_ARMS)
@QUICK
@given(seed=seeds)
def test_how_a_turn_is_cut_into_tokens_changes_no_turns_credit(name, granularity, whiten, seed):
    """Rules 6 and 9: statistics run over turns and episodes, never over tokens or rows."""
    chance = random.Random(seed)
    config = recipe(name, granularity, whiten=whiten, kl_coef=0.5, kl_in="reward")
    config["kl_estimator"] = "k1"
    groups = [random_group(chance) for _ in range(2)]
    other = [[recut(chance, play) for play in group] for group in groups]
    for ours, theirs, plays, recuts in zip(
        credit(config, *groups), credit(config, *other), groups, other, strict=True
    ):
        for one, two, play, cut in zip(ours, theirs, plays, recuts, strict=True):
            same(by_turn(one, play.tokens), by_turn(two, cut.tokens))


@pytest.mark.parametrize(("name", "granularity"), ARMS)
@QUICK
@given(seed=seeds)
def test_another_order_of_members_and_groups_is_the_same_credit_in_another_order(
    name, granularity, seed
):
    chance = random.Random(seed)
    config = recipe(name, granularity, whiten=True)
    groups = [random_group(chance) for _ in range(3)]
    plain = credit(config, *groups)
    outer = chance.sample(range(3), 3)
    inner = [chance.sample(range(len(group)), len(group)) for group in groups]
    mixed = credit(config, *([groups[g][m] for m in inner[g]] for g in outer))
    for place, g in enumerate(outer):
        for at, member in enumerate(inner[g]):
            same(mixed[place][at], plain[g][member])


@pytest.mark.parametrize(("name", "granularity"), ARMS)
@QUICK
@given(seed=seeds)
def test_ten_times_the_rewards_of_a_group_leave_the_others_alone(name, granularity, seed):
    chance = random.Random(seed)
    config = recipe(name, granularity)
    quiet, loud = random_group(chance), random_group(chance)
    louder = [replace(play, rewards=[10 * r for r in play.rewards]) for play in loud]
    before, after = credit(config, quiet, loud)[0], credit(config, quiet, louder)[0]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


@pytest.mark.parametrize(("name", "granularity"), [a for a in ARMS if a not in GROUP_ARMS])
@QUICK
@given(seed=seeds)
def test_without_a_group_the_first_token_is_owed_what_was_paid(name, granularity, seed):
    """Rule 2: with no discount the return of an episode is the sum of its rewards."""
    play = random_play(random.Random(seed))
    config = recipe(name, granularity, gamma=1.0)
    if name == "ppo":
        config["lam"] = 1.0
    [[given_]] = make_algorithm(config).credit([[play.credit()]])
    owed = given_.advantages if given_.returns is None else given_.returns
    assert owed[0].item() == pytest.approx(sum(play.rewards), abs=1e-9)


@pytest.mark.parametrize("granularity", ["trajectory", "turn"])
@QUICK
@given(seed=seeds)
def test_rloo_and_mean_baselines_hand_out_what_was_paid_and_no_more(granularity, seed):
    """Rule 2 for groups: the differences of two members' credit are those of their returns, and
    a group's credit sums to nothing at every turn that all reached."""
    chance = random.Random(seed)
    turns = chance.randint(1, 4)
    group = random_group(chance, turns=turns)
    [rloo] = credit(recipe("rloo", granularity), group)
    [mean] = credit(recipe("dr_grpo", granularity), group)
    factor = len(group) / (len(group) - 1)
    for play, one, two in zip(group, rloo, mean, strict=True):
        same(one, two * factor)
        owed = [sum(play.rewards[k if granularity == "turn" else 0 :]) for k in range(turns)]
        first = [sum(group[0].rewards[k if granularity == "turn" else 0 :]) for k in range(turns)]
        gap = by_turn(two, play.tokens) - by_turn(mean[0], group[0].tokens)
        same(gap, torch.tensor(owed).double() - torch.tensor(first).double())
    total = sum(by_turn(a, play.tokens) for a, play in zip(mean, group, strict=True))
    same(total, torch.zeros(turns).double())


@pytest.mark.parametrize(("name", "granularity"), GROUP_ARMS)
def test_a_single_member_is_refused_by_every_group_estimator(name, granularity):
    play = random_play(random.Random(0))
    with pytest.raises(AlgorithmError, match=r"algo\.group_size"):
        credit(recipe(name, granularity), [play])
    with pytest.raises(AlgorithmError, match=r"algo\.group_size"):
        make_algorithm(recipe(name, granularity, group_size=1))


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo", "gspo", "dapo", "cispo"])
@QUICK
@given(seed=seeds)
def test_a_turn_that_one_member_reached_alone_has_its_episodes_credit(name, seed):
    """Rule 7, and the turns that several reached are compared with those who reached them."""
    chance = random.Random(seed)
    long = random_play(chance, turns=5)
    group = [long, *(random_play(chance, turns=chance.randint(1, 3)) for _ in range(3))]
    [turn], [whole] = credit(recipe(name, "turn"), group), credit(recipe(name, "trajectory"), group)
    reached = max(len(play.tokens) for play in group[1:])
    alone = by_turn(turn[0], long.tokens)[reached:]
    assert len(alone) >= 2
    same(alone, by_turn(whole[0], long.tokens)[reached:])


@pytest.mark.parametrize(("granularity", "last"), [("turn", 1), ("token", 1)])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("turn_of_five", [3, 5])
def test_a_cut_episode_is_continued_and_an_end_is_not(
    granularity, last, lam, turn_of_five, level=4.0, gamma=0.9
):
    """Rule 8: V = c and r = 0. Cut short, the last target is γ c; ended, it is 0."""
    algorithm = make_algorithm(
        recipe("ppo", granularity, gamma=gamma, lam=lam, truncation="bootstrap")
    )
    counts = [2] * turn_of_five
    play = Played([0.0] * turn_of_five, counts, values=[level] * sum(counts))
    [[ended]] = algorithm.credit([[play.credit()]])
    [[cut]] = algorithm.credit([[replace(play, final=level).credit()]])
    assert ended.returns[-last].item() == 0.0
    assert cut.returns[-last].item() == pytest.approx(gamma * level)
    assert cut.returns[0].item() > ended.returns[0].item() or lam == 0.0


@pytest.mark.parametrize("per", ["action", "turn", "token"])
@pytest.mark.parametrize("granularity", ["trajectory", "turn", "token"])
@QUICK
@given(seed=seeds, gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_shaping_pays_the_same_whatever_was_done(granularity, per, seed, gamma):
    """The return from a state moves by −Φ(state): at the first token by −Φ(s0), so neither the
    turns, nor their lengths, nor the states passed can earn anything by it."""
    chance = random.Random(seed)
    config = recipe("reinforce", granularity, gamma=gamma, discount=per)
    play = random_play(chance, start=chance.randint(-8, 8) / 8)
    [[shaped]] = credit(config, [play])
    [[plain]] = credit(config, [replace(play, potentials=None)])
    level = 0 if granularity == "trajectory" else 1
    states = [play.potentials[turn * level] for turn, n in enumerate(play.tokens) for _ in range(n)]
    same(shaped - plain, -torch.tensor(states, dtype=torch.float64))


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize(("name", "granularity"), [a for a in GROUP_ARMS if a[1] == "trajectory"])
@QUICK
@given(seed=seeds)
def test_shaping_from_one_state_leaves_an_episodes_group_credit_alone(
    name, granularity, whiten, seed
):
    chance = random.Random(seed)
    group = random_group(chance, start=0.625)
    [shaped] = credit(recipe(name, granularity, whiten=whiten), group)
    plain_group = [replace(play, potentials=None) for play in group]
    [plain] = credit(recipe(name, granularity, whiten=whiten), plain_group)
    for one, two in zip(shaped, plain, strict=True):
        same(one, two)


@QUICK
@given(seed=seeds, gamma=st.sampled_from([0.5, 0.95, 1.0]))
def test_shaping_leaves_the_episode_half_of_gigpo_alone_at_every_discount(seed, gamma):
    group = random_group(random.Random(seed), start=-0.5)
    config = recipe("gigpo", gamma=gamma, step_weight=0.0)
    [shaped] = credit(config, group)
    [plain] = credit(config, [replace(play, potentials=None) for play in group])
    for one, two in zip(shaped, plain, strict=True):
        same(one, two)


@pytest.mark.parametrize(("name", "granularity"), ARMS)
@QUICK
@given(seed=seeds)
def test_kl_of_nothing_is_nothing_and_is_read_in_the_reward_only(name, granularity, seed):
    """KL has an entry for each sampled token and none for an observation."""
    chance = random.Random(seed)
    group = random_group(chance)
    charged = recipe(name, granularity, kl_coef=0.5, kl_in="reward", kl_estimator="k1")
    silent = [replace(play, kl=[0.0] * len(play.kl)) for play in group]
    free = recipe(name, granularity)
    for one, two, three in zip(
        credit(charged, silent)[0], credit(free, silent)[0], credit(free, group)[0], strict=True
    ):
        assert torch.equal(one, two) and torch.equal(two, three)
    play = group[0].credit()
    with pytest.raises(AlgorithmError, match="kl have shape"):
        replace(play, kl=torch.zeros(len(play.kl) + 1))
    with pytest.raises(AlgorithmError, match=r"algo\.kl_in=reward"):
        make_algorithm(charged).credit([[replace(p.credit(), kl=None) for p in group]])


LOSSES = [
    {"ratio": ratio, "normalise": normalise, "constant": 8.0, **form}
    for ratio in ("token", "turn", "sequence")
    for normalise in ("token", "sequence", "constant")
    for form in (
        {"clip_high": 0.28, "dual_clip": 1.5, "behaviour_cap": 1.05},
        {"surrogate": "cispo", "kl_coef": 0.1, "entropy_coef": 0.1},
    )
]


def random_batch(chance, episodes=6):
    """Episodes as lists of tokens: (segment by turn, episode, numbers that a loss reads)."""
    tokens = []
    for episode in range(episodes):
        for turn in range(chance.randint(1, 3)):
            for _ in range(chance.randint(1, 3)):
                old = chance.uniform(-3, -0.5)
                numbers = [old, old + chance.uniform(-0.5, 0.5), chance.uniform(-2, 2)]
                numbers += [old + chance.uniform(-0.3, 0.3), chance.uniform(-3, -0.5)]
                numbers += [chance.uniform(-1, 1), chance.uniform(-1, 1)]
                tokens.append((episode, turn, numbers))
    return tokens


def gradient(config, tokens, cuts):
    """Gradient of each token's log-probability and value; `cuts` lists the episodes of each
    micro-batch, in the order in which they are met."""
    algorithm = make_algorithm(config)
    whose = torch.tensor([episode for episode, _, _ in tokens])
    turns = torch.tensor([turn for _, turn, _ in tokens])
    old, logp, a, seen, ref, value, target = torch.tensor([n for *_, n in tokens]).double().T
    logp, value = logp.clone().requires_grad_(), value.clone().requires_grad_()
    every = torch.ones(len(tokens))
    weights, value_weights = minibatch_weights(
        every, every.bool(), whose, algorithm.normalise, algorithm.constant
    )
    segment = 10 * whose + (turns if config["ratio"] == "turn" else 0)
    for episodes in cuts:
        at = torch.cat([(whose == e).nonzero()[:, 0] for e in episodes])
        loss, _ = algorithm.loss(
            ActionTokens(
                logp[at],
                old[at],
                a[at],
                weights[at],
                entropy=-logp[at] * logp[at].exp(),
                reference_logp=ref[at],
                segment=segment[at],
                behaviour_logp=seen[at],
                values=value[at],
                returns=target[at],
                value_weights=value_weights[at],
            )
        )
        loss.backward()
    return torch.cat([logp.grad, value.grad])


@pytest.mark.parametrize(
    "changes", LOSSES, ids=lambda c: f"{c['ratio']}-{c['normalise']}-{c.get('surrogate', 'dual')}"
)
@QUICK
@given(seed=seeds)
def test_gradients_of_every_loss_ignore_micro_batches_and_order(changes, seed):
    """Rule 9, for every ratio, normalisation and surrogate."""
    chance = random.Random(seed)
    config = recipe("ppo", **changes)
    tokens = random_batch(chance)
    whole = gradient(config, tokens, [range(6)])
    assert whole.abs().max() > 1e-4
    order = chance.sample(range(6), 6)
    for cuts in ([[e] for e in range(6)], [order[:3], order[3:]], [order]):
        same(gradient(config, tokens, cuts), whole, atol=1e-12)


@QUICK
@given(seed=seeds)
def test_sequence_normalisation_weighs_episodes_and_constant_weighs_tokens(seed):
    """A longer neighbour takes weight from a token only where that is meant."""
    chance = random.Random(seed)
    short, long = chance.randint(1, 4), chance.randint(5, 9)

    def first(normalise, neighbour):
        whose = torch.tensor([0] * 3 + [1] * neighbour)
        ones = torch.ones(len(whose))
        return minibatch_weights(ones, ones.bool(), whose, normalise, 16.0)[0][0].item()

    assert first("token", short) > first("token", long)
    for normalise in ("sequence", "constant"):
        assert first(normalise, short) == first(normalise, long)
