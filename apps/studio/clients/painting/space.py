"""Space: a nebula, many stars, and a planet with its moon."""

import math
import random

from PIL import Image, ImageChops

from .canvas import Point, Stencil, add_light, halo, noise, overlay, resize, smoothstep, vertical_gradient
from .palette import Colour, mix
from .sky import add_stars

PLANETS: tuple[Colour, ...] = ((214, 140, 92), (90, 150, 200), (180, 120, 170), (120, 170, 140), (222, 190, 140))
NEBULAE: tuple[tuple[Colour, Colour], ...] = (
    ((40, 90, 200), (220, 70, 160)),
    ((20, 140, 150), (240, 120, 60)),
    ((120, 50, 190), (40, 150, 220)),
    ((200, 60, 80), (250, 180, 90)),
)


def space(rng: random.Random, size: tuple[int, int]) -> Image.Image:
    """Paint a nebula, stars, and a planet with its moon."""
    width, height = size
    picture = vertical_gradient(size, ((4, 5, 18), (10, 10, 34), (5, 6, 20)))
    one, other = rng.choice(NEBULAE)
    for colour, top in ((one, 200), (other, 170), (mix(one, other, 0.5), 130)):
        gas = ImageChops.multiply(
            smoothstep(noise(rng, size, (2, 2), 6), 110, 205, top), smoothstep(noise(rng, size, (2, 3), 4), 80, 190)
        )
        picture = add_light(picture, colour, gas)
    picture = add_light(picture, (255, 240, 230), smoothstep(noise(rng, size, (3, 3), 6), 170, 235, 60))
    picture = add_stars(rng, picture, 1.0, 1100)
    at = (width * rng.uniform(0.28, 0.72), height * rng.uniform(0.38, 0.68))
    radius = min(size) * rng.uniform(0.15, 0.25)
    _planet(rng, picture, at, radius, rng.choice(PLANETS))
    angle = rng.uniform(0, math.tau)
    moon = (at[0] + math.cos(angle) * radius * 1.7, at[1] + math.sin(angle) * radius * 1.3)
    _planet(rng, picture, moon, radius * 0.16, (200, 195, 190))
    return picture


def _planet(rng: random.Random, picture: Image.Image, at: Point, radius: float, colour: Colour) -> None:
    side = max(round(radius * 2), 4)
    picture.paste(
        add_light(picture, mix(colour, (255, 255, 255), 0.4), halo(picture.size, at, radius * 1.55, 130, 2.2)), (0, 0)
    )
    ball = Image.new("RGB", (side, side), colour)
    overlay(ball, mix(colour, (255, 245, 225), 0.6), smoothstep(noise(rng, (side, side), (1, 7), 5), 100, 190, 200))
    overlay(ball, mix(colour, (30, 15, 30), 0.5), smoothstep(noise(rng, (side, side), (2, 9), 5), 120, 200, 170))
    # The night side.
    night = resize(Image.radial_gradient("L"), (side * 2, side * 2))
    night = night.crop((round(side * 0.72), round(side * 0.7), round(side * 0.72) + side, round(side * 0.7) + side))
    overlay(ball, (4, 4, 14), smoothstep(night, 38, 128, 248))
    disc = Stencil((side, side))
    disc.disc((side / 2, side / 2), side / 2 - 0.5)
    picture.paste(ball, (round(at[0] - side / 2), round(at[1] - side / 2)), disc.mask())
