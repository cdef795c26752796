"""Skies: colours, a sun or a moon with its light, clouds, stars, northern lights and birds."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageChops, ImageFilter

from .canvas import Point, Stencil, cloudy, curved, halo, laid, lit, scaled, toned, upright
from .palette import Palette, mixed


@dataclass(frozen=True)
class Light:
    """Where the sun or the moon stands."""

    place: Point
    radius: float


def sky(chance: random.Random, size: tuple[int, int], palette: Palette, horizon: float, *, aurora: bool = False) -> tuple[Image.Image, Light]:
    """A sky down to the horizon, a share of the height, and its light."""
    width, height = size
    picture = Image.new("RGB", size, palette.haze)
    picture.paste(upright((width, round(height * horizon)), palette.sky, 0.95), (0, 0))
    altitude = chance.uniform(0.25, 0.55) if palette.night else chance.uniform(0.45, 0.78)
    place = (width * chance.choice((chance.uniform(0.18, 0.42), chance.uniform(0.58, 0.82))), height * horizon * altitude)
    light = Light(place, min(size) * (chance.uniform(0.032, 0.048) if palette.night else chance.uniform(0.04, 0.065)))
    if palette.night:
        picture = starry(chance, picture, horizon)
        if aurora or chance.random() < 0.4:
            picture = _aurora(chance, picture, horizon)
    picture = _shining(chance, picture, palette, light)
    picture = _clouds(chance, picture, palette, horizon)
    if not palette.night and chance.random() < 0.6:
        _birds(chance, picture, palette, light)
    return picture, light


def _shining(chance: random.Random, picture: Image.Image, palette: Palette, light: Light) -> Image.Image:
    reach, strength = max(picture.size), 0.55 if palette.night else 1.0
    warm = mixed(palette.light, palette.sky[-2], 0.35)
    picture = lit(picture, warm, halo(picture.size, light.place, reach * 0.75, 105 * strength, 2.2))
    picture = lit(picture, palette.light, halo(picture.size, light.place, light.radius * 5.5, 150 * strength, 2.6))
    disc = Stencil(picture.size)
    disc.disc(light.place, light.radius)
    laid(picture, palette.light, disc.mask())
    if palette.night:
        _seas_of_the_moon(chance, picture, palette, light)
    return picture


def _seas_of_the_moon(chance: random.Random, picture: Image.Image, palette: Palette, light: Light) -> None:
    side = max(round(light.radius * 2), 8)
    spots = curved(cloudy(chance, (side, side), (3, 3), 4), 110, 190, 90)
    disc = Stencil((side, side))
    disc.disc((side / 2, side / 2), side / 2)
    place = (round(light.place[0] - side / 2), round(light.place[1] - side / 2))
    picture.paste(mixed(palette.light, palette.sky[2], 0.6), (*place, place[0] + side, place[1] + side), ImageChops.multiply(spots, disc.mask()))


def starry(chance: random.Random, picture: Image.Image, horizon: float, number: int = 520) -> Image.Image:
    """With stars, a few of them near."""
    width, height = picture.size
    stars, glows = Stencil(picture.size), Image.new("L", picture.size)
    for _ in range(number):
        x, y, size = chance.uniform(0, width), height * horizon * chance.random() ** 1.25, chance.random() ** 6
        stars.disc((x, y), (0.45 + size * 1.5) * width / 1024, level=round(70 + 185 * chance.random() ** 1.5))
        if size > 0.55:
            glows = ImageChops.lighter(glows, halo(picture.size, (x, y), (7 + size * 12) * width / 1024, 120, 3.0))
    return lit(lit(picture, (160, 190, 255), glows), (255, 250, 240), stars.mask())


def _aurora(chance: random.Random, picture: Image.Image, horizon: float) -> Image.Image:
    width, height = picture.size
    small = (width // 4, height // 4)
    rising = toned(Image.linear_gradient("L"), lambda level: (level / 255) ** 2.2 * 150)
    for colour in ((60, 255, 170), (90, 160, 255), (190, 90, 255)):
        curtain = Image.new("L", small)
        base, wave, turn = chance.uniform(0.45, 0.8), chance.uniform(0.06, 0.16), chance.uniform(0, math.tau)
        for x in range(small[0]):
            at = x / small[0]
            folds = math.sin(at * 9 + turn) * 0.6 + math.sin(at * 23 + turn * 2) * 0.25
            foot = small[1] * horizon * (base + wave * folds)
            tall = small[1] * horizon * (0.34 + 0.16 * math.sin(at * 17 + turn * 3) + chance.uniform(0, 0.12))
            strength = (0.55 + 0.45 * math.sin(at * 6 + turn)) * chance.uniform(0.75, 1.0)
            strip = toned(scaled(rising, (1, max(round(tall), 1))), _times(strength))
            curtain.paste(strip, (x, round(foot - tall)))
        picture = lit(picture, colour, scaled(curtain.filter(ImageFilter.GaussianBlur(2.2)), picture.size))
    return picture


def _times(factor: float) -> Callable[[int], float]:
    return lambda level: level * factor


def _clouds(chance: random.Random, picture: Image.Image, palette: Palette, horizon: float) -> Image.Image:
    width, height = picture.size
    cover = chance.uniform(0.35, 1.0) * (0.45 if palette.night else 1.0)
    form = cloudy(chance, picture.size, (chance.choice((2, 3)), chance.choice((5, 7, 9))), 6)
    # Thick in the middle of the sky, thin at its top and gone below the horizon.
    band = [0.0, 0.35, 0.9, 1.0, 0.75, 0.3, 0.0]
    fade = Image.frombytes("L", (1, len(band)), bytes(round(each * 255 * cover) for each in band))
    place = scaled(fade, (width, max(round(height * horizon * 1.1), 1)))
    mask = Image.new("L", picture.size)
    mask.paste(place, (0, 0))
    body = ImageChops.multiply(curved(form, 118, 196, 235), mask)
    under = ImageChops.offset(body, 0, round(height * 0.012)).filter(ImageFilter.GaussianBlur(height / 180))
    laid(picture, mixed(palette.sky[1], palette.sky[2], 0.55), toned(under, _times(0.5)))
    bright = mixed(palette.sky[-1], palette.light, 0.65) if not palette.night else mixed(palette.sky[-1], palette.sky[-2], 0.4)
    laid(picture, bright, toned(body, _times(0.8)))
    return picture


def _birds(chance: random.Random, picture: Image.Image, palette: Palette, light: Light) -> None:
    width, height = picture.size
    stencil = Stencil(picture.size)
    flock = (light.place[0] + width * chance.uniform(-0.2, 0.2), light.place[1] - height * chance.uniform(0.05, 0.16))
    for _ in range(chance.randint(3, 8)):
        x, y = flock[0] + chance.gauss(0, width * 0.07), flock[1] + chance.gauss(0, height * 0.03)
        span = chance.uniform(5, 11) * width / 1024
        lift = span * chance.uniform(0.25, 0.6)
        wings = [(x - span, y - lift), (x - span * 0.45, y - lift * 0.95), (x, y), (x + span * 0.45, y - lift * 0.95), (x + span, y - lift)]
        stencil.line(wings, 1.3 * width / 1024, 200)
    laid(picture, palette.near, stencil.mask())
