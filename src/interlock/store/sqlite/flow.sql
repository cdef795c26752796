-- Limits, pauses, batches and dependencies, on SQLite. Plain jobs have no row in any of these tables.

-- ---------------------------------------------------------------- limits and pauses
-- Limits and pauses of queues and kinds. A row of scope `key` limits each concurrency key of the kind `name`.
CREATE TABLE interlock_limits (
  scope        TEXT NOT NULL CHECK (scope IN ('queue', 'kind', 'key')),
  name         TEXT NOT NULL,
  max_running  INTEGER CHECK (max_running >= 0),
  rate_count   REAL CHECK (rate_count > 0),
  rate_seconds REAL CHECK (rate_seconds > 0),
  burst        REAL CHECK (burst >= 1),
  declared     TEXT CHECK (declared IS NULL OR json_valid(declared)),
  changed_by   TEXT,
  paused_at    TEXT CHECK (paused_at GLOB '????-??-??T??:??:??.??????Z'),
  paused_by    TEXT,
  pause_reason TEXT,
  tokens       REAL,
  tokens_at    TEXT CHECK (tokens_at GLOB '????-??-??T??:??:??.??????Z'),
  PRIMARY KEY (scope, name),
  CONSTRAINT limits_rate CHECK ((rate_count IS NULL) + (rate_seconds IS NULL) + (burst IS NULL) IN (0, 3)),
  CONSTRAINT limits_pause CHECK ((paused_at IS NULL) = (paused_by IS NULL))
) STRICT, WITHOUT ROWID;

-- How many more jobs with a concurrency key may start, of a kind that limits the rate of each key. A key without a row
-- has all its tokens.
CREATE TABLE interlock_key_rates (
  kind            TEXT NOT NULL,
  concurrency_key TEXT NOT NULL,
  tokens          REAL NOT NULL,
  tokens_at       TEXT NOT NULL CHECK (tokens_at GLOB '????-??-??T??:??:??.??????Z'),
  PRIMARY KEY (kind, concurrency_key)
) STRICT, WITHOUT ROWID;

-- When a claim must look for jobs with a concurrency key: when one becomes due, and when another one has ended. An
-- empty queue means all queues. The priority is that of the next job, as far as it is known. Rows are only inserted and
-- deleted.
CREATE TABLE interlock_key_checks (
  id              INTEGER PRIMARY KEY,
  check_at        TEXT NOT NULL CHECK (check_at GLOB '????-??-??T??:??:??.??????Z'),
  priority        INTEGER NOT NULL,
  kind            TEXT NOT NULL,
  queue           TEXT NOT NULL,
  concurrency_key TEXT NOT NULL
) STRICT;
CREATE INDEX interlock_key_checks_due ON interlock_key_checks (kind, queue, priority DESC, check_at);

