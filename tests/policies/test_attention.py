"""Steered attention equals transformers' own, and what cannot be steered is refused."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from policies.attention import Span, adopt, attend_paths, attend_spans
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


def dense(spans, query, key, value, scale):
    """The same attention as one masked softmax over all tokens."""
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    seen = torch.zeros(query.shape[2], query.shape[2], dtype=torch.bool)
    for start, end, reach in spans:
        seen[start:reach, start:end] = True
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(~seen.tril(), -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


SPANS = {
    "rows": [Span(0, 5, 5), Span(5, 6, 6), Span(6, 40, 40)],
    "tree": [Span(0, 9, 31), Span(9, 12, 24), Span(12, 13, 13), Span(13, 24, 24), Span(24, 31, 31),
             Span(31, 33, 40), Span(33, 40, 40)],
}  # fmt: skip


@pytest.mark.parametrize("of", [attend_spans, None], ids=["kernel", "paths"])
@pytest.mark.parametrize("shape", list(SPANS))
@pytest.mark.parametrize("shared_heads", [1, 3])
def test_spans_and_their_gradients_equal_one_masked_softmax(of, shape, shared_heads):
    spans, tokens = SPANS[shape], 40
    if of is None:
        shared_heads = 1  # `attend_spans` has widened the keys before it asks for paths
    torch.manual_seed(1)
    query = torch.randn(1, 3, tokens, 8, requires_grad=True)
    key, value = (torch.randn(1, 3 // shared_heads, tokens, 8, requires_grad=True) for _ in "kv")
    if of is None:
        ours = attend_paths(spans, query, key, value, 0.4)
    else:
        ours = attend_spans(spans)(0, query, key, value, 0.4)
    theirs = dense(spans, query, key, value, 0.4)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    weights = torch.randn_like(theirs)
    mine, right = (torch.autograd.grad(x, (query, key, value), weights) for x in (ours, theirs))
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_other_attention_is_refused():
    model = toy_policy().model
    model.config._attn_implementation = "eager"
    with pytest.raises(PolicyError, match="sdpa"):
        adopt(model)
