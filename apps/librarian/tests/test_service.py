"""The service: starting, reading and canceling downloads, and invalid input is refused and stores nothing."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from apps.librarian.errors import BadName, BadSource, Conflict, LibrarianError, NotFound, UnknownMedia
from apps.librarian.models import StartedDownload, User
from apps.librarian.service import LibraryService
from apps.librarian.tests.librarian_kit import NO_ID, LibrarianKit, UncallableClient, info_hash_of, magnet


@pytest.fixture
def client() -> UncallableClient:
    """The service refuses input without a call to qBittorrent."""
    return UncallableClient()


@pytest.fixture
def service(kit: LibrarianKit) -> LibraryService:
    return kit.service


@pytest.fixture
def ann(service: LibraryService) -> User:
    return service.add_user("ann")


@pytest.fixture
def emma(service: LibraryService) -> int:
    return service.add_book("Emma", "Jane Austen").id


# ---------------------------------------------------------------- starting
def test_new_download_is_queued_and_readable_at_once(kit: LibrarianKit, ann: User, emma: int) -> None:
    started = kit.service.start_download(ann.id, emma, "text", magnet(1))
    assert started.created
    found = kit.service.download(ann.id, started.id)
    assert (found.status, found.user_id, found.book_id, found.media_type) == ("queued", ann.id, emma, "text")
    assert (found.source, found.created_at_utc) == (magnet(1), kit.clock.now())
    assert (found.external_job_id, found.completed_at_utc, found.failure_reason) == (None, None, None)


def test_same_request_returns_the_active_download(
    service: LibraryService, kit: LibrarianKit, ann: User, emma: int
) -> None:
    first = service.start_download(ann.id, emma, "text", magnet(1))
    before = kit.row_counts()
    assert service.start_download(ann.id, emma, "text", magnet(1)) == StartedDownload(first.id, created=False)
    assert kit.row_counts() == before


def test_other_link_to_the_same_torrent_is_the_same_request(service: LibraryService, ann: User, emma: int) -> None:
    first = service.start_download(ann.id, emma, "text", magnet(1))
    link = f"magnet:?xt=urn:btih:{info_hash_of(1).upper()}"
    assert service.start_download(ann.id, emma, "text", link).id == first.id


def test_each_user_book_and_medium_has_its_own_download(service: LibraryService, ann: User, emma: int) -> None:
    bob, persuasion = service.add_user("bob"), service.add_book("Persuasion")
    keys = [(ann.id, emma, "text"), (ann.id, emma, "audio"), (ann.id, persuasion.id, "text"), (bob.id, emma, "text")]
    assert len({service.start_download(*key, magnet(1)).id for key in keys}) == 4


def test_same_request_after_the_end_is_a_new_download(service: LibraryService, ann: User, emma: int) -> None:
    first = service.start_download(ann.id, emma, "text", magnet(1))
    service.cancel(ann.id, first.id)
    again = service.start_download(ann.id, emma, "text", magnet(1))
    assert again.created
    assert [each.id for each in service.downloads(ann.id)] == [again.id, first.id]


def test_other_source_for_an_active_download_is_a_conflict(
    service: LibraryService, kit: LibrarianKit, ann: User, emma: int
) -> None:
    first = service.start_download(ann.id, emma, "text", magnet(1))
    before = kit.row_counts()
    with pytest.raises(Conflict, match=f"Download {first.id} of this medium is active from another source"):
        service.start_download(ann.id, emma, "text", magnet(2))
    assert kit.row_counts() == before


def test_sixteen_concurrent_requests_start_one_download(
    service: LibraryService, kit: LibrarianKit, ann: User, emma: int
) -> None:
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: service.start_download(ann.id, emma, "text", magnet(1)), range(16)))
    assert len({each.id for each in results}) == sum(each.created for each in results) == 1
    assert (kit.row_counts()["downloads"], len(kit.app.jobs(kind="download"))) == (1, 1)


def test_sixteen_concurrent_requests_for_different_sources_start_one_download(
    service: LibraryService, kit: LibrarianKit, ann: User, emma: int
) -> None:
    def start(number: int) -> bool:
        try:
            return service.start_download(ann.id, emma, "text", magnet(number)).created
        except Conflict:
            return False

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(start, range(1, 17))) == 1
    assert (kit.row_counts()["downloads"], kit.row_counts()["torrents"]) == (1, 1)
    assert len(kit.app.jobs(kind="download")) == 1


# ---------------------------------------------------------------- invalid input
def starting(
    user: int | None = None, book: int | None = None, medium: str = "text", source: str | bytes = magnet(1)
) -> Callable[[LibraryService, User, int], object]:
    return lambda service, ann, emma: service.start_download(
        ann.id if user is None else user, emma if book is None else book, medium, source
    )


INVALID: list[tuple[type[LibrarianError], str, Callable[[LibraryService, User, int], object]]] = [
    (NotFound, "There is no user 99", starting(user=99)),
    (NotFound, "There is no user 9{30}", starting(user=int("9" * 30))),
    (NotFound, "There is no book 99", starting(book=99)),
    (NotFound, "There is no book -1", starting(book=-1)),
    (UnknownMedia, "no media type 'video'. Choose one of", starting(medium="video")),
    (BadSource, "magnet", starting(source="magnet:?dn=book")),
    (BadSource, "magnet", starting(source="https://example.com/book.torrent")),
    (BadSource, "name", starting(source=f"{magnet(1)}&dn=../../etc/passwd")),
    (BadSource, "torrent", starting(source=b"PK\x03\x04")),
    (BadName, "The name '' is not valid", lambda service, *_: service.add_user("")),
    (BadName, "The title .* is not valid", lambda service, *_: service.add_book("Emma\x00")),
    (BadName, "Use 1 to 500 visible characters", lambda service, *_: service.add_book("E" * 501)),
    (BadName, "The author .* is not valid", lambda service, *_: service.add_book("Emma", "Jane\nAusten")),
]


def test_invalid_input_is_refused_and_stores_nothing(kit: LibrarianKit, ann: User, emma: int) -> None:
    before = kit.row_counts()
    for error, sentence, act in INVALID:
        with pytest.raises(error, match=sentence):
            act(kit.service, ann, emma)
    assert kit.row_counts() == before


# ---------------------------------------------------------------- users
@pytest.mark.parametrize("action", ["download", "cancel"])
def test_download_of_another_user_is_not_found(
    service: LibraryService, kit: LibrarianKit, ann: User, emma: int, action: str
) -> None:
    """The error is the same as for an id that does not exist."""
    bob = service.add_user("bob")
    foreign = service.start_download(ann.id, emma, "text", magnet(1)).id
    before = kit.app.history(foreign)
    for id in (foreign, NO_ID, foreign.upper(), "1", "'; DROP TABLE users", "\x00"):
        with pytest.raises(NotFound) as refusal:
            getattr(service, action)(bob.id, id)
        assert str(refusal.value) == f"You have no download {id}. Look at your list of downloads."
    assert kit.app.history(foreign) == before
    assert service.downloads(bob.id) == []


def test_only_the_hash_of_a_token_is_stored(service: LibraryService, kit: LibrarianKit, ann: User) -> None:
    assert ann.token is not None
    assert service.authenticate(ann.token) == User(ann.id, "ann", token=None)
    assert ann.token not in repr(ann)
    stored = kit.rows("SELECT token_hash FROM users")[0][0]
    assert re.fullmatch("[0-9a-f]{64}", stored)
    for wrong in (stored, "", f"{ann.token}x", "\ud800"):
        with pytest.raises(NotFound, match="This token is not valid"):
            service.authenticate(wrong)


def test_user_names_are_unique(service: LibraryService, kit: LibrarianKit, ann: User) -> None:
    """The commands accept names, and a second token must not look like a new one of the same user."""
    before = kit.row_counts()
    with pytest.raises(Conflict, match=r"There is already a user named ann\. Choose another name"):
        service.add_user(" ann ")
    assert kit.row_counts() == before
    assert service.authenticate(str(ann.token)) == User(ann.id, "ann")


# ---------------------------------------------------------------- canceling
def test_waiting_download_is_canceled_at_once(service: LibraryService, kit: LibrarianKit, ann: User, emma: int) -> None:
    started = service.start_download(ann.id, emma, "text", magnet(1))
    download = service.cancel(ann.id, started.id)
    assert (download.status, download.completed_at_utc, download.failure_reason) == ("canceled", None, None)
    assert kit.transitions(started.id) == [(None, "queued"), ("queued", "canceled")]
    assert kit.app.history(started.id)[-1].actor == f"operator:user:{ann.id}"
    assert kit.removals() == ["PENDING"]


def test_download_that_has_ended_cannot_be_canceled(
    service: LibraryService, kit: LibrarianKit, ann: User, emma: int
) -> None:
    started = service.start_download(ann.id, emma, "text", magnet(1))
    service.cancel(ann.id, started.id)
    before = kit.row_counts()
    with pytest.raises(Conflict, match=f"Download {started.id} is already canceled"):
        service.cancel(ann.id, started.id)
    assert kit.row_counts() == before
