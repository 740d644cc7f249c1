"""TextWorld games as they are played here: loaded once, and tracking no more than is read.

An interpreter can be put back to any place that it was at in a hundredth of the time of a step. So
the episodes of a game share one, and none begins or catches up by playing again what was played.
"""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import textworld
from textworld.core import GameState
from textworld.envs.wrappers.tw_inform7 import (
    AVAILABLE_INFORM7_EXTRA_INFOS,
    GameData,
    Inform7Data,
    StateTracking,
    _detect_i7_events_debug_tags,
)
from textworld.envs.zmachine.jericho import JerichoEnv
from textworld.generator.game import Action, Game, GameProgression, QuestProgression

# Games that stay loaded, about 2 MB each, and places in them that can be gone back to.
LOADED, PLACES = 128, 2000
_TAGS = {
    tag: re.compile(rf"<{tag}>\n(.*)</{tag}>", re.DOTALL) for tag in AVAILABLE_INFORM7_EXTRA_INFOS
}


class _Interpreter(JerichoEnv):
    """Loading a game starts it, so the first reset has nothing left to do. A step asks for the
    text alone, since Inform 7 says the score in it."""

    _jericho: Any
    _fresh = False

    def load(self, z_file: str) -> None:
        super().load(z_file)
        self._fresh = True

    def reset(self) -> GameState:
        if not self._fresh:
            return super().reset()
        self._fresh = False
        self.state = GameState()
        self.state.raw = self._jericho.frotz_lib.get_narrative_text().decode("cp1252")
        self._gather_infos()
        self._reset = True
        return self.state

    def step(self, command: str) -> tuple[GameState, None, bool]:
        text = self._jericho.frotz_lib.step(command.encode() + b"\n").decode("cp1252")
        self.state = GameState()
        self.state.last_command, self.state.raw, self.state.feedback = command, text, text
        return self.state, None, False


class _Content(GameData):
    """What never changes is told at the reset only."""

    def step(self, command: str) -> tuple[GameState, None, bool]:
        self.state, score, done = self._wrapped_env.step(command)
        return self.state, score, done


class _Inform7(Inform7Data):
    """TextWorld's, which makes the patterns of the tags anew in every step."""

    def step(self, command: str) -> tuple[GameState, Any, bool]:
        self._prev_state = self.state
        self.state, _, _ = self._wrapped_env.step(command)
        text = self.state["feedback"]
        for tag in self._tracked_infos:
            match = _TAGS[tag].search(text)
            self.state[tag] = None
            if match:
                self.state[tag] = _detect_i7_events_debug_tags(match.group(1))[1].strip()
                text = _TAGS[tag].sub("", text)
        self.state["feedback"] = text
        self._gather_infos()
        self.state["done"] = self.state["won"] or self.state["lost"]
        return self.state, self.state["score"], self.state["done"]


class _Progression(GameProgression):
    """TextWorld's, without the list of everything that could be done next."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.state = game.world.state.copy()
        self.quest_progressions = [QuestProgression(quest, game.kb) for quest in game.quests]
        for quest in self.quest_progressions:
            quest.update(action=None, state=self.state)

    def update(self, action: Action) -> None:
        self.state.apply(action)
        for quest in self.quest_progressions:
            quest.update(action, self.state)


def _copied(progression: GameProgression) -> GameProgression:
    """A copy that can go on alone; TextWorld's own begins with a search for all actions."""
    copied = copy.copy(progression)
    copied.state = progression.state.copy()
    copied.quest_progressions = []
    for quest in progression.quest_progressions:
        mine = copy.copy(quest)
        for events in ("win_events", "fail_events"):
            setattr(mine, events, [copy.copy(event) for event in getattr(quest, events)])
            for event in getattr(mine, events):
                event._tree = event._tree.copy()
        copied.quest_progressions.append(mine)
    return copied


class _WholeTracking(StateTracking):
    """TextWorld's own, for the admissible commands. A progression is never changed once a step
    is over, so a place can keep it."""

    def step(self, command: str) -> tuple[GameState, Any, bool]:
        self._game_progression = _copied(self._game_progression)
        return super().step(command)


class _PolicyTracking(StateTracking):
    """Tracks the winning policy. An event of the game is looked for among the actions that could
    have caused it, where TextWorld makes all actions that are possible to find it among them."""

    _game: Any
    _inform7: Any

    def load(self, gamefile: str) -> None:
        super().load(gamefile)
        events = self._game.kb.inform7_events
        self._patterns = [
            (rule, _pattern(events[rule.name]))
            for rule in self._game.kb.rules.values()
            if rule.name in events
        ]

    def reset(self) -> GameState:
        self.state = self._wrapped_env.reset()
        self._send("tw-trace-actions")
        self._game_progression = _Progression(self._game)
        self._current_winning_policy = self._game_progression.winning_policy
        self.state["_winning_policy"] = self._current_winning_policy
        return self.state

    def step(self, command: str) -> tuple[GameState, Any, bool]:
        self.state, score, _ = self._wrapped_env.step(command)
        events, self.state["feedback"] = _detect_i7_events_debug_tags(self.state["feedback"])
        for event in events:
            action = self._inform7.detect_action(event, self._candidates(event))
            if action is not None:
                self._game_progression = _copied(self._game_progression)
                self._game_progression.update(action)
                self._current_winning_policy = self._game_progression.winning_policy
        self.state["_winning_policy"] = self._current_winning_policy
        self.state["won"] = "*** The End ***" in self.state["feedback"]
        self.state["lost"] = "*** You lost! ***" in self.state["feedback"]
        self.state["done"] = self.state["won"] or self.state["lost"]
        return self.state, score, self.state["done"]

    def _candidates(self, event: str) -> list[Action]:
        rules = [rule for rule, pattern in self._patterns if pattern.fullmatch(event)]
        constants = self._game.kb.types.constants_mapping
        return list(self._game_progression.state.all_applicable_actions(rules, constants))


