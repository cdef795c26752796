"""The studio over HTTP: a few addresses, JSON in and out, the pictures, and the page."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from apps.common.database import now as clock

from . import body, events
from .answers import HANDLERS, SEALED, Told, Wrong, camel
from .counter import Counter
from .feed import STREAMS, Feed
from .gallery import Gallery, Job
from .health import Health
from .jobs import Studio
from .order import Params
from .pages import pages
from .people import People, User
from .review import DeadLetter, Review
from .session import Door, not_foreign
from .viewing import Viewing

MOST = 100
"""Things in one answer."""
AT_ONCE = 8
"""Orders that are judged and stored at the same time. A slow moderation model keeps others waiting who order, and nobody else."""
JOB = ("id", "prompt", "size", "seed", "cost", "status", "retryCount", "maxRetries", "createdAt", "startedAt", "updatedAt", "finishedAt", "dueAt", "version")


def api(studio: Studio, *, stop: asyncio.Event | None = None, now: Callable[[], datetime] = clock) -> Starlette:
    """The interface to this studio. It runs no worker. Its streams end when `stop` is set."""
    desk = Api(studio, stop or asyncio.Event(), now)
    routes = [
        Route("/session", desk.sign_in, methods=["POST"]),
        Route("/session", desk.sign_out, methods=["DELETE"]),
        Route("/session", desk.session),
        Route("/jobs", desk.create, methods=["POST"]),
        Route("/jobs", desk.jobs),
        Route("/jobs/{id}", desk.job),
        Route("/assets", desk.assets),
        Route("/credits", desk.credits),
        Route("/images/{id}", Viewing(studio, now).image),
        Route("/events", desk.events),
        Route("/dead-letters", desk.dead_letters),
        Route("/dead-letters/{id}/redrive", desk.redrive, methods=["POST"]),
        Route("/dead-letters/{id}/close", desk.close, methods=["POST"]),
        Route("/health", Health(studio, now).health),
        *pages(),
    ]
    made = Starlette(routes=routes, exception_handlers=HANDLERS)
    made.router.redirect_slashes = False
    return made


class Api:
    """What each address answers. Functions that are no coroutines run in threads, as the studio's verbs must."""

    def __init__(self, studio: Studio, stop: asyncio.Event, now: Callable[[], datetime]) -> None:
        self._now, self._ordering = now, asyncio.Semaphore(AT_ONCE)
        self._people, self._counter, self._gallery, self._review = People(studio), Counter(studio, now=now), Gallery(studio, now=now), Review(studio)
        self._door = Door(self._people, now)
        self._feed = Feed(self._gallery, self._people, stop, now)

    # ------------------------------------------------------------ who asks
    async def sign_in(self, request: Request) -> Response:
        """A session for whom this key belongs to."""
        not_foreign(request)
        key = (await body.read(request, "key")).text("key")
        return await run_in_threadpool(self._door.sign_in, request, key, self._told)

    def sign_out(self, request: Request) -> Response:
        return self._door.sign_out(request, Response(status_code=204, headers=SEALED))

    def session(self, request: Request) -> Response:
        return self._told(self._door.user(request))

    def _told(self, user: User) -> Response:
        return Told({"user": {"id": user.id, "name": user.name, "admin": user.admin}, "credits": self._people.balance(user.id)})

    def credits(self, request: Request) -> Response:
        user = self._door.user(request)
        return Told({"balance": self._people.balance(user.id), "entries": [camel(line) for line in self._people.statement(user.id)]})

    # ------------------------------------------------------------ jobs
    async def create(self, request: Request) -> Response:
        """201 with a new job, or 200 with the one that the same wish has made within this minute."""
        # The minute is the one in which it was asked for, however long it takes to be read and to have its turn.
        at = self._now()
        user = await run_in_threadpool(self._door.user, request)
        given = await body.read(request, "prompt", "size", "seed")
        params = Params(given.text("size", Params.size), given.whole("seed"))
        prompt = given.text("prompt")
        async with self._ordering:
            return await run_in_threadpool(self._create, user, prompt, params, at)

    def _create(self, user: User, prompt: str, params: Params, at: datetime) -> Response:
        made = self._counter.create_job(user.id, prompt, params, at=at)
        return Told(self._job(self._gallery.job(user.id, made.id)), 201 if made.created else 200, {"Location": f"/jobs/{made.id}"})

    def jobs(self, request: Request) -> Response:
        user = self._door.user(request)
        return Told({"jobs": [self._job(job) for job in self._gallery.jobs(user.id, limit=_limit(request), before=request.query_params.get("before"))]})

    def job(self, request: Request) -> Response:
        user = self._door.user(request)
        return Told(self._job(self._gallery.job(user.id, request.path_params["id"])))

    def assets(self, request: Request) -> Response:
        user = self._door.user(request)
        found = self._gallery.assets(user.id, _limit(request), request.query_params.get("before"))
        return Told({"assets": [{**camel(asset), "url": self._gallery.signer.signed(asset.job_id, self._now())} for asset in found]})

    def _job(self, job: Job) -> dict[str, object]:
        known = camel(job)
        return {**{name: known[name] for name in JOB}, "resultUrl": self._gallery.result_url(job), "reason": self._gallery.reason(job)}

    # ------------------------------------------------------------ what changes
    async def events(self, request: Request) -> Response:
        """All that is recent, then what changes, for as long as whoever asks may."""
        user = await run_in_threadpool(self._door.user, request)
        headers = {**SEALED, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(headers=headers, media_type="text/event-stream")
        if self._feed.full(user.id):
            said = f"You already have {STREAMS} live streams open. Close a page or program that uses one."
            raise Wrong(429, "too_many_streams", said, {"Retry-After": "5"})
        watch = events.Watch(self._gallery, self._people, user.id, self._job)
        return StreamingResponse(self._feed.stream(watch, self._door.credential(request)), headers=headers, media_type="text/event-stream")

    # ------------------------------------------------------------ administrators
    def dead_letters(self, request: Request) -> Response:
        """Those about which nobody has decided yet."""
        self._door.administrator(request)
        return Told({"deadLetters": [self._letter(letter) for letter in self._review.open(_limit(request))]})

    async def redrive(self, request: Request) -> Response:
        """201 with the id of the new job."""
        user = await run_in_threadpool(self._door.administrator, request)
        reason = (await body.read(request, "reason")).line("reason")
        id = await run_in_threadpool(self._review.redrive, request.path_params["id"], by=user.name, reason=reason)
        return Told({"id": id}, 201)

    async def close(self, request: Request) -> Response:
        """200 with the dead letter, as it was decided."""
        user = await run_in_threadpool(self._door.administrator, request)
        note = (await body.read(request, "note")).line("note")
        return await run_in_threadpool(self._close, request.path_params["id"], user, note)

    def _close(self, id: str, user: User, note: str) -> Response:
        self._review.close(id, by=user.name, note=note)
        return Told(self._letter(self._review.show(id)))

    def _letter(self, letter: DeadLetter) -> dict[str, object]:
        return {**camel(letter), "job": self._job(letter.job)}


def _limit(request: Request) -> int:
    given = request.query_params.get("limit", "50")
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and 0 < int(given) <= MOST):
        raise Wrong(400, "request_invalid", f"The limit cannot be used: give a whole number from 1 to {MOST}.")
    return int(given)
