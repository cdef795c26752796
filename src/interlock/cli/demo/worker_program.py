"""A worker of the demo: the command `interlock worker`, that ends when the demo does, however that ends."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Also where the demo itself is killed: a frozen worker could not see that. Elsewhere than on Linux, the system ends a stopped group that is left alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise SystemExit(1)


def main(parent: str, *arguments: str) -> None:
    die_with(int(parent))
    from .. import main as interlock

    interlock(["worker", "-A", f"{__package__}.shop:app", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
