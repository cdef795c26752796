"""A city at a river, with lit windows."""

import math
import random

from PIL import Image, ImageChops, ImageFilter

from .canvas import Stencil, add_light, overlay, vertical_gradient
from .palette import Colour, Palette, mix
from .water import reflection

LAMPS: tuple[Colour, ...] = ((255, 214, 140), (255, 236, 190))


def city(rng: random.Random, picture: Image.Image, palette: Palette, horizon: float) -> Image.Image:
    """Paint rows of houses with lit windows, and their reflection in a river."""
    width, height = picture.size
    line = round(height * min(horizon + 0.2, 0.84))
    for number in range(4):
        share = number / 3
        stencil, windows = Stencil(picture.size), Stencil(picture.size)
        x = -rng.uniform(0, 30)
        while x < width:
            wide = width * rng.uniform(0.025, 0.075) * (0.75 + 0.4 * share)
            top = line - height * (
                rng.uniform(0.1, 0.46 - 0.2 * share) * (0.6 + 0.4 * math.sin(math.pi * min(max(x / width, 0), 1)))
            )
            _house(rng, stencil, (x, top, x + wide, line))
            if number:
                _windows(rng, windows, (x, top, x + wide, line), width / 1024, 0.16 + 0.26 * palette.night)
            x += wide * rng.uniform(1.0, 1.25 + 0.4 * share)
        colour = mix(mix(palette.haze, palette.sky[1], 0.45), palette.near, 0.2 + 0.76 * share)
        fill = Image.new("RGB", picture.size, colour)
        fill.paste(
            vertical_gradient(
                (width, line - round(height * 0.25)), (colour, mix(colour, palette.haze, 0.35 - 0.2 * share))
            ),
            (0, round(height * 0.25)),
        )
        overlay(picture, fill, stencil.mask())
        panes = ImageChops.multiply(windows.mask(), stencil.mask())
        picture = add_light(picture, LAMPS[0], panes.filter(ImageFilter.GaussianBlur(width / 200)))
        overlay(picture, rng.choice(LAMPS), panes)
    picture.paste(reflection(rng, picture, palette, line), (0, line))
    return picture


def _house(rng: random.Random, stencil: Stencil, walls: tuple[float, float, float, float]) -> None:
    left, top, right, foot = walls
    stencil.area([(left, foot), (left, top), (right, top), (right, foot)])
    wide, form = right - left, rng.random()
    if form < 0.22:
        stencil.area([(left, top), (left + wide / 2, top - wide * 0.55), (right, top)])
    elif form < 0.5:
        stencil.area(
            [
                (left + wide * 0.2, top),
                (left + wide * 0.2, top - wide * 0.35),
                (right - wide * 0.2, top - wide * 0.35),
                (right - wide * 0.2, top),
            ]
        )
    if form > 0.8:
        stencil.line([(left + wide / 2, top), (left + wide / 2, top - wide * rng.uniform(0.5, 1.1))], max(wide / 24, 1))


def _windows(
    rng: random.Random, stencil: Stencil, walls: tuple[float, float, float, float], unit: float, share: float
) -> None:
    left, top, right, foot = walls
    pane, gap = 3.2 * unit, rng.uniform(8, 11) * unit
    y = top + gap
    while y < foot - gap:
        x = left + gap * 0.8
        while x < right - gap * 0.7:
            if rng.random() < share:
                stencil.area(
                    [(x, y), (x + pane, y), (x + pane, y + pane * 1.5), (x, y + pane * 1.5)],
                    round(255 * rng.uniform(0.45, 1.0)),
                )
            x += gap * 0.85
        y += gap * 1.15
