"""A small HTTP server for probes and metrics. It answers in threads of its own, so that user code cannot block it."""

import errno
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from typing_extensions import override

from ..errors import UsageError

REQUEST_TIMEOUT = 5.0
"""Seconds that a client has to send its whole request, and to read the answer."""
LARGEST_REQUEST = 16_384
"""The most bytes of a request, headers included."""
MOST_CONNECTIONS = 64
"""The most connections that are served at once. Further ones are closed at once."""
BACKLOG = 128
"""The most connections that wait to be accepted."""

Problems = Callable[[], Sequence[str]]
"""Returns a sentence for each problem."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address to serve on. Port 0 chooses a free port."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def resolve(self) -> "ResolvedAddress":
        """Resolve the host on this machine. Raises `OSError` if it is unknown."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except UnicodeError as error:
            raise socket.gaierror(socket.EAI_NONAME, str(error)) from None
        return ResolvedAddress(int(found[0][0]), str(found[0][4][0]), self.port)


@dataclass(frozen=True, slots=True)
class ResolvedAddress:
    """An address whose host is resolved, so that two names of one address are equal."""

    family: int
    """IPv4 or IPv6."""
    host: str
    port: int


class Endpoint:
    """Serves some pages over HTTP until it is closed. Raises `UsageError` if the address cannot be used."""

    def __init__(self, address: Address, pages: Mapping[str, WSGIApplication]) -> None:
        try:
            self._server = open_server(address)
        except (OSError, OverflowError) as error:
            where = f"{' and '.join(sorted(pages))} cannot be served at {address.host}, port {address.port}"
            raise UsageError(f"{where}: {_explain(error)}") from None
        self._server.set_app(_router(pages))
        self.address = Address(address.host, self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="interlock-endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def probe(name: str, problems: Problems) -> WSGIApplication:
    """Return a page that answers 200 if there are no problems, and otherwise 503 with a sentence for each."""

    def page(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        found = list(problems())
        status = "503 Service Unavailable" if found else "200 OK"
        body = json.dumps({"status": f"not {name}" if found else name, "problems": found}, ensure_ascii=False).encode()
        return _answer(environ, start_response, status, "application/json", body + b"\n")

    return page


# ---------------------------------------------------------------- requests
def _router(pages: Mapping[str, WSGIApplication]) -> WSGIApplication:
    def find(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _answer(environ, start_response, "405 Method Not Allowed", "text/plain", b"Use GET.\n")
        if (page := pages.get(environ["PATH_INFO"])) is not None:
            return page(environ, start_response)
        text = f"There is no such page here. The pages are: {', '.join(sorted(pages))}.\n"
        return _answer(environ, start_response, "404 Not Found", "text/plain", text.encode())

    return find


def _answer(
    environ: WSGIEnvironment, start_response: StartResponse, status: str, content_type: str, body: bytes
) -> list[bytes]:
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, address: ResolvedAddress) -> None:
        self.address_family = address.family
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((address.host, address.port), _Request)

    @override
    def server_bind(self) -> None:
        """Bind the socket. The overridden method would ask DNS for the name of this machine, which can hang."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that closes its connection early is no error of the worker."""


def open_server(address: Address) -> _Server:
    """Return a server that listens on this address, and accepts connections when it serves."""
    return _Server(address.resolve())


def _explain(error: Exception) -> str:
    """Return why an address cannot be used, and what to do."""
    if isinstance(error, socket.gaierror):
        return f"the host is unknown ({error}). Use an address or a name of this machine."
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{error}. Use another port, or stop the program that uses this one."
    return f"{error}. Use another address."


class _Request(WSGIRequestHandler):
    """One request. Its size and its time are limited, so that no client can occupy a thread."""

    @override
    def handle(self) -> None:
        head = self._read_head()
        if head is None:
            return
        self.rfile = io.BytesIO(head)
        self.connection.settimeout(REQUEST_TIMEOUT)
        super().handle()

    def _read_head(self) -> bytes | None:
        """Return the request line and the headers; None if the client is too slow or sends too much."""
        head, end = b"", time.monotonic() + REQUEST_TIMEOUT
        while b"\r\n\r\n" not in head:
            if len(head) > LARGEST_REQUEST:
                self.connection.sendall(b"HTTP/1.0 431 Request Header Fields Too Large\r\n\r\n")
                return None
            if (left := end - time.monotonic()) <= 0:
                return None
            self.connection.settimeout(left)
            if not (part := self.connection.recv(4096)):
                return None
            head += part
        return head

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Do not log each request."""
