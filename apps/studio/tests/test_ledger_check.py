"""Promises about the books: whatever is wrong is named, whatever is right is not, and no history of the studio's own breaks a rule."""

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from apps.studio import books
from apps.studio.tests.kit import Atelier
from apps.studio.tests.scenes import IN_STATE, at_once
from apps.studio.tests.walk import Walk

NO_ID = "01900000-0000-7000-8000-000000000000"
ENTRY = "INSERT INTO studio_entries (at, user_id, job_id, entry, amount) SELECT at, user_id, job_id, '{entry}', amount FROM studio_entries WHERE {which}"
ASSET = "INSERT INTO studio_assets (job_id, user_id, path, content_type, bytes, sha256, width, height, created_at) "
REVIEW = "INSERT INTO studio_reviews (job_id, decision, successor, at) "
STRAYS = {
    "an order": f"INSERT INTO studio_orders (job_id, user_id, prompt, size, cost) VALUES ('{NO_ID}', 1, 'a', 'b', 1)",
    "an asset": f"{ASSET} SELECT '{NO_ID}', user_id, 'p', content_type, bytes, sha256, width, height, created_at FROM studio_assets",
    "a review": f"INSERT INTO studio_reviews (job_id, decision, at) SELECT '{NO_ID}', 'closed', min(at) FROM studio_entries",
    "an entry of the ledger": f"INSERT INTO studio_entries (at, user_id, job_id, entry, amount) SELECT min(at), 1, '{NO_ID}', 'reserve', 1 FROM studio_entries",
}
BROKEN = [
    ("never_negative", "queued", "UPDATE studio_entries SET amount = 1 WHERE entry = 'grant'; UPDATE studio_entries SET amount = 2 WHERE entry = 'reserve'"),
    ("never_negative", "rejected", ENTRY.format(entry="capture", which="entry = 'reserve'")),
    ("granted_is_somewhere", "queued", ENTRY.format(entry="capture", which="entry = 'reserve'")),
    ("granted_is_somewhere", "completed", "UPDATE studio_entries SET amount = 2 WHERE entry = 'capture'"),
    ("granted_is_somewhere", "dead_letter", "DELETE FROM studio_entries WHERE entry = 'release'"),
    ("balance_of_ledger", "queued", 'UPDATE studio_balances SET "grant" = "grant" + 1'),
    ("balance_of_ledger", "completed", "UPDATE studio_balances SET capture = 0"),
    ("balance_of_ledger", "completed", "DELETE FROM studio_balances"),
    ("balance_of_ledger", "queued", ENTRY.format(entry="release", which="entry = 'reserve'")),
    ("reserved_once", "queued", "DELETE FROM studio_entries WHERE entry = 'reserve'"),
    ("reserved_once", "queued", ENTRY.format(entry="reserve", which="entry = 'reserve'")),
    ("reserved_once", "queued", "UPDATE studio_orders SET cost = 2; " + ENTRY.format(entry="reserve", which="entry = 'reserve'")),
    ("reserved_once", "completed", "UPDATE studio_entries SET amount = 2 WHERE job_id IS NOT NULL"),
    ("reserved_once", "running", "UPDATE studio_orders SET cost = 2"),
    ("settled_by_state", "completed", "DELETE FROM studio_entries WHERE entry = 'capture'"),
    ("settled_by_state", "completed", ENTRY.format(entry="capture", which="entry = 'capture'")),
    ("settled_by_state", "completed", ENTRY.format(entry="release", which="entry = 'capture'")),
    ("settled_by_state", "completed", "UPDATE studio_entries SET entry = 'release' WHERE entry = 'capture'"),
    ("settled_by_state", "rejected", "UPDATE studio_entries SET entry = 'release' WHERE entry = 'forfeit'"),
    ("settled_by_state", "dead_letter", "UPDATE studio_entries SET entry = 'capture' WHERE entry = 'release'"),
    ("settled_by_state", "failed", ENTRY.format(entry="release", which="entry = 'reserve'")),
    ("settled_as_reserved", "rejected", "UPDATE studio_entries SET amount = 2 WHERE entry = 'forfeit'"),
    ("same_user", "queued", "UPDATE studio_entries SET user_id = :other WHERE entry = 'reserve'"),
    ("same_user", "completed", "UPDATE studio_entries SET user_id = :other WHERE entry = 'capture'"),
    ("same_user", "completed", "UPDATE studio_assets SET user_id = :other"),
    ("asset_if_completed", "completed", "DELETE FROM studio_assets"),
    ("asset_if_completed", "rejected", f"{ASSET} SELECT job_id, user_id, 'p', 'image/png', 1, '', 1, 1, at FROM studio_entries WHERE entry = 'reserve'"),
    ("job_has_order", "queued", "DELETE FROM studio_orders"),
    ("review_of_dead_letter", "completed", f"{REVIEW} SELECT job_id, 'closed', NULL, at FROM studio_entries WHERE entry = 'reserve'"),
    ("successor_if_redriven", "dead_letter", f"{REVIEW} SELECT job_id, 'redriven', NULL, at FROM studio_entries WHERE entry = 'release'"),
    ("successor_if_redriven", "dead_letter", f"{REVIEW} SELECT job_id, 'closed', job_id, at FROM studio_entries WHERE entry = 'release'"),
]


