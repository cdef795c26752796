"""The mutants of the commit boundary, which `mutant_list` includes."""

from tests.mutant import Mutant

PG, LITE = "src/interlock/store/postgres", "src/interlock/store/sqlite"
CONTRACT = "tests/contract"

COMMIT_MUTANTS = [
    Mutant(
        "refused commit",
        "A commit with a stale fence runs no function and is rolled back",
        "src/interlock/store/commit_boundary.py",
        "job = writer.lock(",
        "raise FenceRefused(writer.find_refusal(run, move))",
        "return",
        (f"{CONTRACT}/test_commit.py",),
        "sqlite",
    ),
    Mutant(
        "savepoint",
        "A function that ends the transaction itself moves no job",
        "src/interlock/store/commit_boundary.py",
        "call_in_time(writer.session",
        "run(RELEASE)",
        "pass",
        (f"{CONTRACT}/test_commit.py",),
    ),
    Mutant(
        "commit timeout",
        "A commit function that takes too long is rolled back",
        "src/interlock/store/commit_boundary.py",
        "_call(body, tx, job)",
        "> timeout:",
        "< 0:",
        (f"{CONTRACT}/test_commit.py",),
        "sqlite",
    ),
    Mutant(
        "postgres group fence",
        "A stale worker moves nothing",
        f"{PG}/queries",
        "-- name: lock_group",
        "(a.holder, a.from_status",
        "(e.holder, a.from_status",
        (f"{CONTRACT}/test_commit_group.py",),
        "postgres",
    ),
    Mutant(
        "postgres group waits",
        "A locked row delays only the commit of its own job",
        f"{PG}/queries",
        "-- name: lock_group",
        "OF e, j SKIP LOCKED",
        "OF e, j",
        (f"{CONTRACT}/test_commit_group_locks.py",),
    ),
    Mutant(
        "check before COMMIT",
        "No function's writes are stored without its move",
        f"{PG}/commit_single.py",
        "def _end(",
        'checked = send(conn, session.statement("require_moved", _after(move, job) | {"transaction": transaction}))',
        "pass",
        (f"{CONTRACT}/test_commit_misuse.py",),
        "postgres",
    ),
    Mutant(
        "undone function",
        "A function that raises leaves no writes in its group",
        "src/interlock/store/commit_group.py",
        "def call_functions(",
        "savepoints.undo()",
        "pass",
        (f"{CONTRACT}/test_commit_group.py",),
    ),
    Mutant(
        "moves of a group",
        "A group whose moves did not match stores nothing",
        f"{LITE}/commit_group.py",
        "def commit_group(",
        "called.done and not writer.write_each(run, called.done)",
        "not writer.write_each(run, called.done) and False",
        (f"{CONTRACT}/test_commit_group_misuse.py",),
        "sqlite",
    ),
]
