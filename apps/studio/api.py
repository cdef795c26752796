"""The HTTP API: JSON endpoints, images, the event stream and the page's files."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from apps.common.database import now as clock

from .dead_letters import DeadLetter, DeadLetters
from .gallery import Gallery, Job
from .jobs import Studio
from .order import Params
from .orders import Orders
from .users import User, Users
from .web import job_watch, request_body
from .web.auth import Auth, reject_foreign_page
from .web.event_feed import MAX_STREAMS, EventFeed
from .web.health_check import HealthCheck
from .web.image_endpoint import ImageEndpoint
from .web.responses import HANDLERS, SECURITY_HEADERS, ApiError, JsonResponse, to_camel_case
from .web.static_files import page_routes

MAX_LIMIT = 100
"""The largest number of items in one response."""
MAX_CONCURRENT_ORDERS = 8
"""Orders that are validated at the same time. A slow moderation model delays other orders, but no other request."""
JOB_FIELDS = (
    "id",
    "prompt",
    "size",
    "seed",
    "cost",
    "status",
    "retryCount",
    "maxRetries",
    "createdAt",
    "startedAt",
    "updatedAt",
    "finishedAt",
    "dueAt",
    "version",
)


def api(studio: Studio, *, stop: asyncio.Event | None = None, now: Callable[[], datetime] = clock) -> Starlette:
    """Build the ASGI application. It runs no worker. Its event streams end when `stop` is set."""
    api = Api(studio, stop or asyncio.Event(), now)
    routes = [
        Route("/session", api.sign_in, methods=["POST"]),
        Route("/session", api.sign_out, methods=["DELETE"]),
        Route("/session", api.session),
        Route("/jobs", api.create, methods=["POST"]),
        Route("/jobs", api.jobs),
        Route("/jobs/{id}", api.job),
        Route("/assets", api.assets),
        Route("/credits", api.credits),
        Route("/images/{id}", ImageEndpoint(studio, now).image),
        Route("/events", api.events),
        Route("/dead-letters", api.dead_letters),
        Route("/dead-letters/{id}/redrive", api.redrive, methods=["POST"]),
        Route("/dead-letters/{id}/close", api.close, methods=["POST"]),
        Route("/health", HealthCheck(studio, now).health),
        *page_routes(),
    ]
    made = Starlette(routes=routes, exception_handlers=HANDLERS)
    made.router.redirect_slashes = False
    return made


class Api:
    """The endpoints. Starlette runs the synchronous ones in threads, because the studio's services block."""

    def __init__(self, studio: Studio, stop: asyncio.Event, now: Callable[[], datetime]) -> None:
        self._now, self._ordering = now, asyncio.Semaphore(MAX_CONCURRENT_ORDERS)
        self._users, self._orders, self._gallery, self._dead_letters = (
            Users(studio),
            Orders(studio, now=now),
            Gallery(studio, now=now),
            DeadLetters(studio),
        )
        self._auth = Auth(self._users, now)
        self._feed = EventFeed(self._gallery, self._users, stop, now)

    # ------------------------------------------------------------ sessions
    async def sign_in(self, request: Request) -> Response:
        """Start a session for the owner of this key."""
        reject_foreign_page(request)
        key = (await request_body.read(request, "key")).text("key")
        return await run_in_threadpool(self._auth.sign_in, request, key, self._session_response)

    def sign_out(self, request: Request) -> Response:
        return self._auth.sign_out(request, Response(status_code=204, headers=SECURITY_HEADERS))

    def session(self, request: Request) -> Response:
        return self._session_response(self._auth.user(request))

    def _session_response(self, user: User) -> Response:
        return JsonResponse(
            {"user": {"id": user.id, "name": user.name, "admin": user.admin}, "credits": self._users.balance(user.id)}
        )

    def credits(self, request: Request) -> Response:
        user = self._auth.user(request)
        return JsonResponse(
            {
                "balance": self._users.balance(user.id),
                "entries": [to_camel_case(line) for line in self._users.statement(user.id)],
            }
        )

    # ------------------------------------------------------------ jobs
    async def create(self, request: Request) -> Response:
        """201 with a new job, or 200 with the job of an identical order in the same minute."""
        # The minute of arrival counts, even if the order waits before it is processed.
        at = self._now()
        user = await run_in_threadpool(self._auth.user, request)
        given = await request_body.read(request, "prompt", "size", "seed")
        params = Params(given.text("size", Params.size), given.integer("seed"))
        prompt = given.text("prompt")
        async with self._ordering:
            return await run_in_threadpool(self._create, user, prompt, params, at)

    def _create(self, user: User, prompt: str, params: Params, at: datetime) -> Response:
        made = self._orders.create_job(user.id, prompt, params, at=at)
        return JsonResponse(
            self._job(self._gallery.job(user.id, made.id)),
            201 if made.created else 200,
            {"Location": f"/jobs/{made.id}"},
        )

    def jobs(self, request: Request) -> Response:
        user = self._auth.user(request)
        return JsonResponse(
            {
                "jobs": [
                    self._job(job)
                    for job in self._gallery.jobs(
                        user.id, limit=_limit(request), before=request.query_params.get("before")
                    )
                ]
            }
        )

    def job(self, request: Request) -> Response:
        user = self._auth.user(request)
        return JsonResponse(self._job(self._gallery.job(user.id, request.path_params["id"])))

    def assets(self, request: Request) -> Response:
        user = self._auth.user(request)
        found = self._gallery.assets(user.id, _limit(request), request.query_params.get("before"))
        return JsonResponse(
            {
                "assets": [
                    {**to_camel_case(asset), "url": self._gallery.signer.sign(asset.job_id, self._now())}
                    for asset in found
                ]
            }
        )

    def _job(self, job: Job) -> dict[str, object]:
        known = to_camel_case(job)
        return {
            **{name: known[name] for name in JOB_FIELDS},
            "resultUrl": self._gallery.result_url(job),
            "reason": self._gallery.reason(job),
        }

    # ------------------------------------------------------------ events
    async def events(self, request: Request) -> Response:
        """Send recent jobs, then changes, until the credential expires."""
        user = await run_in_threadpool(self._auth.user, request)
        headers = {**SECURITY_HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(headers=headers, media_type="text/event-stream")
        if self._feed.is_full(user.id):
            sentence = f"You already have {MAX_STREAMS} event streams open. Close a page or program that uses one."
            raise ApiError(429, "too_many_streams", sentence, {"Retry-After": "5"})
        watch = job_watch.JobWatch(self._gallery, self._users, user.id, self._job)
        return StreamingResponse(
            self._feed.stream(watch, self._auth.credential(request)), headers=headers, media_type="text/event-stream"
        )

    # ------------------------------------------------------------ administrators
    def dead_letters(self, request: Request) -> Response:
        """Dead letters without a decision."""
        self._auth.administrator(request)
        return JsonResponse(
            {"deadLetters": [self._letter(letter) for letter in self._dead_letters.open(_limit(request))]}
        )

    async def redrive(self, request: Request) -> Response:
        """201 with the ID of the new job."""
        user = await run_in_threadpool(self._auth.administrator, request)
        reason = (await request_body.read(request, "reason")).line("reason")
        id = await run_in_threadpool(self._dead_letters.redrive, request.path_params["id"], by=user.name, reason=reason)
        return JsonResponse({"id": id}, 201)

    async def close(self, request: Request) -> Response:
        """200 with the closed dead letter."""
        user = await run_in_threadpool(self._auth.administrator, request)
        note = (await request_body.read(request, "note")).line("note")
        return await run_in_threadpool(self._close, request.path_params["id"], user, note)

    def _close(self, id: str, user: User, note: str) -> Response:
        self._dead_letters.close(id, by=user.name, note=note)
        return JsonResponse(self._letter(self._dead_letters.show(id)))

    def _letter(self, letter: DeadLetter) -> dict[str, object]:
        return {**to_camel_case(letter), "job": self._job(letter.job)}


def _limit(request: Request) -> int:
    given = request.query_params.get("limit", "50")
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and 0 < int(given) <= MAX_LIMIT):
        raise ApiError(400, "request_invalid", f"The limit must be a whole number from 1 to {MAX_LIMIT}.")
    return int(given)
