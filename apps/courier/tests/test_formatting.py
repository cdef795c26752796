"""Texts, sizes, durations and cards in both languages."""

from collections.abc import Callable
from string import Formatter
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.courier import formatting
from apps.courier.clients import telegram
from apps.courier.errors import Code
from apps.courier.screens import card_text, progress_bar
from apps.courier.service_models import DeliveryView
from apps.courier.texts import EN, RU

anything = st.text(st.characters(), max_size=300)


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_both_languages_have_the_same_keys_and_fields() -> None:
    assert EN.keys() == RU.keys()
    assert {key: fields(text) for key, text in EN.items()} == {key: fields(text) for key, text in RU.items()}


def test_every_text_is_translated() -> None:
    assert {key for key in EN if EN[key] == RU[key]} == {"decided", "user_line", "error_line"}


def test_button_labels_fit_a_phone() -> None:
    assert all(
        len(texts[key]) <= formatting.MAX_LABEL
        for texts in (EN, RU)
        for key in ("allow", "block", "up", "back", "download", "cancel")
    )


def test_callback_answers_fit() -> None:
    keys = (
        "closed",
        "outdated",
        "gone",
        "disk_unreachable",
        "disk_refused",
        "wrong",
        "ordered",
        "already",
        "already_ended",
        "cancelled",
        "on_its_way",
        "stopping",
        "looking",
    )
    assert all(len(texts[key]) <= formatting.MAX_CALLBACK_ANSWER for texts in (EN, RU) for key in keys)


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("ru", "ru"),
        ("be", "en"),
        ("uk", "en"),
        ("kk", "en"),
        ("RU-ru", "ru"),
        ("en", "en"),
        ("de", "en"),
        ("rue", "en"),
        ("", "en"),
        (None, "en"),
    ],
)
def test_language_is_chosen_by_its_code(code: str | None, language: str) -> None:
    assert formatting.choose_language(code) == language


@pytest.mark.parametrize("language", ["en", "ru"])
def test_every_error_code_has_its_own_text(language: str) -> None:
    expected = [
        formatting.render_failure(language, f"{code}: A sentence for administrators.")
        for code in (*get_args(Code), "temporary")
    ]
    expected += [formatting.render_failure(language, "lease lost"), formatting.render_failure(language, None)]
    assert len(set(expected)) == len(expected)
    assert not any("sentence" in each for each in expected)


@pytest.mark.parametrize("error", ["too_big", "too_big: The file has 3 bytes."])
def test_error_code_is_found_with_and_without_a_sentence(error: str) -> None:
    assert formatting.render_failure("en", error) == EN["why_too_big"]


@pytest.mark.parametrize(
    "error",
    [
        "too_bigger: x",
        "later: x",
        "xtoken: x",
        "why",
        "",
        "Traceback (most recent call last):\n…\nValueError: token: abc",
    ],
)
def test_unknown_error_is_explained_without_its_text(error: str) -> None:
    assert formatting.render_failure("en", error) == f"{EN['why_unknown']} {EN['later']}"


def test_name_is_never_used_as_a_format_string() -> None:
    assert formatting.render("en", "expired", name="{reason} {0} %s").startswith("{reason} {0} %s waited")


def test_name_adds_no_lines_to_a_text() -> None:
    assert formatting.render("en", "expired", name="emma\n\u202epdf").startswith("emma pdf waited")


CONTROL_CHARACTERS = (
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\u2028\u2029\x00\x1b\x7f\x85"
)


@pytest.mark.parametrize("clean", [formatting.plain_text, telegram.safe_file_name])
@pytest.mark.parametrize("mark", CONTROL_CHARACTERS)
def test_names_lose_control_characters(mark: str, clean: Callable[[str], str]) -> None:
    assert mark not in clean(f"Invoice{mark}fdp.exe")


@pytest.mark.parametrize("clean", [formatting.plain_text, telegram.safe_file_name])
@pytest.mark.parametrize(
    "name", ["👩\u200d🚀.pdf", "می\u200cخواهم.pdf", "🏴\U000e0067\U000e0062\U000e007f", "שלום.pdf", "❤\ufe0f"]
)
def test_joiners_of_letters_and_emoji_are_kept(name: str, clean: Callable[[str], str]) -> None:
    assert clean(name) == name


def test_direction_mark_leaves_no_gap() -> None:
    assert formatting.plain_text("שלום\u200f!") == "שלום!"


@pytest.mark.parametrize("language", ["en", "ru"])
@pytest.mark.parametrize("key", ["failed", "expired", "cancelled"])
def test_doubt_is_mentioned_in_every_ending(language: str, key: str) -> None:
    expected = formatting.render(language, f"{key}_maybe", name="emma.pdf", reason="Because.")
    assert "emma.pdf" in expected
    assert {"en": "t may have arrived anyway", "ru": "Возможно, файл всё-таки пришёл"}[language] in expected
    assert ("Because." in expected) == (key == "failed")


@given(anything)
def test_plain_text_is_one_sendable_line(name: str) -> None:
    plain = formatting.plain_text(name)
    assert plain.encode().decode() == plain
    assert "\n" not in plain
    assert "\u202e" not in plain


@given(anything, st.integers(1, 60))
def test_truncated_text_fits_and_is_sendable(text: str, limit: int) -> None:
    cut = formatting.truncate(formatting.plain_text(text), limit)
    assert formatting.telegram_length(cut) <= limit
    assert cut.encode().decode() == cut


