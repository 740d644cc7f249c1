"""Steered attention equals transformers' own, and what cannot be steered is refused."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from policies.attention import adopt
from runs.errors import PolicyError
from tests.fakes import toy_policy


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_causal_layout_equals_the_plain_forward_pass(kind):
    policy, layers = toy_policy(kind), []

    def attend(layer, query, key, value, scale):
        layers.append(layer)
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2)

    ids, positions = torch.arange(5, 17), torch.arange(12)
    packed = policy.packed_hidden(ids, positions, attend)
    plain = policy.hidden(ids[None], positions[None], torch.ones(1, 12, dtype=torch.bool))
    assert layers == [0, 1]
    torch.testing.assert_close(packed, plain[0])


def test_other_attention_is_refused():
    model = toy_policy().model
    model.config._attn_implementation = "eager"
    with pytest.raises(PolicyError, match="sdpa"):
        adopt(model)
