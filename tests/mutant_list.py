"""The mutants of `make mutants`: the change, the promise that it breaks, and the tests that must fail."""

from tests.bulk_mutants import BULK_MUTANTS
from tests.commit_mutants import COMMIT_MUTANTS
from tests.flow_mutants import FLOW_MUTANTS
from tests.limit_mutants import LIMIT_MUTANTS
from tests.mutant import Mutant
from tests.partition_mutants import PARTITION_MUTANTS
from tests.question_mutants import QUESTION_MUTANTS
from tests.schedule_mutants import SCHEDULE_MUTANTS
from tests.unique_mutants import UNIQUE_MUTANTS

PG, LITE = "src/interlock/store/postgres", "src/interlock/store/sqlite"
CONTRACT, LOOPS, PURE = "tests/contract", "tests/loops", "tests/pure"


def _pg(name: str, promise: str, after: str, text: str, instead: str, *tests: str) -> Mutant:
    return Mutant(f"postgres {name}", promise, f"{PG}/queries", after, text, instead, tests, "postgres")


def _lite(name: str, promise: str, after: str, text: str, instead: str, *tests: str) -> Mutant:
    return Mutant(f"sqlite {name}", promise, f"{LITE}/queries", after, text, instead, tests, "sqlite")


FENCE = "A stale worker moves nothing"
RENEW = "A stale worker renews no lease"
RECEIPT = "A stale worker writes no receipt"
ADOPT = "A worker whose execution was adopted is refused"
STALE = f"{CONTRACT}/test_stale_holder.py"
REFUSALS = f"{CONTRACT}/test_job_triggers.py"
EXECUTIONS = f"{CONTRACT}/test_execution_triggers.py"
RECEIPTS = f"{CONTRACT}/test_receipts.py"

