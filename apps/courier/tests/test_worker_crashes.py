"""Worker processes are killed, frozen or stopped at the worst moments. The file arrives, and never twice without a
warning."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.courier import formatting
from apps.courier.tests import process_kit
from apps.courier.tests.process_kit import PATH_TO_STREAMING, SIZE, TIMEOUT, CourierProcesses


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[CourierProcesses]:
    with process_kit.processes(database_url, tmp_path) as made:
        yield made


def test_worker_killed_during_the_upload_costs_a_try_and_the_file_arrives_once(processes: CourierProcesses) -> None:
    halfway = processes.disk.gate("content", after=SIZE // 2)
    card = processes.order(processes.ann)
    assert halfway.arrived.wait(TIMEOUT)
    victim = processes.owner_process()
    victim.kill()
    # The lease really expires here, after fifteen seconds.
    processes.wait_for_card(processes.ann, card, "DELIVERED")
    job = processes.ended_delivery()
    assert (processes.states(job.id), job.tries_left) == ([*PATH_TO_STREAMING, *PATH_TO_STREAMING, "DELIVERED"], 2)
    assert [(each.ended_by, each.error) for each in processes.app.executions(job.id)] == [
        ("retry", "lease lost"),
        ("succeed", None),
    ]
    assert [each.sha256 for each in processes.documents(processes.ann)] == [processes.emma.sha256]
    assert processes.doubts() == ([], [])


def test_worker_killed_after_the_send_leaves_a_doubt_and_warns_before_sending_again(
    processes: CourierProcesses,
) -> None:
    ann, taken = processes.ann, processes.telegram.gate("sendDocument")
    card = processes.order(ann)
    assert taken.arrived.wait(TIMEOUT)
    processes.owner_process().kill()
    taken.open()
    assert (len(processes.documents(ann)), processes.doubts()) == (1, ([], []))
    processes.expire_lease()
    processes.wait_for_card(ann, card, "DELIVERED_twice")
    job = processes.ended_delivery()
    assert (job.state, job.tries_left) == ("DELIVERED", 2)
    assert [each.sha256 for each in processes.documents(ann)] == [processes.emma.sha256] * 2
    after_the_card = ann.chat[ann.chat.index(card) + 1 :]
    assert [each.text for each in after_the_card] == [None, formatting.render("ru", "doubt", name="Emma.pdf"), None]
    assert processes.doubts() == ([job.id], [job.id])


def test_worker_killed_between_receipt_and_commit_sends_nothing_again(processes: CourierProcesses) -> None:
    with processes.blocked_commit():
        card = processes.order(processes.ann)
        receipt = "SELECT 1 FROM interlock_receipts WHERE name = 'send' AND applied_at IS NOT NULL"
        processes.wait_until(lambda: processes.rows(receipt), "the receipt is written")
        processes.owner_process().kill()
    assert (processes.delivery().state, processes.rows("SELECT 1 FROM courier_deliveries")) == ("STREAMING", [])
    moved, sent = processes.disk.served, processes.documents(processes.ann)
    processes.expire_lease()
    processes.wait_for_card(processes.ann, card, "DELIVERED")
    assert (processes.ended_delivery().tries_left, processes.disk.served, processes.documents(processes.ann)) == (
        2,
        moved,
        sent,
    )
    assert (len(sent), processes.doubts()) == (1, ([], []))
    (message,) = [each for each in processes.ann.chat if each.document]
    assert processes.rows("SELECT message_id FROM courier_deliveries") == [(message.id,)]


def test_frozen_worker_is_refused_before_its_last_chunk(
    processes: CourierProcesses,
) -> None:
    nearly = processes.disk.gate("content", after=SIZE - 1)
    card = processes.order(processes.ann)
    assert nearly.arrived.wait(TIMEOUT)
    frozen, beat = processes.owner_process(), processes.execution().heartbeat_at
    # The next heartbeat is then due in five seconds, so that the worker continues before it learns of the loss.
    processes.wait_until(lambda: processes.execution().heartbeat_at > beat, "a sign of life")
    processes.freeze(frozen)
    processes.expire_lease()
    assert processes.ended_delivery().tries_left == 2
    nearly.open()
    frozen.signal(signal.SIGCONT)
    processes.telegram.wait(lambda: len(processes.telegram.requests_for("sendDocument")) == 2, TIMEOUT)
    assert [each.status for each in processes.telegram.requests_for("sendDocument")] == [200, None]
    processes.wait_for_card(processes.ann, card, "DELIVERED")
    assert (len(processes.documents(processes.ann)), processes.doubts()) == (1, ([], []))
    assert frozen.code is None


def test_stopping_worker_finishes_its_upload_first(processes: CourierProcesses) -> None:
    halfway = processes.disk.gate("content", after=SIZE // 2)
    card = processes.order(processes.ann)
    assert halfway.arrived.wait(TIMEOUT)
    worker = processes.owner_process()
    worker.signal(signal.SIGTERM)
    processes.wait_until(lambda: "stopping" in worker.log, "it has heard")
    halfway.open()
    assert worker.wait() == 0
    processes.wait_for_card(processes.ann, card, "DELIVERED")
    job = processes.ended_delivery()
    assert (processes.states(job.id), job.tries_left) == ([*PATH_TO_STREAMING, "DELIVERED"], 3)
    assert (len(processes.documents(processes.ann)), processes.doubts()) == (1, ([], []))
