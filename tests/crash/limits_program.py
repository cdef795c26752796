"""The app and the worker of the chaos of limits: `python -m tests.crash.limits_program URL SCHEMA NAME`."""

import asyncio
import random
import sys

from interlock import App, Limit, Run, Tx

LEASE = 2.0
KINDS = {
    "keyed": {"max_running_per_key": 2},
    "narrow": {"max_running": 3},
    "paced": {"rate": "150/s", "burst": 20},
    "paced_keys": {"rate_per_key": "20/s", "burst_per_key": 4},
    "both": {"max_running": 6, "max_running_per_key": 1, "rate": "200/s"},
    "plain": {},
}
QUEUES = {"tight": Limit(max_running=4)}
KEYS = 40
"""How many concurrency keys the jobs have."""


def build(url: str, schema: str) -> App[Tx]:
    app = App(url, schema=schema, queues=QUEUES)

    async def work(run: Run, n: int) -> int:
        await asyncio.sleep(random.choice([0, 0, 0, random.uniform(0, 0.1)]))
        return n

    for kind, options in KINDS.items():
        app.job(kind=kind, lease=LEASE, tries=1000, **options)(work)  # type: ignore[call-overload]
    return app


async def main(url: str, schema: str) -> None:
    app = build(url, schema)
    async with app.worker(slots=10, queues=("default", "tight")):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
