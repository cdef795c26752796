"""A city at its river, with lit windows."""

import math
import random

from PIL import Image, ImageChops, ImageFilter

from .canvas import Stencil, laid, lit, upright
from .palette import Colour, Palette, mixed
from .water import mirrored

LAMPS: tuple[Colour, ...] = ((255, 214, 140), (255, 236, 190))


def city(chance: random.Random, picture: Image.Image, palette: Palette, horizon: float) -> Image.Image:
    """Row behind row of houses with lit windows, mirrored in a river."""
    width, height = picture.size
    line = round(height * min(horizon + 0.2, 0.84))
    for number in range(4):
        share = number / 3
        stencil, windows = Stencil(picture.size), Stencil(picture.size)
        x = -chance.uniform(0, 30)
        while x < width:
            wide = width * chance.uniform(0.025, 0.075) * (0.75 + 0.4 * share)
            top = line - height * (chance.uniform(0.1, 0.46 - 0.2 * share) * (0.6 + 0.4 * math.sin(math.pi * min(max(x / width, 0), 1))))
            _house(chance, stencil, (x, top, x + wide, line))
            if number:
                _windows(chance, windows, (x, top, x + wide, line), width / 1024, 0.16 + 0.26 * palette.night)
            x += wide * chance.uniform(1.0, 1.25 + 0.4 * share)
        colour = mixed(mixed(palette.haze, palette.sky[1], 0.45), palette.near, 0.2 + 0.76 * share)
        fill = Image.new("RGB", picture.size, colour)
        fill.paste(upright((width, line - round(height * 0.25)), (colour, mixed(colour, palette.haze, 0.35 - 0.2 * share))), (0, round(height * 0.25)))
        laid(picture, fill, stencil.mask())
        panes = ImageChops.multiply(windows.mask(), stencil.mask())
        picture = lit(picture, LAMPS[0], panes.filter(ImageFilter.GaussianBlur(width / 200)))
        laid(picture, chance.choice(LAMPS), panes)
    picture.paste(mirrored(chance, picture, palette, line), (0, line))
    return picture


def _house(chance: random.Random, stencil: Stencil, walls: tuple[float, float, float, float]) -> None:
    left, top, right, foot = walls
    stencil.area([(left, foot), (left, top), (right, top), (right, foot)])
    wide, form = right - left, chance.random()
    if form < 0.22:
        stencil.area([(left, top), (left + wide / 2, top - wide * 0.55), (right, top)])
    elif form < 0.5:
        stencil.area([(left + wide * 0.2, top), (left + wide * 0.2, top - wide * 0.35), (right - wide * 0.2, top - wide * 0.35), (right - wide * 0.2, top)])
    if form > 0.8:
        stencil.line([(left + wide / 2, top), (left + wide / 2, top - wide * chance.uniform(0.5, 1.1))], max(wide / 24, 1))


def _windows(chance: random.Random, stencil: Stencil, walls: tuple[float, float, float, float], unit: float, share: float) -> None:
    left, top, right, foot = walls
    pane, gap = 3.2 * unit, chance.uniform(8, 11) * unit
    y = top + gap
    while y < foot - gap:
        x = left + gap * 0.8
        while x < right - gap * 0.7:
            if chance.random() < share:
                stencil.area([(x, y), (x + pane, y), (x + pane, y + pane * 1.5), (x, y + pane * 1.5)], round(255 * chance.uniform(0.45, 1.0)))
            x += gap * 0.85
        y += gap * 1.15
