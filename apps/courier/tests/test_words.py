"""Promises about the words."""

from collections.abc import Callable
from string import Formatter
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.courier import telegram, words
from apps.courier.desk import Shown
from apps.courier.errors import Code
from apps.courier.keyboards import bar, card_text
from apps.courier.words import EN, RU

anything = st.text(st.characters(), max_size=300)


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_both_languages_have_the_same_keys_and_fields() -> None:
    assert EN.keys() == RU.keys()
    assert {key: fields(text) for key, text in EN.items()} == {key: fields(text) for key, text in RU.items()}


def test_nothing_is_left_untranslated() -> None:
    assert {key for key in EN if EN[key] == RU[key]} == {"decided", "user_line", "error_line"}


def test_a_label_is_no_longer_than_a_telephone_shows() -> None:
    assert all(len(texts[key]) <= words.LABEL for texts in (EN, RU) for key in ("allow", "block", "up", "back", "download", "cancel"))


def test_an_answer_to_a_press_fits() -> None:
    keys = ("closed", "outdated", "gone", "disk_trouble", "disk_refused", "wrong", "ordered", "already", "already_ended", "cancelled", "on_its_way", "stopping",
            "looking")
    assert all(len(texts[key]) <= words.ANSWER for texts in (EN, RU) for key in keys)


@pytest.mark.parametrize(
    ("code", "language"),
    [("ru", "ru"), ("be", "en"), ("uk", "en"), ("kk", "en"), ("RU-ru", "ru"), ("en", "en"), ("de", "en"), ("rue", "en"), ("", "en"), (None, "en")],
)
def test_a_language_is_chosen_by_its_code(code: str | None, language: str) -> None:
    assert words.language(code) == language


@pytest.mark.parametrize("language", ["en", "ru"])
def test_every_code_has_words_of_its_own(language: str) -> None:
    told = [words.failure(language, f"{code}: A sentence for administrators.") for code in (*get_args(Code), "trouble")]
    told += [words.failure(language, "lease lost"), words.failure(language, None)]
    assert len(set(told)) == len(told)
    assert not any("sentence" in each for each in told)


@pytest.mark.parametrize("error", ["too_big", "too_big: The file has 3 bytes."])
def test_a_code_is_known_with_its_sentence_and_without(error: str) -> None:
    assert words.failure("en", error) == EN["why_too_big"]


@pytest.mark.parametrize("error", ["too_bigger: x", "later: x", "xtoken: x", "why", "", "Traceback (most recent call last):\n…\nValueError: token: abc"])
def test_an_error_without_a_code_is_told_without_its_own_words(error: str) -> None:
    assert words.failure("en", error) == f"{EN['why_unknown']} {EN['later']}"


def test_a_name_is_never_read_as_a_form() -> None:
    assert words.say("en", "expired", name="{reason} {0} %s").startswith("{reason} {0} %s waited")


def test_a_name_adds_no_lines_to_a_sentence() -> None:
    assert words.say("en", "expired", name="emma\n\u202epdf").startswith("emma pdf waited")


STEERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\u2028\u2029\x00\x1b\x7f\x85"


@pytest.mark.parametrize("shown", [words.plain, telegram.plain])
@pytest.mark.parametrize("steers", STEERING)
def test_nothing_steers_how_a_name_is_read(steers: str, shown: Callable[[str], str]) -> None:
    assert steers not in shown(f"Invoice{steers}fdp.exe")


@pytest.mark.parametrize("shown", [words.plain, telegram.plain])
@pytest.mark.parametrize("name", ["👩\u200d🚀.pdf", "می\u200cخواهم.pdf", "🏴\U000e0067\U000e0062\U000e007f", "שלום.pdf", "❤\ufe0f"])
def test_what_joins_letters_and_pictures_is_kept(name: str, shown: Callable[[str], str]) -> None:
    assert shown(name) == name


def test_a_mark_of_direction_leaves_no_gap() -> None:
    assert words.plain("שלום\u200f!") == "שלום!"


@pytest.mark.parametrize("language", ["en", "ru"])
@pytest.mark.parametrize("key", ["failed", "expired", "cancelled"])
def test_what_may_have_arrived_all_the_same_is_told_so(language: str, key: str) -> None:
    told = words.say(language, f"{key}_maybe", name="emma.pdf", reason="Because.")
    assert "emma.pdf" in told
    assert {"en": "It may have arrived all the same", "ru": "Возможно, файл всё-таки пришёл"}[language] in told
    assert ("Because." in told) == (key == "failed")


@given(anything)
def test_a_name_is_one_line_that_can_be_sent(name: str) -> None:
    plain = words.plain(name)
    assert plain.encode().decode() == plain
    assert "\n" not in plain
    assert "\u202e" not in plain


@given(anything, st.integers(1, 60))
def test_what_is_cut_fits_and_can_be_sent(text: str, limit: int) -> None:
    cut = words.fit(words.plain(text), limit)
    assert words.units(cut) <= limit
    assert cut.encode().decode() == cut


