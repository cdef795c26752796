"""The mutants of schedules."""

from tests.mutant import Mutant

_SCHEDULER = "src/interlock/maintenance/scheduler.py"
_RUN_TIME = ("tests/loops/test_schedules_at_run_time.py",)
_ROWS = ("tests/contract/test_schedule_rows.py",)
_RACES = ("tests/contract/test_schedule_races.py",)
_LOCK = "-- name: schedules.lock\n"

SCHEDULE_MUTANTS = [
    Mutant(
        "tick of a paused schedule",
        "A schedule creates no job after its pause was stored",
        _SCHEDULER,
        "def _fire(",
        "stored.paused_at is not None",
        "False",
        _RUN_TIME,
        "sqlite",
    ),
    Mutant(
        "unlocked schedule",
        "A pause waits for the tick that is being stored",
        "src/interlock/store/postgres/queries",
        _LOCK,
        " FOR NO KEY UPDATE",
        "",
        _RACES,
        "postgres",
    ),
    Mutant(
        "schedule change without a lock",
        "The time of a change is later than the ticks that it waited for",
        "src/interlock/store/postgres/schedules.py",
        "def _change(",
        "with_fixed_plans(session.fixed_plans, lock, change)[1]",
        "with_fixed_plans(session.fixed_plans, change)[0]",
        _RACES,
        "postgres",
    ),
    Mutant(
        "schedule that catches up its pause",
        "The ticks of a pause get no jobs",
        "src/interlock/store/sqlite/queries",
        "-- name: schedules.resume\n",
        ", starts_at = :now",
        "",
        (*_ROWS, *_RUN_TIME),
        "sqlite",
    ),
    Mutant(
        "schedule declared over a change",
        "A schedule that was changed at run time stays so when the code declares it again",
        "src/interlock/store/sqlite/queries",
        "-- name: schedules.declare\n",
        "cron = CASE WHEN changed_by IS NULL THEN excluded.cron ELSE cron END",
        "cron = excluded.cron",
        (*_ROWS, *_RUN_TIME),
        "sqlite",
    ),
    Mutant(
        "schedule with two jobs after an absence",
        'With catch_up="last", an absence of workers makes one job',
        "src/interlock/core/cron.py",
        'case "last":',
        "cron.between(last, now, 1)",
        "cron.between(last, now, 2)",
        ("tests/pure/test_tick.py",),
    ),
]
