"""Canvas operations: gradients, noise, light and masks. All randomness comes from the given generator."""

import math
import random
from collections.abc import Callable, Sequence

from PIL import Image, ImageChops, ImageDraw

from .palette import Colour

SUPERSAMPLING = 2
"""Masks are drawn at this multiple of the size and then reduced, which smooths their edges."""
Point = tuple[float, float]


def resize(
    picture: Image.Image, size: tuple[int, int], how: Image.Resampling = Image.Resampling.BICUBIC
) -> Image.Image:
    """Resize a picture."""
    return picture.resize(size, how)  # pyright: ignore[reportUnknownMemberType]


def map_levels(mask: Image.Image, tone: Callable[[int], float]) -> Image.Image:
    """Apply a function to each level from 0 to 255."""
    return mask.point([round(tone(level)) for level in range(256)])  # pyright: ignore[reportUnknownMemberType]


def vertical_gradient(size: tuple[int, int], colours: Sequence[Colour], bend: float = 1.0) -> Image.Image:
    """A vertical gradient of these colours; a bend above one gives the first colours more room."""
    height = size[1]
    column = Image.new("RGB", (1, height))
    last = len(colours) - 1
    for y in range(height):
        place = (y / max(height - 1, 1)) ** bend * last
        at = min(int(place), last - 1)
        share = place - at
        # Smooth the transition between two colours.
        share = share * share * (3 - 2 * share) * 0.35 + share * 0.65
        r, g, b = (round(a + (z - a) * share) for a, z in zip(colours[at], colours[at + 1], strict=True))
        column.putpixel((0, y), (r, g, b))
    return resize(column, size, Image.Resampling.NEAREST)


def noise(rng: random.Random, size: tuple[int, int], cells: tuple[int, int], octaves: int = 5) -> Image.Image:
    """Fractal noise, as in clouds and marble."""
    width, height = max(size[0] // 2, 1), max(size[1] // 2, 1)
    total = Image.new("L", (width, height), 128)
    for octave in range(octaves):
        grid = (min(cells[0] << octave, width), min(cells[1] << octave, height))
        draw_layer = resize(Image.frombytes("L", grid, rng.randbytes(grid[0] * grid[1])), (width, height))
        total = Image.blend(total, draw_layer, 1.0 if octave == 0 else 0.5 ** (octave * 0.75 + 0.55))
    return resize(total, size)


def smoothstep(mask: Image.Image, low: float, high: float, top: float = 255.0) -> Image.Image:
    """Map levels below `low` to 0 and above `high` to `top`, with a smooth transition."""

    def tone(level: int) -> float:
        share = min(max((level - low) / (high - low), 0.0), 1.0)
        return share * share * (3 - 2 * share) * top

    return map_levels(mask, tone)


def halo(size: tuple[int, int], centre: Point, radius: float, top: float, fall: float = 2.0) -> Image.Image:
    """A mask of light around a point that fades outwards."""
    side = max(round(radius * 2), 2)
    disc = map_levels(Image.radial_gradient("L"), lambda level: max(1 - level / 180.0, 0.0) ** fall * top)
    mask = Image.new("L", size)
    mask.paste(resize(disc, (side, side)), (round(centre[0] - radius), round(centre[1] - radius)))
    return mask


def add_light(picture: Image.Image, colour: Colour, mask: Image.Image) -> Image.Image:
    """Add light of this colour where the mask is."""
    light = Image.composite(Image.new("RGB", picture.size, colour), Image.new("RGB", picture.size), mask)
    return ImageChops.screen(picture, light)


def overlay(picture: Image.Image, colour: Colour | Image.Image, mask: Image.Image) -> None:
    """Paste a colour or another picture where the mask is."""
    picture.paste(colour, (0, 0, *picture.size), mask)


class Stencil:
    """A mask with smooth edges, drawn in the coordinates of the picture."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._mask = Image.new("L", (size[0] * SUPERSAMPLING, size[1] * SUPERSAMPLING))
        self._draw = ImageDraw.Draw(self._mask)

    def area(self, points: Sequence[Point], level: int = 255) -> None:
        self._draw.polygon([(x * SUPERSAMPLING, y * SUPERSAMPLING) for x, y in points], fill=level)

    def disc(self, centre: Point, rx: float, ry: float | None = None, level: int = 255) -> None:
        (x, y), ry = centre, rx if ry is None else ry
        self._draw.ellipse(
            ((x - rx) * SUPERSAMPLING, (y - ry) * SUPERSAMPLING, (x + rx) * SUPERSAMPLING, (y + ry) * SUPERSAMPLING),
            fill=level,
        )

    def line(self, points: Sequence[Point], width: float, level: int = 255) -> None:
        self._draw.line(
            [(x * SUPERSAMPLING, y * SUPERSAMPLING) for x, y in points],
            fill=level,
            width=max(round(width * SUPERSAMPLING), 1),
            joint="curve",
        )

    def mask(self) -> Image.Image:
        return self._mask.reduce(SUPERSAMPLING)


def ridge(rng: random.Random, width: int, steps: int, rough: float, *, sharp: bool) -> list[Point]:
    """Heights from 0 to 1 along the width, rolling or with peaks. `rough` is the share of small waves."""
    waves = [
        (rng.uniform(0.6, 1.5) * 2**octave, rng.uniform(0, math.tau), rough**octave)
        for octave in range(8 if sharp else 5)
    ]
    heights: list[float] = []
    for step in range(steps + 1):
        x, height = step / steps, 0.0
        for frequency, phase, amplitude in waves:
            wave = math.sin(x * frequency * math.tau + phase + 0.7 * math.sin(x * frequency * 2.1 + phase * 3))
            height += amplitude * ((1 - abs(wave)) * 2 - 1 if sharp else wave)
        heights.append(height)
    low, high = min(heights), max(heights)
    return [(step / steps * width, (height - low) / max(high - low, 1e-9)) for step, height in enumerate(heights)]


def add_vignette_and_grain(rng: random.Random, picture: Image.Image) -> Image.Image:
    """Darken the corners and add grain, so that wide skies show no bands."""
    corners = resize(map_levels(Image.radial_gradient("L"), lambda level: max(level - 120, 0) * 0.55), picture.size)
    picture.paste((0, 0, 10), (0, 0, *picture.size), corners)
    grain = map_levels(
        Image.frombytes("L", picture.size, rng.randbytes(picture.width * picture.height)), lambda level: level // 52
    )
    return ImageChops.add(picture, Image.merge("RGB", (grain, grain, grain)), 1, -2)
