"""A fake Yandex Disk: REST API, OAuth and downloads over HTTP on loopback, with planned faults.

As at Yandex, the API, the downloader and the storage are three hosts (here: ports). A download link leads to the
second, which redirects to the third.

    with FakeDisk() as disk:
        disk.put("/Library/emma.pdf", b"…")
        …
        disk.cut("content", after=1000)

For benchmarks it runs as a program with one large generated file:

    python -m apps.courier.tests.fake_yandex --port 8800 --gigabytes 1
"""

import argparse
import json
import posixpath
import re
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from urllib.parse import quote

from aiohttp import hdrs, web

from .fake_yandex_controls import (
    FakeYandexControls,
    Fault,
    Gate,
    GeneratedContent,
    Host,
    Node,
    RecordedRequest,
    Where,
    normalize_path,
)

__all__ = ["FakeDisk", "Gate", "GeneratedContent", "Node", "RecordedRequest"]

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
WRONG_BYTES = bytes(byte ^ 0x55 for byte in range(256))
ERRORS = {
    400: ("FieldValidationError", "Error validating field."),
    401: ("UnauthorizedError", "Unauthorized"),
    403: ("ForbiddenError", "Forbidden"),
    404: ("DiskNotFoundError", "Resource not found."),
    406: ("NotAcceptableError", "Not acceptable"),
    423: ("DiskResourceLockedError", "Resource is locked."),
    429: ("TooManyRequestsError", "Too Many Requests"),
    503: ("ServiceUnavailableError", "Service Unavailable"),
}

OAUTH_ERRORS = {
    400: ("invalid_grant", "expired_token"),
    401: ("invalid_client", "Client not found"),
    429: ("slow_down", "Too many requests"),
}


