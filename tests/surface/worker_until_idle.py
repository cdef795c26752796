"""Runs `interlock worker` as a reader does, and ends it by Ctrl-C when nothing is due and nothing runs.

It passes on the worker's output and exit code.
"""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise

TIME_LIMIT = 45.0
GLANCE = 0.2
READY = ("the worker is ready", "the workers are ready")


def idle(where: list[str], queues: list[str], kinds: list[str]) -> bool:
    """Return whether the worker has nothing left to do, according to the database. Handed-over jobs run elsewhere."""
    told = subprocess.run(["interlock", "status", *where, "--json"], capture_output=True, text=True, check=False)
    if not told.stdout:
        return False
    status = json.loads(told.stdout)
    depths, elsewhere = status["depths"], {one["kind"]: one["executions"] for one in status["external"]}
    mine = [
        depth
        for depth in depths
        if depth["queue"] in (queues or [depth["queue"]]) and depth["kind"] in (kinds or [depth["kind"]])
    ]
    left = [depth["due"] + depth["blocked"] + depth["running"] - elsewhere.get(depth["kind"], 0) for depth in mine]
    return all(count <= 0 for count in left)


def main(arguments: list[str]) -> int:
    given = dict(pairwise(arguments))
    where = [part for option in ("-A", "--database") if option in given for part in (option, given[option])]
    served = [given[option].split(",") if option in given else [] for option in ("--queues", "--kinds")]
    with open("_worker.log", "w+", encoding="utf-8") as log:  # noqa: PTH123 - a plain name, in the reader's directory
        worker = subprocess.Popen(["interlock", "worker", *arguments], stdout=log, stderr=log)
        end = time.monotonic() + TIME_LIMIT
        asked = False
        try:
            while time.monotonic() < end:
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(GLANCE)
                    break
                log.seek(0)
                said = log.read()
                if not asked and any(each in said for each in READY) and idle(where, *served):
                    worker.send_signal(signal.SIGINT)
                    asked = True
        finally:
            worker.kill()
        code = worker.wait()
        log.seek(0)
        sys.stdout.write(log.read())
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
