"""The tokenizer loses nothing and stays small."""

import inspect
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import tokenizer as module
from policies.base.make_base import tokenizer as base_tokenizer
from policies.tokenizer import ASSISTANT, END, MAX_ENTRIES, SPECIALS, build_tokenizer

TOKENIZER = base_tokenizer()

TEXTWORLD = """-= Studio =-
You see a locked type J chest. The case contains a type J keycard.

You need an unblocked exit? You should try going north."""
HOUSEHOLD = """You are in the middle of a room. Looking quickly around you, you see a cabinet 4,
a countertop 2, a garbagecan 1 and a sinkbasin 1. Your task is to: put a hot mug in cabinet."""


def encode(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    "text", [TEXTWORLD, HOUSEHOLD, inspect.getsource(module), "", " ", "\r\n\t"]
)
def test_round_trip_of_each_family(text):
    assert TOKENIZER.decode(encode(text)) == text


@given(st.text())
def test_round_trip_of_any_text(text):
    # Special tokens spelled out in text are the chat form's business (`ChatForm.user`).
    if not any(special in text for special in SPECIALS):
        assert TOKENIZER.decode(encode(text)) == text


def test_text_that_spells_a_byte_token_stays_text():
    assert TOKENIZER.decode(encode("<0x41>")) == "<0x41>"
    assert len(encode("<0x41>")) == 6


def test_words_of_the_games_are_single_tokens():
    assert len(encode("unlock type J chest with type J keycard")) == 8
    assert len(encode(" alarmclock")) == 1
    assert len(encode(" isinstance")) == 1


def test_at_most_4096_entries():
    assert len(TOKENIZER) <= MAX_ENTRIES
    with pytest.raises(ValueError, match="4096"):
        build_tokenizer([f" word{random.Random(i).random()}" for i in range(MAX_ENTRIES)])


def test_special_tokens_are_single_ids():
    for special in SPECIALS:
        assert len(encode(special)) == 1
    assert TOKENIZER.eos_token == END and TOKENIZER.pad_token != END
    assert encode(ASSISTANT) != encode(END)
