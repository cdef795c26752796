"""The qBittorrent client against the fake, in all dialects: adding, finding and removing torrents."""

import pytest

from apps.librarian.clients import qbittorrent as client_module
from apps.librarian.clients.qbittorrent import QbittorrentClient, Torrent
from apps.librarian.errors import AddRefused, QbittorrentUnavailable
from apps.librarian.tests import torrent_files
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent, Record
from apps.librarian.torrent_source import parse_magnet, parse_source

V1, V2 = "ab" * 20, "cd" * 32


# ---------------------------------------------------------------- add


@pytest.mark.parametrize("data", [torrent_files.v1(), torrent_files.v2(), torrent_files.hybrid()])
def test_torrent_is_added_started_in_its_category_and_directory(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient, data: bytes
) -> None:
    read = parse_source(data)
    id = client.add(read, "/downloads/7")
    record = qbittorrent.torrents[id]
    assert (record.v1 or None, record.v2 or None, record.category, record.save_path) == (
        read.v1,
        read.v2,
        "librarian",
        "/downloads/7",
    )
    [asked] = qbittorrent.requests_to("torrents/add")
    assert asked.files == {"torrent__0": data}
    assert {asked.params[key] for key in ("paused", "stopped", "autoTMM")} == {"False"}


@pytest.mark.parametrize(
    "text",
    [f"magnet:?xt=urn:btih:{V1}", f"magnet:?xt=urn:btmh:1220{V2}", f"magnet:?xt=urn:btih:{V1}&xt=urn:btmh:1220{V2}"],
)
def test_magnet_link_is_added_and_its_id_returned(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient, text: str
) -> None:
    id = client.add(parse_magnet(text), "/downloads")
    assert id == (V2[:40] if "btmh" in text else V1)
    assert [asked.params["urls"] for asked in qbittorrent.requests_to("torrents/add")] == [text]
    assert list(qbittorrent.torrents) == [id]


@pytest.mark.parametrize(
    "given",
    [
        torrent_files.v1(),
        torrent_files.v2(),
        torrent_files.hybrid(),
        f"magnet:?xt=urn:btih:{V1}",
        f"magnet:?xt=urn:btmh:1220{V2}",
    ],
)
def test_duplicate_add_returns_the_existing_torrent(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient, given: str | bytes
) -> None:
    id = client.add(parse_source(given), "/downloads")
    qbittorrent.torrents[id].category = "somebody else's"
    assert client.add(parse_source(given), "/elsewhere") == id
    assert [record.save_path for record in qbittorrent.torrents.values()] == ["/downloads"]


