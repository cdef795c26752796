"""The cost of selecting many jobs: a page reads its own jobs and sorts nothing, and a count reads no other phase."""

from typing import Any

import psycopg
import pytest

from interlock.core.ids import next_id
from interlock.core.job_filter import JobFilter
from interlock.core.outcome import FailedFinally
from interlock.store.postgres.bulk import columns as postgres_columns
from interlock.store.selection import Selection
from interlock.store.sqlite.bulk import columns as sqlite_columns
from tests.contract.kit import claim_rules, decided, many
from tests.kit import EPOCH
from tests.plans.conftest import Scene, Scenes
from tests.plans.query_cost import PostgresMeter, _nodes, _pages

PAGE = 500
FIRST, LAST = "00000001-0000-7000-8000-000000000000", "00000003-0000-7000-8000-00000000ffff"
"""A range with 300,000 jobs of the crowd."""
WAITING = Selection(JobFilter(kind="mail", queue="default"), ("pending", "running"))
"""Half of the jobs of the table, between others."""
SELECTIONS = [
    WAITING,
    Selection(JobFilter(kind="chore", error_like="timeout"), ("pending",)),
    Selection(JobFilter(kind="mail", since=EPOCH), ("succeeded", "failed")),
    Selection(JobFilter(state="FAILED"), ("failed",), failures=True, redriven=True),
]
NAMES = ["waiting", "error", "ended", "failures"]


def plan(scene: Scene, selection: Selection, start: str, last: str) -> Any:
    """Return the plan of one page: of PostgreSQL with its costs, of SQLite its lines."""
    store: Any = scene.store
    given = {"start": start, "last": last, "limit": PAGE}
    if isinstance(scene.meter, PostgresMeter):
        statement = store.session.statement("page_selected", postgres_columns(selection) | given)
        return scene.meter._explain(store.session.queries["walk_plans"], statement)
    connection = store.file.connection()
    query = f"EXPLAIN QUERY PLAN {store.session.queries['page_selected']}"
    return [row[3] for row in connection.execute(query, sqlite_columns(selection) | given)]


@pytest.mark.parametrize("selection", SELECTIONS, ids=NAMES)
def test_page_walks_a_range_of_ids_and_sorts_nothing(scenes: Scenes, selection: Selection) -> None:
    """Whatever the filter, and although nobody has analysed the table."""
    scene = scenes.crowded
    found = plan(scene, selection, FIRST, LAST)
    if isinstance(scene.meter, PostgresMeter):
        nodes = [(node["Node Type"], node.get("Index Name")) for node in _nodes(found)]
        assert ("Index Scan", "jobs_pkey") in nodes
        assert {kind for kind, _ in nodes} <= {"Limit", "Index Scan", "Index Only Scan"}
        walk = next(node for node in _nodes(found) if node.get("Index Name") == "jobs_pkey")
        assert "id >=" in walk["Index Cond"]
        assert "id <=" in walk["Index Cond"]
    else:
        assert "SEARCH j USING PRIMARY KEY (id>? AND id<?)" in found
        assert not [line for line in found if "TEMP B-TREE" in line or line == "SCAN j"]


def test_every_page_sets_its_plan_first(small_postgres: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own transaction. A plan from statistics may sort all jobs that match, for every page."""
    store: Any = small_postgres.store
    store.bulk.page(WAITING, FIRST, LAST, PAGE)
    sent: list[str] = []
    execute = psycopg.Cursor.execute

    def spy(cursor: Any, query: Any, *args: Any, **given: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        sent.append(next((word for word in ("enable_sort", "ORDER BY j.id LIMIT") if word in text), text))
        return execute(cursor, query, *args, **given)

    monkeypatch.setattr(psycopg.Cursor, "execute", spy)
    store.bulk.page(WAITING, FIRST, LAST, PAGE)
    assert sent == ["BEGIN", "enable_sort", "ORDER BY j.id LIMIT", "COMMIT"]


def test_cost_of_a_page_does_not_depend_on_its_position(scenes: Scenes) -> None:
    """The last page of 100,000 jobs costs as much as the first: together, the pages read each job once."""
    scene = scenes.crowded
    ends = [f"00000002-0000-7000-8000-{number:012x}" for number in (1, 100_000 - PAGE + 1, 100_000)]
    costs: list[int] = []
    for start in ends[:2]:
        if isinstance(scene.meter, PostgresMeter):
            costs.append(_pages(plan(scene, WAITING, start, ends[2])))
        else:
            costs.append(scene.meter.cost(lambda start=start: scene.store.bulk.page(WAITING, start, ends[2], PAGE)))
        assert len(scene.store.bulk.page(WAITING, start, ends[2], PAGE)) == PAGE
    assert max(costs) <= 1.5 * min(costs), costs
    assert scene.store.bulk.page(WAITING, next_id(ends[2]), ends[2], PAGE) == []
    if isinstance(scene.meter, PostgresMeter):
        assert max(costs) < PAGE / 5, costs


@pytest.mark.parametrize("name", ["count_live", "count_ended"])
def test_count_reads_only_indexes_of_its_phases(scenes: Scenes, name: str) -> None:
    """Of a large table that is mostly ended jobs, waiting ones are counted by the indexes that claims use."""
    scene = scenes.crowded
    selection = WAITING if name == "count_live" else SELECTIONS[2]
    if isinstance(scene.meter, PostgresMeter):
        assert scene.meter.whole_of(name) == []
    else:
        # SQLite calls it a scan of j, too, that the counting statement reads the rows of the inner one.
        whole = scene.meter.whole(lambda: scene.store.bulk.count(selection))
        assert whole == (["SCAN j"] if name == "count_live" else [])


@pytest.mark.parametrize("rows", [1, 12, 120])
@pytest.mark.parametrize(
    "statement",
    ["redrivable", "note_redrives", "delete_jobs", "jobs_by_id", "request_cancel"],
)
def test_statements_for_a_batch_read_no_whole_table(small_postgres: Scene, statement: str, rows: int) -> None:
    """A session keeps its plans while the tables grow."""
    small_postgres.store.queue.enqueue(many(rows))
    leases = small_postgres.store.queue.claim("ann", claim_rules("mail"), ["default"], rows)
    small_postgres.store.transitions.move([decided(lease, FailedFinally("x")) for lease in leases[::2]])
    small_postgres.place.raw.script("ANALYZE")
    assert isinstance(small_postgres.meter, PostgresMeter)
    assert small_postgres.meter.whole_of(statement) == []