@dataclass(eq=False, slots=True)
class Place:
    """Where commands have led: what the game said, what is known of the next commands, and what
    it takes to go back."""

    state: GameState
    moment: tuple[Any, ...]
    after: dict[str, Place] = field(default_factory=dict)


class Loaded:
    """One game, at one of its places."""

    # Of the wrappers, what changes from step to step.
    _KEPT = ("_game_progression", "_current_winning_policy", "_previous_winning_policy", "_moves")

    def __init__(self, file: Path, infos: textworld.EnvInfos) -> None:
        self._interpreter = _Interpreter(infos)
        self._inform7 = _Inform7(_Content(self._interpreter))
        self._game: Any = self._inform7
        if infos.admissible_commands:
            self._game = _WholeTracking(self._inform7)
        elif infos.policy_commands:
            self._game = _PolicyTracking(self._inform7)
        self._tracker = None if self._game is self._inform7 else self._game
        self._game.load(str(file))
        self._lib = self._interpreter._jericho.frotz_lib
        # Memory is read into one array, and kept as its difference to what it was at the start.
        self._memory = np.zeros(self._lib.getRAMSize(), dtype=np.uint8)
        self._memory_at = np.ctypeslib.as_ctypes(self._memory)
        self._lib.getRAM(self._memory_at)
        self._origin = self._memory.copy()
        self._start: Place | None = None
        self._at: Place | None = None
        self.places = 0

    @property
    def start(self) -> Place:
        if self._start is None:
            self._start = self._at = self._place(self._game.reset())
        return self._start

    def step(self, place: Place, command: str) -> Place:
        """Where `command` leads from `place`."""
        if command not in place.after:
            if self._at is not place:
                self._go_back(place)
            # An interpreter that fails in a step is nowhere.
            self._at = None
            state, _, _ = self._game.step(command)
            place.after[command] = self._at = self._place(state)
        return place.after[command]

    def forget(self) -> None:
        """Free the places that no episode is at."""
        self._start, self.places = None, 0

    def _place(self, state: GameState) -> Place:
        self.places += 1
        self._lib.getRAM(self._memory_at)
        # A game changes few of its bytes.
        changed = (self._memory != self._origin).nonzero()[0]
        values = self._memory[changed]
        tracked = {name: getattr(self._tracker, name, None) for name in self._KEPT if self._tracker}
        return Place(state, (changed, values, self._registers(), self._inform7.state, tracked))

    def _registers(self) -> tuple[Any, ...]:
        """What `FrotzEnv.set_state` wants behind the memory."""
        lib = self._lib
        stack = np.empty(lib.getStackSize(), dtype=np.uint8)
        lib.getStack(np.ctypeslib.as_ctypes(stack))
        rng = lib.getRngA(), lib.getRngInterval(), lib.getRngCounter()
        pointers = lib.getPC(), lib.getSP(), lib.getFP(), lib.getFrameCount(), lib.get_opcode()
        return (stack, *pointers, rng, lib.get_narrative_text())

    def _go_back(self, place: Place) -> None:
        changed, values, registers, self._inform7.state, tracked = place.moment
        memory = self._origin.copy()
        memory[changed] = values
        self._interpreter._jericho.set_state((memory, *registers))
        if self._tracker:
            self._tracker.__dict__.update(tracked)


class Games:
    """Games of one process, loaded once. The one that was played longest ago is closed, or its
    places are forgotten, when there are many."""

    def __init__(self, loaded: int = LOADED, places: int = PLACES) -> None:
        self._most_loaded, self._most_places = loaded, places
        self._games: OrderedDict[tuple, Loaded] = OrderedDict()

    def take(self, file: Path, infos: textworld.EnvInfos) -> Loaded:
        """The game of a file. Who has it can play on even when it is no longer kept here."""
        key = _key(file, infos)
        if key not in self._games:
            self._games[key] = Loaded(file, infos)
        self._games.move_to_end(key)
        if len(self._games) > self._most_loaded:
            self._games.popitem(last=False)
        for game in list(self._games.values()):
            if sum(kept.places for kept in self._games.values()) <= self._most_places:
                break
            game.forget()
        return self._games[key]


def _pattern(event: str) -> re.Pattern[str]:
    """What an event of a rule looks like: "taking the {o}" is "taking the" anything."""
    texts = re.split(r"\{[^{}]*\}", event)
    return re.compile(".*".join(map(re.escape, texts)), re.IGNORECASE | re.DOTALL)


def _key(file: Path, infos: textworld.EnvInfos) -> tuple:
    wanted = (infos.admissible_commands, infos.policy_commands)
    return (*_stamp(file), *_stamp(file.with_suffix(".json")), *wanted)


def _stamp(file: Path) -> tuple:
    status = file.stat()
    return (str(file), status.st_mtime_ns, status.st_size)
