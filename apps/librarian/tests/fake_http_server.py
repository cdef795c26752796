"""An HTTP server on loopback for fakes. One function answers all requests."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class FakeRequest:
    """A request that arrived, with a path such as torrents/info."""

    method: str
    path: str
    params: dict[str, str]
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeResponse:
    """A response. Status 204 has no body."""

    status: int = 200
    body: str = ""
    cookie: str | None = None
    location: str | None = None
    json: bool = False


class FakeHttpServer(ThreadingHTTPServer):
    """Listens on loopback. `stop` closes the port and every open connection, like a process that ends."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Callable[[FakeRequest, str], FakeResponse], port: int, certificate: Path | None) -> None:
        self.answer = answer
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        self._open.add(cast(socket.socket, request))
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        self._open.discard(cast(socket.socket, request))
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore cut connections, and report bugs of the fake."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(cast(socket.socket, request), client_address)

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # send headers and body in one packet, without a delay between them
    server: FakeHttpServer

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        address = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        params = {key: values[0] for key, values in parse_qs(address.query, keep_blank_values=True).items()}
        kind, files = self.headers.get("Content-Type", ""), dict[str, bytes]()
        if kind.startswith("multipart/form-data"):
            fields, files = _multipart(body, kind.partition("boundary=")[2])
            params |= fields
        else:
            params |= {key: values[0] for key, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        request = FakeRequest(self.command, address.path.removeprefix("/api/v2/"), params, files)
        answer = self.server.answer(request, self.headers.get("Cookie", ""))
        body = answer.body.encode()
        self.send_response(answer.status)
        if answer.cookie:
            self.send_header("Set-Cookie", answer.cookie)
        if answer.location:
            self.send_header("Location", answer.location)
        if answer.status != 204:
            self.send_header("Content-Type", "application/json" if answer.json else "text/plain; charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _multipart(body: bytes, boundary: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """Split a form into fields and files."""
    fields, files = dict[str, str](), dict[str, bytes]()
    for part in body.split(b"--" + boundary.encode())[1:-1]:
        head, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        named = {
            key: text.strip('"')
            for key, _, text in (
                piece.strip().partition("=") for piece in head.decode().split("\r\n")[0].split(";")[1:]
            )
        }
        if "filename" in named:
            files[named["filename"]] = value.removesuffix(b"\r\n")
        else:
            fields[named["name"]] = value.removesuffix(b"\r\n").decode()
    return fields, files


def self_signed(directory: Path) -> Path:
    """A file with a key and a self-signed certificate for loopback, made by the openssl command."""
    key, certificate, both = directory / "key.pem", directory / "certificate.pem", directory / "both.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        *names,
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both