@given(st.text())
def test_what_fits_is_left_alone(text: str) -> None:
    assert words.fit(text, words.units(text)) == text


def test_a_sentence_fits_into_a_message_whatever_it_names() -> None:
    assert words.units(words.say("ru", "failed", name="📄" * 5000, reason="x")) <= words.TEXT


@pytest.mark.parametrize(
    ("number", "english", "russian"),
    [(0, "0 B", "0 Б"), (1024, "1 KB", "1 КБ"), (1536, "1.5 KB", "1,5 КБ"), (50 * 2**20, "50 MB", "50 МБ"), (2**41, "2048 GB", "2048 ГБ")],
)
def test_bytes_are_told_as_people_do(number: int, english: str, russian: str) -> None:
    assert (words.amount(number, "en"), words.amount(number, "ru")) == (english, russian)


@pytest.mark.parametrize(("seconds", "told"), [(-3, "0 s"), (5, "5 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")])
def test_time_is_told_as_people_do(seconds: float, told: str) -> None:
    assert words.span(seconds, "en") == told


# ---------------------------------------------------------------- a card
def shown(state: str, **given: Any) -> Shown:
    values: dict[str, Any] = {"done": None, "total": None, "error_code": None, "attempt": 0, "failed": 0, "doubted": False, "tries": 3, "stopping": False}
    return Shown("j", 1, "emma.pdf", state, **(values | given))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (shown("QUEUED"), "⏳ In the queue."),
        (shown("QUEUED", attempt=1), "⏳ It waits for its next try."),
        (shown("QUEUED", attempt=1, error_code="trouble"), "⏳ It waits for its next try."),
        (shown("QUEUED", attempt=2, failed=1, error_code="trouble"), f"⏳ Tries that did not work out: 1 of 3. {EN['why_trouble']} It will be tried again."),
        (shown("QUEUED", attempt=9, failed=2, error_code="trouble"), f"⏳ Tries that did not work out: 2 of 3. {EN['why_trouble']} It will be tried again."),
        (shown("QUEUED", attempt=1, failed=1, error_code="lease lost"), f"⏳ Tries that did not work out: 1 of 3. {EN['why_lost']} It will be tried again."),
        (shown("CLAIMED"), "⏳ A worker has taken it."),
        (shown("DOWNLOADING"), "⏬ It is being fetched from the disk."),
        (shown("STREAMING"), "⏫ It is being sent."),
        (shown("STREAMING", done=0, total=0), "⏫ It is being sent."),
        (shown("STREAMING", done=512, total=2048), "⏫ It is being sent.\n██░░░░░░░░ 25 % · 512 B / 2 KB"),
        (shown("DELIVERED"), "✅ Sent."),
        (shown("DELIVERED", doubted=True), EN["DELIVERED_twice"]),
        (shown("FAILED", error_code="too_big"), f"❌ It could not be sent. {EN['why_too_big']}"),
        (shown("FAILED", error_code="trouble"), f"❌ It could not be sent. {EN['why_trouble']} {EN['later']}"),
        (shown("FAILED", error_code="lease lost"), f"❌ It could not be sent. {EN['why_lost']} {EN['later']}"),
        (shown("FAILED"), f"❌ It could not be sent. {EN['why_unknown']} {EN['later']}"),
        (shown("CANCELLED"), "✖ Cancelled."),
        (shown("EXPIRED"), EN["EXPIRED"]),
        (shown("FAILED", error_code="too_big", doubted=True), f"❌ It could not be sent. {EN['why_too_big']}\nIt may have arrived all the same."),
        (shown("CANCELLED", doubted=True), "✖ Cancelled.\nIt may have arrived all the same."),
        (shown("EXPIRED", doubted=True), f"{EN['EXPIRED']}\nIt may have arrived all the same."),
        (shown("QUEUED", doubted=True), "⏳ In the queue."),
        (shown("CLAIMED", stopping=True), "⏳ A worker has taken it.\nIt is being stopped, if that is still possible."),
        (shown("STREAMING", done=512, total=2048, stopping=True), "⏫ It is being sent.\n██░░░░░░░░ 25 % · 512 B / 2 KB\n" + EN.get("stopping", "?")),
    ],
)
def test_every_state_has_its_words(given: Shown, told: str) -> None:
    assert card_text("en", given) == f"📄 emma.pdf\n{told}"
    assert card_text("ru", given).startswith("📄 emma.pdf\n")
    assert card_text("ru", given) != card_text("en", given)


@pytest.mark.parametrize(
    ("done", "drawn"),
    [(0, "░░░░░░░░░░ 0 %"), (-5, "░░░░░░░░░░ 0 %"), (999, "█████████░ 99 %"), (1000, "██████████ 100 %"), (5000, "██████████ 100 %")],
)
def test_a_bar_has_ten_characters_and_is_full_only_at_the_end(done: float, drawn: str) -> None:
    assert bar("en", done, 1000).startswith(f"{drawn} · ")
