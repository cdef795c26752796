"""Image files are validated by their bytes: damaged, oversized or mislabelled files are refused."""

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from apps.studio.clients import image_file
from apps.studio.clients.image_file import ImageFacts, InvalidImage, inspect_image

SAVED = {"image/png": ("PNG", {}), "image/jpeg": ("JPEG", {"quality": 80}), "image/webp": ("WEBP", {"lossless": True})}


def drawn(content_type: str, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> bytes:
    """A picture with content, so that every part of its file matters."""
    to = io.BytesIO()
    kind, given_ = SAVED[content_type]
    Image.merge(mode, [Image.radial_gradient("L").resize(size)] * len(mode)).save(to, kind, **given_)
    return to.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def bomb(width: int, height: int) -> bytes:
    """A small PNG that claims to be enormous."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("content_type", SAVED)
def test_type_and_size_come_from_the_bytes(content_type: str) -> None:
    assert inspect_image(drawn(content_type)) == ImageFacts(content_type, 40, 30)


@pytest.mark.parametrize(
    "declared",
    [
        "image/png",
        "IMAGE/PNG",
        "image/png; charset=binary",
        " image/png ",
        "",
        "application/octet-stream",
        "binary/octet-stream",
        None,
    ],
)
def test_matching_or_generic_content_type_is_accepted(declared: str | None) -> None:
    assert inspect_image(drawn("image/png"), declared).content_type == "image/png"


def test_image_jpg_is_accepted_for_jpeg() -> None:
    assert inspect_image(drawn("image/jpeg"), "image/jpg").content_type == "image/jpeg"


@pytest.mark.parametrize(
    "declared",
    [
        "image/jpeg",
        "image/webp",
        "text/html",
        "image/svg+xml",
        "image/*",
        "nonsense",
        "text/html; x=image/png",
        "image/png, text/html",
    ],
)
def test_wrong_content_type_is_refused(declared: str) -> None:
    with pytest.raises(InvalidImage, match="the data is image/png"):
        inspect_image(drawn("image/png"), declared)


@pytest.mark.parametrize("content_type", SAVED)
def test_truncated_picture_is_refused(content_type: str) -> None:
    """The final chunk of a PNG is not tested, because it contains no picture data."""
    whole = drawn(content_type)
    for length in range(len(whole) - (4 if content_type == "image/png" else 0)):
        with pytest.raises(InvalidImage, match="not a complete"):
            inspect_image(whole[:length])


def test_flipped_bit_in_a_png_is_refused() -> None:
    whole = drawn("image/png")
    for place in range(len(whole) - 12):  # without the IEND chunk
        with pytest.raises(InvalidImage):
            inspect_image(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 1000,
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"<!doctype html><title>502 Bad Gateway</title>",
        b'{"error": {"code": "server_error"}}',
        b"\x89PNG\r\n\x1a\n<script>alert(1)</script>",
        b"\xff\xd8\xff<html>",
        b"RIFF\x10\0\0\0WEBPVP8 <html>",
    ],
    ids=lambda data: ascii(data[:20]),
)
@pytest.mark.parametrize("declared", [None, "image/png"])
def test_data_that_is_not_a_picture_is_refused(data: bytes, declared: str | None) -> None:
    with pytest.raises(InvalidImage):
        inspect_image(data, declared)


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "ICO", "PPM"])
def test_other_formats_are_refused_without_running_their_decoder(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few decoders see foreign bytes, and all browsers show the accepted formats."""
    to, run = io.BytesIO(), list[str]()
    Image.new("RGB", (16, 16)).save(to, kind)
    decoder, accepts = Image.OPEN[kind]
    monkeypatch.setitem(Image.OPEN, kind, (lambda *given: (run.append(kind), decoder(*given))[1], accepts))
    with pytest.raises(InvalidImage):
        inspect_image(to.getvalue())
    assert run == []


@pytest.mark.parametrize("size", [(8000, 8000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_decompression_bomb_is_not_decoded(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidImage):
        inspect_image(bomb(*size))


def test_pixel_limit_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_file, "MAX_PIXELS", 40 * 30)
    assert inspect_image(drawn("image/png")).width == 40
    with pytest.raises(InvalidImage, match="40 by 31 pixels"):
        inspect_image(drawn("image/png", (40, 31)))


def test_byte_limit_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    data = drawn("image/png")
    monkeypatch.setattr(image_file, "MAX_BYTES", len(data))
    inspect_image(data)
    with pytest.raises(InvalidImage, match="bytes"):
        inspect_image(data + b"\0")


@pytest.mark.parametrize("size", [(1536, 1024), (1024, 1536), (4096, 4096)])
def test_common_sizes_are_within_the_limits(size: tuple[int, int]) -> None:
    assert size[0] * size[1] <= image_file.MAX_PIXELS


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA"])
def test_grey_and_transparent_pictures_are_accepted(mode: str) -> None:
    assert inspect_image(drawn("image/png", mode=mode)).content_type == "image/png"


HEADS = st.sampled_from(
    [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"RIFF\x40\0\0\0WEBPVP8L", b"RIFF\x40\0\0\0WEBPVP8X"]
)


@given(HEADS, st.binary(max_size=200), st.none() | st.text(max_size=20))
def test_random_bytes_raise_only_invalid_image(head: bytes, data: bytes, declared: str | None) -> None:
    with pytest.raises(InvalidImage):
        inspect_image(head + data, declared)


@given(st.sampled_from(list(SAVED)), st.data())
def test_damaged_picture_raises_only_invalid_image(content_type: str, data: st.DataObject) -> None:
    whole = bytearray(drawn(content_type))
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=8)):
        whole[place] = byte
    try:
        inspect_image(bytes(whole))
    except InvalidImage:
        return
