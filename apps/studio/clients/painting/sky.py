"""Skies: colours, a sun or a moon with its light, clouds, stars, northern lights and birds."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageChops, ImageFilter

from .canvas import Point, Stencil, add_light, halo, map_levels, noise, overlay, resize, smoothstep, vertical_gradient
from .palette import Palette, mix


@dataclass(frozen=True)
class Light:
    """The position and size of the sun or the moon."""

    place: Point
    radius: float


def sky(
    rng: random.Random, size: tuple[int, int], palette: Palette, horizon: float, *, aurora: bool = False
) -> tuple[Image.Image, Light]:
    """Paint a sky down to the horizon, which is a share of the height; return it with its light."""
    width, height = size
    picture = Image.new("RGB", size, palette.haze)
    picture.paste(vertical_gradient((width, round(height * horizon)), palette.sky, 0.95), (0, 0))
    altitude = rng.uniform(0.25, 0.55) if palette.night else rng.uniform(0.45, 0.78)
    place = (
        width * rng.choice((rng.uniform(0.18, 0.42), rng.uniform(0.58, 0.82))),
        height * horizon * altitude,
    )
    light = Light(place, min(size) * (rng.uniform(0.032, 0.048) if palette.night else rng.uniform(0.04, 0.065)))
    if palette.night:
        picture = add_stars(rng, picture, horizon)
        if aurora or rng.random() < 0.4:
            picture = _aurora(rng, picture, horizon)
    picture = _sun_or_moon(rng, picture, palette, light)
    picture = _clouds(rng, picture, palette, horizon)
    if not palette.night and rng.random() < 0.6:
        _birds(rng, picture, palette, light)
    return picture, light


def _sun_or_moon(rng: random.Random, picture: Image.Image, palette: Palette, light: Light) -> Image.Image:
    reach, strength = max(picture.size), 0.55 if palette.night else 1.0
    warm = mix(palette.light, palette.sky[-2], 0.35)
    picture = add_light(picture, warm, halo(picture.size, light.place, reach * 0.75, 105 * strength, 2.2))
    picture = add_light(
        picture, palette.light, halo(picture.size, light.place, light.radius * 5.5, 150 * strength, 2.6)
    )
    disc = Stencil(picture.size)
    disc.disc(light.place, light.radius)
    overlay(picture, palette.light, disc.mask())
    if palette.night:
        _seas_of_the_moon(rng, picture, palette, light)
    return picture


def _seas_of_the_moon(rng: random.Random, picture: Image.Image, palette: Palette, light: Light) -> None:
    side = max(round(light.radius * 2), 8)
    spots = smoothstep(noise(rng, (side, side), (3, 3), 4), 110, 190, 90)
    disc = Stencil((side, side))
    disc.disc((side / 2, side / 2), side / 2)
    place = (round(light.place[0] - side / 2), round(light.place[1] - side / 2))
    picture.paste(
        mix(palette.light, palette.sky[2], 0.6),
        (*place, place[0] + side, place[1] + side),
        ImageChops.multiply(spots, disc.mask()),
    )


def add_stars(rng: random.Random, picture: Image.Image, horizon: float, number: int = 520) -> Image.Image:
    """Add stars, a few of them large."""
    width, height = picture.size
    stars, glows = Stencil(picture.size), Image.new("L", picture.size)
    for _ in range(number):
        x, y, size = rng.uniform(0, width), height * horizon * rng.random() ** 1.25, rng.random() ** 6
        stars.disc((x, y), (0.45 + size * 1.5) * width / 1024, level=round(70 + 185 * rng.random() ** 1.5))
        if size > 0.55:
            glows = ImageChops.lighter(glows, halo(picture.size, (x, y), (7 + size * 12) * width / 1024, 120, 3.0))
    return add_light(add_light(picture, (160, 190, 255), glows), (255, 250, 240), stars.mask())


def _aurora(rng: random.Random, picture: Image.Image, horizon: float) -> Image.Image:
    width, height = picture.size
    small = (width // 4, height // 4)
    rising = map_levels(Image.linear_gradient("L"), lambda level: (level / 255) ** 2.2 * 150)
    for colour in ((60, 255, 170), (90, 160, 255), (190, 90, 255)):
        curtain = Image.new("L", small)
        base, wave, turn = rng.uniform(0.45, 0.8), rng.uniform(0.06, 0.16), rng.uniform(0, math.tau)
        for x in range(small[0]):
            at = x / small[0]
            folds = math.sin(at * 9 + turn) * 0.6 + math.sin(at * 23 + turn * 2) * 0.25
            foot = small[1] * horizon * (base + wave * folds)
            tall = small[1] * horizon * (0.34 + 0.16 * math.sin(at * 17 + turn * 3) + rng.uniform(0, 0.12))
            strength = (0.55 + 0.45 * math.sin(at * 6 + turn)) * rng.uniform(0.75, 1.0)
            strip = map_levels(resize(rising, (1, max(round(tall), 1))), _multiply(strength))
            curtain.paste(strip, (x, round(foot - tall)))
        picture = add_light(picture, colour, resize(curtain.filter(ImageFilter.GaussianBlur(2.2)), picture.size))
    return picture


def _multiply(factor: float) -> Callable[[int], float]:
    return lambda level: level * factor


def _clouds(rng: random.Random, picture: Image.Image, palette: Palette, horizon: float) -> Image.Image:
    width, height = picture.size
    cover = rng.uniform(0.35, 1.0) * (0.45 if palette.night else 1.0)
    form = noise(rng, picture.size, (rng.choice((2, 3)), rng.choice((5, 7, 9))), 6)
    # Dense in the middle of the sky, thin at the top, none below the horizon.
    band = [0.0, 0.35, 0.9, 1.0, 0.75, 0.3, 0.0]
    fade = Image.frombytes("L", (1, len(band)), bytes(round(each * 255 * cover) for each in band))
    place = resize(fade, (width, max(round(height * horizon * 1.1), 1)))
    mask = Image.new("L", picture.size)
    mask.paste(place, (0, 0))
    body = ImageChops.multiply(smoothstep(form, 118, 196, 235), mask)
    under = ImageChops.offset(body, 0, round(height * 0.012)).filter(ImageFilter.GaussianBlur(height / 180))
    overlay(picture, mix(palette.sky[1], palette.sky[2], 0.55), map_levels(under, _multiply(0.5)))
    bright = (
        mix(palette.sky[-1], palette.light, 0.65) if not palette.night else mix(palette.sky[-1], palette.sky[-2], 0.4)
    )
    overlay(picture, bright, map_levels(body, _multiply(0.8)))
    return picture


def _birds(rng: random.Random, picture: Image.Image, palette: Palette, light: Light) -> None:
    width, height = picture.size
    stencil = Stencil(picture.size)
    flock = (light.place[0] + width * rng.uniform(-0.2, 0.2), light.place[1] - height * rng.uniform(0.05, 0.16))
    for _ in range(rng.randint(3, 8)):
        x, y = flock[0] + rng.gauss(0, width * 0.07), flock[1] + rng.gauss(0, height * 0.03)
        span = rng.uniform(5, 11) * width / 1024
        lift = span * rng.uniform(0.25, 0.6)
        wings = [
            (x - span, y - lift),
            (x - span * 0.45, y - lift * 0.95),
            (x, y),
            (x + span * 0.45, y - lift * 0.95),
            (x + span, y - lift),
        ]
        stencil.line(wings, 1.3 * width / 1024, 200)
    overlay(picture, palette.near, stencil.mask())
