"""The ledger check reports every fault and no false ones, and random histories have none."""

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from apps.studio import ledger_check
from apps.studio.tests.random_walk import RandomWalk
from apps.studio.tests.scenarios import JOB_IN_STATE, run_concurrently
from apps.studio.tests.studio_kit import StudioKit

NO_ID = "01900000-0000-7000-8000-000000000000"
ENTRY = (
    "INSERT INTO studio_entries (at, user_id, job_id, entry, amount) SELECT at, user_id, job_id, "
    "'{entry}', amount FROM studio_entries WHERE {which}"
)
ASSET = "INSERT INTO studio_assets (job_id, user_id, path, content_type, bytes, sha256, width, height, created_at) "
REVIEW = "INSERT INTO studio_reviews (job_id, decision, successor, at) "
ORPHANS = {
    "an order": f"INSERT INTO studio_orders (job_id, user_id, prompt, size, cost) VALUES ('{NO_ID}', 1, 'a', 'b', 1)",
    "an asset": (
        f"{ASSET} SELECT '{NO_ID}', user_id, 'p', content_type, bytes, sha256, width, height, created_at "
        "FROM studio_assets"
    ),
    "a review": (
        f"INSERT INTO studio_reviews (job_id, decision, at) SELECT '{NO_ID}', 'closed', min(at) FROM studio_entries"
    ),
    "a ledger entry": (
        f"INSERT INTO studio_entries (at, user_id, job_id, entry, amount) SELECT min(at), 1, '{NO_ID}', "
        "'reserve', 1 FROM studio_entries"
    ),
}
BROKEN = [
    (
        "never_negative",
        "queued",
        (
            "UPDATE studio_entries SET amount = 1 WHERE entry = 'grant'; UPDATE studio_entries SET "
            "amount = 2 WHERE entry = 'reserve'"
        ),
    ),
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
    (
        "reserved_once",
        "queued",
        "UPDATE studio_orders SET cost = 2; " + ENTRY.format(entry="reserve", which="entry = 'reserve'"),
    ),
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
    (
        "asset_if_completed",
        "rejected",
        (
            f"{ASSET} SELECT job_id, user_id, 'p', 'image/png', 1, '', 1, 1, at FROM studio_entries WHERE "
            "entry = 'reserve'"
        ),
    ),
    ("job_has_order", "queued", "DELETE FROM studio_orders"),
    (
        "review_of_dead_letter",
        "completed",
        f"{REVIEW} SELECT job_id, 'closed', NULL, at FROM studio_entries WHERE entry = 'reserve'",
    ),
    (
        "successor_if_redriven",
        "dead_letter",
        f"{REVIEW} SELECT job_id, 'redriven', NULL, at FROM studio_entries WHERE entry = 'release'",
    ),
    (
        "successor_if_redriven",
        "dead_letter",
        f"{REVIEW} SELECT job_id, 'closed', job_id, at FROM studio_entries WHERE entry = 'release'",
    ),
]


def faults(kit: StudioKit) -> list[ledger_check.Fault]:
    return ledger_check.check(kit.studio)[1]


def unseal(kit: StudioKit) -> None:
    """Remove the constraints that would prevent a fault."""
    if kit.studio.engine.dialect.name == "sqlite":
        triggers, on = (
            kit.rows("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'studio_entries'"),
            "",
        )
    else:
        triggers, on = (
            kit.rows("SELECT tgname FROM pg_trigger WHERE tgrelid = 'studio_entries'::regclass AND NOT tgisinternal"),
            " ON studio_entries",
        )
    for (trigger,) in triggers:
        kit.write(f"DROP TRIGGER {trigger}{on}")
    for index in ("studio_reserved_once", "studio_settled_once"):
        kit.write(f"DROP INDEX {index}")


# ---------------------------------------------------------------- consistent ledgers
@pytest.mark.parametrize("state", JOB_IN_STATE)
def test_job_has_no_fault_in_any_state(kit: StudioKit, state: str) -> None:
    JOB_IN_STATE[state](kit)
    settled = state in ledger_check.SETTLED_BY
    assert ledger_check.check(kit.studio) == (3 if settled else 2, [])


def test_empty_ledger_has_no_fault(kit: StudioKit) -> None:
    assert ledger_check.check(kit.studio) == (0, [])


@pytest.mark.parametrize("seed", range(2))
def test_random_history_has_no_fault(kit: StudioKit, seed: int) -> None:
    kit.dead_letters.close(JOB_IN_STATE["dead_letter"](kit), by="olga", note="")
    again = JOB_IN_STATE["dead_letter"](kit)
    for come_to in JOB_IN_STATE.values():
        come_to(kit)
    kit.dead_letters.redrive(again, by="olga")
    walk = RandomWalk(kit, seed)
    for _ in range(60):
        said = walk.step()
        assert faults(kit) == [], said
    walk.rest()
    kit.check()
    assert {state for (state,) in kit.rows("SELECT status FROM studio_jobs")} == set(ledger_check.SETTLED_BY)


