"""The payload codec: every accepted value is stored and read back unchanged; every other value is refused."""

import json
import sys
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import PayloadError
from interlock.core.payload import DEPTH, DIGITS, LIMIT, check_key, check_name, clean, encode, encode_tags, fault

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
GOOD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)

ANY_TEXT = st.text(st.characters())
ANYTHING = st.recursive(
    st.none() | st.floats() | ANY_TEXT | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT | st.integers(), inner),
)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


# ---------------------------------------------------------------- valid values
@given(GOOD)
def test_valid_value_is_read_back_unchanged(value: Any) -> None:
    """No fault is found in it, whatever its text looks like."""
    assert json.loads(encode(value)) == value
    assert fault(value) is None


@given(st.dictionaries(TEXT, GOOD))
def test_order_of_keys_does_not_change_the_text(value: dict[str, Any]) -> None:
    """The same value gives the same text."""
    assert encode(value) == encode(dict(reversed(value.items())))


@given(st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.booleans(), st.none(), GOOD)))
def test_value_has_the_same_text_inside_another_value(value: dict[str, Any]) -> None:
    """A flat dict is not encoded by the encoder of the json module, and a dict inside a list is."""
    assert encode([value]) == f"[{encode(value)}]"


def test_encoded_text_is_canonical() -> None:
    """Keys are sorted, without spaces; letters are not escaped."""
    assert encode({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'


@pytest.mark.parametrize(
    "value", ["\\u0000", {"5": 1, "true": 2, "null": 3, "-1": 4}, "[{" * 200, '"7":', "1" * 5000, (1, 2), "😀"]
)
def test_strings_that_look_invalid_are_accepted(value: Any) -> None:
    """Such text only causes a closer check."""
    assert json.loads(encode(value)) == (list(value) if isinstance(value, tuple) else value)


# ---------------------------------------------------------------- invalid values
LOOP: list[Any] = []
LOOP.append(LOOP)


BAD: list[tuple[Any, str]] = [
    (float("nan"), "nan is not a JSON number, at its top"),
    ({"a": [1, float("-inf")]}, "-inf is not a JSON number, at a[1]"),
    ({"a": {"b": "x\0y"}}, "a string contains a NUL character, at a.b"),
    ({"x\0": 1}, "a key contains a NUL character"),
    (["\ud83d"], "half of a surrogate pair, which is not text, at [0]"),
    ({"a\udc00": 1}, "a key contains half of a surrogate pair"),
    ({1: "x"}, "the key 1 is an int, but keys in JSON are strings, at its top"),
    ({"a": {None: 1}}, "the key None is a NoneType"),
    ({"a": {True: 1}}, "the key True is a bool"),
    ({2.5: 1}, "the key 2.5 is a float"),
    ({1: 1, "a": 2}, "the key 1 is an int"),
    ({(1, 2): 1}, "the key (1, 2) is a tuple"),
    ({"a": {1, 2}}, "a set cannot be stored as JSON, at a"),
    (b"raw", "a bytes cannot be stored as JSON"),
    (object(), "an object cannot be stored as JSON"),
    ({"n": 10**DIGITS}, f"an integer has more than {DIGITS:,} digits, at n"),
    (nested(DEPTH + 1), "deeper than 100 levels"),
    (nested(100_000), "deeper than 100 levels"),
    (LOOP, "or contains itself"),
]


@pytest.mark.parametrize(("value", "said"), BAD, ids=[said for _, said in BAD])
def test_invalid_value_is_refused_with_its_path(value: Any, said: str) -> None:
    """The message says what is wrong, and where."""
    with pytest.raises(PayloadError) as caught:
        encode(value, what="result")
    assert str(caught.value).startswith("The result cannot be stored: ")
    assert said in str(caught.value)


def test_payload_limits_are_exact() -> None:
    """The largest value that fits is stored, the next one is refused."""
    assert json.loads(encode(nested(DEPTH))) == nested(DEPTH)
    assert json.loads(encode(10 ** (DIGITS - 1))) == 10 ** (DIGITS - 1)
    assert len(encode("x" * (LIMIT - 2))) == LIMIT
    with pytest.raises(PayloadError, match="1,048,577 bytes as JSON; the limit is 1,048,576"):
        encode("x" * (LIMIT - 1))


def test_size_is_counted_in_bytes() -> None:
    """A letter may have several bytes."""
    assert encode("é" * 4, limit=10)
    with pytest.raises(PayloadError, match="12 bytes as JSON; the limit is 10"):
        encode("é" * 5, limit=10)


@given(ANYTHING)
def test_any_value_is_refused_or_read_back_unchanged(value: Any) -> None:
    """The stored text is valid UTF-8 without NUL."""
    try:
        text = encode(value)
    except PayloadError:
        assert fault(value) is not None
        return
    assert json.loads(text.encode()) == value
    assert "\0" not in text


# ---------------------------------------------------------------- texts
@given(st.text(st.characters()), st.integers(1, 50))
def test_cleaned_text_can_be_stored(text: str, limit: int) -> None:
    """Error texts are never refused, since the failure must be stored."""
    cleaned = clean(text, limit)
    assert len(cleaned) <= limit
    assert "\0" not in cleaned
    cleaned.encode()


def test_clean_changes_only_invalid_and_excess_text() -> None:
    """A replacement character for each invalid one, an ellipsis if the text is shortened."""
    assert clean("fine: é😀\n") == "fine: é😀\n"
    assert clean("a\0b\ud800c") == "a\ufffdb\ufffdc"
    assert clean("abcdef", 4) == "abc…"


def test_keys_have_1_to_255_characters() -> None:
    """The message says what to do with a longer one."""
    assert check_key("unique_key", "k" * 255) == "k" * 255
    for key, said in (
        ("k" * 256, "use a digest of it"),
        ("", "is empty"),
        ("a\0", "a NUL character"),
        ("\ud800", "surrogate"),
    ):
        with pytest.raises(PayloadError, match=said):
            check_key("unique_key", key)


def test_names_are_printable() -> None:
    """They are shown in tables, logs and command lines."""
    assert check_name("queue", "über-slow.1") == "über-slow.1"
    for name, said in (
        ("", "is empty"),
        (" a", "space around"),
        ("a\nb", "control character"),
        ("n" * 256, "choose a shorter one"),
        ("a\0", "NUL"),
    ):
        with pytest.raises(PayloadError, match=said):
            check_name("queue", name)


def test_tags_are_checked_one_by_one() -> None:
    """They are stored in canonical order."""
    assert encode_tags({"b": "1", "a": "2"}) == '{"a":"2","b":"1"}'
    with pytest.raises(PayloadError, match="The value of tag a is empty"):
        encode_tags({"a": ""})


# ---------------------------------------------------------------- speed
def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the work; the best of three, since the machine has other work too."""

    def once() -> float:
        begun = time.process_time()
        work()
        return time.process_time() - begun

    return min(once() for _ in range(3))


def test_runs_of_digits_are_encoded_as_fast_as_letters() -> None:
    """A check that looked for 4,301 digits from each of 4,300 digits would block the interpreter for 19 s per megabyte."""
    digits, letters = [{"text": (each * DIGITS + " ") * 60} for each in ("1", "x")]
    assert cpu(lambda: encode(digits)) < 30 * cpu(lambda: encode(letters))


@pytest.mark.parametrize("unit", ['"1', '"-1', '"true', '\\"1', '"1":', "[", "{", "\\u0000", "\\", "é1"])
def test_encoding_time_is_proportional_to_the_text(unit: str) -> None:
    """Eight times as much text takes about eight times as long."""
    short, long = unit * 2_000, unit * 16_000
    assert cpu(lambda: encode([short])) * 40 + 0.002 > cpu(lambda: encode([long]))


def test_path_of_a_fault_copies_no_keys() -> None:
    """A long key with many items must not be copied for each of them."""
    value = {"k" * 100_000: {str(n): 1 for n in range(2_000)} | {"last": "\0"}}
    tracemalloc.start()
    try:
        found = fault(value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == f"a string contains a NUL character, at {'k' * 254}….last"
    assert peak < 5_000_000


def test_longest_integer_is_accepted() -> None:
    """4,300 digits are allowed, also if the value needs the closer check."""
    assert json.loads(encode([[]] * 200 + [10**DIGITS - 1, 1 - 10**DIGITS]))[-1] == 1 - 10**DIGITS


def test_integer_limit_does_not_depend_on_the_process() -> None:
    """Another process could not read them."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(PayloadError, match="more than 4,300 digits, at n"):
            encode({"n": -(10**DIGITS)})
        assert encode({"n": 10**DIGITS - 1})
    finally:
        sys.set_int_max_str_digits(before)


class Label(str):  # noqa: SLOT000 - as a caller would write it
    """A string of the caller's own class."""


def test_subclasses_are_encoded_like_their_base_types() -> None:
    """They get the closer check and are stored in the same way."""
    assert encode({Label("a"): OrderedDict(b=Label("c"))}) == '{"a":{"b":"c"}}'
    with pytest.raises(PayloadError, match=r"the key 1 is an int, but keys in JSON are strings, at a"):
        encode({"a": OrderedDict({1: 2})})
