"""What a picture is: bytes that decode, whole, as one of the formats that every browser shows."""

import io
from dataclasses import dataclass

from PIL import Image

from .errors import Trouble

LARGEST = 32 * 2**20
"""Bytes that a picture may have."""
MOST_PIXELS = 40_000_000
"""What may be unpacked from them: a small file can hold a picture that fills the memory."""
# A JPEG with a second picture in it, as cameras write them, is opened as MPO.
_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "MPO": "image/jpeg", "WEBP": "image/webp"}
_OPENED = ("PNG", "JPEG", "WEBP")
# What servers say of a file that they know nothing about.
_SAYS_NOTHING = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_ALIASES = {"image/jpg": "image/jpeg"}


class BadPicture(Trouble):
    """What came is no picture that can be kept. The next answer may be one."""


@dataclass(frozen=True)
class Facts:
    """What the bytes themselves say."""

    content_type: str
    width: int
    height: int


def examined(data: bytes, declared: str | None = None) -> Facts:
    """The facts of a PNG, JPEG or WebP that decodes to its last line, and is what the content type of its answer says. `BadPicture` for anything else."""
    if len(data) > LARGEST:
        raise BadPicture(f"The answer has {len(data)} bytes, and a picture may have {LARGEST}: ask for a smaller one.")
    facts = _decoded(data)
    said = (declared or "").partition(";")[0].strip().lower()
    if said not in _SAYS_NOTHING and _ALIASES.get(said, said) != facts.content_type:
        raise BadPicture(f"The answer says that it is {said[:80]!r}, and its bytes are {facts.content_type}: look at the provider.")
    return facts


def _decoded(data: bytes) -> Facts:
    try:
        with Image.open(io.BytesIO(data), formats=_OPENED) as image:
            facts = Facts(_TYPES[image.format or ""], image.width, image.height)
            if image.width * image.height <= MOST_PIXELS:
                # The one checks sums where there are any, the other misses nothing that is cut off; an image that was verified cannot be loaded.
                image.verify()
                _loaded(data)
                return facts
    except Exception as error:
        # Decoders raise whatever they please of junk, warnings of size included.
        raise BadPicture("What came is no whole PNG, JPEG or WebP picture: look at the provider if it goes on.") from error
    raise BadPicture(f"The picture has {facts.width} by {facts.height} pixels, and {MOST_PIXELS} may be unpacked: ask for a smaller one.")


def _loaded(data: bytes) -> None:
    with Image.open(io.BytesIO(data), formats=_OPENED) as image:
        image.load()
