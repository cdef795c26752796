"""The local provider: paints landscapes on this machine, without a network."""

import asyncio
import hashlib
import io
import json
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from PIL import Image
from typing_extensions import override

from ..errors import PermanentError
from ..order import Order
from .painting.canvas import add_vignette_and_grain
from .painting.city import city
from .painting.dunes import dunes
from .painting.land import land
from .painting.palette import Palette, Subject, choose
from .painting.sea import sea
from .painting.sky import sky
from .painting.space import space
from .provider import Link, Provider


class Painter(Provider):
    """Paints landscapes. Known words of the prompt choose subject and colours; the rest seeds the details.

    The same prompt, size and seed give the same picture. Without a seed, each job gets its own picture.
    """

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Do nothing: the painter needs no connection."""
        yield

    @override
    async def generate(self, order: Order, *, key: str) -> bytes:
        """A PNG of exactly the order's size."""
        seed = key if order.params.seed is None else order.params.seed
        return await asyncio.to_thread(paint, order.prompt, seed, (order.params.width, order.params.height))

    @override
    async def fetch(self, link: Link) -> bytes:
        raise PermanentError(
            "The local provider does not use links; this link belongs to another provider. Redrive the job."
        )


def paint(prompt: str, seed: int | str, size: tuple[int, int]) -> bytes:
    """Paint a picture and return it as PNG."""
    digest = hashlib.sha256(json.dumps([prompt, seed]).encode()).digest()
    rng = random.Random(int.from_bytes(digest, "big"))
    subject, palette = choose(prompt, rng)
    file = io.BytesIO()
    add_vignette_and_grain(rng, _scene(rng, subject, palette, size)).save(file, "PNG", compress_level=4)
    return file.getvalue()


def _scene(rng: random.Random, subject: Subject, palette: Palette, size: tuple[int, int]) -> Image.Image:
    if subject == "space":
        return space(rng, size)
    horizon = rng.uniform(0.5, 0.66)
    picture, light = sky(rng, size, palette, horizon)
    match subject:
        case "sea":
            return sea(rng, picture, palette, horizon, light)
        case "dunes":
            return dunes(rng, picture, palette, horizon, light)
        case "city":
            return city(rng, picture, palette, horizon)
        case "mountains" | "hills" | "forest":
            return land(rng, picture, palette, horizon, sharp=subject == "mountains", trees=subject == "forest")
