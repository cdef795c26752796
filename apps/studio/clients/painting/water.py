"""Water: a blurred reflection of the picture above it."""

import random

from PIL import Image, ImageChops, ImageFilter

from .canvas import map_levels, resize
from .palette import Palette, mix


def reflection(rng: random.Random, picture: Image.Image, palette: Palette, line: int) -> Image.Image:
    """The reflection of everything above this line: flipped, rippled, and darker towards the viewer."""
    width, height = picture.size
    deep = height - line
    above = picture.crop((0, max(line - round(deep * 1.4), 0), width, line)).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    above = resize(above, (width, deep)).filter(ImageFilter.GaussianBlur(width / 160))
    water, shift = Image.new("RGB", above.size), 0.0
    for y in range(deep):
        shift = shift * 0.72 + rng.gauss(0, 1) * (0.8 + 8 * y / deep) * width / 1024
        water.paste(ImageChops.offset(above.crop((0, y, width, y + 1)), round(shift), 0), (0, y))
    dark = map_levels(resize(Image.linear_gradient("L"), water.size), lambda level: 60 + level * 0.6)
    water.paste(mix(palette.near, palette.sky[0], 0.5), (0, 0, *water.size), dark)
    return water
