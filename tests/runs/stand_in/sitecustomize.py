"""Put on PYTHONPATH, this replaces `training.loop` by a loop that learns nothing, at once.

What goes wrong is told by TRIVET_STAND_IN, JSON: `fail`, `kill` and `wait` name the seed of the
cell that raises, is killed by the system, or waits to be interrupted, after one update.
"""

import json
import os
import signal
import sys
import time
import types

from episodes import episode

TROUBLE = json.loads(os.environ.get("TRIVET_STAND_IN", "{}"))


def evaluate(run, iteration: int) -> None:
    wins = 1 + iteration
    run.record_evaluation(iteration, "test", [episode(n, n < wins) for n in range(4)], 0.7)
    run.record_evaluation(iteration, "test", [episode(n, n < wins) for n in range(4)], 0.0)


def train(config, run) -> None:
    checkpoints = run.checkpoints()
    run.resume_from(checkpoints[0][0] if checkpoints else None)
    if run.wants_evaluation(0):
        evaluate(run, 0)
    for iteration in run.iterations():
        done = iteration + 1
        members = [episode(0, True), episode(0, False)]
        group = types.SimpleNamespace(
            index=0, task=members[0].task, episodes=members, alive=members
        )
        run.record_episodes(done, [group], [[[0.5, 0.5], [-0.5, -0.5]]])
        run.log(done, play=[group], update={"tokens_trained": 4, "gradient_steps": 1, "loss": 0.1})
        if run.wants_evaluation(done):
            evaluate(run, done)
        if run.wants_checkpoint(done):
            run.checkpoint_dir(done).mkdir(exist_ok=True)
        trouble(config.seed, done, not checkpoints)


def trouble(seed: int, done: int, first_attempt: bool) -> None:
    if done != 1:
        return
    if TROUBLE.get("fail") == seed:
        raise RuntimeError("the model caught fire")
    if TROUBLE.get("kill") == seed and first_attempt:
        os.kill(os.getpid(), signal.SIGKILL)
    if TROUBLE.get("wait") == seed:
        print("waiting", flush=True)
        time.sleep(120)


loop = types.ModuleType("training.loop")
loop.__dict__["train"] = train
sys.modules["training.loop"] = loop
