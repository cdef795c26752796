"""Land: range behind range of mountains or hills, and woods on them."""

import random

from PIL import Image

from .canvas import Point, Stencil, laid, ridge, upright
from .palette import Colour, Palette, mixed


def layer(picture: Image.Image, stencil: Stencil, top: Colour, bottom: Colour, foot: tuple[float, float]) -> None:
    """Lay what the stencil shows over the picture: one colour at its upper end, mist at its lower."""
    height = picture.height
    high, low = max(round(height * foot[0]), 0), max(round(height * foot[1]), 1)
    fill = Image.new("RGB", picture.size, bottom)
    fill.paste(upright((picture.width, max(low - high, 1)), (top, bottom)), (0, high))
    fill.paste(top, (0, 0, picture.width, high))
    laid(picture, fill, stencil.mask())


def land(chance: random.Random, picture: Image.Image, palette: Palette, horizon: float, *, sharp: bool, trees: bool) -> Image.Image:
    """Range behind range, each nearer one darker, with mist between them."""
    width, height = picture.size
    ranges = chance.randint(5, 7)
    for number in range(ranges):
        share = number / (ranges - 1)
        base = horizon + (1.0 - horizon) * share**1.15 * 0.98
        tall = (0.26 - 0.12 * share) if sharp else (0.1 + 0.03 * share)
        peaked = sharp and number < ranges - 2
        points = ridge(chance, width, 260, 0.5 if peaked else 0.42, sharp=peaked)
        outline = [(x, height * (base - tall * rise)) for x, rise in points]
        stencil = Stencil(picture.size)
        stencil.area([(0, height), *outline, (width, height)])
        if trees or number >= ranges - 3:
            wood(chance, stencil, outline, height * (0.008 + 0.085 * share**2.2), dense=trees or chance.random() < 0.7)
        colour = mixed(mixed(palette.haze, palette.sky[1], 0.3 + 0.2 * share), palette.near, share**0.85 * 0.97 + 0.03)
        mist = mixed(mixed(colour, palette.haze, 0.62 * (1 - share) + 0.05), palette.near, share * 0.4)
        layer(picture, stencil, colour, mist, (base - tall, base + 0.12))
    return picture


def wood(chance: random.Random, stencil: Stencil, outline: list[Point], tall: float, *, dense: bool) -> None:
    """Firs along an outline, in groups."""
    if tall < 3:
        return
    gap = tall * (0.2 if dense else 0.8)
    x, end, grove = outline[0][0], outline[-1][0], chance.random()
    while x < end:
        at = min(int(x / end * (len(outline) - 1)), len(outline) - 1)
        if chance.random() < 0.04:
            grove = chance.random()
        if grove > (0.18 if dense else 0.62):
            fir(chance, stencil, (x, outline[at][1] + tall * 0.1), tall * chance.uniform(0.45, 1.0) * (0.7 + 0.4 * grove))
        x += gap * chance.uniform(0.5, 1.5)


def fir(chance: random.Random, stencil: Stencil, foot: Point, tall: float) -> None:
    """One tree: a trunk, and branches that grow longer downwards."""
    x, y = foot
    floors = 4 if tall < 14 else 7 if tall < 40 else 13
    left: list[Point] = []
    right: list[Point] = []
    for floor in range(1, floors + 1):
        share = floor / floors
        wide, level = tall * 0.21 * share**0.85, y - tall * (1 - share * 0.9)
        left += [(x - wide * chance.uniform(0.8, 1.15), level), (x - wide * 0.52, level - tall * 0.012)]
        right += [(x + wide * chance.uniform(0.8, 1.15), level), (x + wide * 0.52, level - tall * 0.012)]
    stencil.area([(x, y - tall), *right, *reversed(left)])
    thin, thick = tall * 0.018, tall * 0.025
    stencil.area([(x - thin, y - tall * 0.2), (x + thin, y - tall * 0.2), (x + thick, y + tall * 0.1), (x - thick, y + tall * 0.1)])
