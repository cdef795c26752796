-- Interlock on PostgreSQL. The names of these tables and columns are a contract: your own SQL may read them.
--
-- jobs        one row per job; `state` is a projection of its executions, `phase` its coarse form
-- executions  one row per attempt, the durable truth; fenced by (job_id, attempt, holder)
-- audit       one row per transition (n = 0) and per note (n > 0); insert only, until it is archived
-- receipts    saved results of steps and effects
-- limits      limits and pauses of queues, kinds and concurrency keys
-- batches     named sets of jobs; `dependencies` has what each job waits for
--
-- The triggers in triggers.sql refuse every write that breaks a rule. The tables jobs and executions have no CHECK
-- constraints: PostgreSQL would compile them for every statement, but it plans a trigger function once per session.

CREATE SCHEMA IF NOT EXISTS interlock;

-- The clock that decides about leases. Statements read it once, as (SELECT interlock.clock()): a volatile call cannot
-- be an index condition.
CREATE FUNCTION interlock.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

CREATE TABLE interlock.schema_version (
  version     int PRIMARY KEY,
  instance    uuid NOT NULL DEFAULT gen_random_uuid(),
  migrated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- ---------------------------------------------------------------- declarations
CREATE TABLE interlock.lifecycles (
  name          text NOT NULL,
  version       int  NOT NULL,
  digest        text NOT NULL,
  initial       text NOT NULL,
  registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (name, version),
  UNIQUE (name, digest)
);

-- The transitions as declared.
CREATE TABLE interlock.lifecycle_edges (
  lifecycle text NOT NULL,
  version   int  NOT NULL,
  source    text NOT NULL,
  event     text NOT NULL,
  target    text NOT NULL,
  PRIMARY KEY (lifecycle, version, source, event, target)
);

-- Every accepted change of a job's state, and how much its attempt and its version grow.
CREATE TABLE interlock.lifecycle_changes (
  lifecycle text NOT NULL,
  version   int  NOT NULL,
  source    text NOT NULL,
  target    text NOT NULL,
  attempts  int  NOT NULL,
  arrows    int  NOT NULL,
  PRIMARY KEY (lifecycle, version, source, target, attempts, arrows)
);

-- The phases that a job may have in each state.
CREATE TABLE interlock.lifecycle_phases (
  lifecycle text NOT NULL,
  version   int  NOT NULL,
  state     text NOT NULL,
  phase     text NOT NULL,
  PRIMARY KEY (lifecycle, version, state, phase)
);

CREATE TABLE interlock.kinds (
  name              text PRIMARY KEY,
  lifecycle         text NOT NULL,
  lifecycle_version int  NOT NULL,
  queue             text NOT NULL,
  tries             int  NOT NULL,
  hooks             jsonb NOT NULL DEFAULT '[]',
  key_until         jsonb NOT NULL DEFAULT '[]',
  admits            boolean NOT NULL DEFAULT false,
  check_every       float8,
  check_batch       int,
  external_failures int NOT NULL DEFAULT 0,
  external_error    text,
  external_down_at  timestamptz,
  registered_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Schedules that the code declares or that were created at run time. `declared` is what the code declares, also while
-- the schedule is changed at run time; it is empty if no code has declared the schedule.
CREATE TABLE interlock.schedules (
  name         text PRIMARY KEY,
  kind         text NOT NULL,
  cron         text NOT NULL,
  tz           text NOT NULL,
  catch_up     text NOT NULL CHECK (catch_up IN ('last', 'none', 'all')),
  payload      json NOT NULL,
  options      json NOT NULL,
  declared     json,
  changed_by   text,
  changed_at   timestamptz NOT NULL,
  paused_at    timestamptz,
  paused_by    text,
  pause_reason text,
  starts_at    timestamptz NOT NULL,
  last_tick    timestamptz,
  CONSTRAINT schedules_source CHECK (declared IS NOT NULL OR changed_by IS NOT NULL)
);

CREATE TABLE interlock.workers (
  name         text PRIMARY KEY,
  host         text NOT NULL,
  pid          int  NOT NULL,
  state        text NOT NULL,
  slots        int  NOT NULL,
  busy         int  NOT NULL DEFAULT 0,
  kinds        jsonb NOT NULL,
  queues       jsonb NOT NULL,
  schedules    jsonb NOT NULL,
  started_at   timestamptz NOT NULL,
  heartbeat_at timestamptz NOT NULL
);

-- ---------------------------------------------------------------- jobs
-- Finished rows are most of these tables, so they are packed. In jobs, executions and audit, columns are ordered by
-- their alignment, so that no row contains padding. Tables and keys leave no space free: updates rarely stay in their
-- page (each claim and move changes an indexed column), and ids ascend, so a key's full pages are rarely split.
CREATE TABLE interlock.jobs (
  id                  uuid PRIMARY KEY WITH (fillfactor = 100),
  due_at              timestamptz NOT NULL,
  created_at          timestamptz NOT NULL,
  updated_at          timestamptz NOT NULL,
  finished_at         timestamptz,
  expires_at          timestamptz,
  scheduled_for       timestamptz,
  cancel_requested_at timestamptz,
  held_at             timestamptz,
  blocked_at          timestamptz,
  redrive_of          uuid,
  root                uuid,
  batch               uuid,
  priority            int  NOT NULL,
  lifecycle_version   int  NOT NULL,
  version             int  NOT NULL DEFAULT 0,
  attempt             int  NOT NULL DEFAULT 0,
  tries               int  NOT NULL,
  tries_left          int  NOT NULL,
  lease_losses        int  NOT NULL DEFAULT 0,
  key_freed           boolean NOT NULL DEFAULT false,
  limited             boolean,
  awaited             boolean,
  kind                text NOT NULL,
  queue               text NOT NULL,
  lifecycle           text NOT NULL,
  state               text NOT NULL,
  phase               text NOT NULL,
  idempotency_key     text,
  unique_key          text,
  concurrency_key     text,
  cancel_requested_by text,
  cancel_reason       text,
  held_reason         text,
  payload             json NOT NULL,
  tags                jsonb,
  trace               json,
  result              json,
  last_error          text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The indexes that a claim walks. Jobs with a TTL have their own, ordered by expiry, so that a claim skips all expired
-- ones at once. Suspects, which have lost a lease, have their own too, so that a claim can limit their number without
-- scanning them. Blocked jobs, which wait for other jobs, are in none of them, and jobs with a concurrency key have
-- their own.
CREATE INDEX jobs_ready ON interlock.jobs (queue, kind, priority DESC, due_at, id)
  WHERE phase = 'pending' AND expires_at IS NULL AND held_at IS NULL AND cancel_requested_at IS NULL
    AND lease_losses = 0 AND blocked_at IS NULL AND concurrency_key IS NULL;
CREATE INDEX jobs_ready_expiring ON interlock.jobs (queue, kind, priority DESC, expires_at, id)
  WHERE phase = 'pending' AND expires_at IS NOT NULL AND held_at IS NULL AND cancel_requested_at IS NULL
    AND lease_losses = 0 AND blocked_at IS NULL AND concurrency_key IS NULL;
CREATE INDEX jobs_suspect ON interlock.jobs (queue, kind, priority DESC, expires_at, due_at, id)
  WHERE phase = 'pending' AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses > 0
    AND blocked_at IS NULL AND concurrency_key IS NULL;
-- Waiting and running jobs by their concurrency key.
CREATE INDEX jobs_by_key ON interlock.jobs (kind, concurrency_key, phase, queue, priority DESC, due_at, id)
  WHERE concurrency_key IS NOT NULL AND finished_at IS NULL AND held_at IS NULL AND blocked_at IS NULL;
-- The jobs of a batch.
CREATE INDEX jobs_batch ON interlock.jobs (batch, phase, id) WHERE batch IS NOT NULL;
-- The redrives of a job, by the first job of their chain.
CREATE INDEX jobs_root ON interlock.jobs (root) WHERE root IS NOT NULL;
-- Jobs that wait for an operator, or for other jobs.
CREATE INDEX jobs_aside ON interlock.jobs (kind, queue) WHERE held_at IS NOT NULL OR blocked_at IS NOT NULL;
-- Jobs that maintenance expires.
CREATE INDEX jobs_expiring ON interlock.jobs (kind, expires_at) WHERE phase = 'pending' AND expires_at IS NOT NULL;
-- One job per key, until the key is freed.
CREATE UNIQUE INDEX jobs_idempotency ON interlock.jobs (kind, idempotency_key)
  WHERE idempotency_key IS NOT NULL AND NOT key_freed;
-- One active job per key.
CREATE UNIQUE INDEX jobs_unique ON interlock.jobs (kind, unique_key)
  WHERE unique_key IS NOT NULL AND phase IN ('pending', 'running');
-- The last job with a key.
CREATE INDEX jobs_unique_holders ON interlock.jobs (kind, unique_key, finished_at)
  WHERE unique_key IS NOT NULL AND finished_at IS NOT NULL;
-- Jobs with a cancel request: running ones, and those that a failed dependency cancels.
CREATE INDEX jobs_stopping ON interlock.jobs (kind, phase, cancel_requested_at) WHERE cancel_requested_at IS NOT NULL
  AND finished_at IS NULL;
-- Jobs that retention deletes.
CREATE INDEX jobs_finished ON interlock.jobs (phase, finished_at) WHERE finished_at IS NOT NULL;

-- ---------------------------------------------------------------- executions
CREATE TABLE interlock.executions (
  job_id           uuid NOT NULL,
  lease_expires_at timestamptz NOT NULL,
  heartbeat_at     timestamptz NOT NULL,
  leased_at        timestamptz NOT NULL,
  started_at       timestamptz,
  committed_at     timestamptz,
  finished_at      timestamptz,
  missing_since    timestamptz,
  next_check_at    timestamptz,
  attempt          int  NOT NULL,
  holder           int  NOT NULL,
  committed_holder int,
  status           text NOT NULL,
  kind             text NOT NULL,
  lease_owner      text NOT NULL,
  state            text NOT NULL,
  ended_by         text,
  error            text,
  external_id      text,
  progress         json,
  usage            json,
  result           json,
  PRIMARY KEY (job_id, attempt) WITH (fillfactor = 100)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- One execution per job that is not aborted: one live lease, one COMMITTED, and none after DONE.
CREATE UNIQUE INDEX executions_one ON interlock.executions (job_id) WITH (fillfactor = 100) WHERE status <> 'ABORTED';
-- Leases by their end. Handed-over work has no worker's lease, so it has its own index until it is past the commit
-- boundary.
CREATE INDEX executions_leases ON interlock.executions (kind, lease_expires_at)
  WHERE status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (external_id IS NULL OR status = 'COMMITTED');
CREATE INDEX executions_external ON interlock.executions (kind, lease_expires_at)
  WHERE status IN ('LEASED', 'IN_PROGRESS') AND external_id IS NOT NULL;
-- Executions by the id that a callback of an external system names.
CREATE INDEX executions_external_id ON interlock.executions (kind, external_id) WHERE external_id IS NOT NULL;

-- A step's value, or an effect: `begun_at` without `applied_at` means that its result is unknown. Copies for a redrive
-- have attempt 0 and holder 0, which match no fence.
CREATE TABLE interlock.receipts (
  job_id     uuid NOT NULL REFERENCES interlock.jobs ON DELETE CASCADE,
  name       text NOT NULL,
  kind       text NOT NULL CHECK (kind IN ('step', 'effect')),
  attempt    int  NOT NULL,
  holder     int  NOT NULL,
  args_hash  text NOT NULL,
  value      json,
  begun_at   timestamptz NOT NULL,
  applied_at timestamptz,
  decided_by text,
  PRIMARY KEY (job_id, name)
);

-- ---------------------------------------------------------------- audit
CREATE TABLE interlock.audit (
  job_id     uuid NOT NULL,
  at         timestamptz NOT NULL,
  version    int  NOT NULL,
  n          int  NOT NULL,
  attempt    int,
  event      text NOT NULL,
  from_state text,
  to_state   text,
  actor      text NOT NULL,
  reason     text,
  detail     json,
  PRIMARY KEY (job_id, version, n) WITH (fillfactor = 100),
  CONSTRAINT audit_arrow CHECK (n > 0 OR (n = 0 AND to_state IS NOT NULL))
);

-- Deleted jobs whose audit was archived with this digest. Only their audit may be deleted.
CREATE TABLE interlock.archived (
  job_id      uuid PRIMARY KEY,
  entries     int  NOT NULL,
  digest      text NOT NULL,
  archived_at timestamptz NOT NULL
);

CREATE VIEW interlock.jobs_now AS
  SELECT j.*, e.status AS execution_status, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.started_at, e.progress,
    e.usage, e.external_id, e.missing_since
  FROM interlock.jobs j LEFT JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt;
