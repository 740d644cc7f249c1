"""SmolLM2-135M: ours against transformers' `generate` and a plain training step, and peak memory.

    python -m benchmarks.smollm FILE.gguf

`generate` answers the same prompts turn by turn, the whole conversation each time, as a batch; the
plain step is one padded forward and backward pass over the same rows and an AdamW step. Peak
memory is that of a child process each, which loads the model and does one round.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.ours import Ours
from benchmarks.pairs import CHECKOUT, Measured, MeasureError, compare, machine, write
from benchmarks.peers.serve import Parts
from benchmarks.playing import Rounds
from benchmarks.training import Played
from benchmarks.training_peers import OurStep
from policies.load import load_model
from rollouts.types import Row

TOKENS = 8
SIDES = ("ours, playing", "generate", "ours, training", "plain step")


class Generate:
    """transformers' `generate` on the prompts of every turn of `rows`."""

    def __init__(self, path: str, rows: list[Row], temperature: float) -> None:
        model, tokenizer = load_model(path)
        self._model: Any = model
        self._model.generation_config.eos_token_id = None
        pad = tokenizer.pad_token_id
        self._pad = pad if isinstance(pad, int) else 0
        self._rows, self._temperature = rows, temperature
        self._observed = sum(int((~row.action).sum()) for row in rows)
        self._parts = Parts(model.base_model, len(rows))

    @torch.no_grad()
    def play(self) -> dict[str, Any]:
        """One round; `units` are generated tokens."""
        self._parts.clear()
        units = 0
        for turn in range(max(int(row.turn.max()) for row in self._rows) + 1):
            starts = [(row, (row.turn == turn).nonzero()) for row in self._rows]
            prompts = [row.ids[: int(at[0])] for row, at in starts if len(at)]
            ids, real = self._padded(prompts)
            out = self._model.generate(
                input_ids=ids,
                attention_mask=real,
                do_sample=True,
                temperature=self._temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=TOKENS,
                pad_token_id=self._pad,
            )
            units += out[:, ids.shape[1] :].numel()
        return {"units": units, "read": self._observed, "parts": self._parts.taken()}

    def _padded(self, prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._pad)
        real = torch.zeros((len(prompts), width), dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids[index, width - len(prompt) :] = prompt
            real[index, width - len(prompt) :] = 1
        return ids, real


class PlainStep:
    """Policy gradient on rows as most would write it: padded, logits everywhere, AdamW."""

    def __init__(self, path: str, rows: list[Row], minibatches: int) -> None:
        self._model, _ = load_model(path)
        self._model.train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6)
        size = -(-len(rows) // minibatches)
        self._steps = [rows[start : start + size] for start in range(0, len(rows), size)]

    def __call__(self) -> float:
        trained = 0
        for rows in self._steps:
            ids = torch.nn.utils.rnn.pad_sequence([row.ids for row in rows], batch_first=True)
            acts = torch.nn.utils.rnn.pad_sequence([row.action for row in rows], batch_first=True)
            real = torch.zeros_like(ids)
            for index, row in enumerate(rows):
                real[index, : len(row.ids)] = 1
            logits = self._model(input_ids=ids, attention_mask=real).logits[:, :-1]
            logp = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
            wanted = acts[:, 1:]
            loss = -(logp * wanted).sum() / wanted.sum()
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            trained += int(wanted.sum())
        return trained


def settings(options: argparse.Namespace) -> list[str]:
    """Overrides of ours: `options.episodes` episodes in groups of 4 of `options.turns` turns."""
    return [
        "policy=hf",
        f"policy.path={Path(options.model).resolve()}",
        f"policy.max_tokens={TOKENS}",
        "policy.context=2048",
        f"env.max_turns={options.turns}",
        f"train.tasks={options.episodes // 4}",
        "algo.group_size=4",
        "algo.minibatches=1",
        f"optim.micro_tokens={options.micro_tokens}",
    ]


def side(name: str, options: argparse.Namespace, ours: Ours | None, rows: list[Row]) -> Callable:
    """The side `name`, ready for rounds; `ours` has played `rows`."""
    path = str(options.model)
    if name == "generate":
        return Generate(path, rows, 0.7).play
    if name == "plain step":
        return PlainStep(path, rows, 1)
    assert ours is not None
    if name == "ours, playing":
        return ours.play
    return OurStep(Played(ours.config, ours.policy, ours.algorithm, ours.groups))


def peak(name: str, options: argparse.Namespace, rows: Path) -> float:
    """MiB that a child needed at most to load the model and do one round of side `name`."""
    command = [sys.executable, "-m", "benchmarks.smollm", *sys.argv[1:]]
    command += ["--side", name, "--rows", str(rows)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:]
        raise MeasureError(f"smollm: {' '.join(command)} failed: {' '.join(words)}")
    return float(done.stdout.strip().splitlines()[-1])


def one_round(options: argparse.Namespace) -> None:
    """What the child of `peak` does; prints its peak in MiB."""
    if options.side.startswith("ours"):
        with Ours(settings(options)) as ours:
            ours.play()
            if options.side == "ours, training":
                side(options.side, options, ours, ours.rows)()
    else:
        torch.set_num_threads(1)
        side(options.side, options, None, _load(options.rows))()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    if options.side:
        one_round(options)
        return
    with Ours(settings(options)) as ours:
        ours.play()
        rows = ours.rows
        about = {"rows": len(rows), "row_tokens": [len(row.ids) for row in rows]}
        plays = {name: Rounds(side(name, options, ours, rows)) for name in SIDES[:2]}
        compare("smollm-playing", plays, "tokens", options.rounds, about=about)
        for part, unit in (("decoding", "generated tokens"), ("reading", "observed tokens")):
            again: dict[str, Callable[[], Measured]]
            again = {name: taken.replay(part) for name, taken in plays.items()}
            compare(f"smollm-{part}", again, unit, options.rounds, about=about)
        del plays
        steps = {name: side(name, options, ours, rows) for name in SIDES[2:]}
        compare("smollm-training", steps, "tokens", options.rounds, about=about)
        del steps
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        _save(rows, path)
        peaks = {name: peak(name, options, path) for name in SIDES}
    write({"name": "smollm-memory", "unit": "MiB", "machine": machine(), "peaks": peaks})
    for name, size in peaks.items():
        print(f"peak memory, {name}: {size:,.0f} MiB")


def _save(rows: list[Row], path: Path) -> None:
    kept = [
        {name: getattr(row, name).tolist() for name in ("ids", "action", "turn")} for row in rows
    ]
    path.write_text(json.dumps(kept))


def _load(path: Path) -> list[Row]:
    return [
        Row(
            ids=torch.tensor(row["ids"]),
            action=torch.tensor(row["action"]),
            turn=torch.tensor(row["turn"]),
            logp=torch.zeros(len(row["ids"])),
            episode=index,
            group=0,
            member=index,
            version=0,
        )
        for index, row in enumerate(json.loads(path.read_text()))
    ]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smollm")
    parser.add_argument("model", type=Path, help="a GGUF file or a directory of the model")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=8, help="in groups of four")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--micro-tokens", type=int, default=4096)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
