"""What is known of deterministic games: a tree of commands, shared by every episode of a run."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from envs.base import Step, Task

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Node:
    """A place in a game: the Step that led here, and the places that commands lead to.

    Steps are shared by all episodes that pass: nobody may change one.
    """

    step: Step
    after: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class _Game:
    start: Node
    nodes: int = 1


class Transitions:
    """At most `limit` steps, kept game by game; where there are more, the game that was used
    longest ago is forgotten. With a limit of 0 nothing is kept.

    Forgetting costs time and changes nothing: an episode keeps the node it is at.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._games: OrderedDict[Task, _Game] = OrderedDict()
        self._nodes = 0

    def __len__(self) -> int:
        return self._nodes

    def start(self, task: Task) -> Node | None:
        """Where the game begins, if that is known."""
        game = self._games.get(task)
        if game is None:
            return None
        self._games.move_to_end(task)
        return game.start

    def begin(self, task: Task, step: Step) -> Node:
        """Learn where a game begins."""
        node = Node(step)
        self._nodes += 1
        self._games[task] = _Game(node)
        self._forget()
        return node

    def learn(self, task: Task, node: Node, action: str, step: Step) -> Node:
        """Learn where `action` leads from `node`."""
        step.objective = _same(step.objective, node.step.objective)
        step.observation = _same(step.observation, node.step.observation)
        step.admissible = _same(step.admissible, node.step.admissible)
        found = Node(step)
        game = self._games.get(task)
        if game is not None:
            node.after[action] = found
            game.nodes += 1
            self._nodes += 1
            self._games.move_to_end(task)
            self._forget()
        return found

    def _forget(self) -> None:
        while self._nodes > self._limit:
            _, game = self._games.popitem(last=False)
            self._nodes -= game.nodes


def _same(new: T, old: T) -> T:
    """The old object where both are equal, so that equal texts are stored once."""
    return old if new == old else new
