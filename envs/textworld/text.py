"""Text in and out of the interpreter: clean observations, safe commands. Imports no game code."""

from __future__ import annotations

import re

# The interpreter's input buffer (jericho cuts what is longer, even inside a character).
MAX_COMMAND = 198

_BANNER = re.compile(r"\A\n*(?= *_{8})(?:[ _|\\/$<>]*\n)+")
_PROMPT = re.compile(r"\n>[^\n]*\Z")
_SCORE = re.compile(
    r"Your score has (?:just )?gone (?:up|down) by [^\n]*?points?\.|"
    r"You scored -?\d+ out of a possible -?\d+, in \d+ turn(?:s|\(s\))?[^\n]*"
)
_END = re.compile(
    r"\*\*\* [^\n*]+ \*\*\*|"
    r"Would you like to RESTART, RESTORE a saved game, QUIT or UNDO the last command\?"
)
_SEPARATOR = re.compile(r"[.,\r\n]|\bthen\b", re.IGNORECASE)

# Commands to the interpreter itself: they leave, rewind, write files, print debugging or score
# notices, or change how later turns are printed. Dictionary words hold nine characters, so a
# longer word is the same command.
_META = {
    "quit", "q", "restart", "restore", "save", "undo", "oops", "script", "transcript", "unscript",
    "noscript", "recording", "replay", "verify", "version", "notify", "pronouns", "nouns",
    "score", "fullscore", "verbose", "brief", "superbrief", "long", "short", "normal",
    "places", "objects", "full",
}  # fmt: skip
_META_STEMS = {word[:9] for word in _META}


def observation(feedback: str, objective: str, show_score: bool) -> str:
    """What the player reads: no banner, no objective paragraph at the start, no status line.

    The end notices go too: the environment says `won` and `lost`. Score notices stay only with
    `show_score`, since they tell which reward density is being trained.
    """
    text = _PROMPT.sub("", feedback)
    if _BANNER.match(text):
        text = _BANNER.sub("", text, count=1)
        # Inform 7 prints some apostrophes as quotation marks.
        if text.replace('"', "'").startswith(objective.replace('"', "'")):
            text = text[len(objective) :]
    text = _END.sub("", text)
    if not show_score:
        text = _SCORE.sub("", text)
    # Blank lines and indentation say nothing and would be tokens.
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def command(text: str) -> tuple[str, str | None, bool]:
    """The one command in `text`: `(command, reason, cut)`.

    `reason` is None when the command may reach the interpreter, else why it may not. `cut` says
    that more followed the first command ("a. b", "a, b", "a then b", a second line): the
    interpreter would run it as a second turn, so it is dropped.
    """
    stripped = text.strip()
    parts = _SEPARATOR.split(stripped, maxsplit=1)
    first, rest = parts[0], "".join(parts[1:])
    cut = bool(rest.strip(" .,\r\n"))
    if not first.strip():
        return "", "empty command", cut
    if "\\" in first:
        return first, "backslash", cut
    if any(not character.isprintable() for character in first.replace("\t", " ")):
        return first, "control character", cut
    if not first.isascii():
        return first, "character outside ASCII", cut
    cleaned = " ".join(first.split())
    if len(cleaned) > MAX_COMMAND:
        return cleaned, f"longer than {MAX_COMMAND} characters", cut
    word = cleaned.split()[0].lower()
    if word[:9] in _META_STEMS or word.startswith("tw-"):
        return cleaned, f"meta command: {word}", cut
    return cleaned, None, cut
