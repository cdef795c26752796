"""Land: ranges of mountains or hills, with trees."""

import random

from PIL import Image

from .canvas import Point, Stencil, overlay, ridge, vertical_gradient
from .palette import Colour, Palette, mix


def draw_layer(picture: Image.Image, stencil: Stencil, top: Colour, bottom: Colour, foot: tuple[float, float]) -> None:
    """Paint the stencil's shape with a gradient from the colour at its top to mist at its bottom."""
    height = picture.height
    high, low = max(round(height * foot[0]), 0), max(round(height * foot[1]), 1)
    fill = Image.new("RGB", picture.size, bottom)
    fill.paste(vertical_gradient((picture.width, max(low - high, 1)), (top, bottom)), (0, high))
    fill.paste(top, (0, 0, picture.width, high))
    overlay(picture, fill, stencil.mask())


def land(
    rng: random.Random, picture: Image.Image, palette: Palette, horizon: float, *, sharp: bool, trees: bool
) -> Image.Image:
    """Paint several ranges, nearer ones darker, with mist between them."""
    width, height = picture.size
    ranges = rng.randint(5, 7)
    for number in range(ranges):
        share = number / (ranges - 1)
        base = horizon + (1.0 - horizon) * share**1.15 * 0.98
        tall = (0.26 - 0.12 * share) if sharp else (0.1 + 0.03 * share)
        peaked = sharp and number < ranges - 2
        points = ridge(rng, width, 260, 0.5 if peaked else 0.42, sharp=peaked)
        outline = [(x, height * (base - tall * rise)) for x, rise in points]
        stencil = Stencil(picture.size)
        stencil.area([(0, height), *outline, (width, height)])
        if trees or number >= ranges - 3:
            wood(rng, stencil, outline, height * (0.008 + 0.085 * share**2.2), dense=trees or rng.random() < 0.7)
        colour = mix(mix(palette.haze, palette.sky[1], 0.3 + 0.2 * share), palette.near, share**0.85 * 0.97 + 0.03)
        mist = mix(mix(colour, palette.haze, 0.62 * (1 - share) + 0.05), palette.near, share * 0.4)
        draw_layer(picture, stencil, colour, mist, (base - tall, base + 0.12))
    return picture


def wood(rng: random.Random, stencil: Stencil, outline: list[Point], tall: float, *, dense: bool) -> None:
    """Draw groups of firs along an outline."""
    if tall < 3:
        return
    gap = tall * (0.2 if dense else 0.8)
    x, end, grove = outline[0][0], outline[-1][0], rng.random()
    while x < end:
        at = min(int(x / end * (len(outline) - 1)), len(outline) - 1)
        if rng.random() < 0.04:
            grove = rng.random()
        if grove > (0.18 if dense else 0.62):
            fir(
                rng,
                stencil,
                (x, outline[at][1] + tall * 0.1),
                tall * rng.uniform(0.45, 1.0) * (0.7 + 0.4 * grove),
            )
        x += gap * rng.uniform(0.5, 1.5)


def fir(rng: random.Random, stencil: Stencil, foot: Point, tall: float) -> None:
    """Draw a fir: a trunk, and branches that are longer near the ground."""
    x, y = foot
    floors = 4 if tall < 14 else 7 if tall < 40 else 13
    left: list[Point] = []
    right: list[Point] = []
    for floor in range(1, floors + 1):
        share = floor / floors
        wide, level = tall * 0.21 * share**0.85, y - tall * (1 - share * 0.9)
        left += [(x - wide * rng.uniform(0.8, 1.15), level), (x - wide * 0.52, level - tall * 0.012)]
        right += [(x + wide * rng.uniform(0.8, 1.15), level), (x + wide * 0.52, level - tall * 0.012)]
    stencil.area([(x, y - tall), *right, *reversed(left)])
    thin, thick = tall * 0.018, tall * 0.025
    stencil.area(
        [
            (x - thin, y - tall * 0.2),
            (x + thin, y - tall * 0.2),
            (x + thick, y + tall * 0.1),
            (x - thick, y + tall * 0.1),
        ]
    )
