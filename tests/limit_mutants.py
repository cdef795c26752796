"""The mutants of limits and pauses."""

from tests.mutant import Mutant

_PG = "src/interlock/store/postgres"
_CLAIM = "src/interlock/store/limited_claim.py"
_INTERLEAVINGS = ("tests/contract/test_limit_interleavings.py",)
_LIMITS = ("tests/contract/test_limits.py",)
_KEYS = ("tests/contract/test_concurrency_keys.py",)

LIMIT_MUTANTS = [
    Mutant(
        "overtaken claim",
        "A claim that began before a pause or a new limit obeys it",
        f"{_PG}/triggers.sql",
        "CREATE FUNCTION interlock.check_new_executions()",
        "IF EXISTS (SELECT FROM interlock.limits l WHERE l.scope <> 'key') THEN",
        "IF false THEN",
        _INTERLEAVINGS,
    ),
    Mutant(
        "pause and claims in flight",
        "A pause waits for claims that did not see it",
        f"{_PG}/triggers.sql",
        "CREATE FUNCTION interlock.check_new_executions()",
        "PERFORM pg_advisory_xact_lock_shared(1768846437,",
        "PERFORM pg_advisory_xact_lock_shared(1,",
        _INTERLEAVINGS,
    ),
    Mutant(
        "new limit and a count",
        "A new limit waits for claims that have counted",
        f"{_PG}/queries",
        "-- name: limits.share\n",
        "pg_advisory_xact_lock_shared({claims_lock})",
        "1",
        _INTERLEAVINGS,
    ),
    Mutant(
        "unlocked limit",
        "A claim counts only within limits whose rows it has locked",
        f"{_PG}/limited_claim.py",
        "def read_limits(",
        ".issubset(locked.fetchall())",
        "",
        _INTERLEAVINGS,
    ),
    Mutant(
        "rate and latency",
        "A rate counts from the time of the leases",
        f"{_PG}/limited_claim.py",
        "def lease(",
        "rows[0][0] if rows else None",
        "None",
        _LIMITS,
        "postgres",
    ),
    Mutant(
        "lost round",
        "An error in a later round of a claim loses no lease",
        _CLAIM,
        "def run_rounds(",
        "if not leases:",
        "if True:",
        _KEYS,
    ),
    Mutant(
        "hidden job",
        "Jobs that a worker cannot lease do not hide those behind them",
        _CLAIM,
        "def _read_key_jobs(",
        "if key.postponed]",
        "if False]",
        _KEYS,
    ),
    Mutant(
        "silent deploy",
        "A deploy that changes a limit per key starts the jobs that may start now",
        "src/interlock/store/declared_limits.py",
        "def store_limits(",
        "in changed:",
        "in ():",
        ("tests/contract/test_declared_limits.py",),
    ),
    Mutant(
        "silent end",
        "The end of a limited job wakes idle workers",
        f"{_PG}/triggers.sql",
        "CREATE FUNCTION interlock.note_change(",
        "IF stopped AND job.limited THEN",
        "IF false THEN",
        ("tests/contract/test_listen_by_store.py",),
        "limited_job",
    ),
    Mutant(
        "handed-over jobs of a queue",
        "The limit of a queue counts jobs on which an external system works",
        f"{_PG}/queries",
        "-- fragment: running\n",
        "WHERE {handed_over} AND j.queue = l.name",
        "WHERE false AND {handed_over}",
        _LIMITS,
        "postgres",
    ),
]
