"""Breaks one guarantee at a time and runs the tests that must notice: `make mutants`, or `make mutants ARGS=fence`.

Each mutant is one small change of the source. It is made in a temporary copy of the repository, and the tests that are
named with it run there: the mutant is killed if one of them fails. It survives if they all pass, and then a test is
missing. `tests/surface/test_mutant_list.py` fails if a mutant can no longer be applied: change it with the source.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutant import Mutant
from tests.mutant_list import MUTANTS

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "pyproject.toml")
TIMEOUT = 600.0
FAILED = 1
"""The exit code of pytest if tests failed. Any other code means that they did not run."""


# ---------------------------------------------------------------- running
def checked(mutants: Sequence[Mutant]) -> list[str]:
    """Return what is wrong with the list itself: a text, file or test that does not exist."""
    wrong: list[str] = []
    for mutant in mutants:
        try:
            mutant.mutate(mutant.find_file(ROOT).read_text(encoding="utf-8"))
        except (LookupError, OSError) as error:
            wrong.append(str(error))
        wrong += [
            f"There is no {test}: change mutant {mutant.name!r}." for test in mutant.tests if not (ROOT / test).exists()
        ]
    return wrong


def run(tree: Path, tests: Sequence[str], only: str, *options: str) -> tuple[int, str]:
    """Run these tests in a tree; return the exit code and the output of pytest."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    try:
        done = subprocess.run(
            [*command, "-k", only] if only else command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"It ran for longer than {TIMEOUT:g} s."
    return done.returncode, done.stdout + done.stderr


def find_killer(mutant: Mutant, tree: Path) -> str | None:
    """Return the test that fails with the mutant; None if none fails. Afterwards the tree is unchanged."""
    file = mutant.find_file(tree)
    source = file.read_text(encoding="utf-8")
    file.write_text(mutant.mutate(source), encoding="utf-8")
    try:
        code, printed = run(tree, mutant.tests, mutant.only, "-x", "-n", "0")
    finally:
        file.write_text(source, encoding="utf-8")
    if code not in (0, FAILED):
        raise SystemExit(f"The tests of mutant {mutant.name!r} did not run:\n{printed}")
    if code == 0:
        return None
    named = re.search(r"^(?:FAILED|ERROR) \S+?::(.+?)(?: - |$)", printed, re.MULTILINE)
    return named[1] if named else printed.splitlines()[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="run the mutants whose names contain one of these")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a mutant first")
    given = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not given.words or any(word in each.name for word in given.words)]
    if wrong := checked(MUTANTS):
        print(*wrong, sep="\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="interlock_mutants_") as directory:
        tree = Path(directory)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, tree / name)
        if not given.trust:
            code, printed = run(tree, sorted({test for each in chosen for test in each.tests}), "", "-n", "2")
            if code:
                print(f"The tests fail without any mutant:\n{printed}")
                return 2
        survivors = 0
        for mutant in chosen:
            began = time.monotonic()
            killer = find_killer(mutant, tree)
            survivors += killer is None
            fate = "SURVIVED" if killer is None else "killed  "
            print(f"{fate} {mutant.name}: {mutant.promise} ({time.monotonic() - began:.0f} s)", flush=True)
            if killer:
                print(f"         by {killer}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants were killed.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
