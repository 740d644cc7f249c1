"""Load the policy that a config names: the base policies that ship, or any causal LM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from policies.attention import Span, attend_spans
from policies.policy import Policy, head_of, trunk_of
from runs.errors import PolicyError
from runs.rng import key

# Loading takes a moment and the run shows its own progress.
logging.disable_progress_bar()

BASE = Path(__file__).parent / "base"
CHECKOUT = Path(__file__).parent.parent


def policy_path(config: Any) -> str:
    """Directory, GGUF file or hub name of a policy config (`policy.*`).

    Raises:
        PolicyError: the policy or the size is unknown, or `policy.path` is missing.
    """
    if config.name == "tiny":
        if config.path:
            return _local(config.path)
        directory = BASE / str(config.size)
        if not (directory / "model.safetensors").is_file():
            sizes = sorted(p.parent.name for p in BASE.glob("*/model.safetensors"))
            raise PolicyError(f"policy.size={config.size} is not one of {', '.join(sizes)}")
        return str(directory)
    if config.name != "hf":
        raise PolicyError(f"policy.name={config.name} is not one of tiny, hf")
    if not config.path:
        raise PolicyError("policy=hf needs policy.path= (a directory, a GGUF file or a hub name)")
    return _local(config.path)


def _local(path: str) -> str:
    """The path as it is, or within the checkout; what is neither is a name on the hub."""
    for candidate in (Path(path), CHECKOUT / path):
        if candidate.exists():
            return str(candidate)
    if path.startswith((".", "/", "~")) or path.endswith(".gguf") or path.count("/") != 1:
        raise PolicyError(f"policy.path: {path} does not exist")
    return path


def load_model(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model in float32 and tokenizer from a directory, a GGUF file or the hub.

    Raises:
        PolicyError: transformers cannot load them; its reason is in the message.
    """
    options: dict[str, Any] = {}
    name = path
    if path.endswith(".gguf"):
        name, options = str(Path(path).parent), {"gguf_file": Path(path).name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise PolicyError(f"policy.path: {path} cannot be loaded: {reason}") from error
    return model.eval(), tokenizer


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every id that ends an answer: the tokenizer's, the config's and the generation config's.

    Raises:
        PolicyError: there is none.
    """
    found: list[int] = []
    generation = getattr(model, "generation_config", None)
    for source in (tokenizer, model.config, generation or GenerationConfig()):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            found += value if isinstance(value, list) else [value]
    if not found:
        raise PolicyError("policy.path: the model names no end-of-turn token (eos_token_id)")
    return list(dict.fromkeys(int(token) for token in found))


def load_policy(
    config: Any, critic: bool = False, reference: bool = False, seed: int = 0
) -> Policy:
    """The policy of `config` (`policy.*`), with critic and reference where they are asked for.

    The value head and a LoRA adapter are drawn from `seed`, so that two runs with one seed start
    alike.

    Raises:
        PolicyError: it cannot be loaded, has no chat template, its head does more than one
            linear map (a soft cap, say), which reading logits at chosen positions would skip, or
            its layers mix tokens in another way than by attention.
    """
    path = policy_path(config)
    model, tokenizer = load_model(path)
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and config.context > limit:
        raise PolicyError(f"policy.context={config.context} is over the {limit} of {path}")
    _check_head(model, path)
    policy = Policy(model, tokenizer, stop_ids(model, tokenizer), config)
    _check_packing(policy, path)
    if config.lora.rank:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, "lora") % 2**63)
            policy.add_adapter(config.lora)
    if config.checkpointing:
        policy.recompute_activations()
    if critic:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, "value_head") % 2**63)
            policy.add_critic(shared=config.critic == "shared")
    if reference:
        policy.add_reference()
    return policy


@torch.no_grad()
def _check_head(model: PreTrainedModel, path: str) -> None:
    """Logits must be the output embedding applied to the trunk's last hidden state."""
    probe = torch.arange(4)[None] % model.config.vocab_size
    whole = model(input_ids=probe).logits
    parts = head_of(model)(trunk_of(model)(input_ids=probe).last_hidden_state)
    if not torch.allclose(whole, parts, atol=1e-4, rtol=1e-4):
        raise PolicyError(
            f"policy.path: {path} changes its logits after the output layer, which is not supported"
        )


@torch.no_grad()
def _check_packing(policy: Policy, path: str) -> None:
    """Two sequences that begin alike, packed, must have the states that each has alone."""
    ids = torch.arange(7) % policy.model.config.vocab_size
    positions = torch.tensor([0, 1, 2, 3, 4, 3, 4])
    attend = attend_spans([Span(0, 3, 7), Span(3, 5, 5), Span(5, 7, 7)])
    packed = policy.packed_hidden(ids, positions, attend)
    for row in ([0, 1, 2, 3, 4], [0, 1, 2, 5, 6]):
        alone = policy.hidden(ids[None, row], positions[None, row], torch.ones(1, 5).bool())[0]
        if not torch.allclose(packed[row], alone, atol=1e-4, rtol=1e-3):
            raise PolicyError(
                f"policy.path: {path} has layers that are not plain attention over the whole past, "
                "which cannot be trained on packed rows; choose another model"
            )
