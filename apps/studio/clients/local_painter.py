"""The painter: draws every order itself, on this machine, with no network."""

import asyncio
import hashlib
import io
import json
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from PIL import Image
from typing_extensions import override

from ..errors import Hopeless
from ..order import Order
from . import Link, Provider
from .painting.canvas import finished
from .painting.city import city
from .painting.dunes import dunes
from .painting.land import land
from .painting.palette import Palette, Subject, chosen
from .painting.sea import sea
from .painting.sky import sky
from .painting.space import space


class Painter(Provider):
    """Paints landscapes: a few words of the prompt choose what and in which colours, all the rest of it decides the details.

    The same prompt, size and seed make the same picture; without a seed, each order has its own.
    """

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Nothing is needed for it."""
        yield

    @override
    async def generate(self, order: Order, *, key: str) -> bytes:
        """A PNG of exactly the order's size."""
        seed = key if order.params.seed is None else order.params.seed
        return await asyncio.to_thread(painted, order.prompt, seed, (order.params.width, order.params.height))

    @override
    async def fetch(self, link: Link) -> bytes:
        raise Hopeless("The local provider gives images, and no links: this one is another provider's. Drive the job again.")


def painted(prompt: str, seed: int | str, size: tuple[int, int]) -> bytes:
    """The picture, as PNG."""
    told = hashlib.sha256(json.dumps([prompt, seed]).encode()).digest()
    chance = random.Random(int.from_bytes(told, "big"))
    subject, palette = chosen(prompt, chance)
    file = io.BytesIO()
    finished(chance, _scene(chance, subject, palette, size)).save(file, "PNG", compress_level=4)
    return file.getvalue()


def _scene(chance: random.Random, subject: Subject, palette: Palette, size: tuple[int, int]) -> Image.Image:
    if subject == "space":
        return space(chance, size)
    horizon = chance.uniform(0.5, 0.66)
    picture, light = sky(chance, size, palette, horizon)
    match subject:
        case "sea":
            return sea(chance, picture, palette, horizon, light)
        case "dunes":
            return dunes(chance, picture, palette, horizon, light)
        case "city":
            return city(chance, picture, palette, horizon)
        case "mountains" | "hills" | "forest":
            return land(chance, picture, palette, horizon, sharp=subject == "mountains", trees=subject == "forest")
