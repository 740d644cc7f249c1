"""A pack holds common beginnings once, and nothing that is read or learned can tell."""

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import training.heads
import training.pack
from algorithms import make_algorithm
from rollouts.types import Row
from tests.fakes import toy_policy
from tests.training.slow_path import slow_score
from tests.training.toy import config_for, played, policy_for
from training.batch import PlacedRow, lay_out, read_final_values, score
from training.credit import assign
from training.pack import pack
from training.step import Learner

EVERYTHING = frozenset({"values", "entropy"})
KINDS = ("llama", "gpt2")


@pytest.fixture(autouse=True)
def two_in_common_are_enough(monkeypatch):
    """Rows of a test are short; what is worth a span of its own must be too."""
    monkeypatch.setattr(training.pack, "LEAST", 2)


def policies():
    made = {}
    for kind in KINDS:
        policy = toy_policy(kind)
        policy.add_critic(shared=kind == "llama")
        torch.nn.init.normal_(policy.critic.head.out.weight, std=0.5)
        made[kind] = policy
    return made


POLICIES = policies()


@st.composite
def many_rows(draw):
    """Rows that grow as branches of one another: few ids, so that much is alike by chance too."""
    ids = st.lists(st.integers(4, 6), min_size=1, max_size=9)
    rows: list[list[int]] = []
    for _ in range(draw(st.integers(1, 6))):
        base = draw(st.sampled_from(rows)) if rows and draw(st.booleans()) else []
        base = base[: draw(st.integers(0, len(base)))]
        rows.append(base + draw(ids) + draw(ids))
    if draw(st.booleans()):
        rows.append(list(draw(st.sampled_from(rows))))
    return [placed(number, ids, draw) for number, ids in enumerate(rows)]


def placed(number, ids, draw):
    """A row with sampled tokens anywhere behind its first, inside what others share as well."""
    action = torch.tensor([False] + [draw(st.booleans()) for _ in ids[1:]])
    action[draw(st.integers(1, len(ids) - 1))] = True
    turn = torch.where(action, 0, -1)
    row = Row(torch.tensor(ids), action, turn, torch.zeros(len(ids)), number, 0, number, 0)
    return PlacedRow(row, number, torch.arange(int(action.sum())), int(action.nonzero()[-1]))


def gradients(policy, scores, seed=0):
    """Of every parameter, for a loss in which each number that was read has a weight of its own."""
    generator = torch.Generator().manual_seed(seed)
    loss = sum(
        (numbers * torch.randn(len(numbers), generator=generator)).sum()
        for numbers in (scores.logp, scores.entropy, scores.values)
    )
    parameters = [p for module in policy.modules() for p in module.parameters()]
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def assert_same(policy, ours, theirs):
    for name in ("logp", "entropy", "values"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=2e-5, rtol=1e-5)
    pairs = list(zip(gradients(policy, ours), gradients(policy, theirs), strict=True))
    assert max(float(b.abs().max()) for _, b in pairs if b is not None) > 1e-3
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max() + 1), rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(rows=many_rows(), seed=st.integers(0, 9))
def test_packed_rows_have_the_numbers_and_gradients_of_rows_alone(kind, rows, seed):
    policy = POLICIES[kind]
    rows = random.Random(seed).sample(rows, len(rows))
    ours = score(policy, rows, 0.7, EVERYTHING)
    assert_same(policy, ours, slow_score(policy, rows, 0.7, EVERYTHING))


@settings(max_examples=100, deadline=None)
@given(rows=many_rows())
def test_a_pack_holds_every_token_in_its_place_and_common_beginnings_once(rows):
    sequences = [one.row.ids for one in rows]
    packed = pack(sequences)
    for ids, where in zip(sequences, packed.where, strict=True):
        assert torch.equal(packed.ids[where], ids)
        assert torch.equal(packed.positions[where], torch.arange(len(ids)))
    assert set(torch.cat(packed.where).tolist()) == set(range(len(packed.ids)))
    for one, ids in enumerate(sequences):
        for other in range(one):
            alike = training.pack.common(ids.numpy(), sequences[other].numpy())
            same = (packed.where[one][:alike] == packed.where[other][:alike]).sum()
            assert same > alike - training.pack.LEAST


def test_two_members_who_said_the_same_are_computed_once_and_learned_twice():
    ids = list(range(5, 25))
    ends = [[30, 31], [40, 41]]
    made = []
    for number, end in enumerate(ends):
        row_ids = torch.tensor(ids + end)
        action = torch.zeros(22, dtype=torch.bool)
        action[[8, 9, 20, 21]] = True  # 8 and 9 are in the part that both share; 20 comes after it
        row = Row(row_ids, action, torch.where(action, 0, -1), torch.zeros(22), 0, 0, number, 0)
        made.append(PlacedRow(row, number, torch.arange(4), 21))
    packed = pack([one.read for one in made])
    assert len(packed.ids) == 20 + 1 + 1
    assert packed.where[0][19] == packed.where[1][19]
    policy = POLICIES["llama"]
    ours = score(policy, made, 0.7, EVERYTHING)
    assert torch.equal(ours.logp[:2], ours.logp[4:6]) and ours.logp[2] != ours.logp[6]
    assert_same(policy, ours, slow_score(policy, made, 0.7, EVERYTHING))


