"""One attempt to make an image: from the prompt to a file in the originals."""

from dataclasses import dataclass

from interlock import Run

from .clients.originals import Originals, StoredImage
from .clients.provider import Link, Provider
from .order import Order

GENERATE, STORE = "generate", "store"


@dataclass(frozen=True)
class Generated:
    """The result of a provider call: a stored image, or a link to an image."""

    stored: StoredImage | None = None
    link: str | None = None


class Generation:
    """Makes one image. A crash causes at most one extra provider call and never a second stored image."""

    def __init__(self, run: Run, provider: Provider, originals: Originals, order: Order) -> None:
        self._run, self._provider, self._originals, self._order = run, provider, originals, order

    async def make_image(self) -> StoredImage:
        """Generate and store the image.

        Once an image or a link to it is stored, the provider is not called again. A stored image is never replaced.
        """
        made = await self._run.effect(GENERATE, on_doubt=self._find_stored)(self._generate)
        if made.stored is not None:
            return made.stored
        return await self._run.step(STORE, self._fetch, made.link or "")

    async def _generate(self) -> Generated:
        # Without this check, each attempt would pay for an image that cannot be stored.
        await self._originals.check_writable()
        answer = await self._provider.generate(self._order, key=self._run.job_id)
        # Store the image inside the effect, so that its receipt contains a path and not the image.
        return (
            Generated(link=answer.url)
            if isinstance(answer, Link)
            else Generated(stored=await self._originals.store(self._run.job_id, answer))
        )

    async def _find_stored(self, key: str) -> Generated | None:
        """Resolve a call in doubt: if the originals contain the image, the call succeeded."""
        del key
        stored = await self._originals.find(self._run.job_id)
        return None if stored is None else Generated(stored=stored)

    async def _fetch(self, url: str) -> StoredImage:
        return await self._originals.store(self._run.job_id, await self._provider.fetch(Link(url)))
