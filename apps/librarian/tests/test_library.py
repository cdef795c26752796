"""Promises about people, books and the beginning of a download: what is refused changes nothing, and the same request is one download."""

import importlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from apps.common.database import connect, reading
from apps.librarian import tables
from apps.librarian.assembly import Lazily
from apps.librarian.errors import BadName, BadSettings, BadSource, Conflict, CredentialsRefused, LibrarianError, NotFound, UnknownMedia
from apps.librarian.jobs import build
from apps.librarian.library import Library, Started, User
from apps.librarian.settings import Settings
from apps.librarian.tests.kit import Branch, hash_of, magnet
from interlock import Refused

FIELDS = (
    "id", "user_id", "book_id", "media_type", "status", "source", "external_job_id", "created_at_utc", "updated_at_utc", "completed_at_utc",
    "cancel_requested_at_utc", "first_not_found_at_utc", "failure_reason",
)
NO_ID = "01900000-0000-7000-8000-000000000000"


class Nobody:
    """A qBittorrent that must not be asked: what is refused is refused before."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"qBittorrent was asked to {name}")


@pytest.fixture
def client() -> Nobody:
    return Nobody()


@pytest.fixture
def library(branch: Branch) -> Library:
    return branch.library


@pytest.fixture
def ann(library: Library) -> User:
    return library.add_user("ann")


@pytest.fixture
def emma(library: Library) -> int:
    return library.add_book("Emma", "Jane Austen").id


# ---------------------------------------------------------------- starting
def test_a_download_begins_queued_and_is_readable_at_once(branch: Branch, ann: User, emma: int) -> None:
    started = branch.library.start_download(ann.id, emma, "text", magnet(1))
    assert started.created
    found = branch.library.download(ann.id, started.id)
    assert (found.status, found.user_id, found.book_id, found.media_type, found.source) == ("queued", ann.id, emma, "text", magnet(1))
    assert (found.created_at_utc, found.external_job_id, found.completed_at_utc, found.failure_reason) == (branch.clock.now(), None, None, None)


def test_every_field_of_a_download_has_its_own_name_in_the_view(branch: Branch, ann: User, emma: int) -> None:
    started = branch.library.start_download(ann.id, emma, "audio", magnet(1))
    row = branch.rows(f"SELECT {', '.join(FIELDS)}, row_version FROM download_jobs")
    assert [str(value) for value in row[0][:6]] == [started.id, str(ann.id), str(emma), "audio", "queued", magnet(1)]
    assert row[0][-1] == branch.app.get(started.id).version == 0


def test_the_same_request_finds_the_active_download(library: Library, branch: Branch, ann: User, emma: int) -> None:
    first = library.start_download(ann.id, emma, "text", magnet(1))
    before = branch.stored()
    assert library.start_download(ann.id, emma, "text", magnet(1)) == Started(first.id, created=False)
    assert branch.stored() == before


def test_the_same_torrent_in_other_words_is_the_same_request(library: Library, ann: User, emma: int) -> None:
    first = library.start_download(ann.id, emma, "text", magnet(1))
    assert library.start_download(ann.id, emma, "text", f"magnet:?xt=urn:btih:{hash_of(1).upper()}").id == first.id


def test_another_medium_another_book_and_another_user_are_other_downloads(library: Library, ann: User, emma: int) -> None:
    bob, persuasion = library.add_user("bob"), library.add_book("Persuasion")
    asked = [(ann.id, emma, "text"), (ann.id, emma, "audio"), (ann.id, persuasion.id, "text"), (bob.id, emma, "text")]
    assert len({library.start_download(*each, magnet(1)).id for each in asked}) == 4


def test_after_a_download_has_ended_the_same_request_is_a_new_one(library: Library, ann: User, emma: int) -> None:
    first = library.start_download(ann.id, emma, "text", magnet(1))
    library.cancel(ann.id, first.id)
    again = library.start_download(ann.id, emma, "text", magnet(1))
    assert again.created
    assert [each.id for each in library.downloads(ann.id)] == [again.id, first.id]


def test_another_source_for_what_is_active_is_a_conflict_that_stores_nothing(library: Library, branch: Branch, ann: User, emma: int) -> None:
    first = library.start_download(ann.id, emma, "text", magnet(1))
    before = branch.stored()
    with pytest.raises(Conflict, match=f"Download {first.id} of this medium is active, from another source"):
        library.start_download(ann.id, emma, "text", magnet(2))
    assert branch.stored() == before


def test_sixteen_requests_at_once_are_one_download(library: Library, branch: Branch, ann: User, emma: int) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: library.start_download(ann.id, emma, "text", magnet(1)), range(16)))
    assert len({each.id for each in answers}) == sum(each.created for each in answers) == 1
    assert (branch.stored()["downloads"], len(branch.app.jobs(kind="download"))) == (1, 1)


def test_sixteen_requests_at_once_from_sixteen_sources_are_one_download(library: Library, branch: Branch, ann: User, emma: int) -> None:
    def ask(number: int) -> bool:
        try:
            return library.start_download(ann.id, emma, "text", magnet(number)).created
        except Conflict:
            return False

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(ask, range(1, 17))) == 1
    assert (branch.stored()["downloads"], branch.stored()["torrents"], len(branch.app.jobs(kind="download"))) == (1, 1, 1)


# ---------------------------------------------------------------- what is refused
Bad = Callable[[Library, User, int], object]
REFUSED: dict[str, tuple[type[LibrarianError], str, Bad]] = {
    "an unknown user": (NotFound, "There is no user 99", lambda lib, _, emma: lib.start_download(99, emma, "text", magnet(1))),
    "a user of no number": (NotFound, "There is no user 9{30}", lambda lib, _, emma: lib.start_download(int("9" * 30), emma, "text", magnet(1))),
    "an unknown book": (NotFound, "There is no book 99", lambda lib, ann, _: lib.start_download(ann.id, 99, "text", magnet(1))),
    "a book of no number": (NotFound, "There is no book -1", lambda lib, ann, _: lib.start_download(ann.id, -1, "text", magnet(1))),
    "an unknown medium": (UnknownMedia, "no medium 'video': give one of", lambda lib, ann, emma: lib.start_download(ann.id, emma, "video", magnet(1))),
    "a magnet link without a hash": (BadSource, "magnet", lambda lib, ann, emma: lib.start_download(ann.id, emma, "text", "magnet:?dn=book")),
    "no magnet link": (BadSource, "magnet", lambda lib, ann, emma: lib.start_download(ann.id, emma, "text", "https://example.com/book.torrent")),
    "a name that leads elsewhere": (BadSource, "name", lambda lib, ann, emma: lib.start_download(ann.id, emma, "text", f"{magnet(1)}&dn=../../etc/passwd")),
    "bytes that are no torrent": (BadSource, "torrent", lambda lib, ann, emma: lib.start_download(ann.id, emma, "text", b"PK\x03\x04")),
    "no name": (BadName, "The name '' cannot be kept", lambda lib, *_: lib.add_user("")),
    "an invisible title": (BadName, "The title .* cannot be kept", lambda lib, *_: lib.add_book("Emma\x00")),
    "an endless title": (BadName, "give 1 to 500 characters", lambda lib, *_: lib.add_book("E" * 501)),
    "an author in two lines": (BadName, "The author .* cannot be kept", lambda lib, *_: lib.add_book("Emma", "Jane\nAusten")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_a_sentence_and_stores_nothing(branch: Branch, ann: User, emma: int, case: str) -> None:
    error, sentence, ask = REFUSED[case]
    before = branch.stored()
    with pytest.raises(error, match=sentence):
        ask(branch.library, ann, emma)
    assert branch.stored() == before


# ---------------------------------------------------------------- whose it is
@pytest.mark.parametrize("verb", ["download", "cancel"])
def test_a_foreign_download_is_not_found_as_one_that_does_not_exist(library: Library, branch: Branch, ann: User, emma: int, verb: str) -> None:
    bob = library.add_user("bob")
    of_ann = library.start_download(ann.id, emma, "text", magnet(1)).id
    before = branch.app.history(of_ann)
    for id in (of_ann, NO_ID, of_ann.upper(), "1", "'; DROP TABLE users", "\x00"):
        with pytest.raises(NotFound) as refusal:
            getattr(library, verb)(bob.id, id)
        assert str(refusal.value) == f"You have no download {id}: look at the list of yours."
    assert branch.app.history(of_ann) == before
    assert library.downloads(bob.id) == []


def test_a_token_is_shown_once_and_only_its_hash_is_kept(library: Library, branch: Branch, ann: User) -> None:
    assert ann.token is not None
    assert library.user_of(ann.token) == User(ann.id, "ann", token=None)
    assert ann.token not in repr(ann)
    stored = branch.rows("SELECT token_hash FROM users")[0][0]
    assert re.fullmatch("[0-9a-f]{64}", stored)
    for wrong in (stored, "", f"{ann.token}x", "\ud800"):
        with pytest.raises(NotFound, match="Nobody has this token"):
            library.user_of(wrong)


def test_no_two_users_have_the_same_name(library: Library, branch: Branch, ann: User) -> None:
    """Else a name would mean nobody, and a second token would be taken for a new one of the first."""
    before = branch.stored()
    with pytest.raises(Conflict, match="There is a user ann already: give another name"):
        library.add_user(" ann ")
    assert branch.stored() == before
    assert library.user_of(str(ann.token)) == User(ann.id, "ann")


# ---------------------------------------------------------------- cancelling what waits
def test_a_waiting_download_is_cancelled_at_once_by_its_user(library: Library, branch: Branch, ann: User, emma: int) -> None:
    started = library.start_download(ann.id, emma, "text", magnet(1))
    seen = library.cancel(ann.id, started.id)
    assert (seen.status, seen.completed_at_utc, seen.failure_reason) == ("canceled", None, None)
    assert branch.path(started.id) == [(None, "queued"), ("queued", "canceled")]
    assert branch.app.history(started.id)[-1].actor == f"operator:user:{ann.id}"
    assert branch.removals() == ["PENDING"]


def test_a_download_that_has_ended_cannot_be_cancelled(library: Library, branch: Branch, ann: User, emma: int) -> None:
    started = library.start_download(ann.id, emma, "text", magnet(1))
    library.cancel(ann.id, started.id)
    before = branch.stored()
    with pytest.raises(Conflict, match=f"Download {started.id} is canceled: there is nothing left to cancel"):
        library.cancel(ann.id, started.id)
    assert branch.stored() == before


# ---------------------------------------------------------------- the database
def test_migrating_again_changes_nothing(library: Library, branch: Branch, ann: User, emma: int) -> None:
    library.start_download(ann.id, emma, "text", magnet(1))
    before, downloads = branch.stored(), library.downloads(ann.id)
    branch.librarian.migrate()
    assert (branch.stored(), library.downloads(ann.id)) == (before, downloads)


def test_nobody_gets_around_the_one_active_download_of_a_medium(branch: Branch, library: Library, ann: User, emma: int) -> None:
    """Not even who enqueues it without the library: the index holds only what has the key."""
    first = library.start_download(ann.id, emma, "text", magnet(1)).id
    before, fetch = branch.stored(), branch.librarian.fetch
    request = tables.Request(ann.id, emma, "text", magnet(1), hash_of(1))
    for enqueue in (fetch.enqueue, fetch.using(unique_key="another").enqueue):
        with pytest.raises(Refused, match="started by `start_download`"):
            enqueue(request)
    assert branch.stored() == before
    found = fetch.using(unique_key=request.medium).enqueue(request)
    assert (found.id, found.created, branch.stored()) == (first, False, before)


def test_a_view_of_other_columns_is_made_anew(library: Library, branch: Branch, ann: User, emma: int) -> None:
    library.start_download(ann.id, emma, "text", magnet(1))
    downloads = library.downloads(ann.id)
    branch.write("DROP VIEW download_jobs")
    branch.write("CREATE VIEW download_jobs AS SELECT job_id AS id, user_id FROM downloads")
    branch.librarian.migrate()
    assert library.downloads(ann.id) == downloads


@pytest.mark.parametrize("wrong", [
    "INSERT INTO users (name, token_hash) SELECT name, 'another' FROM users",
    "INSERT INTO books (id, title, author, state) VALUES (7, 'x', '', 'Shelf')",
    "INSERT INTO media_assets (book_id, media_type, status, updated_at) VALUES (1, 'video', 'wanted', '2026-01-01T00:00:00.000000Z')",
    "INSERT INTO media_assets (book_id, media_type, status, updated_at) VALUES (1, 'text', 'lost', '2026-01-01T00:00:00.000000Z')",
    "INSERT INTO media_assets (book_id, media_type, status, updated_at) VALUES (99, 'text', 'wanted', '2026-01-01T00:00:00.000000Z')",
])
def test_the_database_refuses_what_no_book_or_user_can_be(branch: Branch, ann: User, emma: int, wrong: str) -> None:
    with pytest.raises(IntegrityError):
        branch.write(wrong)


def test_a_transaction_on_sqlite_begins_as_a_writer(tmp_path: Path) -> None:
    """Else two that read before they write would fail at once, instead of taking turns."""
    engine = connect(f"sqlite:///{tmp_path / 'library.db'}")
    with engine.begin() as tx:
        tables.metadata.create_all(tx)

    def add(number: int) -> None:
        with engine.begin() as tx:
            seen = tx.execute(tables.books.select()).all()
            tx.execute(tables.books.insert().values(title=f"{number} after {len(seen)}", author=""))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    with reading(engine).begin() as tx:
        assert {int(row.title.split()[-1]) for row in tx.execute(tables.books.select())} == set(range(40))
    engine.dispose()


# ---------------------------------------------------------------- settings
def test_settings_come_from_the_environment_and_have_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    bare = Settings.from_env({})
    assert (bare.database, bare.qbittorrent_url, bare.poll, bare.downloads) == ("sqlite:///librarian.db", "http://127.0.0.1:8080", 15.0, tmp_path / "downloads")
    assert (bare.username, bare.password, bare.allow_default_credentials) == ("", "", False)
    given = Settings.from_env({
        "LIBRARIAN_DATABASE_URL": "postgresql://db/library", "LIBRARIAN_QBITTORRENT_URL": "https://torrents", "LIBRARIAN_QBITTORRENT_USERNAME": "reader",
        "LIBRARIAN_QBITTORRENT_PASSWORD": "secret", "LIBRARIAN_DOWNLOADS": "/srv/books", "LIBRARIAN_POLL": "2.5", "LIBRARIAN_ALLOW_DEFAULT_CREDENTIALS": "1",
    })
    assert given == Settings("postgresql://db/library", "https://torrents", "reader", "secret", Path("/srv/books"), 2.5, allow_default_credentials=True)
    assert "secret" not in repr(given)
    assert not Settings.from_env({"LIBRARIAN_ALLOW_DEFAULT_CREDENTIALS": "yes"}).allow_default_credentials


@pytest.mark.parametrize(("name", "value", "sentence"), [
    ("POLL", "soon", "LIBRARIAN_POLL is 'soon', which is no number"),
    ("POLL", "0", "above zero"),
    ("POLL", "nan", "above zero"),
    ("DATABASE_URL", "mysql://db/library", "names neither SQLite nor PostgreSQL"),
])
def test_a_setting_that_cannot_be_used_is_a_sentence(name: str, value: str, sentence: str) -> None:
    with pytest.raises(BadSettings, match=sentence):
        Settings.from_env({f"LIBRARIAN_{name}": value})


# ---------------------------------------------------------------- the app by name
def test_the_app_opens_nothing_when_it_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever only looks at jobs need know no password."""
    monkeypatch.chdir(tmp_path)
    named = importlib.import_module("apps.librarian.app")
    assert (sorted(named.app.kinds), list(tmp_path.iterdir())) == (["download", "remove"], [])


@pytest.mark.parametrize(("username", "password"), [("", ""), ("admin", "adminadmin")])
def test_a_worker_with_credentials_that_cannot_do_ends_at_its_start(tmp_path: Path, username: str, password: str) -> None:
    url = f"sqlite:///{tmp_path / 'library.db'}"
    client = Lazily(Settings(url, "http://127.0.0.1:1", username, password, tmp_path))
    librarian = build(client.settings, client, lifespan=client.checked)
    librarian.migrate()
    with pytest.raises(CredentialsRefused):
        librarian.app.run_until_idle()
    librarian.close()
