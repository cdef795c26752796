"""Space: a nebula, many stars, and a planet with its moon."""

import math
import random

from PIL import Image, ImageChops

from .canvas import Point, Stencil, cloudy, curved, halo, laid, lit, scaled, upright
from .palette import Colour, mixed
from .sky import starry

PLANETS: tuple[Colour, ...] = ((214, 140, 92), (90, 150, 200), (180, 120, 170), (120, 170, 140), (222, 190, 140))
NEBULAE: tuple[tuple[Colour, Colour], ...] = (
    ((40, 90, 200), (220, 70, 160)), ((20, 140, 150), (240, 120, 60)), ((120, 50, 190), (40, 150, 220)), ((200, 60, 80), (250, 180, 90)),
)  # fmt: skip


def space(chance: random.Random, size: tuple[int, int]) -> Image.Image:
    """A nebula, many stars, and a planet with its moon."""
    width, height = size
    picture = upright(size, ((4, 5, 18), (10, 10, 34), (5, 6, 20)))
    one, other = chance.choice(NEBULAE)
    for colour, top in ((one, 200), (other, 170), (mixed(one, other, 0.5), 130)):
        gas = ImageChops.multiply(curved(cloudy(chance, size, (2, 2), 6), 110, 205, top), curved(cloudy(chance, size, (2, 3), 4), 80, 190))
        picture = lit(picture, colour, gas)
    picture = lit(picture, (255, 240, 230), curved(cloudy(chance, size, (3, 3), 6), 170, 235, 60))
    picture = starry(chance, picture, 1.0, 1100)
    at = (width * chance.uniform(0.28, 0.72), height * chance.uniform(0.38, 0.68))
    radius = min(size) * chance.uniform(0.15, 0.25)
    _planet(chance, picture, at, radius, chance.choice(PLANETS))
    angle = chance.uniform(0, math.tau)
    moon = (at[0] + math.cos(angle) * radius * 1.7, at[1] + math.sin(angle) * radius * 1.3)
    _planet(chance, picture, moon, radius * 0.16, (200, 195, 190))
    return picture


def _planet(chance: random.Random, picture: Image.Image, at: Point, radius: float, colour: Colour) -> None:
    side = max(round(radius * 2), 4)
    picture.paste(lit(picture, mixed(colour, (255, 255, 255), 0.4), halo(picture.size, at, radius * 1.55, 130, 2.2)), (0, 0))
    ball = Image.new("RGB", (side, side), colour)
    laid(ball, mixed(colour, (255, 245, 225), 0.6), curved(cloudy(chance, (side, side), (1, 7), 5), 100, 190, 200))
    laid(ball, mixed(colour, (30, 15, 30), 0.5), curved(cloudy(chance, (side, side), (2, 9), 5), 120, 200, 170))
    # The night side: all that is far from where the light falls.
    night = scaled(Image.radial_gradient("L"), (side * 2, side * 2))
    night = night.crop((round(side * 0.72), round(side * 0.7), round(side * 0.72) + side, round(side * 0.7) + side))
    laid(ball, (4, 4, 14), curved(night, 38, 128, 248))
    disc = Stencil((side, side))
    disc.disc((side / 2, side / 2), side / 2 - 0.5)
    picture.paste(ball, (round(at[0] - side / 2), round(at[1] - side / 2)), disc.mask())
