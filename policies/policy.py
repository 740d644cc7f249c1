"""A policy: the actor, its tokenizer and chat form, and the critic and reference where needed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from policies.attention import Attend, adopt
from policies.chat import ChatForm
from runs.errors import PolicyError

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER = "adapter.safetensors"
CRITIC = "critic.safetensors"


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
        self.adapter: PeftModel | None = None
        self.version = 0

    @property
    def vocabulary(self) -> int:
        return int(head_of(self.model).weight.shape[0])  # type: ignore[arg-type, index]

    @property
    def width(self) -> int:
        return int(self.model.config.hidden_size)

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
        trunk = trunk_of(model or self.model)
        with _recomputed(trunk) if torch.is_grad_enabled() else nullcontext():
            out = trunk(
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

    def values(self, hidden: Tensor) -> Tensor:
        """V before the next token, [..., D] -> [...]."""
        assert self.critic is not None
        return self.critic.head(hidden)

    @property
    def shares_trunk(self) -> bool:
        return self.critic is not None and self.critic.trunk is None

    @property
    def critic_trunk(self) -> nn.Module | None:
        """The transformer that only the critic reads; None where it reads the actor's, or is not
        there."""
        return None if self.critic is None else self.critic.trunk

    @contextmanager
    def referring(self, reference: bool = True) -> Iterator[nn.Module]:
        """The model that the policy started from, while the context lasts: the frozen copy, or
        with LoRA the actor without its adapter. Without `reference` just the actor."""
        if not reference:
            yield self.model
        elif self.adapter is not None:
            with self.adapter.disable_adapter():
                yield self.model
        else:
            assert self.reference is not None
            yield self.reference

    def parameter_groups(self, optim: Any) -> list[dict[str, Any]]:
        """Groups for the optimiser, the critic with its own learning rate."""
        groups = [{"params": _trained(self.model), "lr": float(optim.lr)}]
        if self.critic is not None:
            groups.append({"params": _trained(self.critic), "lr": float(optim.critic_lr)})
        return groups

    def modules(self) -> list[nn.Module]:
        """What is trained: the actor, and the critic where there is one."""
        return [self.model] if self.critic is None else [self.model, self.critic]

    def add_adapter(self, lora: Any) -> None:
        """Freeze the actor but for LoRA matrices (Hu et al. 2021, arXiv 2106.09685) beside the
        layers `lora.targets`, of rank `lora.rank`, their product times `lora.alpha` / rank.

        The layers are replaced within the model, which stays what it was for everyone else.
        Raises PolicyError for targets that it does not have.
        """
        from peft import LoraConfig, get_peft_model

        targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
        options = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets)
        try:
            self.adapter = get_peft_model(self.model, options)  # type: ignore[assignment]
        except ValueError as error:
            reason = str(error).strip().splitlines()[0]
            raise PolicyError(f"policy.lora.targets={targets}: {reason}") from error

    def recompute_activations(self) -> None:
        """Keep only what enters a layer; the backward pass computes the rest once more."""
        self.model.activation_checkpointing_enable({"use_reentrant": False})

    def add_critic(self, shared: bool) -> None:
        """A critic on the actor's trunk, or on a copy of it: with LoRA a copy of the adapter on
        the same frozen weights."""
        trunk = None
        if not shared:
            frozen = {id(p): p for p in self.model.parameters() if not p.requires_grad}
            trunk = copy.deepcopy(trunk_of(self.model), frozen)
        self.critic = Critic(self.width, trunk)

    def add_reference(self) -> None:
        """A frozen copy of the actor as it is now; with LoRA nothing, its base is the reference."""
        if self.adapter is None:
            self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()

    def save(self, directory: Path) -> None:
        """Actor and tokenizer in transformers' layout, the critic beside them; no pickles.

        A LoRA adapter is added to the weights of the layout, which load as any model's do, and
        lies beside them for `restore`.
        """
        directory.mkdir(parents=True, exist_ok=True)
        if self.adapter is None:
            self.model.save_pretrained(directory)
        else:
            self.model.save_pretrained(directory, state_dict=_merged(self.model))
            save_file(_weights(self.model), directory / ADAPTER)
        self.tokenizer.save_pretrained(directory)
        if self.critic is not None:
            save_file(_weights(self.critic), directory / CRITIC)

    def restore(self, directory: Path) -> None:
        """Weights of a directory that `save` wrote, into this policy."""
        if self.adapter is None:
            weights = load_file(directory / "model.safetensors")
            missing, unexpected = self.model.load_state_dict(weights, strict=False)
            tied = set(self.model.all_tied_weights_keys or {})
            assert not unexpected and set(missing) <= tied, (missing, unexpected)
        else:
            _put(self.model, load_file(directory / ADAPTER))
        if self.critic is not None:
            _put(self.critic, load_file(directory / CRITIC))


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """What of a module is trained, by name."""
    return {n: p.detach().contiguous() for n, p in module.named_parameters() if p.requires_grad}


def _put(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load what `_weights` gave; nothing may be missing or left over."""
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    assert parameters.keys() == weights.keys(), parameters.keys() ^ weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _merged(model: PreTrainedModel) -> dict[str, Tensor]:
    """The state of a model as it would be without LoRA layers, their products added in."""
    from peft.tuners.lora import LoraLayer

    state = {n: v for n, v in model.state_dict().items() if ".lora_" not in n}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            [adapter] = layer.active_adapters
            base = f"{name}.base_layer.weight"
            state[base] = state[base] + layer.get_delta_weight(adapter)  # type: ignore[attr-defined, operator]
    return {name.replace(".base_layer.", "."): value for name, value in state.items()}


@contextmanager
def _recomputed(trunk: nn.Module) -> Iterator[None]:
    """Let the layers of a trunk recompute their activations, if they were told to.

    They do so while in training mode; the modules within them stay as they are, without dropout.
    """
    layers = [m for m in trunk.modules() if getattr(m, "gradient_checkpointing", False)]
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode


def trunk_of(model: nn.Module) -> nn.Module:
    """The transformer without its head; a module that has none is its own trunk."""
    return model.base_model if isinstance(model, PreTrainedModel) else model


def head_of(model: PreTrainedModel) -> nn.Module:
    """The linear map from last hidden states to logits; `PolicyError` where there is none."""
    head = model.get_output_embeddings()
    if head is None:
        raise PolicyError("policy.path: the model has no output layer, so it is no language model")
    return head
