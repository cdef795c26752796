"""A worker tunes the interpreter, and keeps what the app has set itself."""

import subprocess
import sys

import pytest

TUNE = """
import gc
from interlock.cli.interpreter import tune_interpreter
{setting}
tune_interpreter()
print(gc.get_threshold())
"""


@pytest.mark.parametrize(
    ("setting", "thresholds"),
    [("", (10_000, 20, 20)), ("gc.set_threshold(0)", None), ("gc.set_threshold(50_000, 50, 1000)", None)],
    ids=["unchanged", "off", "larger"],
)
def test_worker_keeps_the_garbage_collection_that_the_app_has_chosen(
    setting: str, thresholds: tuple[int, int, int] | None
) -> None:
    def printed(code: str) -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    expected = str(thresholds) if thresholds else printed(f"import gc\n{setting}\nprint(gc.get_threshold())")
    assert printed(TUNE.format(setting=setting)) == expected
