-- Interlock on SQLite. The names of these tables and columns are a contract: your own SQL may read them.
--
-- jobs        one row per job; `state` is a projection of its executions, `phase` its coarse form
-- executions  one row per attempt, the durable truth; fenced by (job_id, attempt, holder)
-- audit       one row per transition (n = 0) and per note (n > 0); insert only, until it is archived
-- receipts    saved results of steps and effects
-- limits      limits and pauses of queues, kinds and concurrency keys
-- batches     named sets of jobs; `dependencies` has what each job waits for
--
-- Times are texts of one width, in UTC, so that they sort; booleans are 0 and 1; JSON is text.
--
-- The triggers in triggers.sql refuse every write that breaks a rule. No table has a rowid, so that a row has no key
-- except those that are checked.

CREATE TABLE interlock_schema_version (
  version     INTEGER NOT NULL PRIMARY KEY,
  instance    TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
  migrated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------- declarations
CREATE TABLE interlock_lifecycles (
  name          TEXT NOT NULL,
  version       INTEGER NOT NULL,
  digest        TEXT NOT NULL,
  initial       TEXT NOT NULL,
  registered_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
  PRIMARY KEY (name, version),
  UNIQUE (name, digest)
) STRICT, WITHOUT ROWID;

-- The transitions as declared.
CREATE TABLE interlock_lifecycle_edges (
  lifecycle TEXT NOT NULL,
  version   INTEGER NOT NULL,
  source    TEXT NOT NULL,
  event     TEXT NOT NULL,
  target    TEXT NOT NULL,
  PRIMARY KEY (lifecycle, version, source, event, target)
) STRICT, WITHOUT ROWID;

-- Every accepted change of a job's state, and how much its attempt and its version grow.
CREATE TABLE interlock_lifecycle_changes (
  lifecycle TEXT NOT NULL,
  version   INTEGER NOT NULL,
  source    TEXT NOT NULL,
  target    TEXT NOT NULL,
  attempts  INTEGER NOT NULL,
  arrows    INTEGER NOT NULL,
  PRIMARY KEY (lifecycle, version, source, target, attempts, arrows)
) STRICT, WITHOUT ROWID;

-- The phases that a job may have in each state.
CREATE TABLE interlock_lifecycle_phases (
  lifecycle TEXT NOT NULL,
  version   INTEGER NOT NULL,
  state     TEXT NOT NULL,
  phase     TEXT NOT NULL,
  PRIMARY KEY (lifecycle, version, state, phase)
) STRICT, WITHOUT ROWID;

CREATE TABLE interlock_kinds (
  name              TEXT NOT NULL PRIMARY KEY,
  lifecycle         TEXT NOT NULL,
  lifecycle_version INTEGER NOT NULL,
  queue             TEXT NOT NULL,
  tries             INTEGER NOT NULL,
  hooks             TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(hooks)),
  key_until         TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(key_until)),
  admits            INTEGER NOT NULL DEFAULT 0 CHECK (admits IN (0, 1)),
  check_every       REAL,
  check_batch       INTEGER,
  external_failures INTEGER NOT NULL DEFAULT 0,
  external_error    TEXT,
  external_down_at  TEXT,
  registered_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
) STRICT, WITHOUT ROWID;

-- Schedules that the code declares or that were created at run time. `declared` is what the code declares, also while
-- the schedule is changed at run time; it is empty if no code has declared the schedule.
CREATE TABLE interlock_schedules (
  name         TEXT NOT NULL PRIMARY KEY,
  kind         TEXT NOT NULL,
  cron         TEXT NOT NULL,
  tz           TEXT NOT NULL,
  catch_up     TEXT NOT NULL CHECK (catch_up IN ('last', 'none', 'all')),
  payload      TEXT NOT NULL CHECK (json_valid(payload)),
  options      TEXT NOT NULL CHECK (json_valid(options)),
  declared     TEXT CHECK (declared IS NULL OR json_valid(declared)),
  changed_by   TEXT,
  changed_at   TEXT NOT NULL,
  paused_at    TEXT,
  paused_by    TEXT,
  pause_reason TEXT,
  starts_at    TEXT NOT NULL,
  last_tick    TEXT,
  CONSTRAINT schedules_source CHECK (declared IS NOT NULL OR changed_by IS NOT NULL)
) STRICT, WITHOUT ROWID;

