"""Policies load from a directory, refuse by name what they cannot serve, and come back as saved."""

from types import SimpleNamespace

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from policies.base.make_base import tokenizer as base_tokenizer
from policies.load import load_policy
from runs.errors import PolicyError

TOKENIZER = base_tokenizer()


def settings(path, **changes):
    values = {
        "name": "hf", "path": path and str(path), "critic": "shared", "temperature": 0.7,
        "max_tokens": 8, "context": 64, "size": "small", "checkpointing": False,
        "lora": SimpleNamespace(rank=0, alpha=16, targets="all-linear"),
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def saved(directory, model, tokenizer=TOKENIZER):
    torch.manual_seed(0)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def llama(**changes):
    shape = {
        "vocab_size": len(TOKENIZER), "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 128,
        "eos_token_id": 1, "tie_word_embeddings": True,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes}))


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=4, n_positions=128,
                   bos_token_id=1, eos_token_id=1)
    )  # fmt: skip


@pytest.mark.parametrize("make", [llama, gpt2])
def test_padded_rows_have_the_log_probabilities_of_unpadded_ones(tmp_path, make):
    policy = load_policy(settings(saved(tmp_path, make())))
    short, long = torch.randint(5, 300, (1, 6)), torch.randint(5, 300, (1, 11))
    ids = torch.full((2, 11), policy.pad_id)
    ids[0, :6], ids[1] = short[0], long[0]
    mask = torch.arange(11)[None] < torch.tensor([[6], [11]])
    with torch.no_grad():
        both = policy.logits(policy.hidden(ids, torch.arange(11).expand(2, 11), mask))
        alone = policy.logits(policy.hidden(short, torch.arange(6)[None], torch.ones(1, 6).bool()))
        whole = policy.model(input_ids=short).logits
    assert torch.allclose(both[0, :6], alone[0], atol=1e-5)
    assert torch.allclose(alone, whole, atol=1e-5)


@pytest.mark.parametrize("shared", ["shared", "separate"])
def test_saved_weights_come_back(tmp_path, shared):
    config = settings(saved(tmp_path / "a", llama()), critic=shared)
    policy = load_policy(config, critic=True)
    for module in policy.modules():
        for parameter in module.parameters():
            parameter.data += 0.1
    policy.save(tmp_path / "b")
    again = load_policy(config, critic=True)
    again.restore(tmp_path / "b")
    assert len(policy.modules()) == 2
    for ours, theirs in zip(policy.modules(), again.modules(), strict=True):
        for name, value in ours.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[name])
    assert not list((tmp_path / "b").glob("*.bin")) and not list((tmp_path / "b").glob("*.pt"))


def test_a_fresh_critic_values_everything_at_zero_and_depends_on_the_seed_only(tmp_path):
    config = settings(saved(tmp_path, llama()))
    one, two = (load_policy(config, critic=True, seed=3).critic for _ in range(2))
    other = load_policy(config, critic=True, seed=4).critic
    hidden = torch.randn(2, 3, 32)
    assert torch.equal(one.head(hidden), torch.zeros(2, 3))
    assert torch.equal(one.head.inner.weight, two.head.inner.weight)
    assert not torch.equal(one.head.inner.weight, other.head.inner.weight)


def test_the_reference_stays_where_the_actor_was(tmp_path):
    policy = load_policy(settings(saved(tmp_path, llama())), reference=True)
    before = policy.reference.get_input_embeddings().weight.clone()
    policy.model.get_input_embeddings().weight.data += 1.0
    assert torch.equal(policy.reference.get_input_embeddings().weight, before)
    assert not any(p.requires_grad for p in policy.reference.parameters())


def test_every_stop_token_counts(tmp_path):
    model = llama(eos_token_id=[1, 7])
    model.generation_config.eos_token_id = [7, 9]
    policy = load_policy(settings(saved(tmp_path, model)))
    assert sorted(policy.stop_ids) == [1, 7, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": None}, "policy.path="),
        ({"path": "./nowhere"}, "does not exist"),
        ({"name": "tiny", "path": None, "size": "huge"}, "policy.size=huge"),
        ({"name": "other"}, "policy.name=other"),
        ({"context": 4096}, "policy.context=4096"),
    ],
)
def test_bad_settings_are_refused_by_key(tmp_path, changes, message):
    config = settings(saved(tmp_path, llama()))
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(PolicyError, match=message):
        load_policy(config)


def test_a_directory_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(PolicyError, match="cannot be loaded"):
        load_policy(settings(tmp_path))


def test_a_model_that_caps_its_logits_is_refused(tmp_path):
    model = Gemma2ForCausalLM(
        Gemma2Config(vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                     intermediate_size=48, max_position_embeddings=128,
                     final_logit_softcapping=0.05)
    )  # fmt: skip
    model.get_input_embeddings().weight.data *= 50
    with pytest.raises(PolicyError, match="after the output layer"):
        load_policy(settings(saved(tmp_path, model)))


@pytest.mark.parametrize("size", ["small", "large"])
def test_the_shipped_weights_load(size):
    policy = load_policy(settings(None, name="tiny", size=size))
    assert sum(p.numel() for p in policy.model.parameters()) < 10_000_000
    assert len(policy.chat.prompt([policy.chat.user("hello")])) > 3
