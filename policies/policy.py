"""A policy: the actor, its tokenizer and chat form, and the critic and reference where needed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from policies.attention import Attend, adopt
from policies.chat import ChatForm
from runs.errors import PolicyError


class ValueHead(nn.Module):
    """Reads V from a hidden state; starts at 0, so that the first advantages are the returns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [...]."""
        return self.out(torch.tanh(self.inner(hidden))).squeeze(-1)


class Critic(nn.Module):
    """V of a position. `trunk` is None when the actor's own hidden states are read."""

    def __init__(self, width: int, trunk: nn.Module | None) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = ValueHead(width)


class Policy:
    """What plays and what is trained. B rows, T tokens, D hidden width, V vocabulary.

    Everything is aligned on the token that is predicted elsewhere (design, rule 5); here a hidden
    state is that of the position itself, so `logits(hidden[:, t])` predicts token t + 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: list[int],
        config: Any,
        critic: Critic | None = None,
        reference: nn.Module | None = None,
    ) -> None:
        adopt(model)
        self.model = model
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.chat = ChatForm(tokenizer, str(config.path or config.name), stop_ids)
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else stop_ids[0]
        self.temperature = float(config.temperature)
        self.max_tokens = int(config.max_tokens)
        self.context = int(config.context)
        self.critic = critic
        self.reference = reference
        self.version = 0

    @property
    def width(self) -> int:
        return int(self.model.get_input_embeddings().embedding_dim)  # type: ignore[arg-type]

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: Any = None,
        model: nn.Module | None = None,
    ) -> Tensor:
        """Last hidden states, [B, T, D].

        ids[B, T] and positions[B, T] int64. mask: bool [B, T], False on padding, or bool
        [B, 1, T, S], True where query t may look at key s. `cache` is a transformers `Cache`.
        """
        trunk = trunk_of(model or self.model)
        out = trunk(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            cache=cache,
            use_cache=cache is not None,
        )
        return out.last_hidden_state

    def packed_hidden(
        self, ids: Tensor, positions: Tensor, attend: Attend, model: nn.Module | None = None
    ) -> Tensor:
        """Last hidden states [N, D] of N tokens laid end to end, without padding.

        ids[N] and positions[N] int64; `attend` knows which token may look at which.
        """
        out = trunk_of(model or self.model)(
            input_ids=ids[None],
            position_ids=positions[None],
            # Four dimensions: a mask that transformers leaves as it is. `attend` ignores it.
            attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=ids.device),
            use_cache=False,
            attend=attend,
        )
        return out.last_hidden_state[0]

    def logits(self, hidden: Tensor, model: nn.Module | None = None) -> Tensor:
        """Next-token logits, [..., D] -> [..., V], not divided by the temperature."""
        chosen = model or self.model
        assert isinstance(chosen, PreTrainedModel)
        return head_of(chosen)(hidden)

    def critic_hidden(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Hidden states that the critic reads, [B, T, D]: its own trunk's or the actor's."""
        assert self.critic is not None
        return self.hidden(ids, positions, mask, model=self.critic.trunk)

    def values(self, hidden: Tensor) -> Tensor:
        """V before the next token, [..., D] -> [...]."""
        assert self.critic is not None
        return self.critic.head(hidden)

    @property
    def shares_trunk(self) -> bool:
        return self.critic is not None and self.critic.trunk is None

    def parameter_groups(self, optim: Any) -> list[dict[str, Any]]:
        """Groups for the optimiser, the critic with its own learning rate."""
        groups = [{"params": list(self.model.parameters()), "lr": float(optim.lr)}]
        if self.critic is not None:
            groups.append({"params": list(self.critic.parameters()), "lr": float(optim.critic_lr)})
        return groups

    def modules(self) -> list[nn.Module]:
        """What is trained: the actor, and the critic where there is one."""
        return [self.model] if self.critic is None else [self.model, self.critic]

    def add_critic(self, shared: bool) -> None:
        """A critic on the actor's trunk, or on a copy of it."""
        trunk = None if shared else copy.deepcopy(trunk_of(self.model))
        self.critic = Critic(self.width, trunk)

    def add_reference(self) -> None:
        """A frozen copy of the actor as it is now."""
        self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()

    def save(self, directory: Path) -> None:
        """Actor and tokenizer in transformers' layout, the critic beside them; no pickles."""
        directory.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        if self.critic is not None:
            save_file(
                {name: value.contiguous() for name, value in self.critic.state_dict().items()},
                directory / "critic.safetensors",
            )

    def restore(self, directory: Path) -> None:
        """Weights of a directory that `save` wrote, into this policy."""
        weights = load_file(directory / "model.safetensors")
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        tied = set(self.model.all_tied_weights_keys or {})
        assert not unexpected and set(missing) <= tied, (missing, unexpected)
        if self.critic is not None:
            self.critic.load_state_dict(load_file(directory / "critic.safetensors"))


def trunk_of(model: nn.Module) -> nn.Module:
    """The transformer without its head; a module that has none is its own trunk."""
    return model.base_model if isinstance(model, PreTrainedModel) else model


def head_of(model: PreTrainedModel) -> nn.Module:
    """The linear map from last hidden states to logits; `PolicyError` where there is none."""
    head = model.get_output_embeddings()
    if head is None:
        raise PolicyError("policy.path: the model has no output layer, so it is no language model")
    return head
