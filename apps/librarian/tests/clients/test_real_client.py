"""The client against a real qBittorrent, and the fake against it, request by request."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from apps.common.tests.waiting import eventually
from apps.librarian.client import Qbittorrent, Torrent
from apps.librarian.errors import LoginRefused, OutsideDown
from apps.librarian.source import magnet, source
from apps.librarian.tests import torrents
from apps.librarian.tests.qbittorrent import FakeQbittorrent
from apps.librarian.tests.real import RealQbittorrent, qbittorrent, seeding

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealQbittorrent]:
    with qbittorrent(tmp_path_factory.mktemp("qbittorrent")) as real:
        yield real


@pytest.fixture
def client(server: RealQbittorrent) -> Iterator[Qbittorrent]:
    yield Qbittorrent(server.url, server.username, server.password)
    server.post("torrents/delete", hashes="all", deleteFiles="true")


def look(client: Qbittorrent, id: str) -> Torrent:
    return client.look([id])[id]


@pytest.mark.parametrize("sort", ["v1", "v2", "hybrid"])
def test_a_torrent_really_downloads_and_is_really_deleted(server: RealQbittorrent, client: Qbittorrent, tmp_path: Path, sort: str) -> None:
    with seeding(tmp_path / "seed", sort=sort) as peer:
        id = client.add(source(peer.torrent), str(tmp_path / "downloads"))
        assert client.add(source(peer.torrent), str(tmp_path / "elsewhere")) == id
        assert client.add(magnet(peer.magnet), str(tmp_path / "elsewhere")) == id
        states = list[str]()

        def complete() -> bool:
            peer.meet(server, id)
            seen = look(client, id)
            states.append(seen.state)
            assert seen.complete == (seen.progress == 1 and not seen.active)
            return seen.complete

        eventually(complete)
        done = look(client, id)
        assert done.done == done.total == len(peer.content)
        assert Path(done.content_path) == tmp_path / "downloads" / peer.name
        assert Path(done.content_path).read_bytes() == peer.content
        client.remove(source(peer.torrent).v2 or id)
        client.remove(id)
        assert client.look([id]) == {}
        eventually(lambda: not Path(done.content_path).exists())


def test_a_magnet_link_of_a_hybrid_is_renamed_under_way_and_still_found(server: RealQbittorrent, client: Qbittorrent, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed", sort="hybrid", size=1_000_000) as peer:
        v1, v2 = source(peer.torrent).v1, source(peer.torrent).v2
        assert v1
        assert v2
        by_v1 = magnet(f"magnet:?xt=urn:btih:{v1}")
        assert client.add(by_v1, str(tmp_path / "downloads")) == v1
        assert look(client, v1).total is None

        def complete() -> bool:
            seen = look(client, v1)
            peer.meet(server, seen.id)
            return seen.complete

        eventually(complete)
        assert look(client, v1).id == v2[:40]
        assert client.add(by_v1, str(tmp_path / "downloads")) == v2[:40]
        client.remove(v1)
        assert client.look([v1, v2]) == {}


def test_a_restart_costs_a_login_and_nothing_else(server: RealQbittorrent, client: Qbittorrent, tmp_path: Path) -> None:
    id = client.add(source(torrents.v1()), str(tmp_path))
    server.stop()
    with pytest.raises(OutsideDown, match="cannot be reached"):
        client.look([id])
    server.start()
    eventually(lambda: client.look([id]))
    with pytest.raises(LoginRefused):
        Qbittorrent(server.url, server.username, "not this one").version()


# ---------------------------------------------------------------- the fake is true


def told(url: str, session: requests.Session, path: str, **request: Any) -> tuple[Any, ...]:
    """What a test of the client could see of an answer. Moments, sizes of what is on disk, and the state that it is in by now are not the fake's to guess."""
    method = request.pop("method", "POST")
    answer = session.request(method, f"{url}/api/v2/{path}", timeout=20, **request)
    body: Any = answer.text
    if answer.headers["Content-Type"] == "application/json":
        passing = ("added_on", "last_activity", "state", "priority", "magnet_uri", "name", "content_path", "availability", "time_active", "total_size")
        body = [{key: value if key not in passing else type(value) for key, value in row.items()} for row in answer.json()]
    return answer.status_code, answer.headers["Content-Type"], body, sorted(answer.cookies.keys())


def conversation(url: str, username: str, password: str) -> list[tuple[Any, ...]]:
    """The same questions for both, in order: right and wrong, before the login and after."""
    v1, zeros, hybrid = source(torrents.v1()).id, "0" * 40, source(torrents.hybrid("c"))
    magnets = [f"magnet:?xt=urn:btih:{'ab' * 20}", f"magnet:?xt=urn:btih:{'ab' * 20}&xt=urn:btmh:1220{'cd' * 32}", f"magnet:?xt=urn:btmh:1220{'ef' * 32}"]
    where = {"savepath": "/nowhere", "category": "librarian", "paused": "True", "autoTMM": "False"}
    session, answers = requests.Session(), list[tuple[Any, ...]]()

    def ask(path: str, **request: Any) -> None:
        answers.append(told(url, session, path, **request))

    ask("app/version", method="GET")
    ask("torrents/info")
    ask("auth/login", data={"username": username, "password": "wrong"})
    ask("auth/login")
    for _ in range(2):
        ask("auth/login", data={"username": username, "password": password})
    for path in ("app/version", "app/webapiVersion", "torrents/info", "torrents/nonsense", "torrents/add", "torrents/delete"):
        ask(path, method="GET")
        ask(path)
    for data in (torrents.v1(), torrents.v1(), torrents.v2("b"), torrents.hybrid("c"), b"rubbish"):
        ask("torrents/add", data=where, files={"torrent__0": data})
        eventually(lambda: session.post(f"{url}/api/v2/torrents/info", timeout=20).json())
    for urls in (*magnets, magnets[0], "nonsense", "magnet:?dn=x"):
        ask("torrents/add", data=where | {"urls": urls})
        eventually(lambda: session.post(f"{url}/api/v2/torrents/info", timeout=20).json())
    eventually(lambda: len(session.post(f"{url}/api/v2/torrents/info", timeout=20).json()) == 5)
    for hashes in (v1, v1.upper(), f"{v1}|{zeros}", zeros, "ef" * 32, "all", hybrid.v1, str(hybrid.v2)[:40]):
        ask("torrents/info", data={"hashes": hashes})
    for query in ({"category": "nonsense"}, {"category": "librarian", "hashes": "ef" * 20}, {"category": "nonsense", "hashes": v1}):
        ask("torrents/info", data=query)
    for gone in (zeros, v1.upper(), v1, "all"):
        ask("torrents/delete", data={"hashes": gone, "deleteFiles": "True"})
        ask("torrents/info", data={"hashes": v1})
    ask("torrents/info")
    ask("auth/logout")
    ask("torrents/info")
    return answers


def test_the_fake_answers_as_the_real_one_does(server: RealQbittorrent, client: Qbittorrent) -> None:
    version = client.version()
    if not version.startswith("v4.5."):
        pytest.skip(f"the dialect that was compared is 4.5, and this is {version}")
    with FakeQbittorrent("4.5") as fake:
        theirs = conversation(server.url, server.username, server.password)
        ours = conversation(fake.url, fake.username, fake.password)
    assert ours == theirs
