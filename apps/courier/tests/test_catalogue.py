"""The catalogue: stable ids, whole listings, answers while the disk is away, and nothing from outside the library's folder."""

import asyncio

import pytest
from sqlalchemy import Engine

from apps.courier import tables
from apps.courier.catalogue import LISTED, PAUSE, Catalogue, Entry, Page
from apps.courier.disk import Item, Listing
from apps.courier.errors import Refusal, Trouble
from apps.courier.tests.kit import Office
from apps.courier.tests.shelf import FRESH, ROOT, Reader, Shelf, file, folder, names
from interlock.testing import KitClock


@pytest.fixture
def reader(engine: Engine) -> Reader:
    clock = KitClock()
    return Reader(Catalogue(engine, ROOT, fresh_for=FRESH, now=clock.now), Shelf(), clock)


# ---------------------------------------------------------------- pages
def test_folders_come_first_then_files_each_by_name_whatever_the_case(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [file("b.pdf"), file("A.pdf"), folder("zoo"), file("Ёж.pdf"), folder("Arts"), folder("bees"), file("жук.pdf")]
    assert names(reader.page()) == ["Arts", "bees", "zoo", "A.pdf", "b.pdf", "Ёж.pdf", "жук.pdf"]


def test_an_entry_says_what_it_is(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [folder("Arts"), file("emma.pdf", 2**31 + 5)]
    page = reader.page()
    arts, emma = page.entries
    assert (arts.is_folder, arts.size, arts.parent_id) == (True, 0, page.folder.id)
    assert (emma.is_folder, emma.size, emma.parent_id) == (False, 2**31 + 5, page.folder.id)
    assert (page.folder.name, page.folder.is_folder, page.parent_id, page.stale) == ("Library", True, None, False)
    assert reader.catalogue.entry(emma.id) == emma


def test_page_numbers_are_clamped_and_an_empty_folder_has_one_page(reader: Reader) -> None:
    empty = reader.page(page=5)
    assert (empty.entries, empty.page, empty.pages) == ([], 1, 1)
    reader.shelf.items[ROOT] = [file(f"{n:02}") for n in range(17)]
    reader.clock.advance(FRESH)
    seen = {asked: reader.page(page=asked) for asked in (-3, 0, 1, 2, 3, 4, 10**9)}
    assert [(page.page, page.pages, len(page.entries)) for page in seen.values()] == [
        (1, 3, 8), (1, 3, 8), (1, 3, 8), (2, 3, 8), (3, 3, 1), (3, 3, 1), (3, 3, 1)]
    assert names(seen[2]) == [f"{n:02}" for n in range(8, 16)]


def test_three_thousand_entries_take_three_requests(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [file(f"{n:04}") for n in range(3000)]
    page = reader.page(page=375)
    assert reader.shelf.asked == [(ROOT, 0, LISTED), (ROOT, 1000, LISTED), (ROOT, 2000, LISTED)]
    assert (page.pages, names(page)) == (375, [f"{n:04}" for n in range(2992, 3000)])


def test_a_listing_that_shrinks_while_it_is_read_ends(reader: Reader) -> None:
    class Shrinking(Shelf):
        async def list(self, path: str, *, offset: int, limit: int) -> Listing:
            listing = await super().list(path, offset=offset, limit=limit)
            return Listing(listing.items, 5000)

    reader.shelf = Shrinking({ROOT: [file(f"{n:04}") for n in range(1500)]})
    assert reader.page().pages == 188
    assert [offset for _, offset, _ in reader.shelf.asked] == [0, 1000, 1500]


def test_a_folder_leads_down_and_up_again(reader: Reader) -> None:
    reader.shelf.items |= {ROOT: [folder("Arts")], f"{ROOT}/Arts": [folder("Arts/Old")], f"{ROOT}/Arts/Old": [file("Arts/Old/mona.pdf")]}
    root = reader.page()
    arts = reader.page(root.entries[0].id)
    old = reader.page(arts.entries[0].id)
    assert (names(old), old.parent_id, arts.parent_id) == (["mona.pdf"], arts.folder.id, root.folder.id)


# ---------------------------------------------------------------- kept
def test_a_fresh_listing_is_not_asked_for_again(reader: Reader) -> None:
    reader.page()
    reader.shelf.items[ROOT] = [file("new.pdf")]
    assert names(reader.later(seconds=FRESH - 1)) == []
    assert len(reader.shelf.asked) == 1
    assert names(reader.later(seconds=1)) == ["new.pdf"]
    assert len(reader.shelf.asked) == 2


def test_ids_stay_while_a_path_exists_and_what_vanished_is_gone(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [file("a"), file("b"), file("c")]
    before = reader.ids(reader.page())
    reader.shelf.items[ROOT] = [file("0"), file("a", 99), file("c")]
    after = reader.later()
    assert names(after) == ["0", "a", "c"]
    assert (reader.ids(after)["a"], reader.ids(after)["c"]) == (before["a"], before["c"])
    assert reader.ids(after)["0"] not in before.values()
    assert reader.catalogue.entry(before["b"]) is None
    assert reader.catalogue.entry(before["a"]) == Entry(before["a"], "a", False, 99, after.folder.id)


def test_a_path_that_comes_back_has_its_old_id(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [file("a")]
    before = reader.ids(reader.page())
    reader.shelf.items[ROOT] = []
    reader.later()
    reader.shelf.items[ROOT] = [file("a"), file("b")]
    after = reader.ids(reader.later())
    assert after["a"] == before["a"]
    assert after["b"] != before["a"]


def test_what_is_in_a_folder_goes_with_it(reader: Reader) -> None:
    reader.shelf.items |= {ROOT: [folder("A_ts"), folder("Axts")], f"{ROOT}/A_ts": [file("A_ts/x")], f"{ROOT}/Axts": [file("Axts/y")]}
    root = reader.ids(reader.page())
    x, y = (reader.page(root[name]).entries[0].id for name in ("A_ts", "Axts"))
    reader.shelf.items[ROOT] = [folder("Axts")]
    reader.later()
    assert [reader.catalogue.entry(id) is None for id in (root["A_ts"], x, root["Axts"], y)] == [True, True, False, False]
    with pytest.raises(Refusal, match="no such folder"):
        reader.page(root["A_ts"])


def test_a_file_in_the_place_of_a_folder_takes_what_was_in_it_away(reader: Reader) -> None:
    reader.shelf.items |= {ROOT: [folder("Arts")], f"{ROOT}/Arts": [file("Arts/x")]}
    arts = reader.page().entries[0].id
    x = reader.page(arts).entries[0].id
    reader.shelf.items[ROOT] = [file("Arts")]
    reader.later()
    assert reader.catalogue.entry(x) is None
    assert reader.catalogue.entry(arts) == Entry(arts, "Arts", False, 10, reader.page().folder.id)


def test_many_who_ask_at_once_are_one_request(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [file("a")]

    async def crowd() -> list[Page]:
        reader.shelf.gate = asyncio.Event()
        first = asyncio.create_task(reader.catalogue.page(reader.shelf, None, 1))
        await reader.shelf.arrived.wait()
        asking = [asyncio.create_task(reader.catalogue.page(reader.shelf, None, 1)) for _ in range(19)]
        assert not (await asyncio.wait(asking, timeout=0.3))[0]
        # Whoever gives up waiting does not stop it for the others.
        first.cancel()
        reader.shelf.gate.set()
        return [await each for each in asking]

    assert [names(page) for page in asyncio.run(crowd())] == [["a"]] * 19
    assert len(reader.shelf.asked) == 1


def test_an_older_listing_that_arrives_late_does_not_undo_a_newer_one(reader: Reader, engine: Engine) -> None:
    reader.page()
    other = Reader(Catalogue(engine, ROOT, fresh_for=FRESH, now=reader.clock.now), Shelf({ROOT: [file("new")]}), reader.clock)

    async def race() -> None:
        reader.clock.advance(FRESH)
        reader.shelf.gate = asyncio.Event()
        slow = asyncio.create_task(reader.catalogue.page(reader.shelf, None, 1))
        await reader.shelf.arrived.wait()
        reader.clock.advance(1)
        await other.catalogue.page(other.shelf, None, 1)
        reader.shelf.gate.set()
        await slow

    asyncio.run(race())
    assert names(reader.page()) == ["new"]


# ---------------------------------------------------------------- when the disk says no
def test_while_the_disk_is_away_an_older_listing_is_shown_as_such(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [file("a")]
    reader.page()
    reader.shelf.away = Trouble("Yandex Disk did not answer in time.")
    old = reader.later()
    assert (names(old), old.stale) == (["a"], True)
    reader.shelf.away = None
    back = reader.later(seconds=PAUSE.total_seconds())
    assert (names(back), back.stale) == (["a"], False)


def test_a_disk_that_is_away_is_not_asked_by_every_click(reader: Reader) -> None:
    reader.page()
    reader.shelf.away = Trouble("Yandex Disk did not answer in time.")
    assert [reader.later().stale, reader.page().stale, reader.later(seconds=PAUSE.total_seconds() - 1).stale] == [True, True, True]
    assert len(reader.shelf.asked) == 2


def test_without_an_older_listing_the_trouble_is_told(reader: Reader) -> None:
    reader.shelf.away = Trouble("Yandex Disk did not answer in time.", status_code=503)
    with pytest.raises(Trouble, match="in time"):
        reader.page()
    reader.shelf.away = None
    assert not reader.page().stale


def test_a_refusal_is_told_though_there_is_an_older_listing(reader: Reader) -> None:
    reader.page()
    reader.shelf.away = Refusal("shut_out", "Yandex Disk refuses the token.")
    with pytest.raises(Refusal, match="token"):
        reader.later()


def test_a_root_that_is_not_there_is_not_found_until_it_is(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [file("a")]
    root, a = (page := reader.page()).folder.id, page.entries[0].id
    del reader.shelf.items[ROOT]
    for _ in range(2):
        with pytest.raises(Refusal, match="no such folder") as refused:
            reader.later()
        assert refused.value.code == "not_found"
    assert reader.catalogue.entry(a) is None
    reader.shelf.items[ROOT] = [file("a")]
    assert reader.page(root).entries[0].id == a


def test_a_folder_that_is_not_there_any_more_is_gone(reader: Reader) -> None:
    reader.shelf.items |= {ROOT: [folder("Arts")], f"{ROOT}/Arts": [file("Arts/x")]}
    arts = reader.page().entries[0].id
    x = reader.page(arts).entries[0].id
    del reader.shelf.items[f"{ROOT}/Arts"]
    with pytest.raises(Refusal):
        reader.later(arts)
    assert (reader.catalogue.entry(arts), reader.catalogue.entry(x)) == (None, None)


@pytest.mark.parametrize("id", [404, 0, -1, 2**31, 2**70])
def test_an_id_that_nobody_gave_out_is_not_found(reader: Reader, id: int) -> None:
    reader.page()
    assert reader.catalogue.entry(id) is None
    with pytest.raises(Refusal):
        reader.page(id)


def test_a_file_is_no_folder(reader: Reader) -> None:
    reader.shelf.items[ROOT] = [file("a")]
    id = reader.page().entries[0].id
    with pytest.raises(Refusal, match="no such folder"):
        reader.page(id)
    assert len(reader.shelf.asked) == 1


# ---------------------------------------------------------------- no way out
@pytest.mark.parametrize(("name", "path"), [
    ("secret", "disk:/Private/secret"), ("secret", "disk:/Library2/secret"), ("..", f"{ROOT}/.."), ("x", f"{ROOT}/../Private/x"),
    ("secret", f"{ROOT}/Arts/secret"), ("Library", ROOT), ("../x", f"{ROOT}/../x"), ("", f"{ROOT}/"), ("other", f"{ROOT}/name"),
])  # fmt: skip
def test_what_the_disk_says_of_another_place_is_not_believed(reader: Reader, engine: Engine, name: str, path: str) -> None:
    reader.shelf.items[ROOT] = [file("a"), Item(name, path, is_folder=True, size=0, md5=None)]
    assert names(reader.page()) == ["a"]
    with engine.begin() as tx:
        assert {row.path for row in tx.execute(tables.files.select())} == {ROOT, f"{ROOT}/a"}


def test_after_the_folder_was_changed_nothing_outside_of_it_is_to_be_seen(reader: Reader, engine: Engine) -> None:
    reader.shelf.items |= {ROOT: [folder("Arts"), file("a")], f"{ROOT}/Arts": [file("Arts/x")]}
    root = reader.ids(reader.page())
    x = reader.page(root["Arts"]).entries[0].id
    narrow = Reader(Catalogue(engine, f"{ROOT}/Arts", now=reader.clock.now), reader.shelf, reader.clock)
    arts = narrow.page()
    assert (names(arts), arts.parent_id, arts.folder.id) == (["x"], None, root["Arts"])
    assert [narrow.catalogue.entry(id) is None for id in (root["a"], root["Arts"], x)] == [True, False, False]
    with pytest.raises(Refusal):
        narrow.page(reader.page().folder.id)


def test_the_whole_disk_may_be_the_library(engine: Engine) -> None:
    clock = KitClock()
    whole = Reader(Catalogue(engine, "disk:/", now=clock.now), Shelf({"disk:/": [Item("a", "disk:/a", is_folder=False, size=1, md5=None)]}), clock)
    assert names(whole.page()) == ["a"]


# ---------------------------------------------------------------- with the real disk client
def test_the_library_is_browsed_over_http(office: Office) -> None:
    office.yandex.put("/Library/Arts/mona.pdf", b"mona")
    office.yandex.put("/Library/emma.pdf", b"emma")
    office.yandex.put("/Private/diary.txt", b"secret")
    root = office.browse()
    assert names(root) == ["Arts", "emma.pdf"]
    arts = office.browse(root.entries[0].id)
    assert [(entry.name, entry.size) for entry in arts.entries] == [("mona.pdf", 4)]
    office.clock.advance(FRESH)
    office.yandex.fail("resources", 503)
    assert office.browse().stale
    office.yandex.remove("/Library")
    office.clock.advance(FRESH)
    with pytest.raises(Refusal):
        office.browse()
