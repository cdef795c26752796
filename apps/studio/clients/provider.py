"""Providers: whoever makes an image of a prompt."""

from dataclasses import dataclass
from typing import Protocol

from ..order import Order


@dataclass(frozen=True)
class Link:
    """Where the provider keeps the image for a while."""

    url: str


class Provider(Protocol):
    """Whoever makes images. Open for as long as a worker runs.

    Both verbs raise `Blocked` (the safety filter), `Trouble` (may pass) or `Hopeless` (will not), and nothing else of their own.
    """

    async def generate(self, order: Order, *, key: str) -> bytes | Link:
        """The image, or where it is. `key` is the same whenever the same image is asked for again."""
        ...

    async def fetch(self, link: Link) -> bytes:
        """What is there, if it is an image's size and type."""
        ...