def faults(atelier: Atelier) -> list[books.Fault]:
    return books.check(atelier.studio)[1]


def unseal(atelier: Atelier) -> None:
    """Take away what the database itself would refuse."""
    if atelier.studio.engine.dialect.name == "sqlite":
        triggers, on = atelier.rows("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'studio_entries'"), ""
    else:
        triggers, on = atelier.rows("SELECT tgname FROM pg_trigger WHERE tgrelid = 'studio_entries'::regclass AND NOT tgisinternal"), " ON studio_entries"
    for (trigger,) in triggers:
        atelier.write(f"DROP TRIGGER {trigger}{on}")
    for index in ("studio_reserved_once", "studio_settled_once"):
        atelier.write(f"DROP INDEX {index}")


# ---------------------------------------------------------------- what is right
@pytest.mark.parametrize("state", IN_STATE)
def test_a_job_has_no_fault_in_any_of_its_states(atelier: Atelier, state: str) -> None:
    IN_STATE[state](atelier)
    settled = state in books.SETTLED_BY
    assert books.check(atelier.studio) == (3 if settled else 2, [])


def test_empty_books_have_no_fault(atelier: Atelier) -> None:
    assert books.check(atelier.studio) == (0, [])


@pytest.mark.parametrize("seed", range(3))
def test_no_history_of_random_moves_has_a_fault(atelier: Atelier, seed: int) -> None:
    atelier.review.close(IN_STATE["dead_letter"](atelier), by="olga", note="")
    again = IN_STATE["dead_letter"](atelier)
    for come_to in IN_STATE.values():
        come_to(atelier)
    atelier.review.redrive(again, by="olga")
    walk = Walk(atelier, seed)
    for _ in range(60):
        said = walk.step()
        assert faults(atelier) == [], said
    walk.rest()
    atelier.check()
    assert {state for (state,) in atelier.rows("SELECT status FROM studio_jobs")} == set(books.SETTLED_BY)


# ---------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(("rule", "state", "sql"), BROKEN, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(BROKEN)])
def test_whatever_is_wrong_is_named(atelier: Atelier, rule: str, state: str, sql: str) -> None:
    job, other = IN_STATE[state](atelier), atelier.user()
    assert faults(atelier) == []
    unseal(atelier)
    for statement in sql.split("; "):
        atelier.write(statement, **({"other": other.id} if ":other" in statement else {}))
    found = [fault for fault in faults(atelier) if fault.rule == rule]
    assert found
    assert {fault.job_id for fault in found} <= {job, None}
    assert all((fault.job_id or fault.user or "?") in fault.sentence for fault in found)


@pytest.mark.parametrize("what", STRAYS)
def test_whatever_belongs_to_no_job_is_named(atelier: Atelier, what: str) -> None:
    IN_STATE["completed"](atelier)
    atelier.write(STRAYS[what])
    [fault] = [fault for fault in faults(atelier) if fault.rule == "of_a_job"]
    assert (fault.job_id, fault.sentence) == (NO_ID, f"There is {what} of job {NO_ID}, and no such job.")


