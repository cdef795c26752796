"""PromptGuard checks length, characters and the block list, in any spelling."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from apps.studio.errors import Refusal
from apps.studio.prompt_guard import MAX_LENGTH, PromptGuard, clean

GUARD = PromptGuard.of(
    ["Blood", "naked truth", "x-rated", "Straße", "裸体", "c++", "   ", "\u200b", "rock'n'roll", "ปืน"]
)
ANY = st.text(st.characters(exclude_categories=()), max_size=60)


def code(prompt: str, guard: PromptGuard = GUARD) -> str | None:
    try:
        guard.validate(clean(prompt))
    except Refusal as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t\r\n", "…!?", "\u0301\u0302", "\u200b\u200d"])
def test_prompt_without_letters_or_digits_is_empty(prompt: str) -> None:
    assert code(prompt) == "prompt_empty"


def test_length_limit_is_inclusive() -> None:
    assert code("a" * MAX_LENGTH) is None
    assert code("a" * (MAX_LENGTH + 1)) == "prompt_too_long"
    assert code(f"  {'a' * MAX_LENGTH}\n") is None, "what is cut off around it does not count"


@pytest.mark.parametrize(
    "letter",
    [
        "\x00",
        "\x07",
        "\x1b",
        "\x7f",
        "\x85",
        "\ud800",
        "\ue000",
        "\U0010ffff",
        "\u202e",
        "\u2066",
        "\u3164",
        "\uffa0",
        "\u115f",
        "\u2800",
        "\U000e0041",
    ],
    ids=ascii,
)
def test_invisible_and_bidirectional_characters_are_refused(letter: str) -> None:
    assert code(f"a cat{letter}at sea") == "prompt_characters"


@pytest.mark.parametrize(
    "prompt",
    [
        "a cat\r\nat sea",
        "a cat\rat sea",
        "a\tcat",
        "кот у моря",
        "猫と海",
        "a 👩\u200d🚀 at sea",
        "قط في البحر",
        "می\u200cخواهم",
        "café",
        "cafe\u0301",
    ],
    ids=ascii,
)
def test_common_text_is_accepted(prompt: str) -> None:
    """This includes line breaks of all systems, other scripts, emoji with joiners and the Persian non-joiner."""
    assert code(prompt) is None


@pytest.mark.parametrize(
    "prompt",
    [
        "blood",
        "BLOOD!",
        "much BlOoD.",
        "bl\u200bood",
        "b\u200dl\u2060o\ufeffo\u00add",
        "blo\u034fod",
        "blóöd",
        "b\u0336l\u0336o\u0336o\u0336d\u0336",
        "ｂｌｏｏｄ",
        "𝐛𝐥𝐨𝐨𝐝",
        "my ⓑⓛⓞⓞⓓ",
        "b\u20ddl\u20ddo\u20ddo\u20ddd\u20dd",
        "_blood_",
        "**blood**",
        "a\u200bb\u200blood",
        "no\u200bblood",
        "これはbloodです",
        "blood\u00a0red",
    ],
    ids=ascii,
)
def test_blocked_word_is_found_in_any_spelling(prompt: str) -> None:
    """Spellings differ in case, accents, width, style, combining marks and invisible characters."""
    assert code(prompt) == "prompt_blocked"


@pytest.mark.parametrize(
    "prompt",
    [
        "the naked truth",
        "Naked\nTruth",
        "naked \t\r\n truth",
        "naked-truth",
        "naked_truth",
        "naked, (truth)",
        "naked\u2028truth",
        "naked\u200btruth",
        "ＮＡＫＥＤ　ＴＲＵＴＨ",
        "an x rated film",
        "X–RATED",
        "x\u2011rated",
        "rock’n’roll",
        "STRASSE",
        "strasse",
        "美しい裸体の絵",
        "c++ in stone",
        "รูปปืนใหญ่",
    ],
    ids=ascii,
)
def test_blocked_phrase_is_found_with_anything_between_its_words(prompt: str) -> None:
    """This also holds in scripts without spaces between words."""
    assert code(prompt) == "prompt_blocked"


@pytest.mark.parametrize(
    "prompt",
    ["bloodhound", "lifeblood", "naked and truthful", "the truth, naked", "rated x", "c", "裸の体", "a letter c + one"],
)
def test_only_whole_words_are_blocked(prompt: str) -> None:
    assert code(prompt) is None


def test_blank_line_in_the_block_list_is_ignored() -> None:
    assert PromptGuard.of(["", "  ", "\u200b", "\u0301"]).blocked == []


def test_refusal_does_not_name_the_blocked_word() -> None:
    with pytest.raises(Refusal) as refused:
        GUARD.validate("much blood")
    assert "blood" not in str(refused.value).lower()


@given(ANY, st.lists(ANY, max_size=3))
@example("a", ["(", "[", "\\", "a|", "*"])
def test_any_prompt_and_list_raise_only_refusals(prompt: str, phrases: list[str]) -> None:
    code(prompt, PromptGuard.of(phrases))


@given(ANY)
@example("a\r\r\nb")
@example("\u1e9b\u0323")
def test_cleaning_is_idempotent(prompt: str) -> None:
    """The idempotency key is therefore stable."""
    once = clean(prompt)
    assert clean(once) == once
    assert "\r" not in once


WORD = st.text(st.characters(categories=["Lu", "Ll", "Lo"]), min_size=1, max_size=6)


@given(st.lists(WORD, min_size=1, max_size=3), st.sampled_from([" ", "\n", "-", "_", "\u200b", " … "]))
def test_each_phrase_blocks_itself(words: list[str], between: str) -> None:
    """This holds for any phrase that is itself a valid prompt."""
    guard = PromptGuard.of([" ".join(words)])
    judged = code(f"the {between.join(words)}.", guard)
    assert judged in {"prompt_blocked", "prompt_characters"}