MUTANTS = (
    # ------------------------------------------------------------ statements of PostgreSQL
    _pg("move fence", FENCE, "-- name: move\n", "(a.holder, a.from_status", "(e.holder, a.from_status", STALE),
    _pg("finish fence", FENCE, "-- name: finish\n", "(a.holder, 'IN_PROGRESS'", "(e.holder, 'IN_PROGRESS'", STALE),
    _pg(
        "plain claim and limits",
        "A plain claim leaves limited kinds to the claim with limits",
        "-- fragment: unlimited\n",
        "l.scope = 'kind'",
        "false",
        f"{CONTRACT}/test_limits.py",
    ),
    _pg(
        "plain claim and suspects",
        "A plain claim leaves suspects to the general one",
        "-- name: claim.plain\n",
        "AND {suspect}",
        "AND false",
        f"{CONTRACT}/test_plain_path.py",
    ),
    _pg(
        "finish in step",
        "An execution never ends without its job",
        "-- name: finish\n",
        "(SELECT count(*) FROM settled), count(*)",
        "count(*), count(*)",
        f"{CONTRACT}/test_finish_in_step.py",
    ),
    _pg("commit fence", FENCE, "-- name: lock\n", "(:holder::int, :from_status", "(e.holder, :from_status", STALE),
    _pg("renew fence", RENEW, "-- name: renew\n", "(a.holder, true", "(e.holder, true", STALE),
    _pg("receipt fence", RECEIPT, "-- fragment: fenced", "(:holder::int, true)", "(e.holder, true)", RECEIPTS),
    _pg("adopted holder", ADOPT, "-- fragment: adopting", "holder = e.holder + 1", "holder = e.holder", STALE),
    _pg(
        "adopt expired",
        "No process adopts a lease that has not expired",
        "-- name: adopt\n",
        "e.lease_expires_at <= (",
        "e.lease_expires_at >= (",
        f"{CONTRACT}/test_adopt.py",
    ),
    _pg(
        "take version",
        "A job that has changed is not cancelled or expired",
        "-- name: take\n",
        "(a.version, a.source",
        "(j.version, a.source",
        f"{CONTRACT}/test_take.py",
    ),
    _pg(
        "effect answer",
        "A stale worker stores no answer of an external system",
        "-- name: record_effect\n",
        "r.holder = :holder::int",
        "true",
        RECEIPTS,
    ),
    _pg(
        "cancel heard",
        "A cancel request that arrives before the settling move is obeyed",
        "-- name: move\n",
        "NOT (a.refuse_if_cancel_requested AND",
        "NOT (false AND",
        f"{CONTRACT}/test_cancel.py",
    ),
    _pg(
        "retention age",
        "A job is deleted only after its retention",
        "-- name: prune\n",
        "- :age::float8",
        "+ :age::float8",
        f"{CONTRACT}/test_retention.py",
    ),
    _pg(
        "clock steps",
        "A clock that is set back stops no job",
        "-- fragment: refreshed",
        "greatest(c.now, j.updated_at + interval '1 microsecond')",
        "c.now",
        f"{CONTRACT}/test_clock_steps.py",
    ),
    # ------------------------------------------------------------ statements of SQLite
    _lite("finish fence", FENCE, "-- name: finish\n", "holder = :holder", "holder = holder", STALE),
    _lite("move fence", FENCE, "-- name: move\n", "AND holder = :holder AND status", "AND status", STALE),
    _lite("commit fence", FENCE, "-- name: lock\n", "AND e.holder = :holder", "", STALE),
    _lite("renew fence", RENEW, "-- name: renew\n", "AND holder = :holder", "", STALE),
    _lite("receipt fence", RECEIPT, "-- fragment: fenced", "AND e.holder = :holder", "", RECEIPTS),
    _lite("adopted holder", ADOPT, "-- name: adopt.execution", "holder = holder + 1", "holder = holder", STALE),
    _lite(
        "effect answer",
        "A stale worker stores no answer of an external system",
        "-- name: record_effect\n",
        "AND holder = :holder",
        "",
        RECEIPTS,
    ),
    _lite(
        "cancel heard",
        "A cancel request that arrives before the settling move is obeyed",
        "-- name: move\n",
        "NOT (:refuse_if_cancel_requested AND",
        "NOT (false AND",
        f"{CONTRACT}/test_cancel.py",
    ),
    # ------------------------------------------------------------ rules of the database
    Mutant(
        "postgres undeclared transition",
        "The database rejects a transition that the lifecycle does not declare",
        f"{PG}/triggers.sql",
        "CREATE FUNCTION interlock.check_job()",
        "interlock.accepts_change(",
        "true OR interlock.accepts_change(",
        (REFUSALS,),
        "postgres",
    ),
    Mutant(
        "postgres current attempt",
        "A new execution is the current attempt of its job",
        f"{PG}/triggers.sql",
        "CREATE FUNCTION interlock.check_new_executions()",
        "AND j.attempt = a.attempt",
        "",
        (EXECUTIONS,),
        "postgres",
    ),
    Mutant(
        "postgres one execution",
        "A job has one live execution",
        f"{PG}/schema.sql",
        "",
        "CREATE UNIQUE INDEX executions_one",
        "CREATE INDEX executions_one",
        (EXECUTIONS,),
        "postgres",
    ),
    Mutant(
        "postgres audit",
        "The audit trail is insert only",
        f"{PG}/triggers.sql",
        "CREATE TRIGGER audit_update",
        "BEFORE UPDATE ON",
        "BEFORE UPDATE OF job_id ON",
        (EXECUTIONS,),
        "postgres",
    ),
    Mutant(
        "sqlite undeclared transition",
        "The database rejects a transition that the lifecycle does not declare",
        f"{LITE}/triggers.sql",
        "CREATE TRIGGER interlock_jobs_update",
        "ELSE EXISTS (",
        "ELSE true OR EXISTS (",
        (REFUSALS,),
        "sqlite",
    ),
    Mutant(
        "sqlite holder",
        "A holder grows by one at a time",
        f"{LITE}/triggers.sql",
        "CREATE TRIGGER interlock_executions_update",
        "NEW.holder - OLD.holder IN (0, 1)",
        "NEW.holder - OLD.holder IN (0, 1, 2)",
        (EXECUTIONS,),
        "sqlite",
    ),
    Mutant(
        "postgres holder",
        "A holder grows by one at a time",
        f"{PG}/triggers.sql",
        "CREATE FUNCTION interlock.check_execution()",
        "NEW.holder - OLD.holder IN (0, 1)",
        "NEW.holder - OLD.holder IN (0, 1, 2)",
        (EXECUTIONS,),
        "postgres",
    ),
    Mutant(
        "postgres idempotency key",
        "One job per idempotency key",
        f"{PG}/schema.sql",
        "",
        "CREATE UNIQUE INDEX jobs_idempotency",
        "CREATE INDEX jobs_idempotency",
        (f"{CONTRACT}/test_keys.py",),
        "postgres",
    ),
    *COMMIT_MUTANTS,
    *PARTITION_MUTANTS,
    *QUESTION_MUTANTS,
    *UNIQUE_MUTANTS,
    *BULK_MUTANTS,
    *SCHEDULE_MUTANTS,
    *FLOW_MUTANTS,
    *LIMIT_MUTANTS,
    # ------------------------------------------------------------ decisions
    Mutant(
        "spent tries",
        "A failed attempt costs a try",
        "src/interlock/core/move_builder.py",
        "",
        "max(self.job.tries_left - 1, 0)",
        "self.job.tries_left",
        (f"{PURE}/test_decide.py",),
    ),
    Mutant(
        "backoff jitter",
        "Jobs that failed together are not retried together",
        "src/interlock/core/backoff.py",
        "def delay(",
        "random * self.ceiling(failures)",
        "self.ceiling(failures)",
        (f"{PURE}/test_backoff.py",),
    ),
    Mutant(
        "backoff cap",
        "A delay is never longer than the cap",
        "src/interlock/core/backoff.py",
        "def ceiling(",
        "return self.cap if steps",
        "return self.cap * 2 if steps",
        (f"{PURE}/test_backoff.py",),
    ),
    Mutant(
        "payload size",
        "A payload that is too large is refused before it is stored",
        "src/interlock/core/payload.py",
        "def encode(",
        "if size > limit:",
        "if size < 0:",
        (f"{PURE}/test_payload.py",),
    ),
    # ------------------------------------------------------------ the worker
    Mutant(
        "trusted lease",
        "A worker stops trusting its lease before it ends",
        "src/interlock/engine/held_execution.py",
        "def trusted_until(",
        " - min(1.0, self.seconds / 8)",
        " + self.seconds",
        (f"{LOOPS}/test_leases.py",),
        "sqlite",
    ),
    Mutant(
        "cancelled handler",
        "A handler whose job has a cancel request raises Cancelled",
        "src/interlock/engine/held_execution.py",
        "def check(",
        'if self.stop == "cancel":',
        "if False:",
        (f"{LOOPS}/test_cancel_running.py",),
        "sqlite",
    ),
    Mutant(
        "late heartbeat",
        "A slow write of progress delays no heartbeat",
        "src/interlock/worker/heartbeat.py",
        "def _tick(",
        "if due:",
        "if not due:\n            self._due_at += self._monotonic() - began\n        if due:",
        (f"{LOOPS}/test_progress.py",),
        "sqlite",
    ),
    Mutant(
        "child without run",
        "A child process calls a handler without run as the worker does",
        "src/interlock/worker/subprocess/child.py",
        "def _run_handler(",
        "signature.handler",
        "signature.fn",
        (f"{LOOPS}/test_children.py",),
    ),
    # ------------------------------------------------------------ secrets and signatures
    Mutant(
        "webhook signature",
        "A message with a wrong signature is refused",
        "src/interlock/jobs/webhook.py",
        "def verify(",
        "any(hmac.compare_digest(mine, theirs)",
        "any(True",
        (f"{PURE}/test_webhook.py",),
    ),
    Mutant(
        "webhook age",
        "An old message is refused",
        "src/interlock/jobs/webhook.py",
        "def verify(",
        "> tolerance",
        "< 0",
        (f"{PURE}/test_webhook.py",),
    ),
    Mutant(
        "redaction",
        "A value under a secret name is not shown",
        "src/interlock/telemetry/redact.py",
        "def secret(",
        "return any(",
        "return all(",
        (f"{PURE}/test_redact.py", f"{LOOPS}/test_logs.py"),
    ),
)
