"""Hybrid torrents have two hashes and two ids, and are still one torrent."""

from apps.librarian import tables
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent, Record
from apps.librarian.tests.librarian_kit import LibrarianKit, info_hash_of, run_removals, set_complete


def test_hybrid_stays_while_a_download_needs_it_under_its_other_id(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    """One magnet link has its v1 hash, another its v2 hash. It is one torrent with one set of files."""
    v2 = "b" * 64
    ann, bob = kit.service.add_user("ann").id, kit.service.add_user("bob").id
    book = kit.service.add_book("Emma").id
    first = kit.start(user=ann, book=book).id
    kit.run()
    qbittorrent.metadata(info_hash_of(1), name="emma.txt", size=1000, v2=v2).state = "downloading"
    second = kit.service.start_download(bob, book, "text", f"magnet:?xt=urn:btmh:1220{v2}").id
    kit.run_after()
    kit.cancel(first)
    run_removals(kit)
    kit.run_after()
    assert (kit.download(first).status, kit.download(second).status, list(qbittorrent.torrents)) == (
        "canceled",
        "downloading",
        [v2[:40]],
    )
    kit.cancel(second)
    run_removals(kit)
    assert (kit.download(second).status, kit.removals(), qbittorrent.torrents) == ("canceled", ["SUCCEEDED"] * 2, {})


def test_two_removals_of_a_hybrid_do_not_deadlock(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    """Each has reserved one id of the hybrid and needs the other one."""
    v2 = "b" * 64
    first = kit.start().id
    kit.run()
    qbittorrent.metadata(info_hash_of(1), name="emma.txt", size=1000, v2=v2).state = "downloading"
    second = kit.service.start_download(kit.service.add_user("bob").id, 1, "text", f"magnet:?xt=urn:btmh:1220{v2}").id
    kit.run_after()
    removals = [kit.librarian.remove.enqueue(id).id for id in (info_hash_of(1), v2[:40])]
    with kit.librarian.engine.begin() as tx:
        for id, removal in zip((info_hash_of(1), v2[:40]), removals, strict=True):
            tables.reserve_torrent(tx, id, removal)
    kit.cancel(first)
    kit.cancel(second)
    run_removals(kit)
    assert (set(kit.removals()), qbittorrent.torrents) == ({"SUCCEEDED"}, {})


def test_hybrid_of_another_category_is_followed_after_its_rename(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    """Another program added its magnet link to qBittorrent before. Its id changes when its metadata arrives."""
    v1, v2 = info_hash_of(1), "b" * 64
    qbittorrent.torrents[v1] = Record(v1, v1=v1, category="", metadata=False, state="metaDL")
    id = kit.start().id
    kit.run()
    qbittorrent.metadata(v1, name="emma.txt", size=1000, v2=v2).state = "downloading"
    for _ in range(10):
        kit.run_after()
    assert (kit.download(id).status, kit.download(id).first_not_found_at_utc, list(qbittorrent.torrents)) == (
        "downloading",
        None,
        [v2[:40]],
    )


def test_hybrid_is_followed_after_its_rename(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    id = kit.start().id
    kit.run()
    record = qbittorrent.metadata(info_hash_of(1), name="emma", size=1000, v2="ab" * 32)
    set_complete(record)
    assert info_hash_of(1) not in qbittorrent.torrents
    kit.run_after()
    assert (kit.download(id).status, kit.download(id).first_not_found_at_utc) == ("completed", None)