@given(st.text())
def test_short_text_is_not_truncated(text: str) -> None:
    assert formatting.truncate(text, formatting.telegram_length(text)) == text


def test_every_text_fits_a_message_with_any_name() -> None:
    assert (
        formatting.telegram_length(formatting.render("ru", "failed", name="📄" * 5000, reason="x"))
        <= formatting.MAX_TEXT
    )


@pytest.mark.parametrize(
    ("number", "english", "russian"),
    [
        (0, "0 B", "0 Б"),
        (1024, "1 KB", "1 КБ"),
        (1536, "1.5 KB", "1,5 КБ"),
        (50 * 2**20, "50 MB", "50 МБ"),
        (2**41, "2048 GB", "2048 ГБ"),
    ],
)
def test_sizes_are_readable(number: int, english: str, russian: str) -> None:
    assert (formatting.format_size(number, "en"), formatting.format_size(number, "ru")) == (english, russian)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-3, "0 s"), (5, "5 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_durations_are_readable(seconds: float, expected: str) -> None:
    assert formatting.format_duration(seconds, "en") == expected


# ---------------------------------------------------------------- cards
def make_view(state: str, **given: Any) -> DeliveryView:
    values: dict[str, Any] = {
        "done": None,
        "total": None,
        "error_code": None,
        "attempt": 0,
        "failed": 0,
        "doubted": False,
        "tries": 3,
        "stopping": False,
    }
    return DeliveryView("j", 1, "emma.pdf", state, **(values | given))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (make_view("QUEUED"), "⏳ Queued."),
        (make_view("QUEUED", attempt=1), "⏳ Waiting for the next attempt."),
        (make_view("QUEUED", attempt=1, error_code="temporary"), "⏳ Waiting for the next attempt."),
        (
            make_view("QUEUED", attempt=2, failed=1, error_code="temporary"),
            f"⏳ Failed attempts: 1 of 3. {EN['why_temporary']} The courier will try again.",
        ),
        (
            make_view("QUEUED", attempt=9, failed=2, error_code="temporary"),
            f"⏳ Failed attempts: 2 of 3. {EN['why_temporary']} The courier will try again.",
        ),
        (
            make_view("QUEUED", attempt=1, failed=1, error_code="lease lost"),
            f"⏳ Failed attempts: 1 of 3. {EN['why_lost']} The courier will try again.",
        ),
        (make_view("CLAIMED"), "⏳ Starting."),
        (make_view("DOWNLOADING"), "⏬ Downloading from the disk."),
        (make_view("STREAMING"), "⏫ Sending."),
        (make_view("STREAMING", done=0, total=0), "⏫ Sending."),
        (make_view("STREAMING", done=512, total=2048), "⏫ Sending.\n██░░░░░░░░ 25 % · 512 B / 2 KB"),
        (make_view("DELIVERED"), "✅ Sent."),
        (make_view("DELIVERED", doubted=True), EN["DELIVERED_twice"]),
        (make_view("FAILED", error_code="too_big"), f"❌ Not sent. {EN['why_too_big']}"),
        (make_view("FAILED", error_code="temporary"), f"❌ Not sent. {EN['why_temporary']} {EN['later']}"),
        (make_view("FAILED", error_code="lease lost"), f"❌ Not sent. {EN['why_lost']} {EN['later']}"),
        (make_view("FAILED"), f"❌ Not sent. {EN['why_unknown']} {EN['later']}"),
        (make_view("CANCELLED"), "✖ Cancelled."),
        (make_view("EXPIRED"), EN["EXPIRED"]),
        (
            make_view("FAILED", error_code="too_big", doubted=True),
            f"❌ Not sent. {EN['why_too_big']}\nThe file may have arrived anyway.",
        ),
        (make_view("CANCELLED", doubted=True), "✖ Cancelled.\nThe file may have arrived anyway."),
        (make_view("EXPIRED", doubted=True), f"{EN['EXPIRED']}\nThe file may have arrived anyway."),
        (make_view("QUEUED", doubted=True), "⏳ Queued."),
        (make_view("CLAIMED", stopping=True), "⏳ Starting.\nStopping, if it is not too late."),
        (
            make_view("STREAMING", done=512, total=2048, stopping=True),
            "⏫ Sending.\n██░░░░░░░░ 25 % · 512 B / 2 KB\n" + EN.get("stopping", "?"),
        ),
    ],
)
def test_every_state_has_its_text(given: DeliveryView, expected: str) -> None:
    assert card_text("en", given) == f"📄 emma.pdf\n{expected}"
    assert card_text("ru", given).startswith("📄 emma.pdf\n")
    assert card_text("ru", given) != card_text("en", given)


@pytest.mark.parametrize(
    ("done", "drawn"),
    [
        (0, "░░░░░░░░░░ 0 %"),
        (-5, "░░░░░░░░░░ 0 %"),
        (999, "█████████░ 99 %"),
        (1000, "██████████ 100 %"),
        (5000, "██████████ 100 %"),
    ],
)
def test_progress_bar_has_ten_characters_and_is_full_only_at_the_end(done: float, drawn: str) -> None:
    assert progress_bar("en", done, 1000).startswith(f"{drawn} · ")
