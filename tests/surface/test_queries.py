"""The two stores use the same query names, or explain the difference."""

import re

import pytest

from interlock.store.queryfile import parse, query_text

STORES = ("sqlite", "postgres")


def text(store: str) -> str:
    return query_text(f"interlock.store.{store}")


def names(store: str) -> set[str]:
    """Return the queries of a store; a query that is several statements here has its name before the dot."""
    return {name.partition(".")[0] for name in re.findall(r"^-- name: (\S+)", text(store), re.MULTILINE)}


def test_every_query_is_in_both_stores_or_explained() -> None:
    """A name in only one file is explained by a `-- differs:` line in the other."""
    for store, other in (STORES, STORES[::-1]):
        reasons = " ".join(re.findall(r"^-- differs: (.*)", text(other), re.MULTILINE))
        assert {name for name in names(store) - names(other) if f"`{name}`" not in reasons} == set()


ASSIGNING = {
    "sqlite": {"claim", "claim.plain", "finish.job", "move.job", "take"},
    "postgres": {"claim", "claim.picked", "claim.plain", "finish", "move", "take"},
}


@pytest.mark.parametrize("store", STORES)
def test_few_queries_assign_a_jobs_state(store: str) -> None:
    """After the insert, only claims, finish, move and take do. On PostgreSQL, two claims share one fragment."""
    assigning: set[str] = set()
    for name, body in parse(text(store)).items():
        if re.search(r"UPDATE \w+[._]jobs(?: j)? SET (?:[^;]*?, )?state = ", body):
            assigning.add(name)
    assert assigning == ASSIGNING[store]
