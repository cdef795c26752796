"""A fake of OpenAI's Images API: real HTTP on localhost, with configurable faults.

    with FakeImages() as images:
        images.fail(Fault.limited(7), Fault.cut())
        …
        assert [asked.prompt for asked in images.asked] == […]

It answers at once from prepared bytes, so benchmarks can use it. Like OpenAI, it ignores the Idempotency-Key.
"""

import asyncio
import base64
import io
import json
import secrets
import time
from functools import cache
from typing import Any

from aiohttp import hdrs, web
from PIL import Image

from apps.studio.tests.fake_images_controls import Asked, Controls, Fault, Gate

__all__ = ["Asked", "FakeImages", "Fault", "Gate"]

blocked, trouble, limited, unauthorized, gone, redirected = (
    Fault.blocked,
    Fault.trouble,
    Fault.limited,
    Fault.unauthorized,
    Fault.gone,
    Fault.redirected,
)
hang, cut, torn, garbage, no_image, no_base64, huge, wrong_type = (
    Fault.hang,
    Fault.cut,
    Fault.torn,
    Fault.garbage,
    Fault.no_image,
    Fault.no_base64,
    Fault.huge,
    Fault.wrong_type,
)

SIZES = ("1024x1024", "1024x1536", "1536x1024", "auto")
LONGEST_PROMPT = 32_000
OF_ALL = {"model", "prompt", "n", "size", "quality", "user"}
FIELDS = {
    "b64": OF_ALL | {"background", "moderation", "output_compression", "output_format"},
    "url": OF_ALL | {"response_format", "style"},
}
"""What a model takes that answers in this way. Neither takes a seed, and only one lets its format be chosen."""
TYPES = {401: "invalid_request_error", 403: "invalid_request_error", 404: "invalid_request_error", 429: "requests"}
MESSAGES = {
    "content_policy_violation": (
        "Your request was rejected as a result of our safety system. Your prompt may contain text that is not allowed."
    ),
    "content_safety_violation": "The prompt was refused by the content safety service.",
    "moderation_blocked": "Your request was rejected by the safety system. safety_violations=[sexual].",
    "content_filter": "The response was filtered due to the prompt triggering the content management policy.",
    "rate_limit_exceeded": "Rate limit reached for images per minute.",
    "billing_hard_limit_reached": "Billing hard limit has been reached",
}
PAGE = "<html><body>Welcome to the network. Please accept our terms.</body></html>"
HUGE = 80 * 2**20
PIECE = b"A" * 2**18


@cache
def png(size: str) -> bytes:
    """A small valid picture of this size."""
    width, height = (1024, 1024) if size == "auto" else (int(part) for part in size.split("x"))
    file = io.BytesIO()
    Image.new("RGB", (width, height), (180, 90, 60)).save(file, "PNG", compress_level=9)
    return file.getvalue()


@cache
def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def error(
    status: int, message: str, code: str | None = None, param: str | None = None, retry_after: str | None = None
) -> web.Response:
    """An error response in OpenAI's format."""
    kind = "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")
    if code == "moderation_blocked":
        kind = "image_generation_user_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return web.json_response(
        body, status=status, headers={hdrs.RETRY_AFTER: retry_after} if retry_after is not None else None
    )


def refused(body: object, fields: set[str]) -> web.Response | None:
    """The error response for an invalid body, or None."""
    if not isinstance(body, dict):
        return error(400, "We could not parse the JSON body of your request.")
    fault = next(
        ((f"Unknown parameter: '{name}'.", "unknown_parameter", name) for name in body if name not in fields), None
    ) or misused(body)
    return None if fault is None else error(400, *fault)


def misused(body: dict[str, Any]) -> tuple[str, str, str] | None:
    """The message, code and name of the first invalid field."""
    if "prompt" not in body:
        return "Missing required parameter: 'prompt'.", "missing_required_parameter", "prompt"
    for name, right in (("prompt", str), ("size", str), ("n", int), ("model", str)):
        if name in body and type(body[name]) is not right:
            return f"Invalid type for '{name}': expected another type.", "invalid_type", name
    prompt, size, n = body["prompt"], body.get("size", "auto"), body.get("n", 1)
    rules = (
        (
            not prompt,
            "Invalid 'prompt': empty string. Expected a string with minimum length 1.",
            "empty_string",
            "prompt",
        ),
        (
            len(prompt) > LONGEST_PROMPT,
            f"Invalid 'prompt': string too long. Its maximum length is {LONGEST_PROMPT}.",
            "string_above_max_length",
            "prompt",
        ),
        (
            size not in SIZES,
            f"Invalid value: '{size}'. Supported values are: {', '.join(map(repr, SIZES))}.",
            "invalid_value",
            "size",
        ),
        (n < 1, "Invalid 'n': integer below minimum value.", "integer_below_min_value", "n"),
        (n > 10, "Invalid 'n': integer above maximum value.", "integer_above_max_value", "n"),
    )
    return next(((words, code, name) for broken, words, code, name in rules if broken), None)


