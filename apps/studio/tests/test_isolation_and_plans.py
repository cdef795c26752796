"""Transaction isolation, query plans and other rules that only fail under special conditions."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from apps.studio import users as users_module
from apps.studio.errors import NotFound, Refusal
from apps.studio.jobs import MAX_RETRIES
from apps.studio.order import Order, Params
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.studio_kit import StudioKit
from apps.studio.users import User
from interlock import Refused


def on_postgres(kit: StudioKit) -> bool:
    return kit.studio.engine.dialect.name == "postgresql"


def test_old_snapshot_never_overspends(kit: StudioKit) -> None:
    """This holds for any default isolation level of the database."""
    if on_postgres(kit):
        [[name]] = kit.rows("SELECT current_database()")
        kit.write(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
        kit.studio.engine.dispose()
    user, begun = kit.user(1), threading.Barrier(8)

    def order(number: int) -> str:
        begun.wait(60)
        try:
            kit.orders.create_job(user.id, f"prompt {number}")
        except Refusal as refusal:
            return refusal.code
        return "made"

    with ThreadPoolExecutor(8) as threads:
        answers = sorted(threads.map(order, range(8)))
    assert (answers, kit.balance(user).available) == (["credits_insufficient"] * 7 + ["made"], 0)
    kit.check()


def test_old_snapshot_of_a_caller_transaction_is_refused(kit: StudioKit) -> None:
    """The caller passes its connection to `enqueue`."""
    if not on_postgres(kit):
        pytest.skip("a writer on SQLite has no older snapshot than the file")
    user = kit.user(1)
    lent = kit.studio.engine.execution_options(isolation_level="REPEATABLE READ")
    with pytest.raises(Exception, match="could not serialize"), lent.begin() as tx:
        tx.exec_driver_sql("SELECT count(*) FROM studio_entries")
        kit.order(user, "first")
        kit.studio.image.using(conn=tx).enqueue(Order(user.id, "second", 1))
    assert kit.balance(user).available == 0
    kit.check()


def test_sign_in_during_a_key_change_does_not_use_the_old_key(kit: StudioKit, monkeypatch: pytest.MonkeyPatch) -> None:
    user, known, rekeyed = kit.user(name="ann"), users_module._by_key, threading.Event()
    changing = threading.Thread(target=lambda: (kit.users.replace_key("ann"), rekeyed.set()))

    def slowly(*args: Any, **kwargs: Any) -> User:
        found = known(*args, **kwargs)
        if not kwargs.get("lock"):
            # The first lookup, before the transaction.
            return found
        changing.start()
        # The key change waits for the lock of this sign-in.
        assert not rekeyed.wait(1)
        return found

    monkeypatch.setattr(users_module, "_by_key", slowly)
    _, token = kit.users.sign_in(user.key or "", kit.clock.now())
    changing.join(60)
    with pytest.raises(NotFound):
        kit.users.user_by_session(token, kit.clock.now())


@pytest.mark.parametrize("asked", ["0", "0.001", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_retry_after_zero_uses_the_backoff(kit: StudioKit, asked: str) -> None:
    """Otherwise a busy provider would exhaust all tries within a second."""
    kit.images.fail(*[Fault.limited(asked)] * MAX_RETRIES)
    job = kit.order()
    kit.run()
    seen = kit.app.get(job)
    assert (seen.state, len(kit.images.asked)) == ("failed", 1)
    assert kit.clock.now() < seen.due_at < kit.clock.now() + timedelta(seconds=60)
    kit.check()


def test_order_at_a_wrong_price_is_refused(kit: StudioKit) -> None:
    """A redriven dead letter keeps its original price."""
    user = kit.user()
    before = kit.stored()
    for cost in (1, 3):
        with pytest.raises(Refused, match="costs 2 credits"):
            kit.studio.image.enqueue(Order(user.id, "a wide sea", cost, Params("1536x1024")))
    assert kit.stored() == before


def plans(kit: StudioKit, act: Any) -> str:
    """The query plans of all statements that this runs."""
    asked: list[tuple[str, Any]] = []
    engine = kit.studio.engine

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: Any) -> None:
        if statement.startswith("SELECT"):
            asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        act()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    with engine.begin() as tx:
        if on_postgres(kit):
            tx.exec_driver_sql("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN" if on_postgres(kit) else "EXPLAIN QUERY PLAN"
        return "\n".join(
            str(row)
            for statement, parameters in asked
            for row in tx.exec_driver_sql(f"{explain} {statement}", parameters)
        )


def test_key_lookup_uses_the_engine_index(kit: StudioKit) -> None:
    found = plans(kit, lambda: kit.orders._job_by_key("k"))
    assert "jobs_idempotency" in found


def test_job_list_uses_the_index_order(kit: StudioKit) -> None:
    """Sorting would take longer with each order."""
    user = kit.user()
    found = plans(kit, lambda: kit.gallery.jobs(user.id))
    assert "studio_orders_by_user" in found
    assert "TEMP B-TREE" not in found
