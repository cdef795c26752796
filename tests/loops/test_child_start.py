"""The start of a child process has one time-out for all of its steps."""

import asyncio
from typing import Any

import pytest

from interlock.worker import process
from interlock.worker.process import CannotStart, Child


def test_child_whose_process_never_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its suspects then run elsewhere; they do not wait until their longest run time is over."""

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(process, "STARTING", 0.01)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)

    async def main() -> None:
        with pytest.raises(CannotStart, match="has not started"):
            await asyncio.wait_for(Child.spawn("shop:app"), 30)

    asyncio.run(main())