class FakeImages(Controls):
    """Serves requests while its context is open."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        self.port = port
        self.files: dict[str, bytes] = {}

    @property
    def host(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base address of the API."""
        return f"{self.host}/v1"

    async def _up(self) -> None:
        app = web.Application(client_max_size=2**20)
        app.router.add_post("/v1/images/generations", self._generations)
        app.router.add_get("/files/{id}", self._file)
        self.port = await self._listen(app, self.port)

    # ---------------------------------------------------------------- generations

    async def _generations(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        body = await self._taken(request)
        if isinstance(body, web.Response):
            return body
        prompt, size = body["prompt"], body.get("size", "auto")
        # Chosen before the request is recorded, so that new faults apply to the next request.
        fault, gate = self._faults.popleft() if self._faults else None, self._gate
        with self._present():
            self._noted(asked=Asked(prompt, size, body.get("model"), request.headers.get("Idempotency-Key")))
            if gate is not None:
                await gate.passed()
            if fault is not None:
                return await self._failed(request, fault)
            if any(word.casefold() in prompt.casefold() for word in self.block_words):
                return error(400, MESSAGES["content_policy_violation"], "content_policy_violation")
            return self._made(prompt, size, body.get("n", 1))

    async def _taken(self, request: web.Request) -> dict[str, Any] | web.Response:
        """The validated body, or an error response."""
        scheme, _, key = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme != "Bearer" or not key:
            return error(
                401,
                (
                    "You didn't provide an API key. You need to provide your API key in an Authorization "
                    "header using Bearer auth."
                ),
            )
        if key != self.api_key:
            # OpenAI masks the middle of the key in this message; compatible servers do not.
            return error(401, f"Incorrect API key provided: {key}.", "invalid_api_key")
        if request.content_type != "application/json":
            return error(415, f"Unsupported media type: {request.content_type}.", "unsupported_content_type")
        try:
            body = json.loads(await request.read())
        except ValueError:
            return error(400, "We could not parse the JSON body of your request.")
        return refused(body, FIELDS[self.answers]) or body

    def _made(self, prompt: str, size: str, n: int) -> web.Response:
        data, created = self.picture or png(size), int(time.time())
        if self.answers == "b64":
            tokens = {
                "input_tokens": 10,
                "output_tokens": 1056,
                "total_tokens": 1066,
                "input_tokens_details": {"text_tokens": 10, "image_tokens": 0},
            }
            settings = {
                "background": "opaque",
                "output_format": "png",
                "quality": "medium",
                "size": "1024x1024" if size == "auto" else size,
            }
            return web.json_response(
                {"created": created, **settings, "data": [{"b64_json": encoded(data)}] * n, "usage": tokens}
            )
        return web.json_response(
            {"created": created, "data": [{"revised_prompt": prompt, "url": self.put(data)} for _ in range(n)]}
        )

    def put(self, data: bytes) -> str:
        """Store a file and return its address."""
        id = secrets.token_hex(8)
        self.files[id] = data
        return f"{self.host}/files/{id}?sig={secrets.token_urlsafe(16)}"

    async def _failed(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.kind == "status":
            return error(
                fault.status,
                fault.words or MESSAGES.get(fault.code or "", "It was told to fail."),
                fault.code,
                retry_after=fault.retry_after,
            )
        if fault.kind == "text":
            return web.json_response({"error": fault.words}, status=fault.status)
        answers: dict[str, object] = {
            "no_image": [],
            "no_base64": [{"b64_json": "no base64, is it?"}],
            "wrong_type": [{"b64_json": encoded(PAGE.encode())}],
            "held_back": [{"url": self.put(PAGE.encode()), "respect_moderation": False}],
        }
        if fault.kind in answers:
            return web.json_response({"created": int(time.time()), "data": answers[fault.kind]})
        start = b'{"created":1,"data":[{"b64_json":"'
        return await spoiled(request, fault, start, "application/json")

    # ---------------------------------------------------------------- files

    async def _file(self, request: web.Request) -> web.StreamResponse:
        id = request.match_info["id"]
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        fault = self._link_faults.popleft() if self._link_faults else None
        self._noted(fetched=id)
        if fault is not None and fault.kind == "status":
            return web.Response(
                status=fault.status,
                text="it was told to fail",
                headers={hdrs.RETRY_AFTER: fault.retry_after} if fault.retry_after else None,
            )
        if fault is not None:
            return await spoiled(request, fault, b"\x89PNG\r\n\x1a\n", "image/png")
        if id not in self.files:
            return web.Response(status=404, text="the link is out of date")
        data = self.files[id]
        kind = (
            "image/png"
            if data.startswith(b"\x89PNG")
            else "image/jpeg"
            if data.startswith(b"\xff\xd8")
            else "image/webp"
        )
        return web.Response(body=data, content_type=kind)


async def spoiled(request: web.Request, fault: Fault, start: bytes, content_type: str) -> web.StreamResponse:
    """A faulty response of the API or of a file."""
    if fault.kind == "redirect":
        return web.Response(status=fault.status, headers={hdrs.LOCATION: fault.location})
    if fault.kind in ("garbage", "wrong_type"):
        return web.Response(text=PAGE, content_type="text/html" if fault.kind == "wrong_type" else content_type)
    if fault.kind == "hang":
        await asyncio.Event().wait()
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: content_type})
    if fault.kind in ("torn", "huge"):
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(start)
    if fault.kind == "huge":
        for _ in range(HUGE // len(PIECE)):
            await response.write(PIECE)
    if request.transport:
        request.transport.close()
    return response
