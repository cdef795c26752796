"""The plain path of the SQLite store: each fallback is counted and logged."""

import logging
from pathlib import Path

import pytest

from interlock.core.outcome import Returned
from interlock.store.sqlite.store import SqliteStore
from tests.contract.kit import CONTENTS, claim_rules, decided, make, many
from tests.kit import sqlite_place


@pytest.fixture
def plain(quick_path: Path) -> SqliteStore:
    store = sqlite_place(quick_path).open_with(CONTENTS)
    assert isinstance(store, SqliteStore)
    return store


def test_finish_that_does_not_match_is_counted_logged_and_refused(
    plain: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    plain.queue.enqueue(many(2))
    leases = plain.queue.claim("ann", claim_rules("mail"), ["default"], 10)
    moves = [decided(lease, Returned('"v"', boundary=False)) for lease in leases]
    moves[0].holder = 2
    with caplog.at_level(logging.DEBUG, "interlock"):
        (refusal,) = plain.transitions.move(moves)
    assert (refusal.job_id, refusal.holder) == (moves[0].job_id, 1)
    assert plain.transitions.fallbacks.count == 1
    assert "The plain finish does not fit, so the general statement runs: another attempt, holder" in caplog.text


def test_claim_that_does_not_match_is_counted_logged_and_carried_out(
    plain: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    text = plain.session.queries["claim.plain"]
    plain.session.queries["claim.plain"] = text.replace("lease_losses = 0", "priority = 1")
    first, second = make("mail"), make("mail", priority=1)
    plain.queue.enqueue([first, second])
    with caplog.at_level(logging.DEBUG, "interlock"):
        leases = plain.queue.claim("ann", claim_rules("mail"), ["default"], 10)
    assert [lease.job.id for lease in leases] == [second.id, first.id]
    assert plain.queue.fallbacks.count == 1
    assert "The plain claim does not fit, so the general statement runs: their rows have changed" in caplog.text
