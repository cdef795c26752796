"""`interlock worker --health`: what probes hear of real workers whose database, processes or supervisor fail."""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import supervised_app
from tests.crash.lab import Lab
from tests.crash.postgres_server import Server, server
from tests.crash.supervised import Supervised, open_gate, run_gated
from tests.kit import postgres_place

on_sqlite = pytest.mark.parametrize("places", ["sqlite"], indirect=True)


class Probes:
    """The probes of a supervisor."""

    def __init__(self, lab: Lab, supervised: Supervised) -> None:
        self._lab = lab
        found = re.search(r"the supervisor starts .*healthz=(\S+)/healthz", supervised.log)
        assert found is not None, supervised.log
        self._url = found[1]

    def ask(self, name: str) -> tuple[int, list[str]]:
        """Return the status of a probe, and the problems that it names."""
        try:
            with urllib.request.urlopen(f"{self._url}/{name}", timeout=20) as answer:
                return answer.status, json.load(answer)["problems"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)["problems"]

    def until(self, name: str, code: int, *, within: float = 20.0) -> list[str]:
        """Ask until the probe answers with this status."""
        found = self._lab.until(
            lambda: answer if (answer := self.ask(name))[0] == code else None, f"{name} is {code}", within=within
        )
        assert found is not None
        return found[1]


def migrated(lab: Lab) -> Lab:
    app = supervised_app.build(lab.setting)
    app.migrate()
    app.close()
    return lab


@on_sqlite
def test_frozen_worker_makes_its_supervisor_unhealthy_but_not_unready(lab: Lab) -> None:
    """The other worker claims jobs. The problem names the process."""
    supervised = Supervised(migrated(lab), 2, "--health", ":0").ready()
    probes = Probes(lab, supervised)
    assert [probes.ask(name) for name in ("healthz", "readyz")] == [(200, []), (200, [])]
    os.kill(supervised.pids["sup-1"], signal.SIGSTOP)
    assert probes.until("healthz", 503) == ["sup-1: The process has not answered for 2 s."]
    assert probes.ask("readyz") == (200, [])
    os.kill(supervised.pids["sup-1"], signal.SIGCONT)
    probes.until("healthz", 200)
    supervised.terminate()
    assert supervised.exit_code() == 0, supervised.log


@on_sqlite
def test_supervisor_is_not_ready_without_a_worker_and_while_it_stops(lab: Lab) -> None:
    """It is healthy: it starts its workers again by itself."""
    supervised = Supervised(migrated(lab), 2, "--health", ":0").ready()
    probes = Probes(lab, supervised)
    for pid in supervised.pids.values():
        os.kill(pid, signal.SIGKILL)
    problems = probes.until("readyz", 503)
    assert {problem.partition(":")[0] for problem in problems} == {"sup-1", "sup-2"}
    assert probes.ask("healthz") == (200, [])
    supervised.ready(2)
    probes.until("readyz", 200)
    run_gated(lab, 1)
    supervised.terminate()
    assert probes.until("readyz", 503) == ["The supervisor is stopping, and its workers claim no more jobs."]
    assert probes.ask("healthz") == (200, [])
    open_gate(lab)
    assert supervised.exit_code() == 0, supervised.log


@pytest.fixture
def own() -> Iterator[Server]:
    with server() as made:
        yield made


def test_workers_are_ready_again_when_their_database_is_back(own: Server, tmp_path: Path) -> None:
    """While the server is down they are not ready, but healthy: to start them again would not help."""
    lab = migrated(Lab(postgres_place(own.url), tmp_path, lease=30.0))
    try:
        supervised = Supervised(lab, 2, "--health", ":0").ready()
        probes = Probes(lab, supervised)
        assert probes.ask("readyz") == (200, [])
        own.stop()
        outage = {"sup-1: The database is unreachable.", "sup-2: The database is unreachable."}
        lab.until(lambda: outage <= {*probes.ask("readyz")[1]}, "both workers notice the outage")
        assert probes.ask("readyz")[0] == 503
        assert probes.ask("healthz") == (200, [])
        own.start()
        assert probes.until("readyz", 200, within=60.0) == []
        supervised.terminate()
        assert supervised.exit_code() == 0, supervised.log
    finally:
        lab.close()
        lab.place.raw.close()
