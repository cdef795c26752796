"""The client of qBittorrent: every way in which the outside can fail is one of our own sentences, and what it answers is verified."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.librarian import client as client_module
from apps.librarian.client import Qbittorrent, Torrent
from apps.librarian.errors import AddRefused, BadSettings, Banned, CredentialsRefused, LoginRefused, OutsideDown
from apps.librarian.source import magnet, source
from apps.librarian.tests import torrents
from apps.librarian.tests.loopback import Answer, self_signed
from apps.librarian.tests.qbittorrent import BAN_AFTER, Dialect, FakeQbittorrent, Record

DIALECTS: list[Dialect] = ["4.5", "5.0", "5.2"]
V1, V2 = "ab" * 20, "cd" * 32
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(params=DIALECTS)
def qbittorrent(request: pytest.FixtureRequest) -> Iterator[FakeQbittorrent]:
    """A qBittorrent of each sort in turn, whose settings nobody may touch."""
    with FakeQbittorrent(request.param) as fake:
        yield fake
    assert fake.asked("app/setPreferences") == []


@pytest.fixture
def client(qbittorrent: FakeQbittorrent) -> Qbittorrent:
    return Qbittorrent(qbittorrent.url, qbittorrent.username, qbittorrent.password)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a torrent to be listed."""
    monkeypatch.setattr(client_module, "SETTLING", (0.0, 0.0))


# ---------------------------------------------------------------- who may come in


def test_default_credentials_are_refused_unless_told_otherwise() -> None:
    with pytest.raises(CredentialsRefused, match="choose another"):
        Qbittorrent(NOWHERE, "admin", "adminadmin")
    Qbittorrent(NOWHERE, "admin", "adminadmin", allow_default_credentials=True)
    Qbittorrent(NOWHERE, "admin", "another")


