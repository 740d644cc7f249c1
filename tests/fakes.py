"""Small stand-ins: a character tokenizer with a chat template, tiny models, a scripted engine and
a scripted environment pool."""

from __future__ import annotations

import string
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from envs.base import Step, Task
from envs.workers import EnvFailure
from policies.policy import Policy
from rollouts.engine import Request, Sample

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Shows the last answer only, as templates that strip earlier thinking do.
STRIPPING = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'user' or loop.last %}{{ m['content'] }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]


def toy_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """Characters, and one merge: `[a][b]` decodes to "ab", which encodes to `[ab]`."""
    vocab = {symbol: i for i, symbol in enumerate([*SPECIALS, *string.printable[:96], "\n", "ab"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
    )
    fast.chat_template = template
    return fast


def toy_config(**changes: Any) -> Any:
    """A resolved config of the keys that playing reads; `changes` are dotted paths."""
    config = OmegaConf.create(
        {
            "seed": 0,
            "env": {
                "family": "toy",
                "max_turns": 3,
                "constrain": False,
                "history_window": None,
                "show_admissible": False,
            },
            "algo": {"group_size": 2},
            "compat": {},
            "policy": {
                "name": "toy",
                "path": None,
                "critic": "shared",
                "temperature": 0.7,
                "max_tokens": 6,
                "context": 512,
            },
            "engine": {"name": "torch", "max_batch": 256, "lag": 1},
        }
    )
    for name, value in changes.items():
        OmegaConf.update(config, name.replace("__", "."), value)
    return config


def toy_policy(
    kind: str = "llama", config: Any = None, template: str = TEMPLATE, stops: str = "0123456789"
) -> Policy:
    """A randomly initialised policy of two layers; `gpt2` has absolute positions.

    The characters `stops` end a turn too, so that turns of random weights differ in length.
    """
    tokenizer = toy_tokenizer(template)
    torch.manual_seed(0)
    size, context = len(tokenizer), 512
    if kind == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=size,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=context,
                initializer_range=0.3,
            )
        )
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=size,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=context,
                initializer_range=0.3,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
    stop_ids = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(stops))]
    return Policy(model.eval(), tokenizer, stop_ids, (config or toy_config()).policy)


def toy_task(name: str, seed: int = 0) -> Task:
    return Task("toy", name, seed, f"{name}.toy", "0" * 64, "toy", 3, 2.0, 1)


Script = Callable[[Task, int, str], "Step | EnvFailure"]


def three_turns(task: Task, turn: int, action: str) -> Step:
    """Turn 0 is the reset. Observations differ in length and depend on the action; the third
    action wins and every action pays."""
    mark = zlib.crc32(f"{task.id}{turn}{action}".encode()) % 13
    step = Step(f"{task.id} room {turn} " + "x" * mark, "win the game")
    step.admissible = ("go a", "go abc", "look")[: 1 + turn % 3]
    if turn:
        step.reward = 0.25 * turn
    step.terminated = step.won = turn == 3
    return step


class FakePool:
    """An `EnvPool` in this process: `script(task, turn, action)` answers; remembers calls."""

    def __init__(self, script: Script = three_turns) -> None:
        self.script = script
        self.closed = False
        self.counts = {"resets_saved": 0, "steps_saved": 0}
        self.actions: dict[str, list[str]] = {}
        self._live: dict[int, tuple[Task, int]] = {}

    def reset(self, slots: dict[int, Task]) -> dict[int, Step | EnvFailure]:
        self._live.update({slot: (task, 0) for slot, task in slots.items()})
        return {slot: self.script(task, 0, "") for slot, task in slots.items()}

    def step(self, actions: dict[int, str]) -> dict[int, Step | EnvFailure]:
        answers = {}
        for slot, action in actions.items():
            task, turn = self._live[slot]
            self._live[slot] = (task, turn + 1)
            self.actions.setdefault(task.id, []).append(action)
            answers[slot] = self.script(task, turn + 1, action)
        return answers

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self._live.pop(slot, None)

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Returns scripted ids, `script(request) -> ids`; the log-probability of token i is -(i + 1)/8.

    Remembers the requests and what was released.
    """

    def __init__(self, script: Callable[[Request], list[int]], stop_ids: list[int]) -> None:
        self.script, self.stop_ids = script, stop_ids
        self.requests: list[Request] = []
        self.released: list[int] = []
        self.prefilled = 0
        self._finished: dict[int, Sample] = {}

    def add(self, requests: Sequence[Request]) -> None:
        self.requests += requests
        for request in requests:
            ids = self.script(request)
            logp = [-(i + 1) / 8 for i in range(len(ids))]
            self._finished[request.slot] = Sample(ids, logp, ids[-1] in self.stop_ids)

    def advance(self, temperature: float) -> dict[int, Sample]:
        finished, self._finished = self._finished, {}
        return finished

    def release(self, slots: Sequence[int]) -> None:
        self.released += slots
