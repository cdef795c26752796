"""Stores the limits that an app declares, as part of its migration, for both stores."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..core.limits import Scope
from .commit_boundary import Run
from .enqueue_plan import Statement
from .flow_types import DeclaredLimit
from .limit_columns import declared_columns
from .types import Declared


def in_order(limits: Iterable[DeclaredLimit]) -> list[DeclaredLimit]:
    """Sort limits as claims lock them."""
    return sorted(limits, key=lambda limit: (limit.scope, limit.name))


def store_limits(
    run: Run, queries: Mapping[str, str], declared: Declared, array: Callable[[Sequence[str]], str]
) -> bool:
    """Store the declared limits of queues, and all limits of the app's kinds. Returns whether one has changed.

    A limit of a kind that the app does not declare any more is removed. Another app may declare limits of queues, so
    those stay. Waiting jobs are looked at again if their limit has changed.
    """
    given = {
        "kinds": array([kind.name for kind in declared.kinds]),
        "scopes": array([limit.scope for limit in declared.limits]),
        "names": array([limit.name for limit in declared.limits]),
    }
    if "limits.lock_declared" in queries:
        run(Statement(queries["limits.lock_declared"], given))
    changed: list[tuple[Scope, str]] = [tuple(row) for row in run(Statement(queries["limits.undeclare"], given))]
    for limit in in_order(declared.limits):
        changed += [tuple(row) for row in run(Statement(queries["limits.declare"], declared_columns(limit)))]
    for scope, name in changed:
        run(Statement(queries["limits.announce"], {"scope": scope, "name": name}, answers=False))
    run(Statement(queries["limits.drop_unused"], {}, answers=False))
    return bool(changed)
