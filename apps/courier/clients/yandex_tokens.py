"""The access token of Yandex Disk. The database stores it for all processes, and one process at a time renews it."""

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

from apps.common.database import insert, read_only

from ..errors import CourierError, NotCheckedError, PermanentError, TemporaryError
from ..redact import add_secrets
from ..settings import Settings
from ..tables import tokens
from .yandex_errors import TEMPORARY_STATUSES, connection_error, response_error, unreadable_response

SERVICE = "yandex"
RENEW_BEFORE = timedelta(minutes=5)
"""A token that expires sooner than this is renewed ahead of time."""
RENEWAL_TIMEOUT = 20.0
"""Seconds to wait for the answer to a renewal."""
RENEWAL_LEASE = timedelta(seconds=60)
"""A renewal belongs to one process for this long. Much longer than RENEWAL_TIMEOUT: only a dead process loses it."""
POLL_INTERVAL = 0.1
"""Seconds between two checks for a renewal that another process has started."""
MAX_LIFETIME = 10 * 365 * 86400.0


@dataclass(frozen=True)
class _StoredToken:
    access: str | None = field(repr=False)
    refresh: str | None = field(repr=False)
    expires_at: datetime | None
    renewing_until: datetime | None
    generation: int


class _TokenResponse(BaseModel):
    access_token: str = Field(min_length=1)
    refresh_token: str | None = None
    expires_in: float | None = Field(None, ge=0)


