"""Training: ours against TRL's step on the same rows; trained tokens a CPU second.

    python -m benchmarks.training_peers --trl PYTHON

Each side takes the same number of optimiser steps (AdamW, clipped gradients, fp32) from the same
weights. `benchmarks.training` compares ours with a bare pass.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks.ours import FIXED
from benchmarks.pairs import CHECKOUT, compare
from benchmarks.peers.peer import Peer, PeerError
from benchmarks.training import Played, make_rows
from policies.load import policy_path
from training.credit import Batch, assign
from training.step import Learner

WANTED = 1.6  # times TRL; 2 where members of a group share a prefix


class OurStep:
    """`Learner.update` on the played batch, from fresh weights every time."""

    def __init__(self, played: Played) -> None:
        self.played = played
        self.batch, _ = assign(played.algorithm, played.policy, played.groups, played.config)
        # A group without variance teaches nothing and ours would skip it: here every row counts.
        self.batch.advantages = self.batch.advantages + 0.01 * (self.batch.advantages == 0)
        self.learner = Learner(played.policy, played.algorithm, played.config)
        weights = played.policy.model.state_dict()
        self._fresh = {name: value.clone() for name, value in weights.items()}

    def __call__(self) -> float:
        self.played.policy.model.load_state_dict(self._fresh)
        return self.learner.update(self.batch, 0)["update"]["tokens_trained"]


def plan(played: Played, batch: Batch) -> dict[str, Any]:
    """What TRL's side needs: settings, and rows by optimiser step, groups together."""
    config = played.config
    rows = []
    advantages = batch.advantages.split(
        [sum(len(turn.ids) for turn in episode.turns) for episode in batch.episodes]
    )
    for episode, credit in zip(batch.episodes, advantages, strict=True):
        # One advantage a row is what TRL has; which one changes no time.
        for row in episode.rows:
            action = row.action.int().tolist()
            ids = row.ids.tolist()
            rows.append({"ids": ids, "action": action, "advantage": float(credit[0])})
    size = -(-len(rows) // config.algo.minibatches)
    return {
        "model": policy_path(config.policy),
        "steps": [rows[start : start + size] for start in range(0, len(rows), size)],
        "members": config.algo.group_size,
        "temperature": config.policy.temperature,
        "lr": config.optim.lr,
        "grad_clip": config.optim.grad_clip,
        "threads": config.threads,
        "seed": config.seed,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trl", default=os.environ.get("TRIVET_PEER_TRL"))
    parser.add_argument("overrides", nargs="*", help="more overrides of the cell, as for run.py")
    options = parser.parse_args(arguments)
    cache = f"paths.cache={CHECKOUT / '.cache'}"
    played = make_rows([*FIXED, cache, *options.overrides])
    ours = OurStep(played)
    sides: dict[str, Any] = {"ours": ours}
    missing: dict[str, str] = {}
    lengths = [len(row.ids) for row in played.rows]
    about = {"rows": len(lengths), "row_tokens": sum(lengths), "longest": max(lengths)}
    asked = plan(played, ours.batch)
    try:
        with Peer("trl_train", options.trl, asked) as peer:
            about["trained"] = peer.ask({})["units"]
            sides["TRL"] = lambda: peer.ask({})["units"]
            report = compare("training-trl", sides, "tokens", options.rounds, about=about)
        ratio = report["sides"]["TRL"]["first_over"]["median"]
        met = "met" if ratio >= WANTED else "NOT met"
        print(f"training-trl: {ratio:.2f} times TRL, wanted {WANTED}: {met}")
    except PeerError as error:
        missing["TRL"] = str(error)
        compare("training-trl", {"ours": ours}, "tokens", options.rounds, missing=missing)


if __name__ == "__main__":
    main()
