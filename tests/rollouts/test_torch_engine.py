"""The engine against a plain forward pass: caches, batches, padding and order change nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.engine import Request
from rollouts.torch_engine import TorchEngine
from runs.errors import InvariantError, PolicyError
from tests.fakes import toy_policy

KINDS = ("llama", "gpt2")
POLICIES = {kind: toy_policy(kind) for kind in KINDS}


def engine_of(policy, rows=8, **options):
    return TorchEngine(policy, rows, context=256, max_tokens=6, **options)


def request(slot, prompt, turn=0, member=0):
    return Request(slot, prompt, (0, "sample", 0, "task", member, turn))


def reference_logp(policy, prompt, ids, temperature):
    """Log-probabilities of `ids` after `prompt`, from one unpadded forward pass."""
    row = torch.tensor([prompt + ids])
    hidden = policy.hidden(row, torch.arange(row.shape[1])[None], torch.ones_like(row).bool())
    logp = torch.log_softmax(policy.logits(hidden[0]) / (temperature or 1.0), -1)
    at = torch.arange(len(prompt) - 1, row.shape[1] - 1)
    return logp[at, torch.tensor(ids)].detach()


tokens = st.integers(4, 90)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(data=st.data())
def test_ragged_turns_equal_a_plain_forward_pass(kind, data):
    """Random conversations of 8 rows: some absent, some rewritten, released, or identical."""
    policy = POLICIES[kind]
    engine = engine_of(policy)
    history: dict[int, list[int]] = {}
    for turn in range(4):
        slots = data.draw(st.lists(st.integers(0, 7), unique=True, min_size=1))
        gone = data.draw(st.lists(st.sampled_from(sorted(history)), unique=True)) if history else []
        engine.release(gone)
        for slot in gone:
            del history[slot]
        requests = []
        for slot in slots:
            keep = history.get(slot, [])
            keep = keep[: data.draw(st.sampled_from([len(keep), len(keep) // 2]))]
            twin = data.draw(st.sampled_from([None, *history]))
            base = keep if twin is None else history[twin]
            new = data.draw(st.lists(tokens, min_size=1, max_size=9))
            requests.append(request(slot, base + new, turn, member=slot))
        for asked, sample in zip(requests, engine.generate(requests, 0.7), strict=True):
            expected = reference_logp(policy, asked.prompt, sample.ids, 0.7)
            assert torch.tensor(sample.logp) == pytest.approx(expected, abs=1e-4)
            stops = [token in policy.stop_ids for token in sample.ids]
            assert not any(stops[:-1]) and sample.stopped == stops[-1]
            assert sample.stopped or len(sample.ids) == 6
            history[asked.slot] = asked.prompt + sample.ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_batches_of_1_4_and_7_agree(kind, temperature):
    policy = POLICIES[kind]
    generator = np.random.default_rng(0)
    requests = [
        request(slot, generator.integers(4, 90, 5 + 7 * slot).tolist(), member=slot)
        for slot in range(7)
    ]
    results = []
    for size in (1, 4, 7):
        engine = engine_of(policy)
        samples = [
            sample
            for start in range(0, 7, size)
            for sample in engine.generate(requests[start : start + size], temperature)
        ]
        results.append(samples)
    assert len({len(sample.ids) for sample in results[0]}) > 1
    for samples in results[1:]:
        assert [s.ids for s in samples] == [s.ids for s in results[0]]
        for one, other in zip(samples, results[0], strict=True):
            assert one.logp == pytest.approx(other.logp, rel=2e-5, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padded_rows_equal_unpadded_ones(kind):
    policy = POLICIES[kind]
    rows = [list(range(10, 10 + n)) for n in (3, 17, 9)]
    ids = torch.full((3, 17), policy.pad_id)
    mask = torch.zeros(3, 17, dtype=torch.bool)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
        mask[place, : len(row)] = True
    with torch.no_grad():
        hidden = policy.hidden(ids, torch.arange(17).expand(3, 17), mask)
        for place, row in enumerate(rows):
            logp = torch.log_softmax(policy.logits(hidden[place, : len(row)]) / 0.7, -1)
            at = torch.arange(len(row) - 1)
            assert logp[at, torch.tensor(row[1:])] == pytest.approx(
                reference_logp(policy, row[:1], row[1:], 0.7), abs=1e-5
            )


def test_greedy_follows_the_argmax_whatever_the_key():
    policy = POLICIES["llama"]
    prompt = [10, 20, 30]
    (one,) = engine_of(policy).generate([request(0, prompt, member=1)], 0.0)
    (two,) = engine_of(policy).generate([request(0, prompt, member=2)], 0.0)
    row, chosen = list(prompt), []
    for _ in one.ids:
        ids = torch.tensor([row])
        hidden = policy.hidden(ids, torch.arange(len(row))[None], torch.ones_like(ids).bool())
        chosen.append(int(policy.logits(hidden[0, -1]).argmax()))
        row.append(chosen[-1])
    assert one.ids == two.ids == chosen


def test_members_differ_and_their_prompt_is_computed_once():
    policy = POLICIES["llama"]
    engine = engine_of(policy)
    prompt = list(range(10, 40))
    samples = engine.generate([request(slot, prompt, member=slot) for slot in range(4)], 0.7)
    assert engine.prefilled == len(prompt)
    assert len({tuple(sample.ids) for sample in samples}) == 4
    for sample in samples:
        expected = reference_logp(policy, prompt, sample.ids, 0.7)
        assert torch.tensor(sample.logp) == pytest.approx(expected, abs=1e-4)


def test_only_new_tokens_are_computed_in_the_next_turn():
    engine = engine_of(POLICIES["llama"])
    prompt = list(range(10, 40))
    (sample,) = engine.generate([request(0, prompt)], 0.7)
    longer = prompt + sample.ids + [50, 51, 52]
    engine.generate([request(0, longer, turn=1)], 0.7)
    # The last sampled token was drawn but never fed.
    assert engine.prefilled == len(prompt) + 1 + 3


def test_new_weights_void_the_cache():
    policy = toy_policy()
    engine = engine_of(policy)
    prompt = list(range(10, 40))
    engine.generate([request(0, prompt)], 0.7)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    policy.version += 1
    (sample,) = engine.generate([request(0, prompt, turn=1)], 0.7)
    expected = reference_logp(policy, prompt, sample.ids, 0.7)
    assert torch.tensor(sample.logp) == pytest.approx(expected, abs=1e-4)


def test_a_shared_critic_is_read_before_each_token():
    policy = toy_policy()
    policy.add_critic(shared=True)
    torch.nn.init.normal_(policy.critic.head.out.weight)
    prompt = list(range(10, 40))
    (sample,) = engine_of(policy, values=True).generate([request(0, prompt)], 0.7)
    row = torch.tensor([prompt + sample.ids])
    hidden = policy.hidden(row, torch.arange(row.shape[1])[None], torch.ones_like(row).bool())
    expected = policy.values(hidden)[0, len(prompt) - 1 : -1].detach()
    assert torch.tensor(sample.values) == pytest.approx(expected, abs=1e-4)


def test_constrained_decoding_yields_a_choice_with_its_renormalised_probability():
    policy = POLICIES["llama"]
    choices = [[40, 41], [40, 42, 43], [50]]
    prompt = [30, 31, 32]
    requests = [request(slot, prompt, member=slot) for slot in range(7)]
    for asked in requests[:6]:
        asked.choices = choices
    *bound, free = engine_of(policy).generate(requests, 0.7)
    assert free.allowed is None
    for sample in bound:
        assert sample.stopped and sample.ids[:-1] in choices
        row = torch.tensor([prompt + sample.ids])
        hidden = policy.hidden(row, torch.arange(row.shape[1])[None], torch.ones_like(row).bool())
        logits = policy.logits(hidden)[0, len(prompt) - 1 : -1].detach() / 0.7
        for token, logp, allowed, scores in zip(
            sample.ids, sample.logp, sample.allowed, logits, strict=True
        ):
            expected = scores[token] - torch.logsumexp(scores[allowed], 0)
            assert logp == pytest.approx(expected.item(), abs=1e-4)
    assert bound[0].allowed[0] == [40, 50]


def test_dropout_is_off_while_playing():
    policy = toy_policy("gpt2")
    policy.model.train()
    (sample,) = engine_of(policy).generate([request(0, [10, 20, 30])], 0.7)
    assert policy.model.training
    policy.model.eval()
    expected = reference_logp(policy, [10, 20, 30], sample.ids, 0.7)
    assert torch.tensor(sample.logp) == pytest.approx(expected, abs=1e-4)


def test_what_cannot_be_masked_is_refused():
    policy = toy_policy()
    policy.model.config.sliding_window = 16
    with pytest.raises(PolicyError, match="policy.context=256"):
        engine_of(policy)
    policy.model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(PolicyError, match="linear_attention"):
        engine_of(policy)


def test_more_conversations_than_rows_are_refused():
    with pytest.raises(InvariantError, match="engine.max_batch"):
        engine_of(POLICIES["llama"], rows=2).generate(
            [request(slot, [10, 11, 12]) for slot in range(3)], 0.7
        )


def test_one_goes_on_where_another_begins():
    """The same ids, kept in different columns: the first behind a shared prefix, the other not."""
    policy = POLICIES["llama"]
    engine = engine_of(policy)
    prompt = list(range(10, 40))
    (sample, _) = engine.generate([request(slot, prompt, member=slot) for slot in (0, 1)], 0.7)
    longer = prompt + sample.ids + [50, 51, 52]
    asked = [request(0, longer, turn=1), request(2, longer, turn=1, member=2)]
    for sample in engine.generate(asked, 0.7):
        expected = reference_logp(policy, longer, sample.ids, 0.7)
        assert torch.tensor(sample.logp) == pytest.approx(expected, abs=1e-4)
