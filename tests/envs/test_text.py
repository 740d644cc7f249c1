"""Text in and out of the interpreter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.textworld.text import MAX_COMMAND, command, observation

BANNER = (
    "\n\n\n                    ________  ________  __    __  ________        \n"
    "                   |        \\|        \\|  \\  |  \\|        \\       \n"
    "             |  \\  _  |  \\ /      \\ |       \\ |  \\      |       \\ \n"
    "                      | $$   | $$  \\     >$$  $$    | $$          \n"
    "              \\$$      \\$$  \\$$$$$$  \\$$   \\$$ \\$$$$$$$$ \\$$$$$$$ \n\n"
)
STATUS = "\n\n>                                     -= Studio =-0/2"


def test_first_observation_has_neither_banner_nor_objective():
    raw = BANNER + "Find it! It's here.\n\n-= Studio =-\nA room.\n\n\n\nA chest." + STATUS
    assert observation(raw, "Find it! It's here.", False) == "-= Studio =-\nA room.\nA chest."


def test_apostrophes_that_the_interpreter_prints_as_quotes():
    raw = BANNER + 'Open the friend"s box.\n\n-= Studio =-\nA room.' + STATUS
    assert observation(raw, "Open the friend's box.", False) == "-= Studio =-\nA room."


def test_answer_to_goal_is_kept():
    assert observation("\nFind it!\n\n" + STATUS, "Find it!", False) == "Find it!"


END = (
    "\nYou take the cup.\n\n\n\nYour score has just gone up by one point.\n\n\n"
    "                    *** The End ***\n\nYou scored 1 out of a possible 1, in 5 turn(s).\n\n\n"
    "Would you like to RESTART, RESTORE a saved game, QUIT or UNDO the last command?\n>  -= A =-0/4"
)


def test_no_notice_tells_the_reward_density():
    assert observation(END, "", False) == "You take the cup."


def test_score_is_shown_when_asked_for():
    assert observation(END, "", True) == (
        "You take the cup.\nYour score has just gone up by one point.\n"
        "You scored 1 out of a possible 1, in 5 turn(s)."
    )


ONE_COMMAND = [
    ("look", "look", False),
    ("  take   the\tkey. ", "take the key", False),
    ("look. quit", "look", True),
    ("open box then take key", "open box", True),
    ("take key, open box", "take key", True),
    ("open box\ntake key", "open box", True),
    ("open box\r\nquit", "open box", True),
    ("strengthen box", "strengthen box", False),
    ("<think>hm</think> look", "<think>hm</think> look", False),
    ("> look", "> look", False),
    ("'; DROP", "'; DROP", False),
    ("x" * MAX_COMMAND, "x" * MAX_COMMAND, False),
]


@pytest.mark.parametrize(("text", "expected", "cut"), ONE_COMMAND)
def test_one_command(text, expected, cut):
    assert command(text) == (expected, None, cut)


INVALID = [
    ("", "empty"),
    ("   \n\t", "empty"),
    (". look", "empty"),
    ("...", "empty"),
    ("then go", "empty"),
    ("\\", "backslash"),
    ("\\x", "backslash"),
    ("take \\n key", "backslash"),
    ("\x00", "control"),
    ("take\x00key", "control"),
    ("look\x1b[2J", "control"),
    ("look\x07", "control"),
    ("take\x7f", "control"),
    ("prendre la clé", "ASCII"),
    ("漢字", "ASCII"),
    ("look 🙂", "ASCII"),
    ("x" * (MAX_COMMAND + 1), "longer"),
    ("x" * 10_000, "longer"),
    ("take key " * 2_000, "longer"),
]
META = [
    "quit", "q", "QUIT", "Quit now", "restart", "save", "restore", "undo", "script", "script on",
    "transcript off", "unscript", "noscript", "verbose", "brief", "superbrief", "superbriefly",
    "version", "verify", "notify off", "score", "full score", "pronouns", "nouns", "oops quit",
    "recording on", "replay", "tw-print state", "tw-extra-infos score", "tw-trace-actions",
    "  quit.", "quit then look",
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), INVALID)
def test_what_the_interpreter_cannot_survive(text, reason):
    assert reason in (command(text)[1] or "")


@pytest.mark.parametrize("text", META)
def test_meta_commands(text):
    assert (command(text)[1] or "").startswith("meta command")


@given(st.text(max_size=300))
def test_anything_is_a_command_or_has_a_reason(text):
    cleaned, reason, _ = command(text)
    if reason is None:
        assert 0 < len(cleaned) <= MAX_COMMAND
        assert cleaned.isascii() and cleaned.isprintable()
        assert not set(cleaned) & set("\\.,\n\r\t\0")
        assert "then" not in cleaned.lower().split()
        assert command(cleaned) == (cleaned, None, False)


@given(st.text(max_size=300), st.text(max_size=50), st.booleans())
def test_observations_never_fail(feedback, objective, show_score):
    seen = observation(feedback, objective, show_score)
    assert seen == seen.strip()
