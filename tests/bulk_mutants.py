"""The mutants of operations on many jobs."""

from tests.mutant import Mutant

_PLAN = "src/interlock/store/redrive_plan.py"
_BULK = "src/interlock/operate/bulk.py"
_RACES = ("tests/contract/test_bulk_races.py",)
_JOBS = ("tests/surface/test_app_bulk.py",)
_REDRIVES = ("tests/surface/test_app_bulk_redrive.py",)

BULK_MUTANTS = [
    Mutant(
        "unlocked redrive",
        "Two operators at the same time redrive a job once",
        _PLAN,
        "def redriving(",
        "yield dialect.lock_jobs(list(new))",
        "pass",
        _RACES,
        "postgres",
    ),
    Mutant(
        "repeated redrive",
        "A job with a note about a redrive is not redriven again",
        _PLAN,
        "def redriving(",
        "(again or not before[old])",
        "True",
        _REDRIVES,
        "sqlite",
    ),
    Mutant(
        "revived cancelled job",
        "A redrive by filters leaves out cancelled jobs unless their state is named",
        "src/interlock/operate/bulk_actions.py",
        "def select(self, matching: JobFilter, phases: tuple[Phase, ...]) -> Selection:\n        # Cancelled",
        "failures=matching.state is None",
        "failures=False",
        _REDRIVES,
        "sqlite",
    ),
    Mutant(
        "forgotten filter",
        "An operation without a filter is refused",
        _BULK,
        "def __init__(",
        "if matching.is_empty:",
        "if False:",
        _JOBS,
        "sqlite",
    ),
    Mutant(
        "later jobs",
        "An operation leaves jobs alone that are stored while it runs",
        _BULK,
        "def batches(",
        "start, last, BATCH",
        'start, "f" * 36, BATCH',
        _JOBS,
        "sqlite",
    ),
    Mutant(
        "jobs that end later",
        "An operation leaves jobs alone that end while it runs",
        _BULK,
        "def __init__(",
        "ended_until=self._counted.ended_until",
        "ended_until=None",
        _JOBS,
        "sqlite",
    ),
    Mutant(
        "deletion without a note",
        "The history of a deleted job says who deleted it",
        "src/interlock/store/sqlite/bulk.py",
        "def delete(",
        'run(session.statement("delete_jobs.audit", given, answers=False))',
        "",
        ("tests/contract/test_bulk.py",),
        "sqlite",
    ),
]
