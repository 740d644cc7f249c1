"""The tokenizer of the small policies: whole words plus byte fallback, lossless on any text.

A word (with the one space before it) is one token when it stands in the vocabulary; any other
text falls back to its characters and then to its bytes, so `decode(encode(text)) == text`.
One vocabulary serves every environment family: its words come from the grammars of TextWorld,
household text and Python (`policies/base/vocabulary.txt`, written by `make_vocabulary.py` there).
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, END, USER, ASSISTANT, SYSTEM = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
SPECIALS = [PAD, END, USER, ASSISTANT, SYSTEM]
MAX_ENTRIES = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# A word keeps the space before it; digits, marks and other white space stand alone.
PATTERN = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]|\s"
WORD_SCORE, CHARACTER_SCORE, BYTE_SCORE = -10.0, -12.0, -1e4


def build_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """Tokenizer over `words` (each with its leading space where it has one).

    The entries are: special tokens, 256 bytes, printable ASCII characters, then the words.
    A byte entry scores so low that text which spells one out, such as `<0x41>`, is not read as it.

    Raises:
        ValueError: the vocabulary would hold more than `MAX_ENTRIES` entries.
    """
    characters = [chr(code) for code in range(32, 127)] + ["\n", "\t"]
    vocabulary = [(token, BYTE_SCORE) for token in SPECIALS]
    vocabulary += [(f"<0x{value:02X}>", BYTE_SCORE) for value in range(256)]
    vocabulary += [(character, CHARACTER_SCORE) for character in characters]
    known = {token for token, _ in vocabulary}
    vocabulary += [(word, WORD_SCORE) for word in dict.fromkeys(words) if word not in known]
    if len(vocabulary) > MAX_ENTRIES:
        raise ValueError(f"{len(vocabulary)} entries, at most {MAX_ENTRIES} are allowed")

    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