def test_duplicate_is_found_by_its_other_hash(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    client.add(parse_magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads")
    qbittorrent.metadata(V1, name="night.epub", size=100, v2=V2)
    assert client.add(parse_magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads") == V2[:40]
    assert client.add(parse_magnet(f"magnet:?xt=urn:btmh:1220{V2}"), "/downloads") == V2[:40]


@pytest.mark.parametrize("given", [torrent_files.v1(), f"magnet:?xt=urn:btih:{V1}"])
def test_refused_add_without_the_torrent_raises_add_refused(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient, given: str | bytes, no_listing_waits: None
) -> None:
    client.add(parse_source(torrent_files.v2()), "/downloads")
    qbittorrent.refuse_adds()
    says = "it answered 409" if qbittorrent.dialect == "5.2" else "it answered 'Fails.'"
    with pytest.raises(AddRefused, match=says):
        client.add(parse_source(given), "/downloads")


def test_file_that_qbittorrent_cannot_read_raises_add_refused(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient, no_listing_waits: None
) -> None:
    unreadable = torrent_files.v1(piece_length=3)  # valid for our parser, not for libtorrent
    with pytest.raises(AddRefused, match=r"415 .*is not a valid torrent file"):
        client.add(parse_source(unreadable), "/downloads")


def test_client_waits_until_an_accepted_torrent_is_listed(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    unlisted: list[Record] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            unlisted.append(qbittorrent.remove(V1))
        elif len(pauses) == 3:
            qbittorrent.torrents[V1] = unlisted[0]

    monkeypatch.setattr(client_module, "sleep", pause)
    assert client.add(parse_magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads") == V1
    assert len(qbittorrent.requests_to("torrents/add")) == 1


def test_accepted_torrent_that_is_never_listed_is_unavailable(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "sleep", lambda _: qbittorrent.torrents.clear())
    with pytest.raises(QbittorrentUnavailable, match="does not list it yet"):
        client.add(parse_source(torrent_files.v1()), "/downloads")


# ---------------------------------------------------------------- find


def test_one_request_finds_a_hundred_torrents(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    ids = [f"{number:040x}" for number in range(1, 101)]
    qbittorrent.torrents = {id: Record(id, v1=id, category="librarian") for id in [*ids, "f" * 40]}
    client.version()
    qbittorrent.log.clear()
    assert list(client.find_torrents(ids)) == ids
    assert [asked.path for asked in qbittorrent.log] == ["torrents/info"]


def test_invalid_ids_make_no_request(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    assert client.find_torrents([]) == client.find_torrents(["all", "", "x|y", V1 + "|"]) == {}
    client.remove("all")
    assert qbittorrent.log == []


def test_renamed_hybrid_is_found_by_all_its_hashes(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    assert client.add(parse_magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads") == V1
    qbittorrent.metadata(V1, name="night.epub", size=100, v2=V2)
    ids = [V1, V1.upper(), V2, V2[:40], "e" * 40]
    qbittorrent.log.clear()
    found = client.find_torrents(ids)
    assert list(found) == ids[:4]
    assert {torrent.id for torrent in found.values()} == {V2[:40]}
    assert [asked.params for asked in qbittorrent.requests_to("torrents/info")] == [
        {"hashes": f"{V1}|{V2[:40]}|{'e' * 40}"},
        {},
    ]


def test_missing_torrent_is_left_out(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    id = client.add(parse_source(torrent_files.v1()), "/downloads")
    record = qbittorrent.remove(id)
    assert client.find_torrents([id]) == {}
    qbittorrent.torrents[id] = record
    assert list(client.find_torrents([id])) == [id]


def test_progress_and_paths_are_returned(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    id = client.add(parse_magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads")
    assert client.find_torrents([id])[id].total is None
    record = qbittorrent.metadata(id, name="night.epub", size=1000)
    record.state, record.progress = "downloading", 0.25
    assert client.find_torrents([id]) == {
        id: Torrent(id, "downloading", 0.25, 250.0, 1000.0, "/downloads/night.epub", "/downloads", v1=V1)
    }


STATES = {
    "error": ["error", "missingFiles"],
    "active": ["downloading", "forcedDL", "metaDL", "forcedMetaDL", "stalledDL", "allocating", "checkingDL"],
    "complete": ["uploading", "forcedUP", "stalledUP", "queuedUP", "pausedUP", "stoppedUP", "checkingUP"],
    "none": ["queuedDL", "pausedDL", "stoppedDL", "checkingResumeData", "moving", "unknown", "a word of tomorrow"],
}


def test_every_state_has_one_meaning(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    old, new = ("stopped", "paused") if qbittorrent.dialect == "4.5" else ("paused", "stopped")
    for meaning, state in ((meaning, state) for meaning, states in STATES.items() for state in states):
        qbittorrent.torrents[V1] = Record(V1, v1=V1, state=state, progress=1.0, size=10)
        found = client.find_torrents([V1])[V1]
        assert found.state == state.replace(old, new)
        meanings = [name for name in ("error", "active", "complete") if getattr(found, name)]
        assert meanings == ([meaning] if meaning != "none" else [])


def test_partial_torrent_is_not_complete(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    qbittorrent.torrents[V1] = Record(V1, v1=V1, state="checkingUP", progress=0.999, size=10)
    assert not client.find_torrents([V1])[V1].complete


# ---------------------------------------------------------------- remove


def test_torrent_is_removed_with_its_files_by_any_of_its_hashes(
    qbittorrent: FakeQbittorrent, client: QbittorrentClient
) -> None:
    for name in (V1, V1.upper(), V2, V2[:40]):
        qbittorrent.torrents = {
            V2[:40]: Record(V2[:40], v1=V1, v2=V2, category="librarian"),
            "f" * 40: Record("f" * 40, category="librarian"),
        }
        client.remove(name)
        assert list(qbittorrent.torrents) == ["f" * 40]
    assert {asked.params["deleteFiles"] for asked in qbittorrent.requests_to("torrents/delete")} == {"True"}


def test_removing_a_missing_torrent_does_nothing(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    client.remove(V1)
    assert qbittorrent.requests_to("torrents/delete") == []


def test_torrent_of_another_category_is_never_deleted(qbittorrent: FakeQbittorrent, client: QbittorrentClient) -> None:
    qbittorrent.torrents[V1] = Record(V1, v1=V1, category="films")
    client.remove(V1)
    assert list(qbittorrent.torrents) == [V1]
