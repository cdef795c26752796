"""`interlock worker --processes N`: real workers under a supervisor, which starts, restarts and drains them as one."""

import json
import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash import logging_app, supervised_app
from tests.crash.lab import Lab
from tests.crash.supervised import InTerminal, Supervised, is_worker, live, open_gate, run_gated, scrape, until_gone
from tests.crash.worker_command import say

DRAINS = "the worker claims no more jobs and ends"
ENDED = "the worker has ended"
on_sqlite = pytest.mark.parametrize("places", ["sqlite"], indirect=True)


@pytest.fixture
def lab(lab: Lab) -> Lab:
    """A laboratory whose database knows the kinds of these tests."""
    app = supervised_app.build(lab.setting)
    app.migrate()
    app.close()
    return lab


# ---------------------------------------------------------------- start and end
def test_processes_are_workers_of_their_own_and_drain_as_one(lab: Lab) -> None:
    """Each has its row and its name. On SIGTERM, running jobs end, then the supervisor ends with 0."""
    supervised = Supervised(lab, 3).ready()
    pids = supervised.pids
    assert sorted(pids) == ["sup-1", "sup-2", "sup-3"]
    lab.until(lambda: live(lab) == sorted(pids), "each worker has reported")
    assert len({*pids.values(), supervised.pid}) == 4
    ids = run_gated(lab, 5)
    supervised.terminate()
    supervised.says(DRAINS, 3)
    open_gate(lab)
    assert supervised.exit_code() == 0, supervised.log
    assert {lab.job(id).state for id in ids} == {"SUCCEEDED"}
    assert {lab.job(id).attempt for id in ids} == {1}
    assert [supervised.log.count(text) for text in ("the workers are ready", DRAINS, ENDED)] == [1, 3, 3]
    assert live(lab) == []
    until_gone(pids)
    lab.check()


@on_sqlite
def test_control_c_in_a_terminal_counts_once(lab: Lab) -> None:
    """The terminal signals the whole foreground group; running jobs still end."""
    supervised = InTerminal(lab, 2)
    supervised.ready()
    (id,) = run_gated(lab, 1)
    supervised.press_control_c()
    supervised.says(f"SIGINT: {DRAINS}", 2)
    open_gate(lab)
    assert supervised.exit_code() == 0, supervised.log
    assert (lab.job(id).state, lab.job(id).attempt) == ("SUCCEEDED", 1)


@on_sqlite
def test_control_c_while_the_workers_start_is_no_error(lab: Lab) -> None:
    """The terminal does not interrupt a worker that imports the app."""
    supervised = InTerminal(lab, 2, LAB_SLOW_IMPORT="yes")
    lab.until(lambda: lab.happened("import"), "the first worker imports the app")
    supervised.press_control_c()
    supervised.says("SIGINT: the workers claim no more jobs")
    open_gate(lab)
    assert supervised.exit_code() == 0, supervised.log
    assert "Traceback" not in supervised.log


@on_sqlite
def test_signal_to_the_supervisor_and_all_workers_counts_once(lab: Lab) -> None:
    """systemd signals every process of a service by default, in any order. No signal is a worker's second one."""
    supervised = Supervised(lab, 2, "--slots", "1").ready()
    ids = run_gated(lab, 2)
    first, second = supervised.pids.values()
    os.kill(first, signal.SIGINT)
    supervised.says(DRAINS, 1)
    supervised.terminate()
    supervised.says(DRAINS, 2)
    os.kill(second, signal.SIGINT)
    open_gate(lab)
    assert supervised.exit_code() == 0, supervised.log
    assert {(lab.job(id).state, lab.job(id).attempt) for id in ids} == {("SUCCEEDED", 1)}


@on_sqlite
def test_second_signal_ends_all_workers_at_once(lab: Lab) -> None:
    """The exit code is 128 plus the signal's number; running jobs stay leased and are recovered later."""
    supervised = Supervised(lab, 2, "--slots", "1").ready()
    pids = supervised.pids
    run_gated(lab, 2)
    supervised.terminate()
    supervised.says(DRAINS, 2)
    os.kill(supervised.pid, signal.SIGINT)
    assert supervised.exit_code() == 128 + signal.SIGINT
    until_gone(pids)
    assert ENDED not in supervised.log
    assert len(live(lab)) == 2


# ---------------------------------------------------------------- deaths
def test_killed_worker_is_replaced_and_its_job_runs_again(lab: Lab) -> None:
    """The other workers continue; the effect of the job is stored once."""
    supervised = Supervised(lab, 2).ready()
    before = supervised.pids
    ids = run_gated(lab, 4)
    owner = lab.executions(ids[0])[0].lease_owner.partition("#")[0]
    os.kill(before[owner], signal.SIGKILL)
    supervised.ready(2)
    after = supervised.pids
    assert [name for name in before if before[name] != after[name]] == [owner]
    death = rf"worker {owner} ended \(the process died: signal 9 .*; the supervisor starts it again in 1 s"
    assert re.search(death, supervised.log)
    open_gate(lab)
    lab.until_ended()
    supervised.terminate()
    assert supervised.exit_code() == 0, supervised.log
    assert set(lab.effects().values()) == {1}
    lab.check()


@on_sqlite
def test_hung_worker_is_replaced_at_once(lab: Lab) -> None:
    """A worker that hangs exits with 70."""
    supervised = Supervised(lab, 2).ready()
    supervised_app.build(lab.setting).kinds["hung"].enqueue("hung")
    supervised.says("exit code 70: it hung, or could not stop its handlers); the supervisor starts it again at once")
    supervised.ready(2)
    supervised.terminate()
    assert supervised.exit_code() == 0, supervised.log


