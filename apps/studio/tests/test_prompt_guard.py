"""PromptGuard judges by length, characters and a block list, and is not fooled by how a word is written."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from apps.studio.errors import Refusal
from apps.studio.prompt_guard import LONGEST, PromptGuard, clean

GUARD = PromptGuard.of(["Blood", "naked truth", "x-rated", "Straße", "裸体", "c++", "   ", "\u200b", "rock'n'roll", "ปืน"])
ANY = st.text(st.characters(exclude_categories=()), max_size=60)


def code(prompt: str, guard: PromptGuard = GUARD) -> str | None:
    try:
        guard.validate(clean(prompt))
    except Refusal as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t\r\n", "…!?", "\u0301\u0302", "\u200b\u200d"])
def test_a_prompt_without_a_letter_or_a_number_says_nothing(prompt: str) -> None:
    assert code(prompt) == "prompt_empty"


def test_a_prompt_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert code("a" * LONGEST) is None
    assert code("a" * (LONGEST + 1)) == "prompt_too_long"
    assert code(f"  {'a' * LONGEST}\n") is None, "what is cut off around it does not count"


@pytest.mark.parametrize("letter", [
    "\x00", "\x07", "\x1b", "\x7f", "\x85", "\ud800", "\ue000", "\U0010ffff", "\u202e", "\u2066", "\u3164", "\uffa0", "\u115f", "\u2800", "\U000e0041",
], ids=ascii)
def test_characters_that_cannot_be_seen_or_turn_the_text_around_are_refused(letter: str) -> None:
    assert code(f"a cat{letter}at sea") == "prompt_characters"


@pytest.mark.parametrize("prompt", [
    "a cat\r\nat sea", "a cat\rat sea", "a\tcat", "кот у моря", "猫と海", "a 👩\u200d🚀 at sea", "قط في البحر", "می\u200cخواهم", "café", "cafe\u0301",
], ids=ascii)
def test_what_people_write_passes(prompt: str) -> None:
    """Line breaks of every system, other scripts, emoji with their joiners, the thin non-joiner of Persian."""
    assert code(prompt) is None


@pytest.mark.parametrize("prompt", [
    "blood", "BLOOD!", "much BlOoD.", "bl\u200bood", "b\u200dl\u2060o\ufeffo\u00add", "blo\u034fod", "blóöd", "b\u0336l\u0336o\u0336o\u0336d\u0336",
    "ｂｌｏｏｄ", "𝐛𝐥𝐨𝐨𝐝", "my ⓑⓛⓞⓞⓓ", "b\u20ddl\u20ddo\u20ddo\u20ddd\u20dd", "_blood_", "**blood**",
    "a\u200bb\u200blood", "no\u200bblood", "これはbloodです", "blood\u00a0red",
], ids=ascii)
def test_a_blocked_word_is_found_however_it_is_written(prompt: str) -> None:
    """Case, accents, other widths and styles, marks around or through letters, and whatever is invisible between them."""
    assert code(prompt) == "prompt_blocked"


@pytest.mark.parametrize("prompt", [
    "the naked truth", "Naked\nTruth", "naked \t\r\n truth", "naked-truth", "naked_truth", "naked, (truth)", "naked\u2028truth", "naked\u200btruth",
    "ＮＡＫＥＤ　ＴＲＵＴＨ",
    "an x rated film", "X–RATED", "x\u2011rated", "rock’n’roll", "STRASSE", "strasse", "美しい裸体の絵", "c++ in stone", "รูปปืนใหญ่",
], ids=ascii)
def test_a_blocked_phrase_is_found_whatever_stands_between_its_words(prompt: str) -> None:
    """Also in scripts that write no spaces between words."""
    assert code(prompt) == "prompt_blocked"


@pytest.mark.parametrize("prompt", ["bloodhound", "lifeblood", "naked and truthful", "the truth, naked", "rated x", "c", "裸の体", "a letter c + one"])
def test_a_word_is_blocked_as_a_whole_only(prompt: str) -> None:
    assert code(prompt) is None


def test_a_blank_line_in_the_block_list_blocks_nothing() -> None:
    assert PromptGuard.of(["", "  ", "\u200b", "\u0301"]).blocked == []


def test_the_refusal_does_not_read_out_the_list() -> None:
    with pytest.raises(Refusal) as refused:
        GUARD.validate("much blood")
    assert "blood" not in str(refused.value).lower()


@given(ANY, st.lists(ANY, max_size=3))
@example("a", ["(", "[", "\\", "a|", "*"])
def test_whatever_is_asked_and_listed_nothing_is_raised_but_a_refusal(prompt: str, phrases: list[str]) -> None:
    code(prompt, PromptGuard.of(phrases))


@given(ANY)
@example("a\r\r\nb")
@example("\u1e9b\u0323")
def test_a_clean_prompt_is_clean(prompt: str) -> None:
    """So its key is the same, however often it goes through."""
    once = clean(prompt)
    assert clean(once) == once
    assert "\r" not in once


WORD = st.text(st.characters(categories=["Lu", "Ll", "Lo"]), min_size=1, max_size=6)


@given(st.lists(WORD, min_size=1, max_size=3), st.sampled_from([" ", "\n", "-", "_", "\u200b", " … "]))
def test_every_phrase_blocks_itself(words: list[str], between: str) -> None:
    """However strange: a list never holds an entry that blocks nothing, if the prompt may be judged at all."""
    guard = PromptGuard.of([" ".join(words)])
    judged = code(f"the {between.join(words)}.", guard)
    assert judged in {"prompt_blocked", "prompt_characters"}
