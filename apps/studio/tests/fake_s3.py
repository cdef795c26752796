"""A fake S3 server: one bucket over real HTTP on localhost, with signature checks and configurable faults.

with FakeS3() as s3:
    s3.fail(slow_down(), lost())
    …
    s3.objects["originals/…"]
"""

import hashlib
import hmac
import re
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from aiohttp import web

from apps.common.tests.loopback_server import LoopbackServer

SKEW = 900
"""Seconds by which a request's clock may be wrong."""


@dataclass(frozen=True)
class Fault:
    """A fault of the next request. `lost` executes it without a response; `half` cuts the response."""

    kind: Literal["status", "lost", "half"] = "status"
    status: int = 500
    code: str = "InternalError"


def slow_down() -> Fault:
    return Fault(status=503, code="SlowDown")


def denied() -> Fault:
    return Fault(status=403, code="AccessDenied")


def conflict() -> Fault:
    """The error of two concurrent conditional writes."""
    return Fault(status=409, code="ConditionalRequestConflict")


def lost() -> Fault:
    return Fault("lost")


def half() -> Fault:
    return Fault("half")


@dataclass(frozen=True)
class Object:
    """A stored object."""

    data: bytes
    content_type: str

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass(frozen=True)
class Asked:
    """A request with a valid signature."""

    method: str
    key: str
    if_none_match: str | None


def error(status: int, code: str) -> web.Response:
    """An error response in S3's format."""
    details = f"<Code>{escape(code)}</Code><Message>{escape(code)}.</Message><RequestId>1</RequestId>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{details}</Error>'
    return web.Response(status=status, text=body, content_type="application/xml")


@dataclass
class FakeS3(LoopbackServer):
    """Serves requests while its context is open."""

    bucket: str = "studio"
    region: str = "eu-central-1"
    access_key: str = "AKIASTUDIO"
    secret_key: str = "a secret/of+the=bucket"
    objects: dict[str, Object] = field(default_factory=dict[str, Object])
    asked: list[Asked] = field(default_factory=list[Asked])
    url: str = ""
    _faults: deque[Fault] = field(default_factory=deque[Fault])

    def __post_init__(self) -> None:
        super().__init__()
        self._port = 0

    def fail(self, *faults: Fault) -> None:
        """Set the faults of the next requests, in order."""
        self._faults.extend(faults)

    def mend(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def of(self, method: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method]

    async def _up(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self._port = await self._listen(app, self._port)
        self.url = f"http://127.0.0.1:{self._port}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if (wrong := self._unsigned(request, body)) is not None:
            return error(403, wrong)
        bucket, _, key = unquote(request.rel_url.raw_path).removeprefix("/").partition("/")
        if bucket != self.bucket:
            return error(404, "NoSuchBucket")
        self.asked.append(Asked(request.method, key, request.headers.get("If-None-Match")))
        fault = self._faults.popleft() if self._faults else None
        if fault is not None and fault.kind == "status":
            return error(fault.status, fault.code)
        answer = self._done(request, key, body)
        return answer if fault is None else await self._spoilt(request, answer, fault)

    def _done(self, request: web.Request, key: str, body: bytes) -> web.Response:
        there = self.objects.get(key)
        if request.method == "PUT":
            return self._put(request, key, body)
        if request.method not in {"GET", "HEAD"}:
            return error(405, "MethodNotAllowed")
        if there is None:
            return error(404, "NoSuchKey")
        headers = {
            "ETag": there.etag,
            "Content-Type": there.content_type,
            "Last-Modified": f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}",
        }
        # A client whose response broke off requests the rest.
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if part is None:
            return web.Response(body=there.data, headers=headers)
        first, last = int(part[1]), min(int(part[2] or len(there.data)), len(there.data) - 1)
        return web.Response(
            status=206,
            body=there.data[first : last + 1],
            headers={**headers, "Content-Range": f"bytes {first}-{last}/{len(there.data)}"},
        )

    def _put(self, request: web.Request, key: str, body: bytes) -> web.Response:
        condition = request.headers.get("If-None-Match")
        if condition not in {None, "*"}:
            return error(501, "NotImplemented")
        if condition == "*" and key in self.objects:
            return error(412, "PreconditionFailed")
        # Without a condition, an existing object is replaced, as in S3.
        self.objects[key] = Object(body, request.headers.get("Content-Type", "binary/octet-stream"))
        return web.Response(headers={"ETag": self.objects[key].etag})

    async def _spoilt(self, request: web.Request, answer: web.Response, fault: Fault) -> web.StreamResponse:
        if fault.kind == "half" and isinstance(answer.body, bytes):
            cut = web.StreamResponse(
                status=answer.status, headers={**answer.headers, "Content-Length": str(len(answer.body))}
            )
            await cut.prepare(request)
            await cut.write(answer.body[: len(answer.body) // 2])
        if request.transport:
            request.transport.close()
        return answer

    # ---------------------------------------------------------------- signatures, version 4
    def _unsigned(self, request: web.Request, body: bytes) -> str | None:
        """Why the signature is not valid, or None."""
        scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
        if scheme != "AWS4-HMAC-SHA256":
            return "AccessDenied"
        given = dict(part.strip().split("=", 1) for part in rest.split(","))
        access_key, day, *scope = given["Credential"].split("/")
        names, moment, told = (
            given["SignedHeaders"].split(";"),
            request.headers.get("x-amz-date", ""),
            request.headers.get("x-amz-content-sha256", ""),
        )
        loose = "host" not in names or any(
            name.lower() not in names for name in request.headers if name.lower().startswith("x-amz-")
        )
        text = "\n".join(
            [
                "AWS4-HMAC-SHA256",
                moment,
                f"{day}/{'/'.join(scope)}",
                hashlib.sha256(canonical(request, names, told).encode()).hexdigest(),
            ]
        )
        wrong = {
            "InvalidAccessKeyId": access_key != self.access_key,
            "AuthorizationHeaderMalformed": scope != [self.region, "s3", "aws4_request"] or not moment.startswith(day),
            "RequestTimeTooSkewed": age(moment) > SKEW,
            "XAmzContentSHA256Mismatch": told not in {"UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()},
            "AccessDenied": loose,
            "SignatureDoesNotMatch": not hmac.compare_digest(self._signature(day, scope, text), given["Signature"]),
        }
        return next((code for code, is_so in wrong.items() if is_so), None)

    def _signature(self, day: str, scope: list[str], text: str) -> str:
        key = f"AWS4{self.secret_key}".encode()
        for part in (day, *scope, text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key.hex()


def age(moment: str) -> float:
    """The difference between the request's time and now, in seconds."""
    return abs((datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds())


def canonical(request: web.Request, names: list[str], payload: str) -> str:
    """The canonical form of a request, for its signature."""
    query = "&".join(
        sorted(
            f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in request.rel_url.query.items()
        )
    )
    headers = "".join(f"{name}:{' '.join(','.join(request.headers.getall(name)).split())}\n" for name in names)
    return "\n".join([request.method, request.rel_url.raw_path, query, headers, ";".join(names), payload])
