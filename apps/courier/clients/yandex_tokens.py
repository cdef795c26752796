"""The token of Yandex Disk: kept in the database, so that every process has the newest, and renewed by one of them at a time."""

import asyncio
import hashlib
import json
from asyncio import sleep
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import httpx
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import ColumnElement, Connection, Engine, false, or_, select, update

from apps.common.database import insert, reading

from .answers import LATER, broken, refused, strange
from .errors import CourierError, Refusal, Trouble, Untried
from .redact import hide
from .settings import Settings
from .tables import tokens

SERVICE = "yandex"
AHEAD = timedelta(minutes=5)
"""A token that has less left is renewed before it is refused."""
PATIENCE = 20.0
"""Seconds that a renewal waits for its answer."""
RENEWING = timedelta(seconds=60)
"""For so long a renewal is one process's own; it is much more than PATIENCE, so that a second one begins only if the first has died."""
LOOK = 0.1
"""Seconds between two looks at a renewal that another process has begun."""
LONGEST = 10 * 365 * 86400.0


@dataclass(frozen=True)
class _Stored:
    access: str | None = field(repr=False)
    refresh: str | None = field(repr=False)
    expires_at: datetime | None
    renewing_until: datetime | None
    generation: int


class _Answer(BaseModel):
    access_token: str = Field(min_length=1)
    refresh_token: str | None = None
    expires_in: float | None = Field(None, ge=0)


