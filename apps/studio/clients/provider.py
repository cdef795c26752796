"""The interface of image providers."""

from dataclasses import dataclass
from typing import Protocol

from ..order import Order


@dataclass(frozen=True)
class Link:
    """A temporary link to an image at the provider."""

    url: str


class Provider(Protocol):
    """Generates images. It is open while a worker runs.

    Both methods raise `SafetyBlocked`, `TemporaryError` (a retry may succeed) or `PermanentError` (it cannot).
    """

    async def generate(self, order: Order, *, key: str) -> bytes | Link:
        """Generate an image; return it or a link to it. `key` is the same for each attempt at the same image."""
        ...

    async def fetch(self, link: Link) -> bytes:
        """Download the image of a link. It checks the size and the type."""
        ...
