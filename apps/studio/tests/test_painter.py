"""The local painter: a reproducible picture for any prompt, without a network."""

import asyncio
import io
import socket
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageStat

from apps.studio.clients.image_file import inspect_image
from apps.studio.clients.local_painter import Painter, paint
from apps.studio.clients.painting.palette import PALETTES, SUBJECTS_OF_WORDS
from apps.studio.clients.provider import Link
from apps.studio.errors import PermanentError
from apps.studio.order import PRICES, Order, Params

SMALL = (96, 64)
PROMPTS = ["sea", "forest", "mountains", "hills", "desert", "city", "space"]


def draw(prompt: str, *, size: str = "1024x1024", seed: int | None = 1, key: str = "job-1") -> bytes:
    async def drawn() -> bytes:
        painter = Painter()
        async with painter.open():
            return await painter.generate(Order(1, prompt, 1, Params(size, seed)), key=key)

    return asyncio.run(drawn())


def small(prompt: str, seed: int | str = 1) -> bytes:
    return paint(prompt, seed, SMALL)


@pytest.mark.parametrize("size", PRICES)
def test_picture_has_the_size_of_its_order(size: str) -> None:
    facts = inspect_image(draw("A harbour at dawn", size=size), "image/png")
    assert f"{facts.width}x{facts.height}" == size


@pytest.mark.parametrize("prompt", PROMPTS)
def test_each_subject_is_reproducible(prompt: str) -> None:
    assert small(prompt) == small(prompt)


def test_same_seed_paints_the_same_picture() -> None:
    assert draw("sea", seed=7, key="job-1") == draw("sea", seed=7, key="job-2")


def test_picture_without_a_seed_depends_on_the_job() -> None:
    first, again, other = (draw("sea", seed=None, key=key) for key in ("job-1", "job-1", "job-2"))
    assert first == again
    assert first != other


@pytest.mark.parametrize("prompt", PROMPTS)
def test_another_seed_or_prompt_is_another_picture(prompt: str) -> None:
    assert len({small(prompt, 1), small(prompt, 2), small(prompt, 0), small(prompt, "1"), small(prompt + "!", 1)}) == 5


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(prompt=st.text(max_size=300), seed=st.integers(0, 2**31 - 1))
@example(prompt="", seed=0)
@example(prompt=" \n\t", seed=0)
@example(prompt="🦊🌊👩‍👩‍👧‍👦", seed=3)
@example(prompt="مدينة عند الفجر \u202e הים בלילה", seed=4)
@example(prompt="word " * 20_000, seed=5)
@example(prompt="\ud800", seed=6)
def test_any_prompt_and_seed_give_a_valid_picture(prompt: str, seed: int) -> None:
    facts = inspect_image(small(prompt, seed), "image/png")
    assert (facts.content_type, facts.width, facts.height) == ("image/png", *SMALL)


def test_words_of_the_prompt_choose_the_light() -> None:
    """Night is darker than noon."""

    def brightness(prompt: str) -> float:
        return sum(
            ImageStat.Stat(Image.open(io.BytesIO(small(prompt, seed))).convert("L")).mean[0] for seed in range(4)
        )

    assert brightness("hills at night") * 2 < brightness("hills at noon")


def test_picture_has_many_colours() -> None:
    for prompt in PROMPTS:
        spread = ImageStat.Stat(Image.open(io.BytesIO(small(prompt))).convert("L")).stddev[0]
        assert spread > 5, prompt


def test_words_and_palettes_are_consistent() -> None:
    words = [word for words in SUBJECTS_OF_WORDS.values() for word in words.split()]
    assert sorted(words) == sorted(set(words))
    assert {len(palette.sky) for palette in PALETTES.values()} == {5}


def test_painter_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> None:
        raise AssertionError("the painter went to the network")

    monkeypatch.setattr(socket.socket, "connect", closed)
    monkeypatch.setattr(socket, "getaddrinfo", closed)
    assert draw("sea") == draw("sea")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_picture_takes_less_than_two_seconds_of_cpu(prompt: str) -> None:
    """The test measures the CPU time of the thread."""
    begun = time.thread_time()
    paint(prompt, 1, (1024, 1024))
    assert time.thread_time() - begun < 2.0


def test_event_loop_runs_while_painting() -> None:
    async def both() -> bool:
        painting = asyncio.ensure_future(Painter().generate(Order(1, "sea", 1), key="job-1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        went_on = not painting.done()
        await painting
        return went_on

    assert asyncio.run(both())


def test_painter_refuses_links() -> None:
    with pytest.raises(PermanentError, match="another provider"):
        asyncio.run(Painter().fetch(Link("https://files.example/x")))
