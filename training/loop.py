"""The training loop: read it from top to bottom."""

from __future__ import annotations

from typing import Any

import torch

from algorithms import make_algorithm
from envs.suites import Suites, make_suites
from policies.load import load_policy
from rollouts.player import Player
from runs.directory import Run
from training import checkpoint
from training.credit import assign
from training.sft import Teacher
from training.step import Learner


def train(config: Any, run: Run) -> None:
    """Train the agent that `config` describes and leave what happened in `run`.

    Iteration k of any record is the policy after k updates; 0 is the base policy, evaluated
    before anything has been learned and exactly as the last one is.
    """
    torch.set_num_threads(config.threads)
    faults = [name for name, on in config.compat.items() if on]  # none, unless asked for
    run.announce(faults)
    algorithm = make_algorithm(config.algo, faults)  # credit(episodes) -> advantages, loss(tokens)
    suites = make_suites(config, run.progress)  # ordered tasks; overlap is refused
    reference = algorithm.needs_reference or algorithm.kl_in_reward
    policy = load_policy(config.policy, algorithm.needs_critic, reference, config.seed)
    learner = Learner(policy, algorithm, config)  # the optimiser
    teacher = Teacher(config, policy, suites, run.progress)  # demonstrations, if any
    run.resume_from(checkpoint.restore(run, learner))

    with Player(config, policy, algorithm.min_group) as player:  # engine + environment workers
        player.check_context([suites.get(name).tasks[0] for name in config.eval.suites])
        if run.wants_evaluation(0):
            evaluate(player, suites, run, 0)

        for iteration in run.iterations():  # knows where an interrupted run stopped
            done = iteration + 1
            if run.imitates and (iteration == 0 or not algorithm.plays):
                run.log(done, **teacher.teach(learner, iteration))
            else:
                tasks = suites.get("train").draw(config.seed, iteration, config.train.tasks)
                groups = player.play(tasks, iteration)
                playing = player.health.summary()
                batch, advantages = assign(algorithm, policy, groups, config)
                update = learner.update(batch, iteration)
                run.record_episodes(done, groups, advantages)
                run.log(done, play=groups, playing=playing, **update)

            if run.wants_evaluation(done):
                evaluate(player, suites, run, done)
            if run.wants_checkpoint(done):
                checkpoint.save(run, learner, done)


def evaluate(player: Player, suites: Suites, run: Run, iteration: int) -> None:
    """Play every task of `eval.suites`: `eval.samples` times sampled and, for the base and after
    the last update, once greedily."""
    settings = run.config.eval
    for name in settings.suites:
        suite = suites.get(name)
        for sample in range(settings.samples):
            episodes = player.evaluate(suite, iteration, sample=sample)
            temperature = run.config.policy.temperature
            run.record_evaluation(iteration, name, episodes, temperature, sample)
        if settings.greedy and iteration in (0, run.total):
            episodes = player.evaluate(suite, iteration, greedy=True)
            run.record_evaluation(iteration, name, episodes, 0.0)
