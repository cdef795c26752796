"""Promises about a hybrid torrent: it has two hashes, and is one torrent all the same."""

from apps.librarian import tables
from apps.librarian.tests.kit import Branch, hash_of, settle
from apps.librarian.tests.qbittorrent import FakeQbittorrent, Record


def test_a_hybrid_stays_while_someone_needs_it_by_its_other_id(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    """One magnet link names its v1 hash, another its v2 hash: it is one torrent, with one set of files."""
    v2 = "b" * 64
    ann, bob = branch.library.add_user("ann").id, branch.library.add_user("bob").id
    book = branch.library.add_book("Emma").id
    first = branch.start(user=ann, book=book).id
    branch.run()
    qbittorrent.metadata(hash_of(1), name="emma.txt", size=1000, v2=v2).state = "downloading"
    second = branch.library.start_download(bob, book, "text", f"magnet:?xt=urn:btmh:1220{v2}").id
    branch.later()
    branch.cancel(first)
    settle(branch)
    branch.later()
    assert (branch.seen(first).status, branch.seen(second).status, list(qbittorrent.torrents)) == ("canceled", "downloading", [v2[:40]])
    branch.cancel(second)
    settle(branch)
    assert (branch.seen(second).status, branch.removals(), qbittorrent.torrents) == ("canceled", ["SUCCEEDED"] * 2, {})


def test_two_removals_of_a_hybrid_by_its_two_ids_do_not_wait_for_each_other(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    """Each holds the id that it knows, and asks for the other one."""
    v2 = "b" * 64
    first = branch.start().id
    branch.run()
    qbittorrent.metadata(hash_of(1), name="emma.txt", size=1000, v2=v2).state = "downloading"
    second = branch.library.start_download(branch.library.add_user("bob").id, 1, "text", f"magnet:?xt=urn:btmh:1220{v2}").id
    branch.later()
    removals = [branch.librarian.remove.enqueue(id).id for id in (hash_of(1), v2[:40])]
    with branch.librarian.engine.begin() as tx:
        for id, removal in zip((hash_of(1), v2[:40]), removals, strict=True):
            tables.reserve(tx, id, removal)
    branch.cancel(first)
    branch.cancel(second)
    settle(branch)
    assert (set(branch.removals()), qbittorrent.torrents) == ({"SUCCEEDED"}, {})


def test_a_hybrid_that_somebody_else_had_added_is_followed_when_it_is_renamed(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    """As a magnet link it has one hash, and none of our categories. With its metadata it gets another name."""
    v1, v2 = hash_of(1), "b" * 64
    qbittorrent.torrents[v1] = Record(v1, v1=v1, category="", metadata=False, state="metaDL")
    id = branch.start().id
    branch.run()
    qbittorrent.metadata(v1, name="emma.txt", size=1000, v2=v2).state = "downloading"
    for _ in range(10):
        branch.later()
    assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc, list(qbittorrent.torrents)) == ("downloading", None, [v2[:40]])
