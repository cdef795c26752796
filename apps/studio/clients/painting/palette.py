"""Palettes and subjects: chosen by words of the prompt, else at random."""

import colorsys
import random
import re
from dataclasses import dataclass, replace
from typing import Literal

Colour = tuple[int, int, int]
Subject = Literal["mountains", "hills", "forest", "sea", "dunes", "city", "space"]

SUBJECTS: tuple[Subject, ...] = ("mountains", "hills", "forest", "sea", "dunes", "mountains")
"""Subjects to choose from if no word of the prompt decides."""


@dataclass(frozen=True)
class Palette:
    """The colours of the sky from top to horizon, of the light and of the foreground."""

    sky: tuple[Colour, ...]
    light: Colour
    near: Colour
    night: bool = False

    @property
    def haze(self) -> Colour:
        """The colour into which distant things fade."""
        return self.sky[-1]


def _palette(sky: str, light: str, near: str, *, night: bool = False) -> Palette:
    return Palette(tuple(_rgb(each) for each in sky.split()), _rgb(light), _rgb(near), night)


def _rgb(code: str) -> Colour:
    return int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)


PALETTES = {
    "dawn": _palette("2d3561 6a5b95 c77d98 f5b895 ffe6c0", "fff3d6", "1c1a33"),
    "day": _palette("1f5f9e 4a93cc 8fc6e6 cfe8ee fdf3dc", "fffbe8", "10343a"),
    "dusk": _palette("1b1445 4e2a72 a83f74 ea6a5e ffb870", "ffe1a3", "140b26"),
    "night": _palette("03071a 081433 12275a 25477f 4c6fa3", "f2efdc", "02040d", night=True),
    "green": _palette("2f5d62 5e8b7e 94b49f ced9b8 f6efd5", "fffbe0", "0a2320"),
    "desert": _palette("2b5f8f 74a9c4 d8cfae f7c98a f5a35f", "fff0c4", "4a1d14"),
    "winter": _palette("3f638f 7a9cc2 b3cbdf dfe8ee fbeee4", "fffaf0", "1d3350"),
    "blossom": _palette("5b5ea6 9c7fc0 dba6cb f8c7cd fff0df", "fff6e6", "35204a"),
    "ember": _palette("12060f 3d0f22 8c2025 da4a22 ffb24a", "ffe08a", "0a0306"),
    "storm": _palette("1b222c 38454f 60707a 96a09f d9d2bd", "f5efd8", "0e151b"),
}
BY_CHANCE = ("dawn", "day", "dusk", "night", "green", "winter", "blossom", "dusk", "dawn")

COLOURS_OF_WORDS = {
    "night": "night moon moonlight midnight star stars aurora dark",
    "dawn": "dawn morning sunrise",
    "day": "day noon summer blue sky",
    "dusk": "dusk sun sunset evening twilight purple orange",
    "green": "mist misty fog green jungle",
    "winter": "winter snow snowy ice cold",
    "blossom": "spring flower flowers blossom cherry pink love",
    "ember": "fire volcano lava red autumn dragon",
    "storm": "storm rain rainy grey gray",
}
SUBJECTS_OF_WORDS: dict[Subject, str] = {
    "sea": "sea ocean lake water river beach boat ship island lighthouse harbour harbor coast whale fish",
    "forest": "forest tree trees wood woods jungle fox bear deer owl",
    "mountains": "mountain mountains alps peak volcano snow dragon",
    "hills": "hill hills meadow field valley village garden flower flowers",
    "dunes": "desert dune dunes sand sahara camel",
    "city": "city town skyline street skyscraper neon tokyo paris",
    "space": "space planet galaxy nebula cosmos universe astronaut rocket",
}
_COLOURS = {word: name for name, words in COLOURS_OF_WORDS.items() for word in words.split()}
_SUBJECTS: dict[str, Subject] = {
    word: subject for subject, words in SUBJECTS_OF_WORDS.items() for word in words.split()
}


def choose(prompt: str, rng: random.Random) -> tuple[Subject, Palette]:
    """Choose the subject and the palette: by the first known word, else at random. Each palette varies a little."""
    words = re.findall(r"[a-z]+", prompt[:20_000].lower())
    named: Subject | None = next((_SUBJECTS[word] for word in words if word in _SUBJECTS), None)
    subject: Subject = rng.choice(SUBJECTS) if named is None else named
    colours = next((_COLOURS[word] for word in words if word in _COLOURS), None) or (
        "desert" if subject == "dunes" else rng.choice(BY_CHANCE)
    )
    return subject, shift_hue(PALETTES[colours], rng.uniform(-0.028, 0.028), rng.uniform(0.92, 1.12))


def shift_hue(palette: Palette, hue: float, saturation: float) -> Palette:
    """Shift the hue and scale the saturation of a palette."""

    def turn(colour: Colour) -> Colour:
        h, s, v = colorsys.rgb_to_hsv(*(part / 255 for part in colour))
        r, g, b = colorsys.hsv_to_rgb((h + hue) % 1.0, min(s * saturation, 1.0), v)
        return round(r * 255), round(g * 255), round(b * 255)

    return replace(
        palette, sky=tuple(turn(each) for each in palette.sky), light=turn(palette.light), near=turn(palette.near)
    )


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """Interpolate between two colours: 0 is the first, 1 the second."""
    r, g, b = (round(a + (z - a) * share) for a, z in zip(one, other, strict=True))
    return r, g, b