def test_workers_drain_if_their_supervisor_is_killed(lab: Lab) -> None:
    """Running jobs end, nothing is left in the table of workers, and no process remains."""
    supervised = Supervised(lab, 2).ready()
    pids = supervised.pids
    ids = run_gated(lab, 2)
    supervised.kill()
    supervised.says(f"the supervisor has ended: {DRAINS}", 2)
    assert any(is_worker(pid) for pid in pids.values())
    open_gate(lab)
    until_gone(pids)
    assert {lab.job(id).state for id in ids} == {"SUCCEEDED"}
    assert live(lab) == []


# ---------------------------------------------------------------- errors at the start
@on_sqlite
@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("-A", "tests.crash.nowhere:app"), 2, "There is no module tests.crash.nowhere here"),
        (("--kinds", "fly"), 2, "--kinds names fly, which this app does not have"),
        (("--database", "sqlite:///{}/new.db"), 1, "interlock migrate"),
    ],
)
def test_workers_that_cannot_start_end_with_one_error(
    lab: Lab, tmp_path: Path, arguments: tuple[str, ...], code: int, error: str
) -> None:
    """A wrong name of the app, a wrong option, a database that was not migrated: no restarts."""
    with closing(sqlite3.connect(tmp_path / "new.db")) as file:
        file.execute("CREATE TABLE theirs (id integer)")
    supervised = Supervised(lab, 3, *(each.format(tmp_path) for each in arguments))
    assert supervised.exit_code() == code
    (sentence,) = re.findall(r"^interlock: (.*)$", supervised.log, re.MULTILINE)
    assert error in sentence
    assert set(supervised.pids) <= {"sup-1"}
    assert "starts it again" not in supervised.log
    assert "Traceback" not in supervised.log


@on_sqlite
def test_wrong_number_of_processes_is_refused(lab: Lab) -> None:
    for given in ("0", "-1", "many", "1.5", "²"):
        said = say(lab, "worker", "-A", "tests.crash.supervised_app:app", f"--processes={given}")
        assert (said.code, said.text) == (
            2,
            f"interlock: --processes is {given!r}: give a number that is 1 or more, or auto.\n",
        )


# ---------------------------------------------------------------- logs and metrics
@on_sqlite
def test_every_line_of_the_log_names_its_worker(lab: Lab) -> None:
    """Lines of handlers in threads and child processes, too; all are JSON if the workers log JSON."""
    app = logging_app.build(lab.setting)
    app.migrate()
    for name, kind in app.kinds.items():
        kind.enqueue(name)
    app.close()
    supervised = Supervised(lab, 2, "--log-json", "--log-level", "debug", program="tests.crash.logging_app:app").ready()
    lab.until_ended()
    supervised.terminate()
    assert supervised.exit_code() == 0
    lines = [json.loads(line) for line in supervised.log.splitlines()]
    assert {line["worker"].partition("#")[0] for line in lines} == {"sup", "sup-1", "sup-2"}
    said = {line["event"]: line["worker"] for line in lines if line["event"].startswith("hello from")}
    assert len(said) == 3, said
    assert "sup" not in said.values()


def test_metrics_of_all_workers_add_up(lab: Lab) -> None:
    """Counters are sums that survive a killed worker; the numbers of jobs are those of the database."""
    supervised = Supervised(lab, 2, "--metrics-port", "0").ready()
    found = re.search(r"the supervisor starts .*metrics=(\S+)", supervised.log)
    assert found is not None
    url, attempts = found[1], 'interlock_attempts_total{kind="fast",outcome="succeed",queue="default"}'
    for number in range(30):
        lab.enqueue("fast", f"fast-{number}")
    lab.until_ended()
    lab.until(lambda: scrape(url).get(attempts) == 30, "every attempt is counted")
    os.kill(supervised.pids["sup-1"], signal.SIGKILL)
    supervised.ready(2)
    for number in range(30, 40):
        lab.enqueue("fast", f"fast-{number}")
    lab.until_ended()
    lab.until(lambda: scrape(url).get(attempts) == 40, "every attempt is counted")
    series = scrape(url)
    assert series['interlock_jobs{lifecycle="standard",state="SUCCEEDED"}'] == 40
    assert sum(value for name, value in series.items() if name.startswith("interlock_workers{")) == 2
    assert series["interlock_worker_restarts_total"] == 1
    assert {name for name in series if name.startswith("process_resident_memory_bytes")} == {
        f'process_resident_memory_bytes{{worker="sup-{number}"}}' for number in (1, 2)
    }
    supervised.terminate()
    assert supervised.exit_code() == 0, supervised.log


@on_sqlite
def test_frozen_worker_does_not_fail_the_scrape(lab: Lab) -> None:
    """The others answer; the last counts of the frozen one still count."""
    supervised = Supervised(lab, 2, "--metrics-port", "0").ready()
    found = re.search(r"the supervisor starts .*metrics=(\S+)", supervised.log)
    assert found is not None
    before = scrape(found[1])
    os.kill(supervised.pids["sup-1"], signal.SIGSTOP)
    series = scrape(found[1])
    assert series["interlock_database_up"] == 1
    claims = 'interlock_claim_seconds_count{found="none"}'
    assert series[claims] >= before[claims]
    os.kill(supervised.pids["sup-1"], signal.SIGCONT)
    supervised.terminate()
    assert supervised.exit_code() == 0, supervised.log
