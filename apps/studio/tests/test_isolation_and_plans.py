"""What held only by luck before somebody looked: old snapshots, keys that change while somebody signs in, plans that read everything, pauses of nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from apps.studio import people as people_module
from apps.studio.errors import NotFound, Refusal
from apps.studio.jobs import MAX_RETRIES
from apps.studio.order import Order, Params
from apps.studio.people import User
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import Atelier
from interlock import Refused


def on_postgres(atelier: Atelier) -> bool:
    return atelier.studio.engine.dialect.name == "postgresql"


def test_an_old_snapshot_never_counts_credits(atelier: Atelier) -> None:
    """Whatever isolation the database gives by default: of many at once, one passes that has credit for one."""
    if on_postgres(atelier):
        [[name]] = atelier.rows("SELECT current_database()")
        atelier.write(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
        atelier.studio.engine.dispose()
    user, begun = atelier.user(1), threading.Barrier(8)

    def order(number: int) -> str:
        begun.wait(60)
        try:
            atelier.counter.create_job(user.id, f"wish {number}")
        except Refusal as refusal:
            return refusal.code
        return "made"

    with ThreadPoolExecutor(8) as threads:
        answers = sorted(threads.map(order, range(8)))
    assert (answers, atelier.balance(user).available) == (["credits_insufficient"] * 7 + ["made"], 0)
    atelier.check()


def test_a_callers_own_old_snapshot_is_refused_by_the_database(atelier: Atelier) -> None:
    """In a transaction that is lent to `enqueue`, too."""
    if not on_postgres(atelier):
        pytest.skip("a writer on SQLite has no older snapshot than the file")
    user = atelier.user(1)
    lent = atelier.studio.engine.execution_options(isolation_level="REPEATABLE READ")
    with pytest.raises(Exception, match="could not serialize"), lent.begin() as tx:
        tx.exec_driver_sql("SELECT count(*) FROM studio_entries")
        atelier.order(user, "first")
        atelier.studio.image.using(conn=tx).enqueue(Order(user.id, "second", 1))
    assert atelier.balance(user).available == 0
    atelier.check()


def test_whoever_signs_in_while_the_key_changes_is_not_signed_in_by_the_old_one(atelier: Atelier, monkeypatch: pytest.MonkeyPatch) -> None:
    user, known, rekeyed = atelier.user(name="ann"), people_module._by_key, threading.Event()
    changing = threading.Thread(target=lambda: (atelier.people.rekey("ann"), rekeyed.set()))

    def slowly(*args: Any, **kwargs: Any) -> User:
        found = known(*args, **kwargs)
        if not kwargs.get("held"):
            # The first look, which keeps guesses away from the write lock.
            return found
        changing.start()
        # It cannot end while we are here; were it able to, it would long be over.
        assert not rekeyed.wait(1)
        return found

    monkeypatch.setattr(people_module, "_by_key", slowly)
    _, token = atelier.people.sign_in(user.key or "", atelier.clock.now())
    changing.join(60)
    with pytest.raises(NotFound):
        atelier.people.user_of_session(token, atelier.clock.now())


@pytest.mark.parametrize("asked", ["0", "0.001", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_provider_that_asks_for_no_pause_gets_ours(atelier: Atelier, asked: str) -> None:
    """Else a busy one would have every order buried within a second."""
    atelier.images.fail(*[Fault.limited(asked)] * MAX_RETRIES)
    job = atelier.order()
    atelier.run()
    seen = atelier.app.get(job)
    assert (seen.state, len(atelier.images.asked)) == ("failed", 1)
    assert atelier.clock.now() < seen.due_at < atelier.clock.now() + timedelta(seconds=60)
    atelier.check()


def test_an_order_at_another_price_is_no_order(atelier: Atelier) -> None:
    """Whoever enqueues it; a dead letter that is driven again keeps the price of its day."""
    user = atelier.user()
    before = atelier.stored()
    for cost in (1, 3):
        with pytest.raises(Refused, match="costs 2 credits"):
            atelier.studio.image.enqueue(Order(user.id, "a wide sea", cost, Params("1536x1024")))
    assert atelier.stored() == before


def plans(atelier: Atelier, act: Any) -> str:
    """How the database goes about each question that this asks."""
    asked: list[tuple[str, Any]] = []
    engine = atelier.studio.engine

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: Any) -> None:
        if statement.startswith("SELECT"):
            asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        act()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    with engine.begin() as tx:
        if on_postgres(atelier):
            tx.exec_driver_sql("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN" if on_postgres(atelier) else "EXPLAIN QUERY PLAN"
        return "\n".join(str(row) for statement, parameters in asked for row in tx.exec_driver_sql(f"{explain} {statement}", parameters))


def test_an_order_finds_its_key_by_the_engines_index(atelier: Atelier) -> None:
    found = plans(atelier, lambda: atelier.counter._known("k"))
    assert "jobs_idempotency" in found


def test_a_users_jobs_are_read_in_their_order(atelier: Atelier) -> None:
    """And not sorted, which would take longer with every order ever made."""
    user = atelier.user()
    found = plans(atelier, lambda: atelier.gallery.jobs(user.id))
    assert "studio_orders_by_user" in found
    assert "TEMP B-TREE" not in found
