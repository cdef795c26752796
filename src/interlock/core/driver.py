"""Runs a generator that yields requests: `do` handles each request, and its result is sent back to the generator."""

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


def drive(plan: Generator[Asked, Answer, Result], do: Callable[[Asked], Answer]) -> Result:
    """Run the plan to its end and return its result. An error of `do` is raised inside the plan."""
    try:
        asked = next(plan)
        while True:
            try:
                answer = do(asked)
            except BaseException as error:  # noqa: BLE001 - the plan decides
                asked = plan.throw(error)
            else:
                asked = plan.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result


async def adrive(plan: Generator[Asked, Answer, Result], do: Callable[[Asked], Awaitable[Answer]]) -> Result:
    """`drive` in an event loop."""
    try:
        asked = next(plan)
        while True:
            try:
                answer = await do(asked)
            except BaseException as error:  # noqa: BLE001 - the plan decides
                asked = plan.throw(error)
            else:
                asked = plan.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
