"""A picture is judged by its bytes: what does not decode to its last line, or is not what it says, is not kept."""

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from apps.studio import picture
from apps.studio.picture import BadPicture, Facts, examined

SAVED = {"image/png": ("PNG", {}), "image/jpeg": ("JPEG", {"quality": 80}), "image/webp": ("WEBP", {"lossless": True})}


def drawn(content_type: str, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> bytes:
    """A picture with something in it, so that every part of its file matters."""
    to = io.BytesIO()
    kind, given_ = SAVED[content_type]
    Image.merge(mode, [Image.radial_gradient("L").resize(size)] * len(mode)).save(to, kind, **given_)
    return to.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be enormous."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("content_type", SAVED)
def test_a_picture_says_itself_what_it_is(content_type: str) -> None:
    assert examined(drawn(content_type)) == Facts(content_type, 40, 30)


@pytest.mark.parametrize("declared", [
    "image/png", "IMAGE/PNG", "image/png; charset=binary", " image/png ", "", "application/octet-stream", "binary/octet-stream", None])
def test_a_declared_type_that_agrees_or_says_nothing_is_fine(declared: str | None) -> None:
    assert examined(drawn("image/png"), declared).content_type == "image/png"


def test_the_common_misspelling_of_jpeg_is_understood() -> None:
    assert examined(drawn("image/jpeg"), "image/jpg").content_type == "image/jpeg"


@pytest.mark.parametrize("declared", [
    "image/jpeg", "image/webp", "text/html", "image/svg+xml", "image/*", "nonsense", "text/html; x=image/png", "image/png, text/html"])
def test_a_lying_content_type_is_refused(declared: str) -> None:
    with pytest.raises(BadPicture, match="its bytes are image/png"):
        examined(drawn("image/png"), declared)


@pytest.mark.parametrize("content_type", SAVED)
def test_a_picture_that_was_cut_off_anywhere_is_refused(content_type: str) -> None:
    """Of a PNG, the checksum of its end may be missing: nothing of the picture is in it."""
    whole = drawn(content_type)
    for length in range(len(whole) - (4 if content_type == "image/png" else 0)):
        with pytest.raises(BadPicture, match="no whole"):
            examined(whole[:length])


def test_a_flipped_bit_in_a_png_is_seen() -> None:
    whole = drawn("image/png")
    for place in range(len(whole) - 12):  # of the chunk that only says that here is the end
        with pytest.raises(BadPicture):
            examined(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1:])


@pytest.mark.parametrize("data", [
    b"", b"\0" * 1000, b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", b"<!doctype html><title>502 Bad Gateway</title>",
    b'{"error": {"code": "server_error"}}', b"\x89PNG\r\n\x1a\n<script>alert(1)</script>", b"\xff\xd8\xff<html>", b"RIFF\x10\0\0\0WEBPVP8 <html>",
], ids=lambda data: ascii(data[:20]))
@pytest.mark.parametrize("declared", [None, "image/png"])
def test_what_only_pretends_to_be_a_picture_is_refused(data: bytes, declared: str | None) -> None:
    with pytest.raises(BadPicture):
        examined(data, declared)


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "ICO", "PPM"])
def test_another_format_is_refused_and_its_decoder_is_never_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few decoders see foreign bytes, and every browser shows what is kept."""
    to, run = io.BytesIO(), list[str]()
    Image.new("RGB", (16, 16)).save(to, kind)
    decoder, accepts = Image.OPEN[kind]
    monkeypatch.setitem(Image.OPEN, kind, (lambda *given: (run.append(kind), decoder(*given))[1], accepts))
    with pytest.raises(BadPicture):
        examined(to.getvalue())
    assert run == []


@pytest.mark.parametrize("size", [(8000, 8000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_a_small_file_that_would_fill_the_memory_is_not_unpacked(size: tuple[int, int]) -> None:
    with pytest.raises(BadPicture):
        examined(bomb(*size))


def test_a_picture_at_the_limit_of_pixels_is_unpacked_and_one_beyond_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "MOST_PIXELS", 40 * 30)
    assert examined(drawn("image/png")).width == 40
    with pytest.raises(BadPicture, match="40 by 31 pixels"):
        examined(drawn("image/png", (40, 31)))


def test_a_file_at_the_limit_of_bytes_is_taken_and_one_beyond_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = drawn("image/png")
    monkeypatch.setattr(picture, "LARGEST", len(data))
    examined(data)
    with pytest.raises(BadPicture, match="bytes"):
        examined(data + b"\0")


@pytest.mark.parametrize("size", [(1536, 1024), (1024, 1536), (4096, 4096)])
def test_the_sizes_that_providers_draw_are_within_the_limits(size: tuple[int, int]) -> None:
    assert size[0] * size[1] <= picture.MOST_PIXELS


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA"])
def test_grey_and_transparent_pictures_are_pictures(mode: str) -> None:
    assert examined(drawn("image/png", mode=mode)).content_type == "image/png"


HEADS = st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"RIFF\x40\0\0\0WEBPVP8L", b"RIFF\x40\0\0\0WEBPVP8X"])


@given(HEADS, st.binary(max_size=200), st.none() | st.text(max_size=20))
def test_random_bytes_are_a_bad_picture_and_nothing_worse(head: bytes, data: bytes, declared: str | None) -> None:
    with pytest.raises(BadPicture):
        examined(head + data, declared)


@given(st.sampled_from(list(SAVED)), st.data())
def test_a_damaged_picture_is_a_picture_or_a_bad_one_and_nothing_worse(content_type: str, data: st.DataObject) -> None:
    whole = bytearray(drawn(content_type))
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=8)):
        whole[place] = byte
    try:
        examined(bytes(whole))
    except BadPicture:
        return