# ---------------------------------------------------------------- faults
@pytest.mark.parametrize(("rule", "state", "sql"), BROKEN, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(BROKEN)])
def test_each_fault_is_reported(kit: StudioKit, rule: str, state: str, sql: str) -> None:
    job, other = JOB_IN_STATE[state](kit), kit.user()
    assert faults(kit) == []
    unseal(kit)
    for statement in sql.split("; "):
        kit.write(statement, **({"other": other.id} if ":other" in statement else {}))
    found = [fault for fault in faults(kit) if fault.rule == rule]
    assert found
    assert {fault.job_id for fault in found} <= {job, None}
    assert all((fault.job_id or fault.user or "?") in fault.sentence for fault in found)


@pytest.mark.parametrize("what", ORPHANS)
def test_rows_without_a_job_are_reported(kit: StudioKit, what: str) -> None:
    JOB_IN_STATE["completed"](kit)
    kit.write(ORPHANS[what])
    [fault] = [fault for fault in faults(kit) if fault.rule == "of_a_job"]
    assert (fault.job_id, fault.sentence) == (NO_ID, f"There is {what} for job {NO_ID}, but no such job.")


def test_redrive_without_a_review_is_reported(kit: StudioKit) -> None:
    new = kit.dead_letters.redrive(JOB_IN_STATE["dead_letter"](kit), by="olga")
    kit.write("DELETE FROM studio_reviews")
    assert [(fault.rule, fault.job_id) for fault in faults(kit)] == [("successor_if_redriven", new)]


def test_successor_of_another_job_is_reported(kit: StudioKit) -> None:
    JOB_IN_STATE["dead_letter"](kit)
    other = JOB_IN_STATE["queued"](kit)
    kit.write(f"{REVIEW} SELECT job_id, 'redriven', '{other}', at FROM studio_entries WHERE entry = 'release'")
    assert [(fault.rule, fault.job_id) for fault in faults(kit)] == [("successor_if_redriven", other)]


@pytest.mark.parametrize("reason", ["nope", "blocked, and safe"])
def test_rejection_without_safe_block_is_reported(kit: StudioKit, reason: str) -> None:
    """The engine's `reject` accepts any reason; `Orders.reject` adds SAFE_BLOCK."""
    JOB_IN_STATE["rejected"](kit)
    kit.orders.reject(JOB_IN_STATE["queued"](kit), by="olga", reason=reason)
    assert faults(kit) == []
    job = JOB_IN_STATE["queued"](kit)
    kit.app.reject(job, by="olga", reason=reason)
    assert [(fault.rule, fault.job_id) for fault in faults(kit)] == [("rejected_as_unsafe", job)]


def test_fault_of_one_job_is_not_reported_for_another(kit: StudioKit) -> None:
    ann, bob = kit.user(name="ann"), kit.user(name="bob")
    of_ann, _ = kit.order(ann), kit.order(bob)
    kit.run()
    unseal(kit)
    kit.write("UPDATE studio_entries SET entry = 'forfeit' WHERE entry = 'capture' AND user_id = :ann", ann=ann.id)
    named = [(fault.rule, fault.job_id, fault.user) for fault in faults(kit)]
    assert named == [("balance_of_ledger", None, "ann"), ("settled_by_state", of_ann, "ann")]


# ---------------------------------------------------------------- constraints and snapshots
@pytest.mark.parametrize(
    "sql",
    ["UPDATE studio_entries SET amount = 5", "UPDATE studio_entries SET note = 'x'", "DELETE FROM studio_entries"],
)
def test_database_refuses_to_change_or_delete_an_entry(kit: StudioKit, sql: str) -> None:
    JOB_IN_STATE["completed"](kit)
    with pytest.raises(DBAPIError, match="append-only"):
        kit.write(sql)
    assert ledger_check.check(kit.studio) == (3, [])


@pytest.mark.parametrize(
    ("entry", "which"),
    [("reserve", "entry = 'reserve'"), ("release", "entry = 'capture'"), ("capture", "entry = 'capture'")],
)
def test_database_refuses_a_second_reserve_or_settlement(kit: StudioKit, entry: str, which: str) -> None:
    JOB_IN_STATE["completed"](kit)
    with pytest.raises(DBAPIError):
        kit.write(ENTRY.format(entry=entry, which=which))
    assert ledger_check.check(kit.studio) == (3, [])


def test_check_during_transitions_finds_no_fault(kit: StudioKit) -> None:
    ann = kit.user(credits=20)

    def move() -> None:
        for n in range(20):
            kit.orders.reject(kit.order(ann, f"a boat, {n}"), by="olga", reason="no")

    def look() -> list[ledger_check.Fault]:
        return [fault for _ in range(20) for fault in faults(kit)]

    assert run_concurrently(move, look) == [None, []]
    assert ledger_check.check(kit.studio) == (41, [])


# On SQLite a writer waits for the reader, so this cannot happen there.
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_check_reads_one_snapshot(kit: StudioKit) -> None:
    """A change during the check is visible to all of its queries or to none."""
    ann, wishes, busy = kit.user(credits=40), iter(range(40)), list[bool]()

    @event.listens_for(kit.studio.engine, "after_cursor_execute")
    def move(*_: object) -> None:
        if busy or (new_prompt := next(wishes, None)) is None:
            return
        busy.append(True)
        job = kit.order(ann, f"a boat, {new_prompt}")
        if new_prompt % 2:
            kit.orders.reject(job, by="olga", reason="no")
        busy.clear()

    assert [faults(kit) for _ in range(3)] == [[]] * 3
    assert len(list(wishes)) < 30