class Tokens:
    """What lets the courier into Yandex Disk. Any number of these may work on one database.

    Secrets in the settings that were not there before replace what is stored, when the first token is asked for. In a `trial` they do not: they are tried
    by themselves, as far as that uses nothing up, and whoever is at work goes on with what they have.
    """

    def __init__(
        self, engine: Engine, http: httpx.AsyncClient, settings: Settings, *, trial: bool = False, now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine, self._http, self._settings, self._trial, self._now = engine, http, settings, trial, now
        self._settled = False
        self._at_work: set[asyncio.Task[str]] = set()

    async def access(self) -> str:
        """A token that should do. One that is about to end is renewed first, and serves on if that fails."""
        stored = await asyncio.to_thread(self._stored)
        if stored.access is None:
            return await self._another(stored)
        if stored.refresh is None or stored.expires_at is None or stored.expires_at - self._now() >= AHEAD:
            return stored.access
        lasts = stored.expires_at > self._now()
        if lasts and stored.renewing_until and stored.renewing_until > self._now():
            return stored.access
        try:
            return await self._another(stored)
        except CourierError:
            if lasts:
                return stored.access
            raise

    async def renewed(self, stale: str) -> str:
        """The token after `stale`, which was refused. Yandex may answer the same again.

        `Refusal("shut_out")` if there is nothing to renew it with, or if that is refused too: then an administrator has to give new secrets.
        """
        stored = await asyncio.to_thread(self._stored)
        return stored.access if stored.access not in (None, stale) else await self._another(stored)

    def expires_at(self) -> datetime | None:
        """When the token ends, where that is known. It blocks for as long as the database takes."""
        with reading(self._engine).begin() as tx:
            return tx.scalar(select(tokens.c.expires_at).where(tokens.c.service == SERVICE))

    async def finish(self) -> None:
        """Let the renewals at work end, whose callers may have left. Whoever closes the connections does this first, lest an answer be lost."""
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=PATIENCE)

    # ---------------------------------------------------------------- one renews, the others wait
    async def _another(self, stale: _Stored) -> str:
        """The token of the next generation, whoever gets it."""
        stored = stale
        while stored.access is None or stored.generation == stale.generation:
            if stored.refresh is None:
                raise Refusal("shut_out", "Yandex Disk refuses the token, and there is none to renew it with. Give the courier a new one in its settings.")
            if begun := await asyncio.to_thread(self._begun, stored):
                return await self._unhurried(begun)
            await sleep(LOOK)
            stored = await asyncio.to_thread(self._stored)
        return stored.access

    async def _unhurried(self, stored: _Stored) -> str:
        """Renew to the end, though the caller is cancelled: Yandex takes the old refresh token back, so its answer must not be lost."""
        task = asyncio.create_task(self._renew(stored))
        self._at_work.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._at_work.discard(task)
        if not task.cancelled():
            # Whoever asked for it may have left; then nobody else looks at its error.
            task.exception()

    async def _renew(self, stored: _Stored) -> str:
        try:
            answer = await self._asked(stored)
        except CourierError:
            later = await asyncio.to_thread(self._given_up, stored)
            if later.access is not None and later.generation != stored.generation:
                return later.access
            raise
        return await asyncio.to_thread(self._keep, stored, answer)

    async def _asked(self, stored: _Stored) -> _Answer:
        given = self._settings
        secret = given.yandex_client_secret.get_secret_value() if given.yandex_client_secret else ""
        form = {"grant_type": "refresh_token", "refresh_token": stored.refresh, "client_id": given.yandex_client_id or "", "client_secret": secret}
        try:
            async with asyncio.timeout(PATIENCE):
                response = await self._http.post(f"{given.yandex_oauth_url.rstrip('/')}/token", data=form, timeout=None, follow_redirects=False)
        except TimeoutError:
            raise Trouble("Yandex did not renew the token in time. It is tried again.") from None
        except httpx.HTTPError as error:
            raise broken(error) from None
        if 400 <= response.status_code < 500 and response.status_code not in LATER:
            raise Refusal("shut_out", "Yandex refuses to renew the token. Give the courier a new one in its settings.")
        if response.status_code != 200:
            raise refused(response)
        try:
            return _Answer.model_validate_json(response.content)
        except ValidationError:
            raise strange() from None

    # ---------------------------------------------------------------- the row
    def _stored(self) -> _Stored:
        if not self._settled:
            with self._engine.begin() as tx:
                self._settle(tx)
            self._settled = True
        with reading(self._engine).begin() as tx:
            return self._row(tx)

    def _row(self, tx: Connection) -> _Stored:
        found = tx.execute(select(tokens).where(tokens.c.service == SERVICE)).one_or_none()
        if found is None:
            # Somebody emptied the table under us.
            self._settled = False
            raise Trouble("The token of Yandex Disk is not in the database. It is put there again.")
        if self._trial and found.given != self._given()[0]:
            token = self._settings.yandex_token
            if token is None:
                raise Untried("A refresh token is used up by being tried, so a new one is tried when the bot and the workers start again, and not before.")
            return _Stored(token.get_secret_value(), None, None, None, found.generation)
        hide(filter(None, (found.access, found.refresh)))
        return _Stored(found.access, found.refresh, found.expires_at, found.renewing_until, found.generation)

    def _settle(self, tx: Connection) -> None:
        """Put the secrets of the settings into the database, unless it has them or what became of them."""
        given, token, refresh = self._given()
        new = {"given": given, "access": token, "refresh": refresh, "expires_at": None, "renewing_until": None}
        upsert = insert(tx, tokens).values(service=SERVICE, generation=1, **new)
        next_one = {**new, "generation": tokens.c.generation + 1}
        replace_them = tokens.c.given != given if not self._trial else false()
        tx.execute(upsert.on_conflict_do_update(index_elements=["service"], set_=next_one, where=replace_them))

    def _given(self) -> tuple[str, str | None, str | None]:
        """The secrets of the settings: by what they are known, the token, and what renews it."""
        secrets = [self._settings.yandex_token, self._settings.yandex_client_secret, self._settings.yandex_refresh_token]
        token, secret, refresh = [each.get_secret_value() if each else None for each in secrets]
        return hashlib.sha256(json.dumps([token, self._settings.yandex_client_id, secret, refresh]).encode()).hexdigest(), token, refresh

    def _begun(self, stored: _Stored) -> _Stored | None:
        """The row with the renewal being ours: of all that ask at once, for one; and for another if that one's time is over."""
        until = self._now() + RENEWING
        free = or_(tokens.c.renewing_until.is_(None), tokens.c.renewing_until <= self._now())
        return replace(stored, renewing_until=until) if self._write(stored, free, renewing_until=until) else None

    def _keep(self, stored: _Stored, answer: _Answer) -> str:
        """Both tokens in one write: the old refresh token is worth nothing from now on."""
        expires_at = None if answer.expires_in is None else self._now() + timedelta(seconds=min(answer.expires_in, LONGEST))
        hide(filter(None, (answer.access_token, answer.refresh_token)))
        self._write(
            stored, access=answer.access_token, refresh=answer.refresh_token or stored.refresh, expires_at=expires_at, renewing_until=None,
            generation=stored.generation + 1,
        )  # fmt: skip
        return answer.access_token

    def _given_up(self, stored: _Stored) -> _Stored:
        """Let others try, and see whether somebody has succeeded meanwhile."""
        self._write(stored, tokens.c.renewing_until == stored.renewing_until, renewing_until=None)
        return self._stored()

    def _write(self, stored: _Stored, *conditions: ColumnElement[bool], **values: object) -> bool:
        """Change the row, if it is still of the generation that was seen."""
        with self._engine.begin() as tx:
            mine = [tokens.c.service == SERVICE, tokens.c.generation == stored.generation, *conditions]
            return tx.execute(update(tokens).where(*mine).values(**values)).rowcount == 1
