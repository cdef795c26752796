"""A real qBittorrent and a real peer on loopback, without access to other networks.

with run_qbittorrent(tmp_path) as server, seeding(tmp_path / "seed", size=8_000_000) as peer:
    id = QbittorrentClient(server.url, server.username, server.password).add(parse_source(peer.torrent), …)
    peer.meet(server, id)
    wait_until(lambda: …)
"""

import base64
import hashlib
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import libtorrent
import requests

from apps.common.tests.waiting import wait_until

PROGRAM = shutil.which("qbittorrent-nox")
T = TypeVar("T")

SETTINGS = """\
[LegalNotice]
Accepted=true

[Preferences]
WebUI\\Address=127.0.0.1
WebUI\\Username={username}
WebUI\\Password_PBKDF2="@ByteArray({password})"

[BitTorrent]
Session\\Interface=lo
Session\\InterfaceAddress=127.0.0.1
Session\\DHTEnabled=false
Session\\LSDEnabled=false
Session\\PeXEnabled=false
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class RealQbittorrent:
    """qbittorrent-nox with its own profile. Tests may stop, kill and restart it at the same address."""

    username, password = "librarian", "a password for tests"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._web, self._peers = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        settings = directory / "qBittorrent" / "config" / "qBittorrent.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text(SETTINGS.format(username=self.username, password=_hash_password(self.password)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._web}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start qBittorrent, and wait until it answers."""
        assert PROGRAM, "qbittorrent-nox is not installed: run `make system`"
        with (self._directory / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [PROGRAM, f"--profile={self._directory}", f"--webui-port={self._web}",
                f"--torrenting-port={self._peers}"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=os.environ | {"HOME": str(self._directory)},
            )  # fmt: skip
        wait_until(self._is_answering)

    def stop(self, *, kill: bool = False) -> None:
        """Stop qBittorrent gracefully, or kill it."""
        if self._process is None:
            return
        (self._process.kill if kill else self._process.terminate)()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def session(self) -> requests.Session:
        """A logged-in session, for requests that the librarian never makes."""
        session = requests.Session()
        session.post(
            f"{self.url}/api/v2/auth/login", data={"username": self.username, "password": self.password}, timeout=20
        ).raise_for_status()
        return session

    def post(self, path: str, **params: Any) -> requests.Response:
        with self.session() as session:
            answer = session.post(f"{self.url}/api/v2/{path}", data=params, timeout=20)
            answer.raise_for_status()
            return answer

    def _is_answering(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "output.txt").read_text()
        try:
            return requests.get(f"{self.url}/api/v2/app/version", timeout=20).status_code == 403
        except requests.ConnectionError:
            return False


@dataclass(frozen=True)
class Peer:
    """A libtorrent session that has all data of one torrent."""

    torrent: bytes
    magnet: str
    name: str
    content: bytes
    port: int

    def meet(self, server: RealQbittorrent, id: str) -> None:
        """Connect qBittorrent to this peer, because there is no tracker. It may be repeated."""
        server.post("torrents/addPeers", hashes=id, peers=f"127.0.0.1:{self.port}")


@contextmanager
def run_qbittorrent(directory: Path) -> Iterator[RealQbittorrent]:
    server = RealQbittorrent(directory / "profile")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def seeding(
    directory: Path, *, name: str = "night.epub", size: int = 8_000_000, sort: str = "v1", slowly: int = 0
) -> Iterator[Peer]:
    """Seed a file of `size` bytes. `sort` is v1, v2 or hybrid; `slowly` limits the upload in bytes per second."""
    directory.mkdir(parents=True, exist_ok=True)
    content = random.Random(f"{name} {size} {sort}").randbytes(size)
    (directory / name).write_bytes(content)
    flags = {"v1": libtorrent.create_torrent.v1_only, "v2": libtorrent.create_torrent.v2_only, "hybrid": 0}[sort]
    created = libtorrent.create_torrent([libtorrent.create_file_entry(name, size)], piece_size=64 * 1024, flags=flags)
    libtorrent.set_piece_hashes(created, str(directory))
    torrent = libtorrent.bencode(created.generate())
    port = free_port()
    alone = {"enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False}
    session = libtorrent.session({"listen_interfaces": f"127.0.0.1:{port}", **alone})
    params = libtorrent.load_torrent_buffer(torrent)
    params.save_path = str(directory)
    handle = session.add_torrent(params)
    if slowly:
        handle.set_upload_limit(slowly)
    try:
        wait_until(lambda: handle.status().is_seeding)
        yield Peer(torrent, libtorrent.make_magnet_uri(params), name, content, port)
    finally:
        session.pause()


def _hash_password(password: str) -> str:
    """The password as qBittorrent stores it: PBKDF2 with SHA-512, salt and key in base64."""
    salt = os.urandom(16)
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 100_000)
    return f"{base64.b64encode(salt).decode()}:{base64.b64encode(key).decode()}"
