"""PromptGuard: what nobody need ask a provider for. Pure, so it is asked inside the transaction that makes the job."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .errors import Refusal

LONGEST = 2000
Moderator = Callable[[str], str | None]
"""A moderation model: why this prompt is not to be drawn, or None. It may block, so it is asked before the transaction."""
# Line breaks and tabs are written; of the rest, what does not show or turns the text around only deceives.
_WRITTEN = frozenset("\n\t")
_UNSEEN = frozenset({"Cc", "Cs", "Co", "Cn"})
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Letters by their category that show as nothing, and a second, hidden alphabet that models can read.
_BLANK = frozenset({"\u115f", "\u1160", "\u3164", "\uffa0", "\u2800", *map(chr, range(0xE0000, 0xE0080))})
# A space without width may stand between two words, or within one.
_THIN = "\u200b"
# Scripts that write no spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han. Each letter counts as a word.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")


def clean(prompt: str) -> str:
    """A prompt as it is kept: composed characters, line breaks as they are in Unix, nothing around it."""
    return unicodedata.normalize("NFC", re.sub(r"\r\n?", "\n", prompt)).strip()


@dataclass(frozen=True)
class PromptGuard:
    """Judges prompts by their length, their characters, and a list of words and phrases that are not drawn here."""

    blocked: Sequence[re.Pattern[str]] = ()

    @classmethod
    def of(cls, phrases: Iterable[str]) -> "PromptGuard":
        """One that blocks these words and phrases, wherever they stand as whole words, however they are written."""
        folded = dict.fromkeys(_folded(phrase).replace(_THIN, "") for phrase in phrases)
        return cls([re.compile(rf"(?<!\w){_pattern(phrase)}(?!\w)") for phrase in folded if phrase])

    def validate(self, prompt: str) -> None:
        """`Refusal` unless it may be drawn."""
        if not any(unicodedata.category(letter)[0] in "LN" for letter in prompt):
            raise Refusal("prompt_empty", "The prompt says nothing: write what is to be drawn.")
        if len(prompt) > LONGEST:
            raise Refusal("prompt_too_long", f"The prompt has {len(prompt)} characters: write up to {LONGEST}.")
        if any(letter in _TURNING or letter in _BLANK or (unicodedata.category(letter) in _UNSEEN and letter not in _WRITTEN) for letter in prompt):
            raise Refusal("prompt_characters", "The prompt has characters that cannot be seen: write it with letters that can.")
        folded = _folded(prompt)
        if any(pattern.search(folded) for pattern in self.blocked):
            # Which one is not said: the list would be read out by trying.
            raise Refusal("prompt_blocked", "The prompt has words in it that are not drawn here: write it without them.")


def _folded(text: str) -> str:
    """A text for comparison: however the same words are written, they read alike."""
    plain = unicodedata.normalize("NFKD", text).casefold().replace("_", " ")
    seen = "".join(letter for letter in plain if letter == _THIN or unicodedata.category(letter) not in {"Mn", "Me", "Cf"})
    return " ".join(_UNSPACED.sub(r" \g<0> ", seen).split())


def _pattern(phrase: str) -> str:
    """Its words, whatever stands between them."""
    words = re.sub(r"(?<=\w)\W+(?=\w)", " ", phrase).split()
    return r"\W+".join(f"{_THIN}*".join(map(re.escape, word)) for word in words)
