"""Programs written for the contract type-check against the package with mypy and basedpyright in strict mode.

Lines that must be refused carry an ignore comment, and an unused ignore is an error: so each refusal is checked, too.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
PROGRAMS = [*sorted((HERE / "contract" / "programs").glob("*.py")), *sorted((HERE / "typed").glob("*.py"))]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Copies in one directory, without this repository's settings."""
    for program in PROGRAMS:
        shutil.copy(program, tmp_path)
    return tmp_path


def run(command: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": str(SOURCE)}
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)


def test_programs_satisfy_mypy(programs: Path) -> None:
    """`mypy --strict` accepts the valid lines and refuses the others."""
    options = [
        "--config-file=",
        "--strict",
        "--warn-unused-ignores",
        "--follow-imports=silent",
        f"--cache-dir={programs / 'cache'}",
    ]
    ran = run([sys.executable, "-m", "mypy", *options, *(program.name for program in PROGRAMS)], programs)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_programs_satisfy_basedpyright(programs: Path) -> None:
    """basedpyright in strict mode does, too."""
    settings = {
        "include": ["*.py"],
        "extraPaths": [str(SOURCE)],
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    ran = run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", "pyrightconfig.json"],
        programs,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 errors" in ran.stdout


def test_contract_satisfies_mypy(programs: Path) -> None:
    """The programs fit both the contract and the package, so neither can change alone."""
    shutil.copy(HERE / "contract" / "api.pyi", programs / "interlock.pyi")
    ran = run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file=",
            "--strict",
            f"--cache-dir={programs / 'cache'}",
            "interlock.pyi",
        ],
        programs,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    environment = {**os.environ, "MYPYPATH": str(programs)}
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        "--strict",
        "--warn-unused-ignores",
        f"--cache-dir={programs / 'cache'}",
    ]
    ran = subprocess.run(
        [*command, *(program.name for program in PROGRAMS)],
        cwd=programs,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
