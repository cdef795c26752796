"""The sea: islands, and water that reflects the sky and the light."""

import math
import random

from PIL import Image, ImageChops

from .canvas import Stencil, add_light, halo, noise, overlay, ridge, smoothstep
from .land import draw_layer, fir
from .palette import Palette, mix
from .sky import Light
from .water import reflection


def sea(rng: random.Random, picture: Image.Image, palette: Palette, horizon: float, light: Light) -> Image.Image:
    """Paint islands and water that reflects everything above it."""
    width, height = picture.size
    line = round(height * horizon)
    for number in range(rng.randint(2, 3)):
        stencil, tall, share = Stencil(picture.size), rng.uniform(0.05, 0.13), 0.2 + 0.25 * number
        side = rng.uniform(-0.2, 0.9)
        points = ridge(rng, width, 200, 0.5, sharp=True)
        outline = [(x * 0.5 + width * side, line - height * tall * rise * _bell(x / width)) for x, rise in points]
        stencil.area([(outline[0][0], line), *outline, (outline[-1][0], line)])
        colour = mix(mix(palette.haze, palette.sky[1], 0.35), palette.near, share)
        draw_layer(picture, stencil, colour, mix(colour, palette.haze, 0.45), (horizon - tall, horizon))
    water = reflection(rng, picture, palette, line)
    # Long flat waves.
    waves = noise(rng, water.size, (3, 40), 4)
    overlay(water, mix(palette.haze, palette.sky[2], 0.5), smoothstep(waves, 140, 200, 70))
    overlay(water, palette.near, smoothstep(ImageChops.invert(waves), 140, 200, 70))
    picture.paste(water, (0, line))
    _glitter(rng, picture, palette, light, line)
    _shore(rng, picture, palette)
    if rng.random() < 0.65:
        _sail(rng, picture, palette, line)
    return picture


def _bell(x: float) -> float:
    return math.sqrt(max(1 - (2 * x - 1) ** 2, 0.0))


def _glitter(rng: random.Random, picture: Image.Image, palette: Palette, light: Light, line: int) -> None:
    width, height = picture.size
    stencil = Stencil(picture.size)
    for _ in range(420):
        depth = rng.random() ** 1.4
        y = line + 2 + depth * (height - line)
        spread = light.radius * (0.5 + 2.2 * depth)
        long, flat = (2 + 26 * depth * rng.random()) * width / 1024, (0.5 + 1.3 * depth) * width / 1024
        stencil.disc(
            (light.place[0] + rng.gauss(0, spread), y),
            long,
            flat,
            level=round((210 - 120 * depth) * rng.uniform(0.5, 1)),
        )
    overlay(picture, palette.light, stencil.mask())
    glow = halo(picture.size, (light.place[0], line), light.radius * 6, 110, 2.4)
    picture.paste(add_light(picture, palette.light, glow), (0, 0))


def _shore(rng: random.Random, picture: Image.Image, palette: Palette) -> None:
    width, height = picture.size
    stencil, left = Stencil(picture.size), rng.random() < 0.5
    points = ridge(rng, width, 200, 0.45, sharp=False)
    outline = [
        (x, height * (1.02 - (0.05 + 0.13 * rise) * max(1 - (x if left else width - x) / (width * 0.62), 0) ** 0.7))
        for x, rise in points
    ]
    stencil.area([(0, height), *outline, (width, height)])
    edge = outline[: len(outline) // 2] if left else outline[len(outline) // 2 :]
    for x, y in rng.sample(edge, 14):
        if y < height * 0.97:
            fir(rng, stencil, (x, y + 4), height * rng.uniform(0.09, 0.22))
    overlay(picture, palette.near, stencil.mask())


def _sail(rng: random.Random, picture: Image.Image, palette: Palette, line: int) -> None:
    width, height = picture.size
    tall, stencil = height * rng.uniform(0.045, 0.08), Stencil(picture.size)
    x, y = width * rng.uniform(0.25, 0.75), line + (height - line) * rng.uniform(0.08, 0.25)
    stencil.area(
        [
            (x - tall * 0.5, y - tall * 0.1),
            (x + tall * 0.55, y - tall * 0.1),
            (x + tall * 0.35, y + tall * 0.06),
            (x - tall * 0.38, y + tall * 0.06),
        ]
    )
    stencil.area([(x, y - tall), (x, y - tall * 0.16), (x - tall * 0.42, y - tall * 0.16)])
    stencil.area(
        [(x + tall * 0.05, y - tall * 0.9), (x + tall * 0.05, y - tall * 0.16), (x + tall * 0.45, y - tall * 0.16)]
    )
    overlay(picture, mix(palette.near, palette.haze, 0.1), stencil.mask())
