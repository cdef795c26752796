"""Validates image files: complete PNG, JPEG or WebP files of limited size."""

import io
from dataclasses import dataclass

from PIL import Image

from ..errors import TemporaryError

MAX_BYTES = 32 * 2**20
"""The largest file, in bytes."""
MAX_PIXELS = 40_000_000
"""The largest decoded size: a small file can expand to an image that fills the memory."""
# Pillow opens a JPEG with a second embedded picture, as cameras write them, as MPO.
_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "MPO": "image/jpeg", "WEBP": "image/webp"}
_OPENED = ("PNG", "JPEG", "WEBP")
# Content types that servers send for unknown files.
_GENERIC_TYPES = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_ALIASES = {"image/jpg": "image/jpeg"}


class InvalidImage(TemporaryError):
    """The data is not a valid image. A retry may return one."""


@dataclass(frozen=True)
class ImageFacts:
    """The type and size of an image, read from its bytes."""

    content_type: str
    width: int
    height: int


def inspect_image(data: bytes, declared: str | None = None) -> ImageFacts:
    """Decode an image completely and return its facts.

    Raises `InvalidImage` if it is damaged, too large, or not of the declared content type.
    """
    if len(data) > MAX_BYTES:
        raise InvalidImage(f"The image has {len(data)} bytes; the limit is {MAX_BYTES}. Request a smaller image.")
    facts = _decode(data)
    stated = (declared or "").partition(";")[0].strip().lower()
    if stated not in _GENERIC_TYPES and _ALIASES.get(stated, stated) != facts.content_type:
        raise InvalidImage(
            f"The declared content type is {stated[:80]!r}, but the data is {facts.content_type}. Check the provider."
        )
    return facts


def _decode(data: bytes) -> ImageFacts:
    try:
        with Image.open(io.BytesIO(data), formats=_OPENED) as image:
            facts = ImageFacts(_TYPES[image.format or ""], image.width, image.height)
            if image.width * image.height <= MAX_PIXELS:
                # `verify` checks checksums, `load` finds truncated data. A verified image must be reopened to load it.
                image.verify()
                _load(data)
                return facts
    except Exception as error:
        # Decoders raise many kinds of exceptions for damaged data, including warnings about the size.
        raise InvalidImage(
            "The data is not a complete PNG, JPEG or WebP image. Check the provider if this happens again."
        ) from error
    raise InvalidImage(
        f"The image has {facts.width} by {facts.height} pixels; the limit is {MAX_PIXELS}. Request a smaller image."
    )


def _load(data: bytes) -> None:
    with Image.open(io.BytesIO(data), formats=_OPENED) as image:
        image.load()
