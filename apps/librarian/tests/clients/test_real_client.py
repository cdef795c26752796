"""The client against a real qBittorrent, and the fake compared with it, request by request."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from apps.common.tests.waiting import wait_until
from apps.librarian.clients.qbittorrent import QbittorrentClient, Torrent
from apps.librarian.errors import LoginRefused, QbittorrentUnavailable
from apps.librarian.tests import torrent_files
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.real_qbittorrent import RealQbittorrent, run_qbittorrent, seeding
from apps.librarian.torrent_source import parse_magnet, parse_source

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealQbittorrent]:
    with run_qbittorrent(tmp_path_factory.mktemp("qbittorrent")) as real:
        yield real


@pytest.fixture
def client(server: RealQbittorrent) -> Iterator[QbittorrentClient]:
    yield QbittorrentClient(server.url, server.username, server.password)
    server.post("torrents/delete", hashes="all", deleteFiles="true")


def find(client: QbittorrentClient, id: str) -> Torrent:
    return client.find_torrents([id])[id]


@pytest.mark.parametrize("sort", ["v1", "v2", "hybrid"])
def test_torrent_is_downloaded_and_deleted(
    server: RealQbittorrent, client: QbittorrentClient, tmp_path: Path, sort: str
) -> None:
    with seeding(tmp_path / "seed", sort=sort) as peer:
        id = client.add(parse_source(peer.torrent), str(tmp_path / "downloads"))
        assert client.add(parse_source(peer.torrent), str(tmp_path / "elsewhere")) == id
        assert client.add(parse_magnet(peer.magnet), str(tmp_path / "elsewhere")) == id
        states = list[str]()

        def complete() -> bool:
            peer.meet(server, id)
            found = find(client, id)
            states.append(found.state)
            assert found.complete == (found.progress == 1 and not found.active)
            return found.complete

        wait_until(complete)
        done = find(client, id)
        assert done.done == done.total == len(peer.content)
        assert Path(done.content_path) == tmp_path / "downloads" / peer.name
        assert Path(done.content_path).read_bytes() == peer.content
        client.remove(parse_source(peer.torrent).v2 or id)
        client.remove(id)
        assert client.find_torrents([id]) == {}
        wait_until(lambda: not Path(done.content_path).exists())


def test_hybrid_magnet_link_is_found_after_its_rename(
    server: RealQbittorrent, client: QbittorrentClient, tmp_path: Path
) -> None:
    with seeding(tmp_path / "seed", sort="hybrid", size=1_000_000) as peer:
        v1, v2 = parse_source(peer.torrent).v1, parse_source(peer.torrent).v2
        assert v1
        assert v2
        by_v1 = parse_magnet(f"magnet:?xt=urn:btih:{v1}")
        assert client.add(by_v1, str(tmp_path / "downloads")) == v1
        assert find(client, v1).total is None

        def complete() -> bool:
            found = find(client, v1)
            peer.meet(server, found.id)
            return found.complete

        wait_until(complete)
        assert find(client, v1).id == v2[:40]
        assert client.add(by_v1, str(tmp_path / "downloads")) == v2[:40]
        client.remove(v1)
        assert client.find_torrents([v1, v2]) == {}


def test_restart_of_qbittorrent_needs_only_a_new_login(
    server: RealQbittorrent, client: QbittorrentClient, tmp_path: Path
) -> None:
    id = client.add(parse_source(torrent_files.v1()), str(tmp_path))
    server.stop()
    with pytest.raises(QbittorrentUnavailable, match="is unreachable"):
        client.find_torrents([id])
    server.start()
    wait_until(lambda: client.find_torrents([id]))
    with pytest.raises(LoginRefused):
        QbittorrentClient(server.url, server.username, "not this one").version()


# ---------------------------------------------------------------- the fake


def observe(url: str, session: requests.Session, path: str, **request: Any) -> tuple[Any, ...]:
    """The parts of an answer that the client sees. Timestamps, sizes on disk and current states may differ."""
    method = request.pop("method", "POST")
    answer = session.request(method, f"{url}/api/v2/{path}", timeout=20, **request)
    body: Any = answer.text
    if answer.headers["Content-Type"] == "application/json":
        passing = (
            "added_on",
            "last_activity",
            "state",
            "priority",
            "magnet_uri",
            "name",
            "content_path",
            "availability",
            "time_active",
            "total_size",
        )
        body = [
            {key: value if key not in passing else type(value) for key, value in row.items()} for row in answer.json()
        ]
    return answer.status_code, answer.headers["Content-Type"], body, sorted(answer.cookies.keys())


def conversation(url: str, username: str, password: str) -> list[tuple[Any, ...]]:
    """The same valid and invalid requests for both, before and after the login."""
    v1, zeros, hybrid = parse_source(torrent_files.v1()).id, "0" * 40, parse_source(torrent_files.hybrid("c"))
    magnets = [
        f"magnet:?xt=urn:btih:{'ab' * 20}",
        f"magnet:?xt=urn:btih:{'ab' * 20}&xt=urn:btmh:1220{'cd' * 32}",
        f"magnet:?xt=urn:btmh:1220{'ef' * 32}",
    ]
    where = {"savepath": "/nowhere", "category": "librarian", "paused": "True", "autoTMM": "False"}
    session, answers = requests.Session(), list[tuple[Any, ...]]()

    def ask(path: str, **request: Any) -> None:
        answers.append(observe(url, session, path, **request))

    ask("app/version", method="GET")
    ask("torrents/info")
    ask("auth/login", data={"username": username, "password": "wrong"})
    ask("auth/login")
    for _ in range(2):
        ask("auth/login", data={"username": username, "password": password})
    for path in (
        "app/version",
        "app/webapiVersion",
        "torrents/info",
        "torrents/nonsense",
        "torrents/add",
        "torrents/delete",
    ):
        ask(path, method="GET")
        ask(path)
    for data in (torrent_files.v1(), torrent_files.v1(), torrent_files.v2("b"), torrent_files.hybrid("c"), b"rubbish"):
        ask("torrents/add", data=where, files={"torrent__0": data})
        wait_until(lambda: session.post(f"{url}/api/v2/torrents/info", timeout=20).json())
    for urls in (*magnets, magnets[0], "nonsense", "magnet:?dn=x"):
        ask("torrents/add", data=where | {"urls": urls})
        wait_until(lambda: session.post(f"{url}/api/v2/torrents/info", timeout=20).json())
    wait_until(lambda: len(session.post(f"{url}/api/v2/torrents/info", timeout=20).json()) == 5)
    for hashes in (v1, v1.upper(), f"{v1}|{zeros}", zeros, "ef" * 32, "all", hybrid.v1, str(hybrid.v2)[:40]):
        ask("torrents/info", data={"hashes": hashes})
    for query in (
        {"category": "nonsense"},
        {"category": "librarian", "hashes": "ef" * 20},
        {"category": "nonsense", "hashes": v1},
    ):
        ask("torrents/info", data=query)
    for gone in (zeros, v1.upper(), v1, "all"):
        ask("torrents/delete", data={"hashes": gone, "deleteFiles": "True"})
        ask("torrents/info", data={"hashes": v1})
    ask("torrents/info")
    ask("auth/logout")
    ask("torrents/info")
    return answers


def test_fake_answers_like_the_real_qbittorrent(server: RealQbittorrent, client: QbittorrentClient) -> None:
    version = client.version()
    if not version.startswith("v4.5."):
        pytest.skip(f"the dialect that was compared is 4.5, and this is {version}")
    with FakeQbittorrent("4.5") as fake:
        theirs = conversation(server.url, server.username, server.password)
        ours = conversation(fake.url, fake.username, fake.password)
    assert ours == theirs