-- What operators and programs changed about queues, kinds and schedules. Insert only.
CREATE TABLE interlock_operations (
  id     TEXT NOT NULL PRIMARY KEY CHECK (length(id) = 36),
  at     TEXT NOT NULL CHECK (at GLOB '????-??-??T??:??:??.??????Z'),
  scope  TEXT NOT NULL,
  name   TEXT NOT NULL,
  event  TEXT NOT NULL,
  actor  TEXT NOT NULL,
  reason TEXT,
  detail TEXT CHECK (detail IS NULL OR json_valid(detail))
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------- batches and dependencies
-- A named set of jobs. A flow is a batch that may contain other batches.
CREATE TABLE interlock_batches (
  id         TEXT NOT NULL PRIMARY KEY CHECK (length(id) = 36),
  parent     TEXT CHECK (length(parent) = 36),
  name       TEXT NOT NULL,
  created_at TEXT NOT NULL CHECK (created_at GLOB '????-??-??T??:??:??.??????Z'),
  created_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX interlock_batches_parent ON interlock_batches (parent) WHERE parent IS NOT NULL;

-- A job waits until all that it needs has ended: jobs, and batches. `outcome` is NULL until then, or until a failure
-- decides that the job is cancelled.
CREATE TABLE interlock_dependencies (
  job_id    TEXT NOT NULL CHECK (length(job_id) = 36),
  needs     TEXT NOT NULL CHECK (length(needs) = 36),
  is_batch  INTEGER NOT NULL CHECK (is_batch IN (0, 1)),
  on_failed TEXT NOT NULL CHECK (on_failed IN ('cancel', 'run', 'hold')),
  outcome   TEXT CHECK (outcome IN ('succeeded', 'failed')),
  PRIMARY KEY (job_id, needs)
) STRICT, WITHOUT ROWID;
CREATE INDEX interlock_dependencies_needs ON interlock_dependencies (needs);
CREATE INDEX interlock_dependencies_open ON interlock_dependencies (job_id) WHERE outcome IS NULL;
CREATE INDEX interlock_dependencies_failed ON interlock_dependencies (job_id) WHERE outcome = 'failed';

-- What must be found out about dependencies, after the transaction that caused it: `ended`, what waits for this job;
-- `arrived`, which of its dependencies have ended already; `changed`, whether the job still waits. A check is due at
-- once, whatever the clock says: in 1970. Rows are only inserted and deleted.
CREATE TABLE interlock_flow_checks (
  id       INTEGER PRIMARY KEY,
  check_at TEXT NOT NULL CHECK (check_at GLOB '????-??-??T??:??:??.??????Z'),
  job_id   TEXT NOT NULL CHECK (length(job_id) = 36),
  step     TEXT NOT NULL CHECK (step IN ('ended', 'arrived', 'changed'))
) STRICT;
CREATE INDEX interlock_flow_checks_due ON interlock_flow_checks (check_at);

-- ---------------------------------------------------------------- triggers
-- A job with a concurrency key that may start later must be looked at when it is due, and again when another one stops.
-- The end of the execution is the time of this transaction.
CREATE TRIGGER interlock_jobs_new_key AFTER INSERT ON interlock_jobs WHEN NEW.concurrency_key IS NOT NULL
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on jobs: its kind has no limit per concurrency key')
    WHERE NOT EXISTS (SELECT 1 FROM interlock_limits l WHERE l.scope = 'key' AND l.name = NEW.kind);
  INSERT INTO interlock_key_checks (check_at, priority, kind, queue, concurrency_key)
    SELECT NEW.due_at, NEW.priority, NEW.kind, NEW.queue, NEW.concurrency_key WHERE NEW.blocked_at IS NULL;
END;

CREATE TRIGGER interlock_jobs_flow AFTER UPDATE ON interlock_jobs
  WHEN NEW.concurrency_key IS NOT NULL OR (NEW.finished_at IS NOT NULL AND (NEW.batch IS NOT NULL OR NEW.awaited = 1))
BEGIN
  INSERT INTO interlock_key_checks (check_at, priority, kind, queue, concurrency_key)
    SELECT coalesce((SELECT e.finished_at FROM interlock_executions e WHERE e.job_id = NEW.id
        AND e.attempt = NEW.attempt), NEW.created_at),
      coalesce((SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_by_key
        WHERE j.kind = NEW.kind AND j.concurrency_key = NEW.concurrency_key AND j.queue = NEW.queue
          AND j.phase = 'pending' AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.blocked_at IS NULL
          AND j.concurrency_key IS NOT NULL AND j.finished_at IS NULL ORDER BY j.priority DESC LIMIT 1), NEW.priority),
      NEW.kind, '', NEW.concurrency_key
    WHERE NEW.concurrency_key IS NOT NULL AND OLD.phase = 'running' AND NEW.phase <> 'running';
  INSERT INTO interlock_key_checks (check_at, priority, kind, queue, concurrency_key)
    SELECT NEW.due_at, NEW.priority, NEW.kind, NEW.queue, NEW.concurrency_key
    WHERE NEW.concurrency_key IS NOT NULL AND NEW.phase = 'pending' AND NEW.held_at IS NULL
      AND NEW.blocked_at IS NULL AND NEW.cancel_requested_at IS NULL;
  INSERT INTO interlock_flow_checks (check_at, job_id, step)
    SELECT '1970-01-01T00:00:00.000000Z', NEW.id, 'ended'
    WHERE NEW.finished_at IS NOT NULL AND (NEW.batch IS NOT NULL OR NEW.awaited = 1);
END;

CREATE TRIGGER interlock_jobs_deleted_flow AFTER DELETE ON interlock_jobs
BEGIN
  DELETE FROM interlock_dependencies WHERE job_id = OLD.id;
  DELETE FROM interlock_batches WHERE id = OLD.batch
    AND NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.batch = OLD.batch)
    AND NOT EXISTS (SELECT 1 FROM interlock_batches c CROSS JOIN interlock_jobs j ON j.batch = c.id
      WHERE c.parent = OLD.batch);
  DELETE FROM interlock_batches WHERE parent = OLD.batch
    AND NOT EXISTS (SELECT 1 FROM interlock_batches b WHERE b.id = OLD.batch);
END;

CREATE TRIGGER interlock_batches_deleted AFTER DELETE ON interlock_batches WHEN OLD.parent IS NOT NULL
BEGIN
  DELETE FROM interlock_batches WHERE id = OLD.parent
    AND NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.batch = OLD.parent)
    AND NOT EXISTS (SELECT 1 FROM interlock_batches c CROSS JOIN interlock_jobs j ON j.batch = c.id
      WHERE c.parent = OLD.parent);
  DELETE FROM interlock_batches WHERE parent = OLD.parent
    AND NOT EXISTS (SELECT 1 FROM interlock_batches b WHERE b.id = OLD.parent);
END;

CREATE TRIGGER interlock_operations_replace BEFORE INSERT ON interlock_operations
  WHEN EXISTS (SELECT 1 FROM interlock_operations o WHERE o.id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on operations: recorded operations never change');
END;

CREATE TRIGGER interlock_operations_update BEFORE UPDATE ON interlock_operations
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on operations: recorded operations never change');
END;

CREATE TRIGGER interlock_operations_delete BEFORE DELETE ON interlock_operations
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on operations: recorded operations never change');
END;
