"""`interlock worker --processes auto`: how many cores this process may use."""

import os
from pathlib import Path

import pytest

from interlock.cli.supervisor_command import process_count, usable_cores


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


def machine(root: Path, groups: str | None, limit: str | None = None) -> Path:
    """Return the root directory of a machine whose files say this about control groups."""
    if groups is not None:
        (root / "proc" / "self").mkdir(parents=True)
        (root / "proc" / "self" / "cgroup").write_text(groups)
    if limit is not None:
        folder = root / "sys" / "fs" / "cgroup" / groups.rpartition("0::/")[2].strip() if groups else root
        folder.mkdir(parents=True)
        (folder / "cpu.max").write_text(limit)
    return root


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("groups", "limit", "cores"),
    [
        (None, None, 8),
        ("0::/\n", None, 8),
        ("0::/\n", "max 100000\n", 8),
        ("0::/\n", "200000 100000\n", 2),
        ("0::/\n", "150000 100000\n", 2),
        ("0::/\n", "10000 100000\n", 1),
        ("0::/\n", "6400000 100000\n", 8),
        ("1:cpu:/old\n0::/system.slice/shop.service\n", "300000 100000\n", 3),
    ],
)
def test_limit_of_a_container_counts(tmp_path: Path, groups: str | None, limit: str | None, cores: int) -> None:
    """A process that may use two cores of a large machine must not start a worker for each core of the machine."""
    assert usable_cores(machine(tmp_path, groups, limit)) == cores


@pytest.mark.usefixtures("eight_cores")
def test_auto_is_the_number_of_usable_cores() -> None:
    assert process_count("auto") == usable_cores() <= 8
    assert process_count("3") == 3
