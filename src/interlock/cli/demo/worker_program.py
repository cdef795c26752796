"""Runs `interlock worker` in a process that ends when the demo ends."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when the demo dies, since a frozen worker cannot notice it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise SystemExit(1)


def main(parent: str, *arguments: str) -> None:
    die_with(int(parent))
    from .. import main as interlock

    interlock(["worker", "-A", f"{__package__}.demo_target:app", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
