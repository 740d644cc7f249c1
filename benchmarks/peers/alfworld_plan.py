"""Stock ALFWorld plans a game: TextWorld's `PddlEnv` asks Fast Downward for commands that win.

One environment plays all games, for every further one keeps 4 MB of memory and 30 MB of disk.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import os
import tempfile
from typing import Any

# Importing it makes a folder there.
os.environ.setdefault("ALFWORLD_DATA", tempfile.gettempdir())

from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos
from textworld.envs import PddlEnv

from benchmarks.peers.serve import Handler, serve


def start(_plan: dict[str, Any]) -> Handler:
    infos = EnvInfos(won=True)
    env = AlfredDemangler(PddlEnv(infos))

    def solve(request: dict[str, Any]) -> dict[str, Any]:
        """`won`: whether the game's walkthrough wins here, `early` before its end; `planned`: Fast
        Downward's own commands, where they are asked for."""
        env.load(request["game"])
        infos.policy_commands = request["plan"]
        state = env.reset()
        planned = list(state["policy_commands"]) if request["plan"] else None
        # Planning again after every step would cost as much each time.
        infos.policy_commands = False
        early = bool(state["won"])
        for command in request["game"]["walkthrough"]:
            early = early or bool(state["won"])
            state, _, _ = env.step(command)
        return {"planned": planned, "won": bool(state["won"]), "early": early}

    return solve


if __name__ == "__main__":
    serve(start)
