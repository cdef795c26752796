"""A process that crashes while it stores an image leaves a complete image or none, and staged files are removed."""

import asyncio
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from apps.studio.clients.originals import Originals

# Stores one image and kills itself at one point. The file size limit kills the writer, or acts as a full disk if the
# signal is ignored.
WRITER = """
import asyncio, os, resource, signal, sys
from pathlib import Path
import obstore
from apps.studio.errors import TemporaryError
from apps.studio.clients.originals import Originals

directory, source, point = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
rename = obstore.rename

def dead(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def named_and_dead(*given, **options):
    rename(*given, **options)
    dead()

if point in ("amid the writing", "full"):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN if point == "full" else signal.SIG_DFL)
else:
    obstore.rename = dead if point == "before it is named" else named_and_dead
try:
    asyncio.run(Originals.in_directory(directory).store("job-0", source.read_bytes()))
except TemporaryError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A picture of three megabytes, so that a process can crash in the middle of the write."""
    file, to = tmp_path / "source.png", io.BytesIO()
    Image.frombytes("RGB", (1024, 1024), os.urandom(1024 * 1024 * 3)).save(to, "PNG", compress_level=0)
    file.write_bytes(to.getvalue())
    return file


def keep(directory: Path, source: Path, point: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WRITER, str(directory), str(source), point],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def names(directory: Path) -> dict[str, int]:
    """All files with their sizes."""
    return {file.parent.name: file.stat().st_size for file in directory.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("point", "end", "leaves"),
    [
        ("amid the writing", signal.SIGXFSZ, ("staged", 2**20)),
        ("before it is named", signal.SIGKILL, ("staged", None)),
        ("after it was named", signal.SIGKILL, ("originals", None)),
    ],
)
def test_crash_leaves_a_complete_image_or_none(
    tmp_path: Path, source: Path, point: str, end: int, leaves: tuple[str, int | None]
) -> None:
    directory, data = tmp_path / "files", source.read_bytes()
    assert keep(directory, source, point).returncode == -end
    assert names(directory) == {leaves[0]: leaves[1] or len(data)}
    originals = Originals.in_directory(directory)
    found = asyncio.run(originals.find("job-0"))
    assert (found is not None) == (leaves[0] == "originals")
    kept = asyncio.run(originals.store("job-0", data))
    assert found in {None, kept}
    assert asyncio.run(originals.read("originals/job-0")) == data


def test_abandoned_staged_files_are_removed(tmp_path: Path, source: Path) -> None:
    directory, data = tmp_path / "files", source.read_bytes()
    for _ in range(2):
        keep(directory, source, "before it is named")
    old, young = (directory / "staged").iterdir()
    os.utime(old, (0, 0))
    asyncio.run(Originals.in_directory(directory).store("job-1", data))
    assert list((directory / "staged").iterdir()) == [young]


def test_full_disk_is_a_temporary_error_and_leaves_no_file(tmp_path: Path, source: Path) -> None:
    full = keep(tmp_path / "files", source, "full")
    assert "The storage failed for originals/job-0" in full.stderr
    assert full.stderr.count("\n") == 1
    assert names(tmp_path / "files") == {}
