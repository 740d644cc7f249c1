"""Make the base policies that ship with the project, from generated games alone.

    python -m policies.base.make_base demos                  # plays experts, about 20 minutes
    python -m policies.base.make_base train --size small     # keeps checkpoints in outputs/base
    python -m policies.base.make_base ship outputs/base/small/0400 --size small
    python -m policies.base.make_base train --size large     # grows from the small one
    python -m policies.base.make_base ship outputs/base/large/0040 --size large
    python -m policies.base.make_base ship outputs/…/checkpoints/000001 --size house

A small Llama-architecture model is trained on expert commands (`demonstrations.py`) with entities
renamed (`renaming.py`). The checkpoint that ships is the first one that is weak but alive: its
success on the w2-o3-q4 validation games at temperature 0.7 lies between 0.15 and 0.35. The large
one is the small one with twice the layers (`grow`), trained a little further. The house one is the
small one after a run of `algo=sft` in ALFWorld's houses (README.md has its command).
"""

from __future__ import annotations

import argparse
import copy
import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from policies.base import demonstrations
from policies.base.demonstrations import Demonstration
from policies.base.renaming import Renamer
from policies.chat import ChatForm, first_message
from policies.tokenizer import END, build_tokenizer

HERE = Path(__file__).parent
PEAK_LR = {"small": 2e-3, "large": 5e-4}
UPDATES = {"small": 700, "large": 60}
WARMUP = {"small": 60, "large": 10}
BATCH, READING = 32, 0.1


def tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer((HERE / "vocabulary.txt").read_text().split("\n")[:-1])


def new_model(vocabulary: int) -> LlamaForCausalLM:
    """A small model with fresh weights; embeddings are tied, else half of it would be the head."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=384,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def grow(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The model with a new layer after each of its own, and the same outputs.

    A new layer is a copy whose contribution to the residual stream is zero until it learns
    (function-preserving growth, as Net2Net of Chen et al. 2016, arXiv 1511.05641).
    """
    config = copy.deepcopy(model.config)
    config.num_hidden_layers *= 2
    grown = LlamaForCausalLM(config)
    weights = {}
    for name, value in model.state_dict().items():
        head, layers, rest = name.partition("model.layers.")
        if not layers:
            weights[name] = value
            continue
        number, _, part = rest.partition(".")
        silent = part in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
        weights[f"{head}{layers}{2 * int(number)}.{part}"] = value
        weights[f"{head}{layers}{2 * int(number) + 1}.{part}"] = value * (0 if silent else 1)
    grown.load_state_dict(weights)
    return grown


def encode(demo: Demonstration, chat: ChatForm) -> tuple[list[int], list[bool]]:
    """Ids of the whole game and a mask that is True on the expert's commands and their end."""
    end = chat.tokenizer.eos_token_id
    messages = [chat.user(first_message(demo.objective, demo.first))]
    ids = chat.prompt(messages)
    mask = [False] * len(ids)
    for done, best, seen in demo.turns:
        command = [*chat.tokenizer(done, add_special_tokens=False)["input_ids"], end]
        answer = chat.user(seen)
        ids += command
        mask += [done == best] * len(command)
        more = chat.extend(messages, command, answer)
        assert more is not None
        ids += more
        mask += [False] * len(more)
        messages = [*messages, chat.assistant(command), answer]
    return ids, mask


def loss_of(model: LlamaForCausalLM, batch: list[tuple[list[int], list[bool]]]) -> Tensor:
    """Mean cross-entropy: weight 1 on the expert's tokens, `READING` on a tenth of the others."""
    length = max(len(ids) for ids, _ in batch)
    tokens = torch.zeros(len(batch), length, dtype=torch.long)
    weight = torch.zeros(len(batch), length)
    for row, (ids, mask) in enumerate(batch):
        tokens[row, : len(ids)] = torch.tensor(ids)
        weight[row, : len(ids)] = torch.tensor(mask, dtype=torch.float32)
        others = (torch.rand(len(ids)) < READING) & (weight[row, : len(ids)] == 0)
        weight[row, : len(ids)][others] = READING
    hidden = model.model(tokens[:, :-1]).last_hidden_state
    target, weight = tokens[:, 1:], weight[:, 1:]
    chosen = weight > 0
    logits = model.lm_head(hidden[chosen])
    each = F.cross_entropy(logits, target[chosen], reduction="none")
    return (each * weight[chosen]).sum() / weight[chosen].sum()


def batches(
    demos: list[Demonstration], chat: ChatForm
) -> Iterator[list[tuple[list[int], list[bool]]]]:
    """Endless batches of encoded demonstrations, drawn and renamed by a fixed seed."""
    rng, renamer = random.Random(0), Renamer(demos)
    while True:
        batch = [encode(renamer.rename(rng.choice(demos), rng), chat) for _ in range(BATCH)]
        yield sorted(batch, key=lambda item: len(item[0]))


def train(size: str, data: Path, out: Path, every: int = 20) -> None:
    """Train a base and keep a checkpoint every `every` updates, from which one is chosen."""
    torch.manual_seed(0)
    words = tokenizer()
    chat = ChatForm(words, size, [words.get_vocab()[END]])
    if size == "small":
        model = new_model(len(words))
    else:
        model = grow(LlamaForCausalLM.from_pretrained(HERE / "small", dtype=torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05, betas=(0.9, 0.95))
    source = batches(list(demonstrations.read(data)), chat)
    for update in track(range(1, UPDATES[size] + 1), description=f"base policy, {size}"):
        decay = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * update / UPDATES[size]))
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR[size] * min(1.0, update / WARMUP[size]) * decay
        optimizer.zero_grad()
        batch = next(source)
        for half in (batch[: BATCH // 2], batch[BATCH // 2 :]):
            (loss_of(model, half) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % every == 0:
            save(model, words, out / size / f"{update:04d}")


def save(model: LlamaForCausalLM, words: PreTrainedTokenizerBase, out: Path) -> None:
    """Weights and tokenizer in transformers' layout."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    words.save_pretrained(out)


def ship(checkpoint: Path, size: str) -> None:
    """Put a chosen checkpoint beside this file, in float16: both sizes stay under 20 MB."""
    model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float16)
    save(model, tokenizer(), HERE / size)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the base policies.")
    steps = parser.add_subparsers(dest="step", required=True)
    play = steps.add_parser("demos", help="build games and play them as the expert")
    play.add_argument("--seeds", default="60001-60276,61000-61275", help="ranges, from 60001 on")
    play.add_argument("--cache", type=Path, default=Path(".cache"))
    learn = steps.add_parser("train", help="train on them and keep checkpoints")
    learn.add_argument("--size", choices=sorted(UPDATES), default="small")
    put = steps.add_parser("ship", help="put a checkpoint beside this file")
    put.add_argument("checkpoint", type=Path)
    put.add_argument("--size", choices=[*sorted(UPDATES), "house"], required=True)
    for step in (play, learn):
        step.add_argument("--work", type=Path, default=Path("outputs/base"))
    options = parser.parse_args()
    if options.step == "demos":
        options.work.mkdir(parents=True, exist_ok=True)
        bounds = [part.split("-") for part in options.seeds.split(",")]
        seeds = [seed for low, high in bounds for seed in range(int(low), int(high) + 1)]
        demonstrations.collect(options.work / "demos.jsonl", options.cache, seeds)
    elif options.step == "train":
        train(options.size, options.work / "demos.jsonl", options.work)
    else:
        ship(options.checkpoint, options.size)


if __name__ == "__main__":
    main()
