"""PromptGuard: validates prompts. It does no I/O, so it runs inside the transaction that creates the job."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .errors import Refusal

MAX_LENGTH = 2000
Moderator = Callable[[str], str | None]
"""A moderation model: returns a reason to refuse a prompt, or None. It may block, so it runs before the transaction."""
# Line breaks and tabs are allowed; other control characters and bidirectional controls only deceive a reader.
_ALLOWED_CONTROLS = frozenset("\n\t")
_INVISIBLE = frozenset({"Cc", "Cs", "Co", "Cn"})
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Characters with the category of letters that are invisible, and the tag characters, which models can read.
_BLANK = frozenset({"\u115f", "\u1160", "\u3164", "\uffa0", "\u2800", *map(chr, range(0xE0000, 0xE0080))})
# A zero-width space may be between two words or inside one.
_ZERO_WIDTH_SPACE = "\u200b"
# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han. Each letter counts as a word.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"
)


def clean(prompt: str) -> str:
    """Normalize a prompt for storage: NFC, Unix line breaks, no surrounding whitespace."""
    return unicodedata.normalize("NFC", re.sub(r"\r\n?", "\n", prompt)).strip()


@dataclass(frozen=True)
class PromptGuard:
    """Validates prompts by length, characters and a block list of words and phrases."""

    blocked: Sequence[re.Pattern[str]] = ()

    @classmethod
    def of(cls, phrases: Iterable[str]) -> "PromptGuard":
        """Build a guard that blocks these words and phrases as whole words, in any spelling that looks the same."""
        folded = dict.fromkeys(_fold(phrase).replace(_ZERO_WIDTH_SPACE, "") for phrase in phrases)
        return cls([re.compile(rf"(?<!\w){_pattern(phrase)}(?!\w)") for phrase in folded if phrase])

    def validate(self, prompt: str) -> None:
        """Raise `Refusal` if the prompt is not allowed."""
        if not any(unicodedata.category(letter)[0] in "LN" for letter in prompt):
            raise Refusal("prompt_empty", "Enter a prompt.")
        if len(prompt) > MAX_LENGTH:
            raise Refusal("prompt_too_long", f"The prompt has {len(prompt)} characters. The limit is {MAX_LENGTH}.")
        if any(
            letter in _BIDI_CONTROLS
            or letter in _BLANK
            or (unicodedata.category(letter) in _INVISIBLE and letter not in _ALLOWED_CONTROLS)
            for letter in prompt
        ):
            raise Refusal("prompt_characters", "The prompt contains invisible characters. Remove them.")
        folded = _fold(prompt)
        if any(pattern.search(folded) for pattern in self.blocked):
            # The message does not name the word, so that a user cannot find out the list by trying.
            raise Refusal("prompt_blocked", "The prompt contains blocked words. Rephrase it.")


def _fold(text: str) -> str:
    """Fold a text for comparison, so that different spellings of the same words are equal."""
    plain = unicodedata.normalize("NFKD", text).casefold().replace("_", " ")
    seen = "".join(
        letter
        for letter in plain
        if letter == _ZERO_WIDTH_SPACE or unicodedata.category(letter) not in {"Mn", "Me", "Cf"}
    )
    return " ".join(_UNSPACED.sub(r" \g<0> ", seen).split())


def _pattern(phrase: str) -> str:
    """Build a pattern that matches the phrase's words with anything but letters between them."""
    words = re.sub(r"(?<=\w)\W+(?=\w)", " ", phrase).split()
    return r"\W+".join(f"{_ZERO_WIDTH_SPACE}*".join(map(re.escape, word)) for word in words)