CREATE TABLE interlock_workers (
  name         TEXT NOT NULL PRIMARY KEY,
  host         TEXT NOT NULL,
  pid          INTEGER NOT NULL,
  state        TEXT NOT NULL,
  slots        INTEGER NOT NULL,
  busy         INTEGER NOT NULL DEFAULT 0,
  kinds        TEXT NOT NULL CHECK (json_valid(kinds)),
  queues       TEXT NOT NULL CHECK (json_valid(queues)),
  schedules    TEXT NOT NULL CHECK (json_valid(schedules)),
  started_at   TEXT NOT NULL,
  heartbeat_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------- jobs
-- The columns of a claim come first: a long payload is stored on separate pages, which a claim does not read.
CREATE TABLE interlock_jobs (
  id                  TEXT NOT NULL PRIMARY KEY CHECK (length(id) = 36),
  kind                TEXT NOT NULL,
  queue               TEXT NOT NULL,
  priority            INTEGER NOT NULL,
  lifecycle           TEXT NOT NULL,
  lifecycle_version   INTEGER NOT NULL,
  state               TEXT NOT NULL,
  phase               TEXT NOT NULL,
  version             INTEGER NOT NULL DEFAULT 0,
  attempt             INTEGER NOT NULL DEFAULT 0,
  tries               INTEGER NOT NULL,
  tries_left          INTEGER NOT NULL,
  lease_losses        INTEGER NOT NULL DEFAULT 0,
  due_at              TEXT NOT NULL CHECK (due_at GLOB '????-??-??T??:??:??.??????Z'),
  expires_at          TEXT CHECK (expires_at GLOB '????-??-??T??:??:??.??????Z'),
  created_at          TEXT NOT NULL CHECK (created_at GLOB '????-??-??T??:??:??.??????Z'),
  updated_at          TEXT NOT NULL CHECK (updated_at GLOB '????-??-??T??:??:??.??????Z'),
  finished_at         TEXT CHECK (finished_at GLOB '????-??-??T??:??:??.??????Z'),
  blocked_at          TEXT CHECK (blocked_at GLOB '????-??-??T??:??:??.??????Z'),
  key_freed           INTEGER NOT NULL DEFAULT 0 CHECK (key_freed IN (0, 1)),
  awaited             INTEGER CHECK (awaited IN (0, 1)),
  idempotency_key     TEXT,
  unique_key          TEXT,
  concurrency_key     TEXT,
  batch               TEXT CHECK (length(batch) = 36),
  cancel_requested_at TEXT CHECK (cancel_requested_at GLOB '????-??-??T??:??:??.??????Z'),
  cancel_requested_by TEXT,
  cancel_reason       TEXT,
  held_at             TEXT CHECK (held_at GLOB '????-??-??T??:??:??.??????Z'),
  held_reason         TEXT,
  scheduled_for       TEXT CHECK (scheduled_for GLOB '????-??-??T??:??:??.??????Z'),
  redrive_of          TEXT CHECK (length(redrive_of) = 36),
  root                TEXT CHECK (length(root) = 36),
  payload             TEXT NOT NULL CHECK (json_valid(payload)),
  tags                TEXT CHECK (tags IS NULL OR json_valid(tags)),
  trace               TEXT CHECK (trace IS NULL OR json_valid(trace)),
  result              TEXT CHECK (result IS NULL OR json_valid(result)),
  last_error          TEXT,
  CONSTRAINT jobs_phase    CHECK (phase IN ('pending', 'running', 'succeeded', 'failed')),
  CONSTRAINT jobs_finished CHECK ((finished_at IS NOT NULL) = (phase IN ('succeeded', 'failed'))),
  CONSTRAINT jobs_tries    CHECK (tries >= 1 AND tries_left BETWEEN 0 AND tries),
  CONSTRAINT jobs_held     CHECK (coalesce(held_at, blocked_at) IS NULL OR phase = 'pending'),
  CONSTRAINT jobs_keys     CHECK (length(idempotency_key) <= 255 AND length(unique_key) <= 255
    AND length(concurrency_key) <= 255)
) STRICT, WITHOUT ROWID;

-- The indexes that a claim walks. Jobs with a TTL have their own, ordered by expiry, so that a claim skips all expired
-- ones at once. Suspects, which have lost a lease, have their own too, so that a claim can limit their number without
-- scanning them. Blocked jobs, which wait for other jobs, are in none of them, and jobs with a concurrency key have
-- their own.
CREATE INDEX interlock_jobs_ready ON interlock_jobs (queue, kind, priority DESC, due_at, id)
  WHERE phase = 'pending' AND expires_at IS NULL AND held_at IS NULL AND cancel_requested_at IS NULL
    AND lease_losses = 0 AND blocked_at IS NULL AND concurrency_key IS NULL;
CREATE INDEX interlock_jobs_ready_expiring ON interlock_jobs (queue, kind, priority DESC, expires_at, id)
  WHERE phase = 'pending' AND expires_at IS NOT NULL AND held_at IS NULL AND cancel_requested_at IS NULL
    AND lease_losses = 0 AND blocked_at IS NULL AND concurrency_key IS NULL;
CREATE INDEX interlock_jobs_suspect ON interlock_jobs (queue, kind, priority DESC, expires_at, due_at, id)
  WHERE phase = 'pending' AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses > 0
    AND blocked_at IS NULL AND concurrency_key IS NULL;
-- Waiting and running jobs by their concurrency key.
CREATE INDEX interlock_jobs_by_key ON interlock_jobs (kind, concurrency_key, phase, queue, priority DESC, due_at, id)
  WHERE concurrency_key IS NOT NULL AND finished_at IS NULL AND held_at IS NULL AND blocked_at IS NULL;
-- The jobs of a batch.
CREATE INDEX interlock_jobs_batch ON interlock_jobs (batch, phase, id) WHERE batch IS NOT NULL;
-- The redrives of a job, by the first job of their chain.
CREATE INDEX interlock_jobs_root ON interlock_jobs (root) WHERE root IS NOT NULL;
-- Jobs that wait for an operator, or for other jobs.
CREATE INDEX interlock_jobs_aside ON interlock_jobs (kind, queue) WHERE held_at IS NOT NULL OR blocked_at IS NOT NULL;
-- Jobs that maintenance expires.
CREATE INDEX interlock_jobs_expiring ON interlock_jobs (kind, expires_at)
  WHERE phase = 'pending' AND expires_at IS NOT NULL;
-- One job per key, until the key is freed.
CREATE UNIQUE INDEX interlock_jobs_idempotency ON interlock_jobs (kind, idempotency_key)
  WHERE idempotency_key IS NOT NULL AND key_freed = 0;
-- One active job per key.
CREATE UNIQUE INDEX interlock_jobs_unique ON interlock_jobs (kind, unique_key)
  WHERE unique_key IS NOT NULL AND phase IN ('pending', 'running');
-- Jobs with a cancel request: running ones, and those that a failed dependency cancels.
CREATE INDEX interlock_jobs_stopping ON interlock_jobs (kind, phase, cancel_requested_at)
  WHERE cancel_requested_at IS NOT NULL AND finished_at IS NULL;
-- Jobs that retention deletes.
CREATE INDEX interlock_jobs_finished ON interlock_jobs (phase, finished_at) WHERE finished_at IS NOT NULL;

-- ---------------------------------------------------------------- executions
-- Triggers delete executions and receipts with their job: foreign keys are a setting of each connection, and off by
-- default.
CREATE TABLE interlock_executions (
  job_id           TEXT NOT NULL,
  attempt          INTEGER NOT NULL CHECK (attempt >= 1),
  holder           INTEGER NOT NULL,
  committed_holder INTEGER,
  status           TEXT NOT NULL,
  kind             TEXT NOT NULL,
  lease_owner      TEXT NOT NULL,
  lease_expires_at TEXT NOT NULL CHECK (lease_expires_at GLOB '????-??-??T??:??:??.??????Z'),
  heartbeat_at     TEXT NOT NULL CHECK (heartbeat_at GLOB '????-??-??T??:??:??.??????Z'),
  leased_at        TEXT NOT NULL CHECK (leased_at GLOB '????-??-??T??:??:??.??????Z'),
  started_at       TEXT CHECK (started_at GLOB '????-??-??T??:??:??.??????Z'),
  committed_at     TEXT CHECK (committed_at GLOB '????-??-??T??:??:??.??????Z'),
  finished_at      TEXT CHECK (finished_at GLOB '????-??-??T??:??:??.??????Z'),
  missing_since    TEXT CHECK (missing_since GLOB '????-??-??T??:??:??.??????Z'),
  next_check_at    TEXT CHECK (next_check_at GLOB '????-??-??T??:??:??.??????Z'),
  state            TEXT NOT NULL,
  ended_by         TEXT CHECK (ended_by IN ('succeed', 'retry', 'lose', 'fail', 'bury', 'reject', 'cancel', 'expire')),
  error            TEXT,
  external_id      TEXT,
  progress         TEXT CHECK (progress IS NULL OR json_valid(progress)),
  usage            TEXT CHECK (usage IS NULL OR json_valid(usage)),
  result           TEXT CHECK (result IS NULL OR json_valid(result)),
  PRIMARY KEY (job_id, attempt),
  CONSTRAINT executions_stamps CHECK (CASE status
    WHEN 'LEASED'      THEN started_at IS NULL AND committed_at IS NULL AND finished_at IS NULL AND ended_by IS NULL
    WHEN 'IN_PROGRESS' THEN started_at IS NOT NULL AND committed_at IS NULL AND finished_at IS NULL AND ended_by IS NULL
    WHEN 'COMMITTED'   THEN started_at IS NOT NULL AND committed_at IS NOT NULL AND finished_at IS NULL
      AND ended_by IS NULL
    WHEN 'DONE'        THEN started_at IS NOT NULL AND committed_at IS NOT NULL AND finished_at IS NOT NULL
      AND ended_by IS NOT NULL
    WHEN 'ABORTED'     THEN committed_at IS NULL AND finished_at IS NOT NULL AND ended_by IS NOT NULL
    ELSE 0 END)
) STRICT, WITHOUT ROWID;

-- One execution per job that is not aborted: one live lease, one COMMITTED, and none after DONE.
CREATE UNIQUE INDEX interlock_executions_one ON interlock_executions (job_id) WHERE status <> 'ABORTED';
-- Leases by their end. Handed-over work has no worker's lease, so it has its own index until it is past the commit
-- boundary.
CREATE INDEX interlock_executions_leases ON interlock_executions (kind, lease_expires_at)
  WHERE status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (external_id IS NULL OR status = 'COMMITTED');
CREATE INDEX interlock_executions_external ON interlock_executions (kind, lease_expires_at)
  WHERE status IN ('LEASED', 'IN_PROGRESS') AND external_id IS NOT NULL;
-- Executions by the id that a callback of an external system names.
CREATE INDEX interlock_executions_external_id ON interlock_executions (kind, external_id) WHERE external_id IS NOT NULL;

-- A step's value, or an effect: `begun_at` without `applied_at` means that its result is unknown. Copies for a redrive
-- have attempt 0 and holder 0, which match no fence.
CREATE TABLE interlock_receipts (
  job_id     TEXT NOT NULL,
  name       TEXT NOT NULL,
  kind       TEXT NOT NULL CHECK (kind IN ('step', 'effect')),
  attempt    INTEGER NOT NULL,
  holder     INTEGER NOT NULL,
  args_hash  TEXT NOT NULL,
  value      TEXT CHECK (value IS NULL OR json_valid(value)),
  begun_at   TEXT NOT NULL CHECK (begun_at GLOB '????-??-??T??:??:??.??????Z'),
  applied_at TEXT CHECK (applied_at GLOB '????-??-??T??:??:??.??????Z'),
  decided_by TEXT,
  PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------- audit
CREATE TABLE interlock_audit (
  job_id     TEXT NOT NULL CHECK (length(job_id) = 36),
  version    INTEGER NOT NULL,
  n          INTEGER NOT NULL,
  attempt    INTEGER,
  at         TEXT NOT NULL CHECK (at GLOB '????-??-??T??:??:??.??????Z'),
  event      TEXT NOT NULL,
  from_state TEXT,
  to_state   TEXT,
  actor      TEXT NOT NULL,
  reason     TEXT,
  detail     TEXT CHECK (detail IS NULL OR json_valid(detail)),
  PRIMARY KEY (job_id, version, n),
  CONSTRAINT audit_arrow CHECK (n > 0 OR (n = 0 AND to_state IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- Deleted jobs whose audit was archived with this digest. Only their audit may be deleted.
CREATE TABLE interlock_archived (
  job_id      TEXT NOT NULL PRIMARY KEY,
  entries     INTEGER NOT NULL,
  digest      TEXT NOT NULL,
  archived_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE VIEW interlock_jobs_now AS
  SELECT j.*, e.status AS execution_status, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.started_at, e.progress,
    e.usage, e.external_id, e.missing_since
  FROM interlock_jobs j LEFT JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt;
