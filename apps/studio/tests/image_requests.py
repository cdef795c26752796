"""Helpers for single requests to the Images API."""

import asyncio

import pytest

from apps.studio.clients.openai_images import OpenAIImages
from apps.studio.clients.provider import Link
from apps.studio.errors import StudioError
from apps.studio.order import Order, Params
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.tests.fake_images_controls import Fault

ORDER = Order(7, "A harbour at dawn", 2, Params("1536x1024", seed=5))
FILTERS = [
    Fault.blocked(), Fault.blocked("moderation_blocked"), Fault.blocked("content_filter"),
    Fault.blocked("contentFilter"),
    Fault.blocked("ResponsibleAIPolicyViolation"), Fault.blocked("content_safety_violation"), Fault.blocked(status=403),
    Fault.blocked("content_policy_violation", 422),
]  # fmt: skip


def drawn(
    fake: FakeImages, *, key: str | None = None, model: str | None = "gpt-image-1", timeout: float = 20.0
) -> bytes | Link:
    async def asked() -> bytes | Link:
        images = OpenAIImages(fake.url, key or fake.api_key, model, timeout=timeout)
        async with images.open():
            return await images.generate(ORDER, key="job-1")

    return asyncio.run(asked())


def failure(fake: FakeImages, *, timeout: float = 20.0, key: str | None = None) -> StudioError:
    with pytest.raises(StudioError) as caught:
        drawn(fake, timeout=timeout, key=key)
    return caught.value
