"""A database outage in the log: one line at its start, a few during it, and one at its end."""

import logging

import pytest

from interlock.errors import Unavailable
from interlock.telemetry import logs
from interlock.telemetry.events import DatabaseReachable, Events, WorkerError


def test_outage_is_logged_at_its_start_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "interlock")
    events = Events()
    end = logs.attach(events)
    for number in range(3):
        for where in ("renew", "maintenance: recover", "Idle"):
            events.emit(WorkerError("ann#1", where, Unavailable(f"The database is unreachable ({number}).")))
    events.emit(DatabaseReachable("ann#1"))
    end()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR"] * 4 + ["INFO"]
    assert caplog.messages[-1] == (
        "The database is reachable again after 9 failed calls. The worker claims jobs again."
    )


def test_second_outage_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "interlock")
    events = Events()
    end = logs.attach(events)
    for _ in range(2):
        events.emit(WorkerError("ann#1", "renew", Unavailable("The database is unreachable.")))
        events.emit(DatabaseReachable("ann#1"))
    end()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"] * 2
