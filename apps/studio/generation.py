"""One attempt at one image: from the prompt to a file in the originals."""

from dataclasses import dataclass

from interlock import Run

from .order import Order
from .originals import Kept, Originals
from .providers import Link, Provider

GENERATE, STORE = "generate", "store"


@dataclass(frozen=True)
class Made:
    """What the provider's answer came to: an image that is kept already, or a link to one."""

    kept: Kept | None = None
    link: str | None = None


class Generation:
    """One attempt at one image. Whoever dies in it has asked the provider at most once more than needed, and kept at most one image."""

    def __init__(self, run: Run, provider: Provider, originals: Originals, order: Order) -> None:
        self._run, self._provider, self._originals, self._order = run, provider, originals, order

    async def kept(self) -> Kept:
        """The image, in its place. Once it is there, or a link to it is stored, nobody is asked for it again; an image that is there is never replaced."""
        made = await self._run.effect(GENERATE, on_doubt=self._found)(self._made)
        if made.kept is not None:
            return made.kept
        return await self._run.step(STORE, self._fetched, made.link or "")

    async def _made(self) -> Made:
        # An image for which there is no room would be paid for at each attempt.
        await self._originals.ready()
        answer = await self._provider.generate(self._order, key=self._run.job_id)
        # An image itself is kept within the call, so that its receipt is small and says where it is.
        return Made(link=answer.url) if isinstance(answer, Link) else Made(kept=await self._originals.keep(self._run.job_id, answer))

    async def _found(self, key: str) -> Made | None:
        """In doubt, the truth is in the originals: an image that is there was made."""
        del key
        kept = await self._originals.find(self._run.job_id)
        return None if kept is None else Made(kept=kept)

    async def _fetched(self, url: str) -> Kept:
        return await self._originals.keep(self._run.job_id, await self._provider.fetch(Link(url)))
