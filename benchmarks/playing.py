"""Playing: ours against TRL, AgileRL, a bare loop over the same tokens, and one that re-reads.

    python -m benchmarks.playing --trl PYTHON --agilerl PYTHON

64 episodes of the tiny policy (16 games, 4 members), turns of exactly 8 sampled tokens, the games
themselves included; generated tokens a CPU second. The loops forward what ours really played.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.bare import Bare, turns_of
from benchmarks.ours import Ours
from benchmarks.pairs import Measured, compare
from benchmarks.peers.peer import Peer, PeerError
from policies.load import policy_path

TOKENS = 8
# At least this many times as fast as each, by turns; None: at any number of them.
WANTED = {"TRL": {6: 3.0, 12: 4.0, 24: 6.0}, "AgileRL": {6: 5.0}, "bare loop": {None: 0.8}}

Play = Callable[[], dict[str, Any]]


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    for dtype in options.dtype:
        for turns in options.turns:
            play(dtype, turns, options)


def play(dtype: str, turns: int, options: argparse.Namespace) -> dict[str, Any]:
    """One comparison, whole and then by parts; returns the report of the whole."""
    overrides = [
        f"env.max_turns={turns}",
        f"train.tasks={options.games}",
        f"algo.group_size={options.members}",
        f"policy.max_tokens={TOKENS}",
        "policy.context=2048",
        *options.overrides,
    ]
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(Ours(overrides, dtype))
        plays: dict[str, Play] = {"ours": ours.play}
        ours.play()
        plays |= _peers(stack, ours, dtype, turns, options, missing)
        plays |= _loops(ours, dtype)
        rounds = {name: Rounds(one) for name, one in plays.items()}
        name = f"playing-{dtype}-{turns}"
        about = _about(ours, dtype, turns)
        about["parts"] = {side: taken.parts for side, taken in rounds.items()}
        report = compare(name, dict(rounds), "tokens", options.rounds, about=about, missing=missing)
    for part in ("decoding", "reading"):
        sides = {side: taken.replay(part) for side, taken in rounds.items()}
        unit = "generated tokens" if part == "decoding" else "observed tokens"
        compare(f"{name}-{part}", sides, unit, options.rounds, about=about)
    for line in verdicts(report, turns):
        print(line)
    return report


class Rounds:
    """A side of `compare` that keeps what each round said of its parts."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.parts: list[dict[str, Any]] = []

    def __call__(self) -> float | Measured:
        out = self._play()
        self.parts.append({"generated": out["units"], "observed": out["read"], **out["parts"]})
        return Measured(out["units"], out["cpu"], out["wall"]) if "cpu" in out else out["units"]

    def replay(self, part: str) -> Callable[[], Measured]:
        """The rounds again, as what they spent inside the model on one part."""
        units = "generated" if part == "decoding" else "observed"
        rows = iter(
            [Measured(row[units], row["seconds"][part], row["wall"][part]) for row in self.parts]
        )
        return lambda: next(rows)


def verdicts(report: dict[str, Any], turns: int) -> list[str]:
    """A line for every ratio that is wanted: what it should be, and is."""
    ratios = {side: row["first_over"]["median"] for side, row in report["sides"].items()}
    # The faster of the two caches is the yardstick.
    loops = [name for name in ratios if name.startswith("bare loop")]
    yardstick = min(loops, key=lambda name: ratios[name])
    lines = []
    for name, wanted in WANTED.items():
        side = yardstick if name == "bare loop" else name
        least = wanted.get(turns, wanted.get(None))
        if side in ratios and least is not None:
            met = "met" if ratios[side] >= least else "NOT met"
            lines.append(f"{report['name']}: {ratios[side]:.2f} x {side}, wanted {least}: {met}")
    return lines


def _peers(
    stack: ExitStack,
    ours: Ours,
    dtype: str,
    turns: int,
    options: argparse.Namespace,
    missing: dict[str, str],
) -> dict[str, Play]:
    """The peers that run here, each asked for a round already; the others go to `missing`."""
    plan = {
        "model": policy_path(ours.config.policy),
        "games": [task.file for task in ours.tasks],
        "members": options.members,
        "turns": turns,
        "tokens": TOKENS,
        "temperature": ours.config.policy.temperature,
        "dtype": dtype,
        "seed": ours.config.seed,
        "threads": ours.config.threads,
        "context": ours.config.policy.context,
    }
    wanted = [("TRL", "trl_play", options.trl)]
    if turns in options.agilerl_turns:
        wanted.append(("AgileRL", "agilerl_play", options.agilerl))
    found: dict[str, Play] = {}
    for name, script, python in wanted:
        try:
            peer = stack.enter_context(Peer(script, python, plan))
            peer.ask({})
        except PeerError as error:
            missing[name] = str(error)
            continue
        found[name] = lambda peer=peer: peer.ask({})
    return found


def _loops(ours: Ours, dtype: str) -> dict[str, Play]:
    """The bare loop with either cache, and the one that reads its history again every turn."""
    path, rows = policy_path(ours.config.policy), ours.rows
    temperature = ours.config.policy.temperature
    observed = sum(int((~row.action).sum()) for row in rows)

    def loop(**options: bool) -> Play:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        reread, static = options.get("reread", False), options.get("static", False)
        bare = Bare(model, turns_of(rows, reread, static), temperature, reread, static)
        return lambda: {**bare.play(), "read": observed}

    return {
        "bare loop": loop(),
        "bare loop, StaticCache": loop(static=True),
        "re-reads": loop(reread=True),
    }


def _about(ours: Ours, dtype: str, turns: int) -> dict[str, Any]:
    lengths = [len(episode.turns) for episode in ours.episodes]
    return {
        "dtype": dtype,
        "turns": turns,
        "tokens_a_turn": TOKENS,
        "episodes": len(lengths),
        "ended_early": sum(length < turns for length in lengths),
        "mean_turns": sum(lengths) / len(lengths),
        "temperature": ours.config.policy.temperature,
        "parameters": sum(p.numel() for p in ours.policy.model.parameters()),
        "first_prompt": [int(row.action.nonzero()[0]) for row in ours.rows],
        "bf16_instructions": _has_bf16(),
    }


def _has_bf16() -> bool | None:
    """Whether this processor multiplies bfloat16 itself; None where torch cannot tell."""
    capabilities = getattr(torch.backends.cpu, "get_cpu_capability", None)
    test = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(test()) if test and capabilities else None


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.playing")
    parser.add_argument("--turns", type=int, nargs="+", default=[6, 12, 24])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--games", type=int, default=16)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--trl", default=os.environ.get("TRIVET_PEER_TRL"))
    parser.add_argument("--agilerl", default=os.environ.get("TRIVET_PEER_AGILERL"))
    parser.add_argument("--agilerl-turns", type=int, nargs="*", default=[6])
    parser.add_argument("overrides", nargs="*", help="more overrides of ours, as for run.py")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