@pytest.mark.parametrize(("username", "password"), [("", "secret"), ("reader", ""), ("", "")])
def test_credentials_that_are_not_set_are_refused(username: str, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBITTORRENTAPI_PASSWORD", "adminadmin")  # the library would help itself to it
    with pytest.raises(CredentialsRefused, match="give both"):
        Qbittorrent(NOWHERE, username, password, allow_default_credentials=True)


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://h", "http://", "http://[", "http://h:x", "https://reader:secret@h"])
def test_what_is_no_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(BadSettings, match="a host and a port") as refused:
        Qbittorrent(url, "reader", "secret")
    assert "secret" not in str(refused.value)


def test_a_bad_password_is_a_sentence_without_the_password(qbittorrent: FakeQbittorrent) -> None:
    client = Qbittorrent(qbittorrent.url, qbittorrent.username, "wrong-password")
    for _ in range(BAN_AFTER):
        with pytest.raises(LoginRefused, match="refuses the user name 'librarian'") as refused:
            client.look([V1])
        assert "wrong-password" not in str(refused.value)
    with pytest.raises(Banned, match=r"address has been banned.*Restart it, or wait") as banned:
        client.look([V1])
    assert "Mend" not in str(banned.value)
    assert len(qbittorrent.asked("auth/login")) == BAN_AFTER + 1


def test_a_session_that_ended_is_begun_again_and_the_answer_is_right(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    id = client.add(magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads")
    for verb in (client.version, lambda: client.look([id]), lambda: client.add(source(torrents.v1()), "/downloads"), lambda: client.remove(id)):
        qbittorrent.expire_sessions()
        verb()
    assert len(qbittorrent.asked("auth/login")) == 5
    assert [record.name for record in qbittorrent.torrents.values()] == ["night.epub"]


# ---------------------------------------------------------------- the outside is down


VERBS: dict[str, Callable[[Qbittorrent], object]] = {
    "version": lambda client: client.version(),
    "add": lambda client: client.add(source(torrents.v1()), "/downloads"),
    "look": lambda client: client.look([V1]),
    "remove": lambda client: client.remove(V1),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_refused_connection_is_outside_down_until_it_is_up_again(qbittorrent: FakeQbittorrent, client: Qbittorrent, verb: str) -> None:
    client.version()
    qbittorrent.down()
    with pytest.raises(OutsideDown, match=r"cannot be reached\. See that it runs\.$"):
        VERBS[verb](client)
    qbittorrent.up()
    VERBS[verb](client)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("status", "says"), [(500, "cannot answer now: status 500"), (503, "status 503"), (404, "see that this is its address")])
def test_a_server_that_cannot_answer_is_outside_down(qbittorrent: FakeQbittorrent, client: Qbittorrent, verb: str, status: int, says: str) -> None:
    client.version()
    qbittorrent.fail_with(status)
    with pytest.raises(OutsideDown, match=says):
        VERBS[verb](client)
    qbittorrent.fail_with(None)
    VERBS[verb](client)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("status", "body"), [(302, ""), (200, "<html>Welcome</html>"), (200, "[1]"), (200, '[{"hash": "x"}]'), (200, "7"), (200, "null")])
def test_an_answer_that_is_not_qbittorrents_is_outside_down(verb: str, status: int, body: str) -> None:
    with FakeQbittorrent() as fake:
        client = Qbittorrent(fake.url, fake.username, fake.password)
        client.version()
        fake.answer_with(Answer(status, body))
        with pytest.raises(OutsideDown, match="see that this is its address"):
            VERBS[verb](client)


def test_a_redirect_is_not_followed_with_the_password(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    with FakeQbittorrent() as elsewhere:
        qbittorrent.answer_with(Answer(307, location=f"{elsewhere.url}/api/v2/auth/login"))
        with pytest.raises(OutsideDown):
            client.version()
    assert elsewhere.log == []


def test_an_answer_that_does_not_come_in_time_is_outside_down(qbittorrent: FakeQbittorrent) -> None:
    client = Qbittorrent(qbittorrent.url, qbittorrent.username, qbittorrent.password, timeout=0.1)
    gate = threading.Event()
    qbittorrent.slow(gate)
    begun = time.monotonic()
    with pytest.raises(OutsideDown, match=r"within 0\.1 seconds"):
        client.look([V1])
    assert time.monotonic() - begun < 10  # the library's own patience is 30
    gate.set()
    assert client.look([V1]) == {}


# ---------------------------------------------------------------- TLS


def test_a_certificate_that_nobody_vouches_for_is_refused_and_no_password_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    monkeypatch.setenv("QBITTORRENTAPI_DO_NOT_VERIFY_WEBUI_CERTIFICATE", "1")  # not even by the library's own back door
    certificate = self_signed(tmp_path)
    with FakeQbittorrent(certificate=certificate) as fake:
        client = Qbittorrent(fake.url, fake.username, fake.password)
        with pytest.raises(OutsideDown, match="certificate that is not to be trusted"):
            client.version()
        assert fake.log == []
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert client.version() == "v4.5.2"


# ---------------------------------------------------------------- add


@pytest.mark.parametrize("data", [torrents.v1(), torrents.v2(), torrents.hybrid()])
def test_a_torrent_is_added_to_our_category_started_and_saved_where_we_say(qbittorrent: FakeQbittorrent, client: Qbittorrent, data: bytes) -> None:
    read = source(data)
    id = client.add(read, "/downloads/7")
    record = qbittorrent.torrents[id]
    assert (record.v1 or None, record.v2 or None, record.category, record.save_path) == (read.v1, read.v2, "librarian", "/downloads/7")
    [asked] = qbittorrent.asked("torrents/add")
    assert asked.files == {"torrent__0": data}
    assert {asked.params[key] for key in ("paused", "stopped", "autoTMM")} == {"False"}


@pytest.mark.parametrize("text", [f"magnet:?xt=urn:btih:{V1}", f"magnet:?xt=urn:btmh:1220{V2}", f"magnet:?xt=urn:btih:{V1}&xt=urn:btmh:1220{V2}"])
def test_a_magnet_link_is_added_and_its_own_id_answered(qbittorrent: FakeQbittorrent, client: Qbittorrent, text: str) -> None:
    id = client.add(magnet(text), "/downloads")
    assert id == (V2[:40] if "btmh" in text else V1)
    assert [asked.params["urls"] for asked in qbittorrent.asked("torrents/add")] == [text]
    assert list(qbittorrent.torrents) == [id]


@pytest.mark.parametrize("given", [torrents.v1(), torrents.v2(), torrents.hybrid(), f"magnet:?xt=urn:btih:{V1}", f"magnet:?xt=urn:btmh:1220{V2}"])
def test_a_duplicate_add_is_verified_by_its_hash(qbittorrent: FakeQbittorrent, client: Qbittorrent, given: str | bytes) -> None:
    id = client.add(source(given), "/downloads")
    qbittorrent.torrents[id].category = "somebody else's"
    assert client.add(source(given), "/elsewhere") == id
    assert [record.save_path for record in qbittorrent.torrents.values()] == ["/downloads"]


def test_a_duplicate_that_is_known_by_its_other_hash_is_found(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    client.add(magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads")
    qbittorrent.metadata(V1, name="night.epub", size=100, v2=V2)
    assert client.add(magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads") == V2[:40]
    assert client.add(magnet(f"magnet:?xt=urn:btmh:1220{V2}"), "/downloads") == V2[:40]


@pytest.mark.parametrize("given", [torrents.v1(), f"magnet:?xt=urn:btih:{V1}"])
def test_a_refused_add_whose_hash_is_absent_is_add_refused(qbittorrent: FakeQbittorrent, client: Qbittorrent, given: str | bytes, impatient: None) -> None:
    client.add(source(torrents.v2()), "/downloads")
    qbittorrent.refuse_adds()
    says = "it answered 409" if qbittorrent.dialect == "5.2" else "it answered 'Fails.'"
    with pytest.raises(AddRefused, match=says):
        client.add(source(given), "/downloads")


def test_a_file_that_qbittorrent_cannot_read_is_add_refused(qbittorrent: FakeQbittorrent, client: Qbittorrent, impatient: None) -> None:
    unreadable = torrents.v1(piece_length=3)  # honest enough for us, not for libtorrent
    with pytest.raises(AddRefused, match=r"415 .*is not a valid torrent file"):
        client.add(source(unreadable), "/downloads")


def test_an_add_that_is_taken_and_not_listed_yet_is_waited_for(qbittorrent: FakeQbittorrent, client: Qbittorrent, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    unlisted: list[Record] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            unlisted.append(qbittorrent.remove(V1))
        elif len(pauses) == 3:
            qbittorrent.torrents[V1] = unlisted[0]

    monkeypatch.setattr(client_module, "sleep", pause)
    assert client.add(magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads") == V1
    assert len(qbittorrent.asked("torrents/add")) == 1


def test_an_add_that_is_taken_and_never_listed_is_outside_down(qbittorrent: FakeQbittorrent, client: Qbittorrent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "sleep", lambda _: qbittorrent.torrents.clear())
    with pytest.raises(OutsideDown, match="does not list it yet"):
        client.add(source(torrents.v1()), "/downloads")


# ---------------------------------------------------------------- look


def test_a_hundred_are_looked_at_by_one_request(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    ids = [f"{number:040x}" for number in range(1, 101)]
    qbittorrent.torrents = {id: Record(id, v1=id, category="librarian") for id in [*ids, "f" * 40]}
    client.version()
    qbittorrent.log.clear()
    assert list(client.look(ids)) == ids
    assert [asked.path for asked in qbittorrent.log] == ["torrents/info"]


def test_nothing_is_asked_about_nothing(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    assert client.look([]) == client.look(["all", "", "x|y", V1 + "|"]) == {}
    client.remove("all")
    assert qbittorrent.log == []


def test_a_hybrid_whose_id_changed_is_found_by_every_hash_it_has(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    assert client.add(magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads") == V1
    qbittorrent.metadata(V1, name="night.epub", size=100, v2=V2)
    ids = [V1, V1.upper(), V2, V2[:40], "e" * 40]
    qbittorrent.log.clear()
    found = client.look(ids)
    assert list(found) == ids[:4]
    assert {torrent.id for torrent in found.values()} == {V2[:40]}
    assert [asked.params for asked in qbittorrent.asked("torrents/info")] == [{"hashes": f"{V1}|{V2[:40]}|{'e' * 40}"}, {}]


def test_what_is_not_there_is_left_out(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    id = client.add(source(torrents.v1()), "/downloads")
    record = qbittorrent.remove(id)
    assert client.look([id]) == {}
    qbittorrent.torrents[id] = record
    assert list(client.look([id])) == [id]


def test_progress_and_paths_are_told(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    id = client.add(magnet(f"magnet:?xt=urn:btih:{V1}"), "/downloads")
    assert client.look([id])[id].total is None
    record = qbittorrent.metadata(id, name="night.epub", size=1000)
    record.state, record.progress = "downloading", 0.25
    assert client.look([id]) == {id: Torrent(id, "downloading", 0.25, 250.0, 1000.0, "/downloads/night.epub", "/downloads", v1=V1)}


STATES = {
    "error": ["error", "missingFiles"],
    "active": ["downloading", "forcedDL", "metaDL", "forcedMetaDL", "stalledDL", "allocating", "checkingDL"],
    "complete": ["uploading", "forcedUP", "stalledUP", "queuedUP", "pausedUP", "stoppedUP", "checkingUP"],
    "none": ["queuedDL", "pausedDL", "stoppedDL", "checkingResumeData", "moving", "unknown", "a word of tomorrow"],
}


@pytest.mark.parametrize(("meaning", "state"), [(meaning, state) for meaning, states in STATES.items() for state in states])
def test_every_state_means_one_thing(qbittorrent: FakeQbittorrent, client: Qbittorrent, meaning: str, state: str) -> None:
    qbittorrent.torrents[V1] = Record(V1, v1=V1, state=state, progress=1.0, size=10)
    seen = client.look([V1])[V1]
    assert seen.state == (state.replace("stopped", "paused") if qbittorrent.dialect == "4.5" else state.replace("paused", "stopped"))
    assert [name for name in ("error", "active", "complete") if getattr(seen, name)] == ([meaning] if meaning != "none" else [])


def test_what_is_not_all_there_is_not_complete(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    qbittorrent.torrents[V1] = Record(V1, v1=V1, state="checkingUP", progress=0.999, size=10)
    assert not client.look([V1])[V1].complete


# ---------------------------------------------------------------- remove


def test_a_torrent_is_removed_with_its_files_by_any_of_its_hashes(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    for name in (V1, V1.upper(), V2, V2[:40]):
        qbittorrent.torrents = {V2[:40]: Record(V2[:40], v1=V1, v2=V2, category="librarian"), "f" * 40: Record("f" * 40, category="librarian")}
        client.remove(name)
        assert list(qbittorrent.torrents) == ["f" * 40]
    assert {asked.params["deleteFiles"] for asked in qbittorrent.asked("torrents/delete")} == {"True"}


def test_removing_what_is_gone_is_fine(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    client.remove(V1)
    assert qbittorrent.asked("torrents/delete") == []


def test_what_is_in_somebody_elses_category_is_never_deleted(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    qbittorrent.torrents[V1] = Record(V1, v1=V1, category="films")
    client.remove(V1)
    assert list(qbittorrent.torrents) == [V1]


# ---------------------------------------------------------------- many at once


def test_many_threads_may_ask_at_once_and_sessions_are_used_again(qbittorrent: FakeQbittorrent, client: Qbittorrent) -> None:
    qbittorrent.torrents = {id: Record(id, v1=id) for id in (f"{number:040x}" for number in range(1, 41))}
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda one: list(client.look([one])) == [one], [*qbittorrent.torrents] * 3))
    assert len(qbittorrent.asked("auth/login")) <= 8
