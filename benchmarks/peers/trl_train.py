"""TRL's GRPOTrainer takes optimiser steps on rows that it is given instead of playing its own."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

from benchmarks.peers.serve import Handler, serve


def start(plan: dict[str, Any]) -> Handler:
    torch.set_num_threads(plan["threads"])
    torch.manual_seed(plan["seed"])
    trainer = _trainer(plan)
    steps = [_batch(plan, rows, trainer._tokenizer.pad_token_id) for rows in plan["steps"]]
    # What follows is the trainer's own step; only the rows come from outside.
    trainer._prepare_inputs = lambda inputs: inputs
    fresh = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    def train(_request: dict[str, Any]) -> dict[str, Any]:
        trainer.model.load_state_dict(fresh)
        for inputs in steps:
            trainer.training_step(trainer.model, inputs, inputs["num_items_in_batch"])
            trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), plan["grad_clip"])
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        return {"units": sum(int(inputs["tool_mask"].sum()) for inputs in steps)}

    return train


def _trainer(plan: dict[str, Any]) -> GRPOTrainer:
    folder = tempfile.TemporaryDirectory()
    rows = max(len(step) for step in plan["steps"])
    made = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(plan["model"], dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=folder.name,
            use_cpu=True,
            bf16=False,
            report_to="none",
            beta=0.0,
            loss_type="dapo",
            learning_rate=plan["lr"],
            temperature=plan["temperature"],
            gradient_checkpointing=False,
            num_generations=plan["members"],
            per_device_train_batch_size=rows,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": ""}]}]),
        processing_class=AutoTokenizer.from_pretrained(plan["model"]),
    )
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    made.create_optimizer()
    return made


def _batch(plan: dict[str, Any], rows: list[dict[str, Any]], pad_id: int) -> dict[str, Any]:
    """A padded batch as its trainer makes them: prompts to the left, the rest to the right."""
    prompts, answers, masks = [], [], []
    for row in rows:
        first = row["action"].index(1)
        prompts.append(torch.tensor(row["ids"][:first]))
        answers.append(torch.tensor(row["ids"][first:]))
        masks.append(torch.tensor(row["action"][first:]))
    ones = [torch.ones_like(ids) for ids in prompts]
    whole = [torch.ones_like(ids) for ids in answers]
    mask = pad(masks, padding_value=0, padding_side="right")
    return {
        "prompt_ids": pad(prompts, padding_value=pad_id, padding_side="left"),
        "prompt_mask": pad(ones, padding_value=0, padding_side="left"),
        "completion_ids": pad(answers, padding_value=pad_id, padding_side="right"),
        "completion_mask": pad(whole, padding_value=0, padding_side="right"),
        "tool_mask": mask,
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "num_items_in_batch": mask.sum(),
    }


if __name__ == "__main__":
    serve(start)
