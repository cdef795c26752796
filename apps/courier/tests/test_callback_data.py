"""The data of buttons: encoding, decoding and forgeries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.courier.callback_data import (
    MAX_FILE_ID,
    MAX_PAGE,
    MAX_USER_ID,
    Browse,
    Callback,
    CallbackCodec,
    Cancel,
    Decide,
    Download,
    ViewFile,
)

ANN, BOB = 7, 8
CALLBACKS = CallbackCodec("4242:courier-courier-courier-courier")
files, people = st.integers(1, MAX_FILE_ID), st.integers(1, MAX_USER_ID)
everything = st.one_of(
    st.builds(Browse, st.none() | files, st.integers(1, MAX_PAGE)),
    st.builds(ViewFile, files),
    st.builds(Download, files, st.binary(min_size=6, max_size=6).map(bytes.hex)),
    st.builds(Cancel, st.uuids().map(str)),
    st.builds(Decide, people, st.sampled_from(["ACTIVE", "BLOCKED"])),
)


@given(everything, people)
def test_packed_data_fits_64_bytes_and_unpacks_to_the_same_callback(callback: Callback, user_id: int) -> None:
    data = CALLBACKS.pack(callback, user_id)
    assert 1 <= len(data.encode()) <= 64
    assert CALLBACKS.unpack(data, user_id) == callback


@given(st.text() | st.from_regex(r"[bfdca]:[0-9:A-Za-z_-]*", fullmatch=True))
def test_random_data_unpacks_to_nothing_or_to_an_unsigned_callback(data: str) -> None:
    read = CALLBACKS.unpack(data, ANN)
    assert not isinstance(read, Download)
    assert read is None or CALLBACKS.pack(read, ANN) == data


@given(files, people, people)
def test_download_works_only_for_the_user_it_was_shown_to(file_id: int, ann: int, bob: int) -> None:
    read = CALLBACKS.unpack(CALLBACKS.pack(Download(file_id), ann), bob)
    assert (read is not None) == (ann == bob)


def test_download_works_only_for_its_file() -> None:
    data = CALLBACKS.pack(Download(5), ANN)
    assert CALLBACKS.unpack(data.replace("d:5:", "d:6:"), ANN) is None


@given(st.integers(0, 18), st.sampled_from("ABCDwxyz0189-_"))
def test_download_with_one_changed_character_is_rejected(place: int, instead: str) -> None:
    head, sealed = CALLBACKS.pack(Download(5, "00112233aabb"), ANN).rsplit(":", 1)
    changed = f"{head}:{sealed[:place]}{instead}{sealed[place + 1 :]}"
    assert (CALLBACKS.unpack(changed, ANN) is None) == (sealed[place] != instead)


def test_download_of_another_bot_is_rejected() -> None:
    assert CALLBACKS.unpack(CallbackCodec("4242:another-another-another").pack(Download(5), ANN), ANN) is None


def test_each_display_has_its_own_nonce() -> None:
    assert len({Download(5).nonce for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "data",
    [
        None,
        "",
        "x",
        "b",
        "b:",
        "b:1",
        "b:1:0",
        "b:01:1",
        "b:1:1:1",
        "b:-1:1",
        f"b:{MAX_FILE_ID + 1}:1",
        f"b:1:{MAX_PAGE + 1}",
        "b:1:1\n",
        " b:1:1",
        "b:١:1",
        "b:1:1" * 20,
        "f:0",
        f"f:{MAX_FILE_ID + 1}",
        "f:99999999999999999999",
        "f:1.0",
        "f:1e3",
        "f:None",
        "d:1:",
        "d:1:AAAAAAAAAAAAAAAAAAA",
        "d:0:AAAAAAAAAAAAAAAAAAA",
        "c:",
        "c:1",
        "c:0190A1B2-0000-7000-8000-000000000000",
        "c:0190a1b2-0000-7000-8000-00000000000g",
        "a:0:A",
        "a:1:C",
        "a:1:ACTIVE",
        f"a:{MAX_USER_ID + 1}:A",
        "a:-5:A",
        "\x00",
    ],
)
def test_data_that_pack_never_produces_is_rejected(data: str | None) -> None:
    assert CALLBACKS.unpack(data, ANN) is None