@pytest.mark.parametrize("constrain", [False, True])
@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_played_rows_equal_the_slow_path(algo, constrain):
    config = config_for(algo, env__constrain=constrain)
    policy = policy_for(config)
    if policy.critic is None:
        policy.add_critic(shared=False)
    torch.nn.init.normal_(policy.critic.head.out.weight, std=0.5)
    episodes = [e for g in played(config, policy) for e in g.episodes]
    rows = [row for of_episode in lay_out(episodes) for row in of_episode]
    packed = pack([row.read for row in rows])
    assert len(packed.ids) < 0.8 * sum(row.length for row in rows)
    ours = score(policy, rows, 0.7, EVERYTHING)
    assert_same(policy, ours, slow_score(policy, rows, 0.7, EVERYTHING))


@pytest.mark.parametrize("constrain", [False, True])
def test_heads_in_parts_change_no_number(constrain, monkeypatch):
    config = config_for("ppo", env__constrain=constrain)
    policy = policy_for(config)
    torch.nn.init.normal_(policy.critic.head.out.weight, std=0.5)
    episodes = [e for g in played(config, policy) for e in g.episodes]
    rows = [row for of_episode in lay_out(episodes) for row in of_episode]
    whole = score(policy, rows, 0.7, EVERYTHING)
    sizes = []
    head = policy.logits
    monkeypatch.setattr(policy, "logits", lambda s, m: sizes.append(len(s)) or head(s, m))
    monkeypatch.setattr(training.heads, "MOST_LOGITS", 7 * policy.vocabulary)
    parts = score(policy, rows, 0.7, EVERYTHING)
    assert len(sizes) > 3 and max(sizes) == 7
    assert_same(policy, parts, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_activations_that_are_computed_again_change_no_gradient(kind):
    config = config_for("ppo")
    policy = policy_for(config, kind)
    torch.nn.init.normal_(policy.critic.head.out.weight, std=0.5)
    episodes = [e for g in played(config, policy) for e in g.episodes]
    rows = [row for of_episode in lay_out(episodes) for row in of_episode]
    kept, plain = [], score(policy, rows, 0.7, EVERYTHING)

    def measured():
        """The numbers that a pass keeps for its backward pass."""
        kept.append(0)

        def count(tensor):
            kept[-1] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            return score(policy, rows, 0.7, EVERYTHING)

    measured()
    policy.recompute_activations()
    again = measured()
    assert kept[1] < 0.6 * kept[0]
    assert not policy.model.training
    assert_same(policy, again, plain)


def test_final_values_of_prompts_that_share_a_beginning(monkeypatch):
    policy = copy.deepcopy(POLICIES["gpt2"])
    start = list(range(5, 30))
    prompts = [[*start, 7], start, [*start, 7, 8], [9, 9, 9]]
    together = read_final_values(policy, prompts, 10_000)
    alone = [read_final_values(policy, [prompt], 1)[0] for prompt in prompts]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together)) == 4


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_the_reference_is_read_once_an_update_and_never_without_kl(kl, monkeypatch):
    config = config_for("grpo", algo__kl_coef=kl, algo__epochs=3)
    policy = policy_for(config)
    algorithm = make_algorithm(config.algo)
    batch, _ = assign(algorithm, policy, played(config, policy), config)
    passes, hidden = [], policy.packed_hidden

    def counted(ids, positions, attend, model):
        passes.append("reference" if model is policy.reference else "policy")
        return hidden(ids, positions, attend, model)

    monkeypatch.setattr(policy, "packed_hidden", counted)
    Learner(policy, algorithm, config).update(batch, 0)
    assert passes.count("policy") == 3
    assert passes.count("reference") == (1 if kl else 0)
    if kl:
        rows = [row for of_episode in batch.rows for row in of_episode]
        index = torch.cat([row.index for row in rows])
        slow = slow_score(policy, rows, 0.7, model=policy.reference).logp
        torch.testing.assert_close(batch.reference[index], slow, atol=2e-5, rtol=1e-5)


def test_rows_that_branch_off_one_after_the_other_have_no_end():
    trunk = torch.arange(3 * 1500)
    rows = [torch.cat([trunk[: 3 * n + 3], torch.tensor([9000 + n])]) for n in range(1500)]
    packed = pack(rows)
    for row, where in zip(rows, packed.where, strict=True):
        assert torch.equal(packed.ids[where], row)
        assert torch.equal(packed.positions[where], torch.arange(len(row)))
