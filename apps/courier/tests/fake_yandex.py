"""A Yandex Disk for tests: its REST API, its OAuth and its downloads over real HTTP on loopback, with everything that can go wrong at hand.

As with Yandex, the API, the downloader and the storage are three hosts (here: ports): a download link leads to the second, which redirects once to the third.

    with FakeDisk() as disk:
        disk.put("/Library/emma.pdf", b"…")
        …
        disk.cut("content", after=1000)

For measurements it runs on its own, with one large file whose bytes are made as they are asked for:

    python -m apps.courier.tests.yandex --port 8800 --gigabytes 1
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

from .yandex_controls import Asked, Controls, Fault, Gate, Generated, Host, Node, Where, canonical

__all__ = ["Asked", "FakeDisk", "Gate", "Generated", "Node"]

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
WRONG = bytes(byte ^ 0x55 for byte in range(256))
ERRORS = {
    400: ("FieldValidationError", "Error validating field."), 401: ("UnauthorizedError", "Unauthorized"), 403: ("ForbiddenError", "Forbidden"),
    404: ("DiskNotFoundError", "Resource not found."), 406: ("NotAcceptableError", "Not acceptable"), 423: ("DiskResourceLockedError", "Resource is locked."),
    429: ("TooManyRequestsError", "Too Many Requests"), 503: ("ServiceUnavailableError", "Service Unavailable"),
}  # fmt: skip

OAUTH_ERRORS = {400: ("invalid_grant", "expired_token"), 401: ("invalid_client", "Client not found"), 429: ("slow_down", "Too many requests")}


def picked(row: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """What `fields` name of an answer; keys inside others are written with dots, and reach into every element of a list."""
    answer: dict[str, Any] = {}
    for key in dict.fromkeys(field.partition(".")[0] for field in fields):
        inner = [field.partition(".")[2] for field in fields if field.startswith(key + ".")]
        value = row.get(key)
        if key in row and (key in fields or not inner):
            answer[key] = value
        elif isinstance(value, dict):
            answer[key] = picked(value, inner)
        elif isinstance(value, list):
            answer[key] = [picked(item, inner) for item in value]
    return answer


def error(status: int, retry_after: str | None = None, errors: dict[int, tuple[str, str]] = ERRORS) -> web.Response:
    """As the API puts it: in Russian for people, in English for developers, and in one word for programs. OAuth has no words for people."""
    name, description = errors.get(status, ("InternalServerError", "Internal Server Error"))
    body = {"error": name, "error_description": description} if errors is OAUTH_ERRORS else {"error": name, "description": description, "message": "Ошибка."}
    return web.json_response(body, status=status, headers={hdrs.RETRY_AFTER: retry_after} if retry_after else None)


def cut(request: web.Request) -> web.Response:
    """What was written gets there, and no more."""
    if request.transport:
        request.transport.close()
    return web.Response()


class FakeDisk(Controls):
    """Answers from the moment it is entered until it is left."""

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

    # ---------------------------------------------------------------- the API

    def _note(self, where: Where | Literal["redirect"], host: Host, request: web.Request) -> None:
        headers = {name.lower(): value.split(" ")[0] if name.lower() == "authorization" else value for name, value in request.headers.items()}
        self.log.append(Asked(where, host, request.method, request.path, dict(request.query), headers))

    def _at(self, where: Where, answer: Answer) -> Answer:
        async def answered(request: web.Request) -> web.StreamResponse:
            self._note(where, "api", request)
            fault = self._fault(where)
            if fault and fault.gate:
                await fault.gate.passed()
            elif fault and fault.cuts:
                return cut(request)
            elif fault:
                return error(fault.status, fault.retry_after, OAUTH_ERRORS if where == "token" else ERRORS)
            return await answer(request)

        return answered

    def _node(self, request: web.Request) -> Node | web.Response:
        """What the request is about, or why it gets no answer."""
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme != "OAuth" or token not in self._valid:
            return error(401)
        path = canonical(request.query.get("path", ""))
        return error(400) if path is None else self.nodes.get(path) or error(404)

    async def _resources(self, request: web.Request) -> web.StreamResponse:
        node, asked = self._node(request), request.query
        if isinstance(node, web.Response):
            return node
        sort, limit, offset = asked.get("sort", "name"), asked.get("limit", "20"), asked.get("offset", "0")
        key = sort.removeprefix("-")
        if not (limit.isdecimal() and offset.isdecimal()) or key not in ("name", "path", "created", "modified", "size"):
            return error(400)
        row = node.row()
        if node.body is None:
            rows = [each.row() for path, each in self.nodes.items() if path != "/" and posixpath.dirname(path) == node.path]
            rows.sort(key=lambda row: (row.get(key, 0), row["name"]), reverse=sort.startswith("-"))
            items = rows[int(offset) : int(offset) + int(limit)]
            whole = {"items": items, "total": len(rows), "limit": int(limit), "offset": int(offset), "path": row["path"], "sort": asked.get("sort", "")}
            row["_embedded"] = whole
        return web.json_response(picked(row, asked["fields"].split(",")) if "fields" in asked else row)

    async def _download(self, request: web.Request) -> web.StreamResponse:
        node = self._node(request)
        if isinstance(node, web.Response):
            return node
        if node.body is None:
            return error(406)
        signature = secrets.token_urlsafe(24)
        self.links[signature] = node.path
        href = f"{self.at('downloader')}/disk/{signature}/{quote(node.row()['name'], safe='')}?uid=1&disposition=attachment&tknv=v2"
        return web.json_response({"href": href, "method": "GET", "templated": False})

    async def _token(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        if (form.get("client_id"), form.get("client_secret")) != (self.client_id, self.client_secret):
            return web.json_response({"error": "invalid_client", "error_description": "Wrong client secret"}, status=400)
        if form.get("grant_type") != "refresh_token":
            return web.json_response({"error": "unsupported_grant_type", "error_description": "grant_type is unknown"}, status=400)
        if form.get("refresh_token") != self.refresh_token or not self._renewable:
            return web.json_response({"error": "invalid_grant", "error_description": "expired_token"}, status=400)
        self.refresh_token = "1:" + secrets.token_hex(20)
        self.token = self.token if self.keeps_token else "y0_" + secrets.token_hex(20)
        self._valid.add(self.token)
        return web.json_response({"access_token": self.token, "refresh_token": self.refresh_token, "token_type": "bearer", "expires_in": self.expires_in})

    # ---------------------------------------------------------------- the downloader and the storage

    async def _redirect(self, request: web.Request) -> web.StreamResponse:
        self._note("redirect", "downloader", request)
        if request.match_info["signature"] not in self.links:
            return web.Response(status=self.gone, text="the link is out of date")
        return web.Response(status=302, headers={hdrs.LOCATION: f"{self.at('storage')}/r{request.rel_url.raw_path[1:]}?{request.query_string}"})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        self._note("content", "storage", request)
        node = self.nodes.get(self.links.get(request.match_info["signature"], "nowhere"))
        fault = self._fault("content")
        if fault and fault.status:
            return web.Response(status=fault.status, text="it was told to fail", headers={hdrs.RETRY_AFTER: fault.retry_after} if fault.retry_after else None)
        if node is None or node.body is None:
            return web.Response(status=self.gone, text="the link is out of date")
        asked = None if self._ignores_ranges else re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get(hdrs.RANGE, ""))
        size = node.body.size
        start, stop = (int(asked[1]), min(int(asked[2] or size) + 1, size)) if asked else (0, size)
        if asked and start >= size:
            return web.Response(status=416, headers={hdrs.CONTENT_RANGE: f"bytes */{size}"})
        headers = {hdrs.ETAG: f'"{node.md5}"', hdrs.ACCEPT_RANGES: "bytes", hdrs.CONTENT_TYPE: "application/octet-stream"}
        if asked:
            headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{size}"
        response = web.StreamResponse(status=206 if asked else 200, headers=headers)
        response.content_length = stop - start
        return await self._serve(request, response, node, range(start, stop), fault)

    async def _serve(self, request: web.Request, response: web.StreamResponse, node: Node, part: range, fault: Fault | None) -> web.StreamResponse:
        assert node.body
        if fault and fault.gate and not fault.after:
            await fault.gate.passed()
            fault = None
        await response.prepare(request)
        start, halt = part.start, min(part.start + fault.after, part.stop) if fault else part.stop
        for end in dict.fromkeys((halt, part.stop)):
            for piece in node.body.pieces(start, end):
                # Counted first: whoever has a piece finds it counted.
                self.served += len(piece)
                await response.write(piece.translate(WRONG) if node.path in self._corrupt else piece)
            start = end
            if fault and end == halt and fault.gate:
                await fault.gate.passed()
            elif fault and end == halt:
                return cut(request)
        await response.write_eof()
        return response


def main() -> None:
    """Serve one large file, and say on one line of JSON where it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    options = parser.parse_args()
    with FakeDisk(options.port) as disk:
        node = disk.put("/Library/large.bin", Generated(int(options.gigabytes * 2**30)))
        told = {"url": disk.url, "oauth_url": disk.oauth_url, "token": disk.token, "path": f"disk:{node.path}", "md5": node.md5}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
