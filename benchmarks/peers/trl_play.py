"""TRL's GRPOTrainer plays: `environment_factory` on transformers' generation.

Its environments are called as tools. The tiny policy speaks plain commands, so the tokenizer here
takes every answer as a call of `step(command)`; the template shows what `step` returned as the
next user message, and nothing ends an answer before its last token.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TokenizersBackend
from trl import GRPOConfig, GRPOTrainer

from benchmarks.peers.serve import Handler, Parts, World, serve, spoken

END = "<|end|>"
# An answer is not closed by the template but by what follows it, as where no stop was sampled.
# The call's name and arguments are rendered for TRL's check of templates; no prompt holds them.
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    "{% else %}{% if m.role == 'tool' %}<|end|>{% endif %}<|user|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def start(plan: dict[str, Any]) -> Handler:
    torch.set_num_threads(plan["threads"])
    torch.manual_seed(plan["seed"])
    trainer = _trainer(plan)
    parts = Parts(trainer.model.base_model, len(plan["games"]) * plan["members"])
    rows = [
        {"prompt": [{"role": "user", "content": ""}], "file": file}
        for file in plan["games"]
        for _ in range(plan["members"])
    ]

    def play(_request: dict[str, Any]) -> dict[str, Any]:
        parts.clear()
        out = trainer._generate_and_score_completions(rows)
        generated = out["completion_mask"] * out["tool_mask"]
        turns = [environment.turns for environment in trainer.environments]
        read = int(out["prompt_mask"].sum() + (out["completion_mask"] - generated).sum())
        return {
            "units": int(generated.sum()),
            "read": read,
            "turns": sum(turns),
            "longest": max(turns),
            "parts": parts.taken(),
        }

    return play


def _trainer(plan: dict[str, Any]) -> GRPOTrainer:
    turns, tokens = plan["turns"], plan["tokens"]

    class Game(World):
        """A tool for TRL: `step`; everything else is hidden behind an underscore or `reset`."""

        def __init__(self) -> None:
            super().__init__()
            self.turns = 0

        def reset(self, file: str, **_: Any) -> str:
            self.turns = 0
            return super().reset(file)

        def step(self, command: str) -> str:
            """Do something in the game.

            Args:
                command: what to do.

            Returns:
                What is seen then.
            """
            self.turns += 1
            return "" if self.over else super().step(command)

        def get_reward(self) -> float:
            return float(self.won)

    model = AutoModelForCausalLM.from_pretrained(plan["model"], dtype=getattr(torch, plan["dtype"]))
    model.generation_config.eos_token_id = None
    rows = len(plan["games"]) * plan["members"]
    folder = tempfile.TemporaryDirectory()
    made = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir=folder.name,
            use_cpu=True,
            bf16=False,
            report_to="none",
            beta=0.0,
            temperature=plan["temperature"],
            gradient_checkpointing=False,
            num_generations=plan["members"],
            per_device_train_batch_size=rows,
            max_completion_length=plan["context"],
            # The last answer is not stepped here: its result would be read by nobody.
            max_tool_calling_iterations=turns - 1,
            generation_kwargs={"max_new_tokens": tokens},
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": ""}]}]),
        processing_class=_tokenizer(plan["model"]),
        environment_factory=Game,
    )
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    return made


def _tokenizer(path: str) -> Any:
    class Speaking(TokenizersBackend):
        """Takes every answer as a command for the game."""

        def parse_response(self, response: list[int], *_: Any, **__: Any) -> dict[str, Any]:
            command = spoken(str(self.decode(response)), END)
            call = {"name": "step", "arguments": {"command": command}}
            calls = [{"type": "function", "function": call}]
            return {"role": "assistant", "content": "", "tool_calls": calls}

    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.__class__ = Speaking
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = {}
    # A token that the model cannot sample: every answer has its full number of tokens.
    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    return tokenizer


if __name__ == "__main__":
    serve(start)
