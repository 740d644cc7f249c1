"""AgileRL's LLMPPO plays: `RolloutCollector` and `get_action`, without vLLM.

This is what its training loop does to collect a batch. What does not work on a CPU as it comes, or
not with TextWorld, is worked around below, each where a comment says so.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import agilerl.algorithms.core.base
import torch
from agilerl.algorithms.ppo_llm import PPO
from agilerl.llm_envs import RolloutCollector, RolloutHarness
from peft import LoraConfig
from transformers import AutoTokenizer
from transformers.utils import logging

from benchmarks.peers.serve import Handler, Parts, World, serve, spoken

END = "<|end|>"
STARTING = threading.Lock()
# An answer is not closed by the template but by what follows it, as where no stop was sampled.
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}"
    "{% else %}{% if not loop.first %}<|end|>{% endif %}<|user|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Games(World):
    """AgileRL's client of an environment; row i of its data is game i."""

    dataset_size = 0
    tools: list[Any] = []  # noqa: RUF012 - the protocol reads it, nobody writes it
    takes_tool_calls = False
    answer_tool = None
    rubric_components = ()

    def __init__(self, files: list[str]) -> None:
        super().__init__()
        self._files = files
        self.dataset_size = len(files)

    def reset(self, seed: int | None = None, *, row_index: int | None = None) -> Any:
        # It starts all games at once in threads, and TextWorld's parser is one for all of them.
        with STARTING:
            return super().reset(self._files[row_index or 0]), {}

    def step(self, action: object) -> Any:
        seen = super().step(str(action))
        return seen, float(self.won), self.over, False, {}

    def close(self) -> None:
        self._env.close()

    @contextlib.contextmanager
    def eval_mode(self) -> Iterator[None]:
        yield


def start(plan: dict[str, Any]) -> Handler:
    torch.set_num_threads(plan["threads"])
    # A warning for every answer, that two limits are set, would be on the clock.
    logging.set_verbosity_error()
    torch.manual_seed(plan["seed"])
    tokenizer = _tokenizer(plan["model"])
    agent = _agent(plan, tokenizer)
    count = len(plan["games"])
    collector = RolloutCollector(
        lambda: RolloutHarness(
            Games(plan["games"]),
            tokenizer,
            max_turns=plan["turns"],
            max_model_len=plan["context"],
        ),
        batch_size=count,
        group_size=plan["members"],
        base_seed=plan["seed"],
    )
    trunk = next(m for m in agent.actor.modules() if type(m).__name__ == "LlamaModel")
    # It generates for one conversation at a time.
    parts = Parts(trunk, 1)

    def play(_request: dict[str, Any]) -> dict[str, Any]:
        parts.clear()
        prompts = collector.reset(seed=plan["seed"])
        while prompts is not None:
            sequences, _, logps = agent.get_action(prompts)
            prompts = collector.step(sequences, logps)
        ids, masks, turns, *_ = collector.get_trajectories()
        generated = sum(int(mask.sum()) for mask in masks)
        return {
            "units": generated,
            "read": sum(int(row.numel()) for row in ids) - generated,
            "turns": sum(int(row.max()) + 1 for row in turns),
            "longest": max(int(row.max()) + 1 for row in turns),
            "parts": parts.taken(),
        }

    return play


def _tokenizer(path: str) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(path)

    class Speaking(type(tokenizer)):
        """Decodes an answer up to where its author would have stopped."""

        def decode(self, *args: Any, **kwargs: Any) -> Any:
            return spoken(super().decode(*args, **{**kwargs, "skip_special_tokens": False}), END)

    tokenizer.__class__ = Speaking
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _agent(plan: dict[str, Any], tokenizer: Any) -> PPO:
    # It patches models with liger's kernels wherever liger is installed, and it does not run
    # without liger installed; the kernels are Triton's and need a GPU.
    agilerl.algorithms.core.base.HAS_LIGER_KERNEL = False
    rows = len(plan["games"]) * plan["members"]
    agent = PPO(
        pad_token_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
        model_name=plan["model"],
        model_config={"torch_dtype": getattr(torch, plan["dtype"])},
        lora_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        temperature=plan["temperature"],
        top_k=0,
        max_output_tokens=plan["tokens"],
        max_model_len=plan["context"],
        hf_generate_chunk_size=rows,
        batch_size=rows,
        micro_batch_size_per_gpu=1,
        gradient_checkpointing=False,
        use_liger_loss=False,
        device="cpu",
        seed=plan["seed"],
    )
    for module in agent.actor.modules():
        if getattr(module, "generation_config", None) is not None:
            # No token ends an answer.
            module.generation_config.eos_token_id = None
    return agent


if __name__ == "__main__":
    serve(start)