def pick_fields(row: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Return the named fields of a response. Dots name nested keys, and apply to every element of a list."""
    answer: dict[str, Any] = {}
    for key in dict.fromkeys(field.partition(".")[0] for field in fields):
        inner = [field.partition(".")[2] for field in fields if field.startswith(key + ".")]
        value = row.get(key)
        if key in row and (key in fields or not inner):
            answer[key] = value
        elif isinstance(value, dict):
            answer[key] = pick_fields(value, inner)
        elif isinstance(value, list):
            answer[key] = [pick_fields(item, inner) for item in value]
    return answer


def error_response(
    status: int, retry_after: str | None = None, errors: dict[int, tuple[str, str]] = ERRORS
) -> web.Response:
    """Return an error in the API's format, or in that of OAuth."""
    name, description = errors.get(status, ("InternalServerError", "Internal Server Error"))
    body = (
        {"error": name, "error_description": description}
        if errors is OAUTH_ERRORS
        else {"error": name, "description": description, "message": "Ошибка."}
    )
    return web.json_response(body, status=status, headers={hdrs.RETRY_AFTER: retry_after} if retry_after else None)


def cut_connection(request: web.Request) -> web.Response:
    """Close the connection after the bytes written so far."""
    if request.transport:
        request.transport.close()
    return web.Response()


class FakeDisk(FakeYandexControls):
    """Serves from `__enter__` to `__exit__`."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        self.ports: dict[Host, int] = {"api": port, "downloader": 0, "storage": 0}

    @property
    def url(self) -> str:
        return self.at("api")

    @property
    def oauth_url(self) -> str:
        return self.at("api")

    def at(self, host: Host) -> str:
        return f"http://127.0.0.1:{self.ports[host]}"

    async def _up(self) -> None:
        apps: dict[Host, web.Application] = {host: web.Application() for host in self.ports}
        apps["api"].router.add_get("/v1/disk/resources", self._at("resources", self._resources))
        apps["api"].router.add_get("/v1/disk/resources/download", self._at("download", self._download))
        apps["api"].router.add_post("/token", self._at("token", self._token))
        apps["downloader"].router.add_get("/disk/{signature}/{name}", self._redirect)
        apps["storage"].router.add_get("/rdisk/{signature}/{name}", self._content)
        for host, app in apps.items():
            self.ports[host] = await self._listen(app, self.ports[host])

    # ---------------------------------------------------------------- API

    def _record(self, where: Where | Literal["redirect"], host: Host, request: web.Request) -> None:
        headers = {
            name.lower(): value.split(" ")[0] if name.lower() == "authorization" else value
            for name, value in request.headers.items()
        }
        self.log.append(RecordedRequest(where, host, request.method, request.path, dict(request.query), headers))

    def _at(self, where: Where, answer: Answer) -> Answer:
        async def answered(request: web.Request) -> web.StreamResponse:
            self._record(where, "api", request)
            fault = self._fault(where)
            if fault and fault.gate:
                await fault.gate.wait()
            elif fault and fault.cuts:
                return cut_connection(request)
            elif fault:
                return error_response(fault.status, fault.retry_after, OAUTH_ERRORS if where == "token" else ERRORS)
            return await answer(request)

        return answered

    def _node(self, request: web.Request) -> Node | web.Response:
        """Return the requested node, or an error response."""
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme != "OAuth" or token not in self._valid:
            return error_response(401)
        path = normalize_path(request.query.get("path", ""))
        return error_response(400) if path is None else self.nodes.get(path) or error_response(404)

    async def _resources(self, request: web.Request) -> web.StreamResponse:
        node, query = self._node(request), request.query
        if isinstance(node, web.Response):
            return node
        sort, limit, offset = query.get("sort", "name"), query.get("limit", "20"), query.get("offset", "0")
        key = sort.removeprefix("-")
        if not (limit.isdecimal() and offset.isdecimal()) or key not in ("name", "path", "created", "modified", "size"):
            return error_response(400)
        row = node.row()
        if node.body is None:
            rows = [
                each.row() for path, each in self.nodes.items() if path != "/" and posixpath.dirname(path) == node.path
            ]
            rows.sort(key=lambda row: (row.get(key, 0), row["name"]), reverse=sort.startswith("-"))
            items = rows[int(offset) : int(offset) + int(limit)]
            whole = {
                "items": items,
                "total": len(rows),
                "limit": int(limit),
                "offset": int(offset),
                "path": row["path"],
                "sort": query.get("sort", ""),
            }
            row["_embedded"] = whole
        return web.json_response(pick_fields(row, query["fields"].split(",")) if "fields" in query else row)

    async def _download(self, request: web.Request) -> web.StreamResponse:
        node = self._node(request)
        if isinstance(node, web.Response):
            return node
        if node.body is None:
            return error_response(406)
        signature = secrets.token_urlsafe(24)
        self.links[signature] = node.path
        name = quote(node.row()["name"], safe="")
        href = f"{self.at('downloader')}/disk/{signature}/{name}?uid=1&disposition=attachment&tknv=v2"
        return web.json_response({"href": href, "method": "GET", "templated": False})

    async def _token(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        if (form.get("client_id"), form.get("client_secret")) != (self.client_id, self.client_secret):
            return web.json_response(
                {"error": "invalid_client", "error_description": "Wrong client secret"}, status=400
            )
        if form.get("grant_type") != "refresh_token":
            return web.json_response(
                {"error": "unsupported_grant_type", "error_description": "grant_type is unknown"}, status=400
            )
        if form.get("refresh_token") != self.refresh_token or not self._renewable:
            return web.json_response({"error": "invalid_grant", "error_description": "expired_token"}, status=400)
        self.refresh_token = "1:" + secrets.token_hex(20)
        self.token = self.token if self.keeps_token else "y0_" + secrets.token_hex(20)
        self._valid.add(self.token)
        return web.json_response(
            {
                "access_token": self.token,
                "refresh_token": self.refresh_token,
                "token_type": "bearer",
                "expires_in": self.expires_in,
            }
        )

    # ---------------------------------------------------------------- downloader and storage

    async def _redirect(self, request: web.Request) -> web.StreamResponse:
        self._record("redirect", "downloader", request)
        if request.match_info["signature"] not in self.links:
            return web.Response(status=self.expired_status, text="the link is out of date")
        return web.Response(
            status=302,
            headers={hdrs.LOCATION: f"{self.at('storage')}/r{request.rel_url.raw_path[1:]}?{request.query_string}"},
        )

    async def _content(self, request: web.Request) -> web.StreamResponse:
        self._record("content", "storage", request)
        node = self.nodes.get(self.links.get(request.match_info["signature"], "nowhere"))
        fault = self._fault("content")
        if fault and fault.status:
            return web.Response(
                status=fault.status,
                text="it was told to fail",
                headers={hdrs.RETRY_AFTER: fault.retry_after} if fault.retry_after else None,
            )
        if node is None or node.body is None:
            return web.Response(status=self.expired_status, text="the link is out of date")
        query = (
            None if self._ignores_ranges else re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get(hdrs.RANGE, ""))
        )
        size = node.body.size
        start, stop = (int(query[1]), min(int(query[2] or size) + 1, size)) if query else (0, size)
        if query and start >= size:
            return web.Response(status=416, headers={hdrs.CONTENT_RANGE: f"bytes */{size}"})
        headers = {
            hdrs.ETAG: f'"{node.md5}"',
            hdrs.ACCEPT_RANGES: "bytes",
            hdrs.CONTENT_TYPE: "application/octet-stream",
        }
        if query:
            headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{size}"
        response = web.StreamResponse(status=206 if query else 200, headers=headers)
        response.content_length = stop - start
        return await self._serve(request, response, node, range(start, stop), fault)

    async def _serve(
        self, request: web.Request, response: web.StreamResponse, node: Node, part: range, fault: Fault | None
    ) -> web.StreamResponse:
        assert node.body
        if fault and fault.gate and not fault.after:
            await fault.gate.wait()
            fault = None
        await response.prepare(request)
        start, halt = part.start, min(part.start + fault.after, part.stop) if fault else part.stop
        for end in dict.fromkeys((halt, part.stop)):
            for piece in node.body.pieces(start, end):
                # Count before writing, so that a received piece is always counted.
                self.served += len(piece)
                await response.write(piece.translate(WRONG_BYTES) if node.path in self._corrupt else piece)
            start = end
            if fault and end == halt and fault.gate:
                await fault.gate.wait()
            elif fault and end == halt:
                return cut_connection(request)
        await response.write_eof()
        return response


def main() -> None:
    """Serve one large file, and print its address as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    options = parser.parse_args()
    with FakeDisk(options.port) as disk:
        node = disk.put("/Library/large.bin", GeneratedContent(int(options.gigabytes * 2**30)))
        info = {
            "url": disk.url,
            "oauth_url": disk.oauth_url,
            "token": disk.token,
            "path": f"disk:{node.path}",
            "md5": node.md5,
        }
        sys.stdout.write(json.dumps(info) + "\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
