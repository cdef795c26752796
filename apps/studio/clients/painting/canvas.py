"""The canvas: what a painter does with light, mist and edges. All of it is decided by the chance that it is given."""

import math
import random
from collections.abc import Callable, Sequence

from PIL import Image, ImageChops, ImageDraw

from .palette import Colour

FINE = 2
"""Edges are drawn so many times larger, and become smooth when they are made smaller."""
Point = tuple[float, float]


def scaled(picture: Image.Image, size: tuple[int, int], how: Image.Resampling = Image.Resampling.BICUBIC) -> Image.Image:
    """In another size."""
    return picture.resize(size, how)  # pyright: ignore[reportUnknownMemberType]


def toned(mask: Image.Image, tone: Callable[[int], float]) -> Image.Image:
    """Each level from 0 to 255 as another one."""
    return mask.point([round(tone(level)) for level in range(256)])  # pyright: ignore[reportUnknownMemberType]


def upright(size: tuple[int, int], colours: Sequence[Colour], bend: float = 1.0) -> Image.Image:
    """Colours from the top to the bottom; a bend above one leaves more room for the first."""
    height = size[1]
    column = Image.new("RGB", (1, height))
    last = len(colours) - 1
    for y in range(height):
        place = (y / max(height - 1, 1)) ** bend * last
        at = min(int(place), last - 1)
        share = place - at
        # Without corners where two colours meet.
        share = share * share * (3 - 2 * share) * 0.35 + share * 0.65
        r, g, b = (round(a + (z - a) * share) for a, z in zip(colours[at], colours[at + 1], strict=True))
        column.putpixel((0, y), (r, g, b))
    return scaled(column, size, Image.Resampling.NEAREST)


def cloudy(chance: random.Random, size: tuple[int, int], cells: tuple[int, int], octaves: int = 5) -> Image.Image:
    """Soft noise of several sizes, as in clouds and in marble."""
    width, height = max(size[0] // 2, 1), max(size[1] // 2, 1)
    total = Image.new("L", (width, height), 128)
    for octave in range(octaves):
        grid = (min(cells[0] << octave, width), min(cells[1] << octave, height))
        layer = scaled(Image.frombytes("L", grid, chance.randbytes(grid[0] * grid[1])), (width, height))
        total = Image.blend(total, layer, 1.0 if octave == 0 else 0.5 ** (octave * 0.75 + 0.55))
    return scaled(total, size)


def curved(mask: Image.Image, low: float, high: float, top: float = 255.0) -> Image.Image:
    """Nothing below `low`, all of `top` above `high`, smoothly between."""

    def tone(level: int) -> float:
        share = min(max((level - low) / (high - low), 0.0), 1.0)
        return share * share * (3 - 2 * share) * top

    return toned(mask, tone)


def halo(size: tuple[int, int], centre: Point, radius: float, top: float, fall: float = 2.0) -> Image.Image:
    """Light around a point, fading outwards."""
    side = max(round(radius * 2), 2)
    disc = toned(Image.radial_gradient("L"), lambda level: max(1 - level / 180.0, 0.0) ** fall * top)
    mask = Image.new("L", size)
    mask.paste(scaled(disc, (side, side)), (round(centre[0] - radius), round(centre[1] - radius)))
    return mask


def lit(picture: Image.Image, colour: Colour, mask: Image.Image) -> Image.Image:
    """The picture with light of this colour upon it."""
    light = Image.composite(Image.new("RGB", picture.size, colour), Image.new("RGB", picture.size), mask)
    return ImageChops.screen(picture, light)


def laid(picture: Image.Image, colour: Colour | Image.Image, mask: Image.Image) -> None:
    """Put a colour, or another picture, over the picture where the mask is."""
    picture.paste(colour, (0, 0, *picture.size), mask)


class Stencil:
    """A mask with smooth edges, drawn in the coordinates of the picture."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._mask = Image.new("L", (size[0] * FINE, size[1] * FINE))
        self._draw = ImageDraw.Draw(self._mask)

    def area(self, points: Sequence[Point], level: int = 255) -> None:
        self._draw.polygon([(x * FINE, y * FINE) for x, y in points], fill=level)

    def disc(self, centre: Point, rx: float, ry: float | None = None, level: int = 255) -> None:
        (x, y), ry = centre, rx if ry is None else ry
        self._draw.ellipse(((x - rx) * FINE, (y - ry) * FINE, (x + rx) * FINE, (y + ry) * FINE), fill=level)

    def line(self, points: Sequence[Point], width: float, level: int = 255) -> None:
        self._draw.line([(x * FINE, y * FINE) for x, y in points], fill=level, width=max(round(width * FINE), 1), joint="curve")

    def mask(self) -> Image.Image:
        return self._mask.reduce(FINE)


def ridge(chance: random.Random, width: int, steps: int, rough: float, *, sharp: bool) -> list[Point]:
    """Heights from 0 to 1 along the width: rolling, or with peaks. `rough` is how much of the small is in it."""
    waves = [(chance.uniform(0.6, 1.5) * 2**octave, chance.uniform(0, math.tau), rough**octave) for octave in range(8 if sharp else 5)]
    heights: list[float] = []
    for step in range(steps + 1):
        x, height = step / steps, 0.0
        for frequency, phase, amplitude in waves:
            wave = math.sin(x * frequency * math.tau + phase + 0.7 * math.sin(x * frequency * 2.1 + phase * 3))
            height += amplitude * ((1 - abs(wave)) * 2 - 1 if sharp else wave)
        heights.append(height)
    low, high = min(heights), max(heights)
    return [(step / steps * width, (height - low) / max(high - low, 1e-9)) for step, height in enumerate(heights)]


def finished(chance: random.Random, picture: Image.Image) -> Image.Image:
    """With darker corners, and with grain, so that wide skies show no bands."""
    corners = scaled(toned(Image.radial_gradient("L"), lambda level: max(level - 120, 0) * 0.55), picture.size)
    picture.paste((0, 0, 10), (0, 0, *picture.size), corners)
    grain = toned(Image.frombytes("L", picture.size, chance.randbytes(picture.width * picture.height)), lambda level: level // 52)
    return ImageChops.add(picture, Image.merge("RGB", (grain, grain, grain)), 1, -2)
