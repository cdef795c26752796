"""Dunes: waves of sand with sharp crests."""

import math
import random

from PIL import Image, ImageChops

from .canvas import Point, Stencil, map_levels, overlay, resize, ridge
from .land import draw_layer
from .palette import Palette, mix
from .sky import Light


def dunes(rng: random.Random, picture: Image.Image, palette: Palette, horizon: float, light: Light) -> Image.Image:
    """Paint waves of sand with sharp crests and shaded lee sides."""
    width, height = picture.size
    sand = mix(palette.sky[-1], palette.near, 0.16)
    away = 1 if light.place[0] < width / 2 else -1
    for number in range(6):
        share = number / 5
        base, tall = horizon + 0.015 + (1.04 - horizon) * share**1.4, 0.045 + 0.12 * share
        points = ridge(rng, width, 240, 0.22, sharp=False)
        outline = [(x, height * (base - tall * rise)) for x, rise in points]
        stencil = Stencil(picture.size)
        stencil.area([(0, height), *outline, (width, height)])
        colour = mix(mix(palette.haze, sand, 0.35 + 0.65 * share), palette.near, share * 0.3)
        draw_layer(
            picture,
            stencil,
            mix(colour, palette.light, 0.45 - 0.2 * share),
            mix(colour, palette.near, 0.28),
            (base - tall, base + 0.1 + 0.1 * share),
        )
        if 0 < number < 5:
            dark = mix(mix(sand, palette.near, 0.55 + 0.2 * share), palette.haze, 0.3 * (1 - share))
            overlay(picture, dark, _shade(rng, picture.size, outline, away, height * (0.05 + 0.22 * share)))
    return picture


def _shade(rng: random.Random, size: tuple[int, int], outline: list[Point], away: int, drop: float) -> Image.Image:
    """A mask of the dark sides of all dunes along an outline."""
    stencil = Stencil(size)
    for at in range(4, len(outline) - 4):
        y = outline[at][1]
        peak = y < min(outline[at - 4][1], outline[at + 4][1]) and y <= min(outline[at - 1][1], outline[at + 1][1])
        if peak and (lee := _lee(rng, outline, at, away, drop)):
            stencil.area(lee)
    # The shade fades towards the valley.
    top, low = (round(edge(y for _, y in outline)) for edge in (min, max))
    fade = Image.new("L", size)
    fade.paste(
        resize(ImageChops.invert(Image.linear_gradient("L")), (size[0], max(round(low + drop * 0.8) - top, 1))),
        (0, top),
    )
    return ImageChops.multiply(stencil.mask(), map_levels(fade, lambda level: min(level * 1.25, 235)))


def _lee(rng: random.Random, outline: list[Point], peak: int, away: int, drop: float) -> list[Point]:
    """The outline of one dune's dark side, from its peak to its foot and back. Empty for a small bump."""
    x, y = outline[peak]
    side = outline[peak:] if away > 0 else outline[peak::-1]
    foot = next((number for number in range(2, len(side)) if side[number][1] < side[number - 1][1] - 0.01), len(side))
    # The crest ends below the foot and stays on the lit side, so that it does not cross the outline.
    drop = max(drop, (side[foot - 1][1] - y) * 1.2) * 1.6
    sway, turn = drop * rng.uniform(0.25, 0.45), rng.uniform(0.9, 1.5)
    crest = [
        (x - away * sway * math.sin(step / 12 * math.pi * turn), y + drop * (step / 12) ** 1.15) for step in range(13)
    ]
    return [*side[:foot], *reversed(crest)] if foot > 14 else []