def test_a_job_that_repeats_another_without_its_review_is_named(atelier: Atelier) -> None:
    new = atelier.review.redrive(IN_STATE["dead_letter"](atelier), by="olga")
    atelier.write("DELETE FROM studio_reviews")
    assert [(fault.rule, fault.job_id) for fault in faults(atelier)] == [("successor_if_redriven", new)]


def test_a_successor_that_repeats_another_job_is_named(atelier: Atelier) -> None:
    IN_STATE["dead_letter"](atelier)
    other = IN_STATE["queued"](atelier)
    atelier.write(f"{REVIEW} SELECT job_id, 'redriven', '{other}', at FROM studio_entries WHERE entry = 'release'")
    assert [(fault.rule, fault.job_id) for fault in faults(atelier)] == [("successor_if_redriven", other)]


@pytest.mark.parametrize("reason", ["nope", "blocked, and safe"])
def test_a_rejection_that_the_audit_does_not_call_unsafe_is_named(atelier: Atelier, reason: str) -> None:
    """The engine's own verb takes any reason; the counter's says why."""
    IN_STATE["rejected"](atelier)
    atelier.counter.reject(IN_STATE["queued"](atelier), by="olga", reason=reason)
    assert faults(atelier) == []
    job = IN_STATE["queued"](atelier)
    atelier.app.reject(job, by="olga", reason=reason)
    assert [(fault.rule, fault.job_id) for fault in faults(atelier)] == [("rejected_as_unsafe", job)]


def test_a_fault_of_one_is_no_fault_of_another(atelier: Atelier) -> None:
    ann, bob = atelier.user(name="ann"), atelier.user(name="bob")
    of_ann, _ = atelier.order(ann), atelier.order(bob)
    atelier.run()
    unseal(atelier)
    atelier.write("UPDATE studio_entries SET entry = 'forfeit' WHERE entry = 'capture' AND user_id = :ann", ann=ann.id)
    named = [(fault.rule, fault.job_id, fault.user) for fault in faults(atelier)]
    assert named == [("balance_of_ledger", None, "ann"), ("settled_by_state", of_ann, "ann")]


# ---------------------------------------------------------------- the truth itself
@pytest.mark.parametrize("sql", ["UPDATE studio_entries SET amount = 5", "UPDATE studio_entries SET note = 'x'", "DELETE FROM studio_entries"])
def test_no_program_changes_or_deletes_an_entry(atelier: Atelier, sql: str) -> None:
    IN_STATE["completed"](atelier)
    with pytest.raises(DBAPIError, match="append-only"):
        atelier.write(sql)
    assert books.check(atelier.studio) == (3, [])


@pytest.mark.parametrize(("entry", "which"), [("reserve", "entry = 'reserve'"), ("release", "entry = 'capture'"), ("capture", "entry = 'capture'")])
def test_no_program_reserves_or_settles_twice(atelier: Atelier, entry: str, which: str) -> None:
    IN_STATE["completed"](atelier)
    with pytest.raises(DBAPIError):
        atelier.write(ENTRY.format(entry=entry, which=which))
    assert books.check(atelier.studio) == (3, [])


def test_books_that_are_read_while_jobs_move_have_no_fault(atelier: Atelier) -> None:
    ann = atelier.user(credits=20)

    def move() -> None:
        for n in range(20):
            atelier.counter.reject(atelier.order(ann, f"a boat, {n}"), by="olga", reason="no")

    def look() -> list[books.Fault]:
        return [fault for _ in range(20) for fault in faults(atelier)]

    assert at_once(move, look) == [None, []]
    assert books.check(atelier.studio) == (41, [])


# Nobody can move between two looks at a file: a writer waits until it has been read.
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_the_books_are_read_at_one_moment(atelier: Atelier) -> None:
    """Whatever moves between two looks of one reading is seen in both of them or in neither."""
    ann, wishes, busy = atelier.user(credits=40), iter(range(40)), list[bool]()

    @event.listens_for(atelier.studio.engine, "after_cursor_execute")
    def move(*_: object) -> None:
        if busy or (wish := next(wishes, None)) is None:
            return
        busy.append(True)
        job = atelier.order(ann, f"a boat, {wish}")
        if wish % 2:
            atelier.counter.reject(job, by="olga", reason="no")
        busy.clear()

    assert [faults(atelier) for _ in range(3)] == [[]] * 3
    assert len(list(wishes)) < 30