class Tokens:
    """Provides the access token. Any number of processes may use one database.

    New secrets in the settings replace the stored ones when the first token is requested. In a `dry_run` they do not:
    they are only tried, if that does not use them up, and running processes keep their tokens.
    """

    def __init__(
        self,
        engine: Engine,
        http: httpx.AsyncClient,
        settings: Settings,
        *,
        dry_run: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine, self._http, self._settings, self._dry_run, self._now = engine, http, settings, dry_run, now
        self._settings_stored = False
        self._renewals: set[asyncio.Task[str]] = set()

    async def get_token(self) -> str:
        """Return a valid token. A token that expires soon is renewed first; if that fails, it is still returned."""
        stored = await asyncio.to_thread(self._stored)
        if stored.access is None:
            return await self._next_token(stored)
        if stored.refresh is None or stored.expires_at is None or stored.expires_at - self._now() >= RENEW_BEFORE:
            return stored.access
        still_valid = stored.expires_at > self._now()
        if still_valid and stored.renewing_until and stored.renewing_until > self._now():
            return stored.access
        try:
            return await self._next_token(stored)
        except CourierError:
            if still_valid:
                return stored.access
            raise

    async def renew(self, stale: str) -> str:
        """Return the token that replaces `stale`, which was rejected. Yandex may return the same token again.

        Raises `PermanentError("disk_token_rejected")` if there is no refresh token or Yandex rejects it. An
        administrator then has to set new secrets.
        """
        stored = await asyncio.to_thread(self._stored)
        return stored.access if stored.access not in (None, stale) else await self._next_token(stored)

    def expires_at(self) -> datetime | None:
        """Return when the token expires, if known. Blocks on the database."""
        with read_only(self._engine).begin() as tx:
            return tx.scalar(select(tokens.c.expires_at).where(tokens.c.service == SERVICE))

    async def wait_for_renewals(self) -> None:
        """Wait for running renewals, whose callers may be gone. Call it before the connections close, so that no answer
        is lost."""
        if self._renewals:
            await asyncio.wait(self._renewals, timeout=RENEWAL_TIMEOUT)

    # ---------------------------------------------------------------- renewal by one process
    async def _next_token(self, stale: _StoredToken) -> str:
        """Return the token of the next generation, renewed by this process or by another."""
        stored = stale
        while stored.access is None or stored.generation == stale.generation:
            if stored.refresh is None:
                raise PermanentError(
                    "disk_token_rejected",
                    "Yandex Disk rejects the token, and there is no refresh token. Set new secrets in the settings.",
                )
            if claimed := await asyncio.to_thread(self._claim_renewal, stored):
                return await self._renew_shielded(claimed)
            await sleep(POLL_INTERVAL)
            stored = await asyncio.to_thread(self._stored)
        return stored.access

    async def _renew_shielded(self, stored: _StoredToken) -> str:
        """Finish the renewal even if the caller is cancelled. Yandex revokes the old refresh token, so the answer must
        be stored."""
        task = asyncio.create_task(self._renew(stored))
        self._renewals.add(task)
        task.add_done_callback(self._discard_task)
        return await asyncio.shield(task)

    def _discard_task(self, task: asyncio.Task[str]) -> None:
        self._renewals.discard(task)
        if not task.cancelled():
            # The caller may be gone, so mark the error as seen.
            task.exception()

    async def _renew(self, stored: _StoredToken) -> str:
        try:
            answer = await self._request_renewal(stored)
        except CourierError:
            later = await asyncio.to_thread(self._release_renewal, stored)
            if later.access is not None and later.generation != stored.generation:
                return later.access
            raise
        return await asyncio.to_thread(self._store_renewal, stored, answer)

    async def _request_renewal(self, stored: _StoredToken) -> _TokenResponse:
        given = self._settings
        secret = given.yandex_client_secret.get_secret_value() if given.yandex_client_secret else ""
        form = {
            "grant_type": "refresh_token",
            "refresh_token": stored.refresh,
            "client_id": given.yandex_client_id or "",
            "client_secret": secret,
        }
        try:
            async with asyncio.timeout(RENEWAL_TIMEOUT):
                response = await self._http.post(
                    f"{given.yandex_oauth_url.rstrip('/')}/token", data=form, timeout=None, follow_redirects=False
                )
        except TimeoutError:
            raise TemporaryError("Yandex did not renew the token in time. The courier will try again.") from None
        except httpx.HTTPError as error:
            raise connection_error(error) from None
        if 400 <= response.status_code < 500 and response.status_code not in TEMPORARY_STATUSES:
            raise PermanentError(
                "disk_token_rejected", "Yandex rejects the refresh token. Set new secrets in the settings."
            )
        if response.status_code != 200:
            raise response_error(response)
        try:
            return _TokenResponse.model_validate_json(response.content)
        except ValidationError:
            raise unreadable_response() from None

    # ---------------------------------------------------------------- storage
    def _stored(self) -> _StoredToken:
        if not self._settings_stored:
            with self._engine.begin() as tx:
                self._store_settings(tx)
            self._settings_stored = True
        with read_only(self._engine).begin() as tx:
            return self._row(tx)

    def _row(self, tx: Connection) -> _StoredToken:
        found = tx.execute(select(tokens).where(tokens.c.service == SERVICE)).one_or_none()
        if found is None:
            # The row was deleted by someone else.
            self._settings_stored = False
            raise TemporaryError(
                "The token of Yandex Disk is missing in the database. The courier will store it again."
            )
        if self._dry_run and found.settings_hash != self._settings_secrets()[0]:
            token = self._settings.yandex_token
            if token is None:
                raise NotCheckedError(
                    "A refresh token works only once. A new one is first used when the bot and the workers restart."
                )
            return _StoredToken(token.get_secret_value(), None, None, None, found.generation)
        add_secrets(filter(None, (found.access, found.refresh)))
        return _StoredToken(found.access, found.refresh, found.expires_at, found.renewing_until, found.generation)

    def _store_settings(self, tx: Connection) -> None:
        """Store the secrets of the settings, unless the row is already based on them."""
        settings_hash, token, refresh = self._settings_secrets()
        new = {
            "settings_hash": settings_hash,
            "access": token,
            "refresh": refresh,
            "expires_at": None,
            "renewing_until": None,
        }
        upsert = insert(tx, tokens).values(service=SERVICE, generation=1, **new)
        next_one = {**new, "generation": tokens.c.generation + 1}
        replace_them = tokens.c.settings_hash != settings_hash if not self._dry_run else false()
        tx.execute(upsert.on_conflict_do_update(index_elements=["service"], set_=next_one, where=replace_them))

    def _settings_secrets(self) -> tuple[str, str | None, str | None]:
        """Return a hash of the secrets in the settings, the access token and the refresh token."""
        secrets = [
            self._settings.yandex_token,
            self._settings.yandex_client_secret,
            self._settings.yandex_refresh_token,
        ]
        token, secret, refresh = [each.get_secret_value() if each else None for each in secrets]
        return (
            hashlib.sha256(json.dumps([token, self._settings.yandex_client_id, secret, refresh]).encode()).hexdigest(),
            token,
            refresh,
        )

    def _claim_renewal(self, stored: _StoredToken) -> _StoredToken | None:
        """Claim the renewal for this process. Return None if another process holds an unexpired claim."""
        until = self._now() + RENEWAL_LEASE
        free = or_(tokens.c.renewing_until.is_(None), tokens.c.renewing_until <= self._now())
        return replace(stored, renewing_until=until) if self._write(stored, free, renewing_until=until) else None

    def _store_renewal(self, stored: _StoredToken, answer: _TokenResponse) -> str:
        """Store both tokens in one write: the old refresh token is no longer valid."""
        expires_at = (
            None if answer.expires_in is None else self._now() + timedelta(seconds=min(answer.expires_in, MAX_LIFETIME))
        )
        add_secrets(filter(None, (answer.access_token, answer.refresh_token)))
        self._write(
            stored,
            access=answer.access_token,
            refresh=answer.refresh_token or stored.refresh,
            expires_at=expires_at,
            renewing_until=None,
            generation=stored.generation + 1,
        )
        return answer.access_token

    def _release_renewal(self, stored: _StoredToken) -> _StoredToken:
        """Give up the claim, and return the row, which another process may have renewed meanwhile."""
        self._write(stored, tokens.c.renewing_until == stored.renewing_until, renewing_until=None)
        return self._stored()

    def _write(self, stored: _StoredToken, *conditions: ColumnElement[bool], **values: object) -> bool:
        """Update the row if it still has the generation that was read."""
        with self._engine.begin() as tx:
            matching = [tokens.c.service == SERVICE, tokens.c.generation == stored.generation, *conditions]
            return tx.execute(update(tokens).where(*matching).values(**values)).rowcount == 1
