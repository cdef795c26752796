"""Events reach their listeners, and no listener can affect the worker."""

import dataclasses
import logging
import threading
from collections.abc import Callable

import pytest

from interlock.telemetry import events
from interlock.telemetry.events import EVENT_TYPES, Claimed, DatabaseCall, Event, Events
from tests.loops.event_examples import ONE_OF_EACH

CLAIMED = Claimed("w", 1, 0.1)
BATCH = DatabaseCall("settle", 1, 0.1)


def test_every_kind_of_event_has_an_example() -> None:
    """The examples of the other tests and the list of event types are complete."""
    declared = {
        one for one in vars(events).values() if isinstance(one, type) and issubclass(one, Event) and one is not Event
    }
    assert {type(one) for one in ONE_OF_EACH} == set(EVENT_TYPES) == declared


def test_listener_receives_its_event_types_until_it_unsubscribes() -> None:
    told, all_of_it, claims = Events(), list[Event](), list[Claimed]()
    end_all = told.subscribe(all_of_it.append)
    end_claims = told.subscribe(claims.append, Claimed)
    told.emit(CLAIMED)
    told.emit(BATCH)
    end_all()
    told.emit(CLAIMED)
    end_claims()
    end_claims()
    told.emit(CLAIMED)
    assert (all_of_it, claims) == ([CLAIMED, BATCH], [CLAIMED, CLAIMED])


def test_events_without_listeners_are_not_wanted() -> None:
    """`wants` and `active` follow the listeners."""
    told = Events()
    assert not told.active
    ends = [told.subscribe(lambda _: None, Claimed), told.subscribe(lambda _: None, Claimed)]
    assert told.active
    assert (told.wants(Claimed), told.wants(DatabaseCall)) == (True, False)
    ends[0]()
    assert told.wants(Claimed)
    ends[1]()
    assert not told.active
    assert not told.wants(Claimed)


def test_listener_that_subscribes_twice_has_two_independent_subscriptions() -> None:
    told, heard = Events(), list[Event]()
    hear = heard.append
    end = told.subscribe(hear)
    told.subscribe(hear)
    told.emit(CLAIMED)
    end()
    end()
    told.emit(BATCH)
    assert heard == [CLAIMED, CLAIMED, BATCH]


def test_listener_that_raises_stays_subscribed_and_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged once per event type, and the listener receives the next event."""
    told, before, after = Events(), list[Event](), list[Event]()

    def broken(event: Event) -> None:
        before.append(event)
        raise RuntimeError("broken")

    told.subscribe(broken)
    told.subscribe(after.append)
    for one in (CLAIMED, CLAIMED, BATCH):
        told.emit(one)
    assert before == after == [CLAIMED, CLAIMED, BATCH]
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR]
    assert "Claimed" in caplog.messages[0]
    assert "DatabaseCall" in caplog.messages[1]


def test_keyboard_interrupt_in_a_listener_is_raised() -> None:
    """It does not count as an error of the listener."""
    told = Events()

    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    told.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        told.emit(CLAIMED)


class Meddling(type):
    """An event type that lets another thread run while it is looked up."""

    meddle: Callable[[], None] | None = None

    def __hash__(cls) -> int:
        meddle, Meddling.meddle = Meddling.meddle, None
        if meddle:
            thread = threading.Thread(target=meddle)
            thread.start()
            # If the other thread has to wait for this one, continue; it runs afterwards.
            thread.join(0.1)
        return super().__hash__()


class Odd(Event, metaclass=Meddling):
    """An event of that type."""


@pytest.mark.parametrize("ending", [False, True], ids=["coming", "going"])
def test_concurrent_subscriptions_are_all_kept(ending: bool) -> None:
    told, heard, there = Events(), list[Event](), threading.Event()
    end = told.subscribe(lambda _: None, Odd)

    def meddle() -> None:
        told.subscribe(heard.append, Claimed)
        there.set()

    Meddling.meddle = meddle
    if ending:
        end()
    else:
        told.subscribe(heard.append, Odd)
    assert there.wait(10)
    told.emit(CLAIMED)
    assert heard == [CLAIMED]


def test_listeners_can_change_while_many_threads_emit() -> None:
    """A listener that stays misses no event, and an unsubscribed listener receives none."""
    told, heard = Events(), list[Event]()
    told.subscribe(heard.append, Claimed)
    start = threading.Barrier(5)

    def emit() -> None:
        start.wait()
        for _ in range(500):
            told.emit(CLAIMED)

    def come_and_go() -> None:
        start.wait()
        for _ in range(500):
            told.subscribe(lambda _: None)()

    threads = [threading.Thread(target=work) for work in (emit, emit, emit, come_and_go, come_and_go)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == 1500
    assert not told.wants(DatabaseCall)


def test_event_cannot_be_changed() -> None:
    """All event types are frozen and have slots."""
    for one in ONE_OF_EACH:
        name = dataclasses.fields(one)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, "other")
        assert not hasattr(one, "__dict__")
