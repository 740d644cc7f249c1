"""Write `vocabulary.txt`: the words of the tokenizer that all small policies share.

Sources: the text grammars that TextWorld ships (house and cooking themes), the fixed replies of
its Inform 7 games, the names in ALFWorld's grammar and object table (`words/household.txt`), and
Python's keywords, built-ins and common identifiers.

    python -m policies.base.make_vocabulary
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent


def grammar_words() -> Counter[str]:
    """Words of TextWorld's grammar files and challenges, with how often each stands there."""
    import textworld

    words: Counter[str] = Counter()
    root = Path(textworld.__file__).parent
    for path in sorted(root.rglob("*.twg")):
        words.update(re.findall(r"[A-Za-z]+", re.sub(r"#[^#\n]*#", " ", path.read_text())))
    for path in sorted(root.glob("challenges/*/*.py")):
        for text in re.findall(r"""["']([A-Za-z][A-Za-z -]*)["']""", path.read_text()):
            words.update(re.findall(r"[A-Za-z]+", text))
    return words


def room_names() -> list[str]:
    """Words of room names, as they stand in a room's title (`-= Living Room =-`)."""
    import textworld

    grammar = Path(textworld.__file__).parent / "generator/data/text_grammars/house_obj.twg"
    names = re.findall(r"^\w*\(r\)_noun\w*:(.*)$", grammar.read_text(), flags=re.MULTILINE)
    return [word.capitalize() for word in re.findall(r"[a-z]+", " ".join(names))]


def listed(name: str) -> list[str]:
    """Words of a file in `words/`: `household` has ALFWorld's names, one word each."""
    return (HERE / "words" / f"{name}.txt").read_text().split()


def python_words() -> list[str]:
    names = [name for name in dir(builtins) if name.islower() and name.isalpha()]
    return [*keyword.kwlist, *names, *listed("code")]


def vocabulary() -> list[str]:
    """Tokens in a fixed order: each word after a space, then those that also start a text."""
    words: list[str] = []
    grammar = grammar_words()
    sources = (
        *(listed("replies"), sorted(grammar), room_names(), listed("household")),
        *(python_words(), listed("verbs")),
    )
    for source in sources:
        for text in source:
            words += [word for word in re.findall(r"[A-Za-z]+", text) if len(word) > 1]
    words = list(dict.fromkeys(words))
    starts = [word for word in words if word[0].isupper() and grammar[word] != 1]
    starts += [word.capitalize() for word in words if word.islower() and grammar[word] >= 20]
    after_apostrophe = ["t", "s", "re", "ve", "ll", "d", "m"]
    return list(
        dict.fromkeys(
            [f" {word}" for word in words]
            + [f" {chr(code)}" for code in range(33, 127)]
            + listed("verbs") + starts + after_apostrophe
        )
    )  # fmt: skip


if __name__ == "__main__":
    tokens = vocabulary()
    (HERE / "vocabulary.txt").write_text("\n".join(tokens) + "\n")
    print(f"{len(tokens)} words")
