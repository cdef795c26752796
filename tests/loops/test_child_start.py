"""The start of a child process has one timeout for all of its steps."""

import asyncio
from typing import Any

import pytest

from interlock.worker.subprocess import child_process as process
from interlock.worker.subprocess.child_process import CannotStart, Child


def test_child_that_does_not_start_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suspects then run elsewhere; they do not wait until their maximum run time is over."""

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(process, "START_TIMEOUT", 0.01)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)

    async def main() -> None:
        with pytest.raises(CannotStart, match="did not start"):
            await asyncio.wait_for(Child.spawn("shop:app"), 30)

    asyncio.run(main())
