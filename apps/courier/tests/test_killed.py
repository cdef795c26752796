"""A worker is killed, frozen or ended at the worst moments, as a process of its own beside another. The file arrives, and never twice in silence."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.courier import words
from apps.courier.tests import processes
from apps.courier.tests.processes import SIZE, SOON, WAY, House


@pytest.fixture
def house(database_url: str, tmp_path: Path) -> Iterator[House]:
    with processes.house(database_url, tmp_path) as made:
        yield made


def test_a_worker_killed_amid_the_stream_costs_a_try_and_the_file_arrives_once(house: House) -> None:
    halfway = house.disk.gate("content", after=SIZE // 2)
    card = house.order(house.ann)
    assert halfway.arrived.wait(SOON)
    victim = house.holder()
    victim.kill()
    # Its lease really ends here, after fifteen seconds.
    house.shows(house.ann, card, "DELIVERED")
    job = house.ended()
    assert (house.path(job.id), job.tries_left) == ([*WAY, *WAY, "DELIVERED"], 2)
    assert [(each.ended_by, each.error) for each in house.app.executions(job.id)] == [("retry", "lease lost"), ("succeed", None)]
    assert [each.sha256 for each in house.documents(house.ann)] == [house.emma.sha256]
    assert house.doubts() == ([], [])


def test_a_worker_killed_after_telegram_took_the_file_leaves_a_doubt_that_is_told_before_it_comes_again(house: House) -> None:
    ann, taken = house.ann, house.telegram.gate("sendDocument")
    card = house.order(ann)
    assert taken.arrived.wait(SOON)
    house.holder().kill()
    taken.open()
    assert (len(house.documents(ann)), house.doubts()) == (1, ([], []))
    house.lease_ends()
    house.shows(ann, card, "DELIVERED_twice")
    job = house.ended()
    assert (job.state, job.tries_left) == ("DELIVERED", 2)
    assert [each.sha256 for each in house.documents(ann)] == [house.emma.sha256] * 2
    after_the_card = ann.chat[ann.chat.index(card) + 1 :]
    assert [each.text for each in after_the_card] == [None, words.say("ru", "doubt", name="Emma.pdf"), None]
    assert house.doubts() == ([job.id], [job.id])


def test_a_worker_killed_between_the_receipt_and_the_commit_sends_nothing_again(house: House) -> None:
    with house.endless_commit():
        card = house.order(house.ann)
        receipt = "SELECT 1 FROM interlock_receipts WHERE name = 'send' AND applied_at IS NOT NULL"
        house.until(lambda: house.rows(receipt), "the receipt is written")
        house.holder().kill()
    assert (house.delivery().state, house.rows("SELECT 1 FROM courier_deliveries")) == ("STREAMING", [])
    moved, sent = house.disk.served, house.documents(house.ann)
    house.lease_ends()
    house.shows(house.ann, card, "DELIVERED")
    assert (house.ended().tries_left, house.disk.served, house.documents(house.ann)) == (2, moved, sent)
    assert (len(sent), house.doubts()) == (1, ([], []))
    (message,) = [each for each in house.ann.chat if each.document]
    assert house.rows("SELECT message_id FROM courier_deliveries") == [(message.id,)]


def test_a_worker_that_was_frozen_while_another_delivered_is_refused_before_its_last_chunk(house: House) -> None:
    nearly = house.disk.gate("content", after=SIZE - 1)
    card = house.order(house.ann)
    assert nearly.arrived.wait(SOON)
    frozen, beat = house.holder(), house.execution().heartbeat_at
    # The next sign of life is then due in five seconds, so that it goes on before it hears of anything.
    house.until(lambda: house.execution().heartbeat_at > beat, "a sign of life")
    house.freeze(frozen)
    house.lease_ends()
    assert house.ended().tries_left == 2
    nearly.open()
    frozen.signal(signal.SIGCONT)
    house.telegram.wait(lambda: len(house.telegram.asked("sendDocument")) == 2, SOON)
    assert [each.status for each in house.telegram.asked("sendDocument")] == [200, None]
    house.shows(house.ann, card, "DELIVERED")
    assert (len(house.documents(house.ann)), house.doubts()) == (1, ([], []))
    assert frozen.code is None


def test_a_worker_that_is_told_to_end_amid_the_stream_hands_the_file_over_first(house: House) -> None:
    halfway = house.disk.gate("content", after=SIZE // 2)
    card = house.order(house.ann)
    assert halfway.arrived.wait(SOON)
    worker = house.holder()
    worker.signal(signal.SIGTERM)
    house.until(lambda: "stopping" in worker.log, "it has heard")
    halfway.open()
    assert worker.ended() == 0
    house.shows(house.ann, card, "DELIVERED")
    job = house.ended()
    assert (house.path(job.id), job.tries_left) == ([*WAY, "DELIVERED"], 3)
    assert (len(house.documents(house.ann)), house.doubts()) == (1, ([], []))
