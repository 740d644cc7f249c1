"""Game files of ALFWorld: what is read from one, and which rules and words it may have.

Our engine has the rules of ALFWorld 0.4.2. A file carries its own, so they are compared with the
installed package's, and a file that has others is refused: nothing is played by rules that it does
not have. Files of data version 2.1.1, whose words are older, are converted as they are read, to
what ALFWorld's own script makes of them.
"""

from __future__ import annotations

import difflib
import json
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from envs.alfworld.house import House, read_house
from envs.alfworld.package import source
from runs.errors import EnvError

# Files whose houses are kept; a house is a few hundred kB.
KEPT = 256
_TASK = re.compile(r'("rhs":\s*"Your task is to: )([^"]*?)\.?(")')
# What version 2.1.1 says, and what it says since.
_OLDER = (
    ("You arrive at {lend.name}.", "You arrive at {r.name}."),
    ("You put the {o.name} in/on the {r.name}.", "You move the {o.name} to the {r.name}."),
    ('template :: "put {o} in/on {r}";', 'template :: "move {o} to {r}";'),
)
_HELP_RULE = re.compile(r"\(:action help\b.*?\(checked \?a\)\s*\)\s*\)", re.DOTALL)
_HELP_WORDS = re.compile(r'action help \{.*?""";\s*\}', re.DOTALL)
# Two names for one thing: no house has a SinkType receptacle.
_SINK = "(receptacleType ?r SinkType)"


def load(file: Path) -> House:
    """The house of a `game.tw-pddl`. Read again only when the file has changed.

    Raises `EnvError` with the file's name when it is missing, broken, or has other rules.
    """
    try:
        status = file.stat()
        return _load(file, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise EnvError(f"The game file {file} cannot be read ({error.strerror}).") from error


@lru_cache(KEPT)
def _load(file: Path, changed: int, size: int) -> House:
    return house_of(read(file), str(file))


def read(file: Path) -> dict[str, Any]:
    """The content of a game file, as it is. Raises `EnvError` when it is no game file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EnvError(
            f"The game file {file} is not whole JSON ({error}): it was cut short or damaged; "
            "fetch it again with alfworld-download -f."
        ) from error
    wanted = ("pddl_domain", "grammar", "pddl_problem")
    if not isinstance(content, dict) or any(
        not isinstance(content.get(key), str) for key in wanted
    ):
        raise EnvError(f"The game file {file} is no ALFWorld game: it needs {', '.join(wanted)}.")
    return content


def house_of(content: dict[str, Any], named: str) -> House:
    """The house of a game file's content. Raises `EnvError` that begins with the name."""
    task = _TASK.search(content["grammar"])
    if task is None:
        raise EnvError(f"The game file {named} does not say what its task is.")
    helps = _has_known_rules(content["pddl_domain"], _TASK.sub(r"\1\3", content["grammar"]), named)
    try:
        return read_house(content["pddl_problem"], task[2], helps)
    except (EnvError, RecursionError) as error:
        raise EnvError(f"The game file {named} cannot be played: {error}.") from error


@lru_cache(64)
def _has_known_rules(domain: str, grammar: str, named: str) -> bool:
    """Whether "help" is a command. Raises `EnvError` when the rules or the words are others."""
    older = any(old in grammar for old, _ in _OLDER)
    for old, new in _OLDER:
        grammar = grammar.replace(old, new)
    helps = bool(_HELP_WORDS.search(grammar))
    if helps != bool(_HELP_RULE.search(domain)):
        raise EnvError(f"The game file {named} knows of `help` in one of its two rule books only.")
    known_domain, known_grammar = _known()
    for kind, mine, known in (
        ("rules (pddl_domain)", _plain_domain(domain), known_domain),
        ("words (grammar)", _plain_grammar(grammar), known_grammar),
    ):
        if mine != known:
            lines = difflib.unified_diff(known, mine, lineterm="", n=0)
            first = next(
                line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")
            )
            raise EnvError(
                f"The game file {named} has other {kind} than ALFWorld 0.4.2; the first "
                f"difference is {first!r}. Make it again with alfworld-generate of that version."
            )
    # The conversion adds the command that version 2.1.1 did not have.
    return helps or older


@cache
def _known() -> tuple[list[str], list[str]]:
    grammar = _TASK.sub(r"\1\3", source("data/alfred.twl2"))
    return _plain_domain(source("data/alfred.pddl")), _plain_grammar(grammar)


def _plain_domain(text: str) -> list[str]:
    """Without comments, spaces, `help` and the kinds of line that mean nothing; nothing else is
    left out, so two plain texts that are equal have the same rules."""
    text = re.sub(r";[^\n]*", "", text)
    text = _HELP_RULE.sub("", text).replace(_SINK, "")
    return _lines(re.sub(r"\)\s*(?=\))", ")", text))


def _plain_grammar(text: str) -> list[str]:
    return _lines(_HELP_WORDS.sub("", text))


def _lines(text: str) -> list[str]:
    return [line for line in (" ".join(line.split()) for line in text.splitlines()) if line]
