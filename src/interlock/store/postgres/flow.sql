-- Limits, pauses, batches and dependencies, on PostgreSQL. Plain jobs have no row in any of these tables.

-- ---------------------------------------------------------------- limits and pauses
-- Limits and pauses of queues and kinds. A row of scope `key` limits each concurrency key of the kind `name`. Claims of
-- limited jobs lock the row, so that they run one after the other.
CREATE TABLE interlock.limits (
  scope        text NOT NULL CHECK (scope IN ('queue', 'kind', 'key')),
  name         text NOT NULL,
  max_running  int CHECK (max_running >= 0),
  rate_count   float8 CHECK (rate_count > 0),
  rate_seconds float8 CHECK (rate_seconds > 0),
  burst        float8 CHECK (burst >= 1),
  declared     jsonb,
  changed_by   text,
  paused_at    timestamptz,
  paused_by    text,
  pause_reason text,
  tokens       float8,
  tokens_at    timestamptz,
  PRIMARY KEY (scope, name),
  CONSTRAINT limits_rate CHECK (num_nulls(rate_count, rate_seconds, burst) IN (0, 3)),
  CONSTRAINT limits_pause CHECK (num_nulls(paused_at, paused_by) IN (0, 2))
);

-- How many more jobs with a concurrency key may start, of a kind that limits the rate of each key. A key without a row
-- has all its tokens.
CREATE TABLE interlock.key_rates (
  kind            text NOT NULL,
  concurrency_key text NOT NULL,
  tokens          float8 NOT NULL,
  tokens_at       timestamptz NOT NULL,
  PRIMARY KEY (kind, concurrency_key)
);

-- When a claim must look for jobs with a concurrency key: when one becomes due, and when another one has ended. An
-- empty queue means all queues. The priority is that of the next job, as far as it is known. Rows are only inserted and
-- deleted, so that nothing waits for them.
CREATE TABLE interlock.key_checks (
  check_at        timestamptz NOT NULL,
  priority        int NOT NULL,
  kind            text NOT NULL,
  queue           text NOT NULL,
  concurrency_key text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX key_checks_due ON interlock.key_checks (kind, queue, priority DESC, check_at);

-- What operators and programs changed about queues, kinds and schedules. Insert only.
CREATE TABLE interlock.operations (
  id     uuid PRIMARY KEY,
  at     timestamptz NOT NULL,
  scope  text NOT NULL,
  name   text NOT NULL,
  event  text NOT NULL,
  actor  text NOT NULL,
  reason text,
  detail json
);

-- ---------------------------------------------------------------- batches and dependencies
-- A named set of jobs. A flow is a batch that may contain other batches.
CREATE TABLE interlock.batches (
  id         uuid PRIMARY KEY,
  parent     uuid,
  name       text NOT NULL,
  created_at timestamptz NOT NULL,
  created_by text NOT NULL
);
CREATE INDEX batches_parent ON interlock.batches (parent) WHERE parent IS NOT NULL;

-- A job waits until all that it needs has ended: jobs, and batches. `outcome` is NULL until then, or until a failure
-- decides that the job is cancelled.
CREATE TABLE interlock.dependencies (
  job_id    uuid NOT NULL,
  needs     uuid NOT NULL,
  is_batch  boolean NOT NULL,
  on_failed text NOT NULL CHECK (on_failed IN ('cancel', 'run', 'hold')),
  outcome   text CHECK (outcome IN ('succeeded', 'failed')),
  PRIMARY KEY (job_id, needs)
);
CREATE INDEX dependencies_needs ON interlock.dependencies (needs);
CREATE INDEX dependencies_open ON interlock.dependencies (job_id) WHERE outcome IS NULL;
CREATE INDEX dependencies_failed ON interlock.dependencies (job_id) WHERE outcome = 'failed';

-- What must be found out about dependencies, after the transaction that caused it: `ended`, what waits for this job;
-- `arrived`, which of its dependencies have ended already; `changed`, whether the job still waits. A check is due at
-- once, whatever the clock says (`epoch`), or later if a row was locked. Rows are only inserted and deleted, so that
-- nothing waits for them.
CREATE TABLE interlock.flow_checks (
  check_at timestamptz NOT NULL,
  job_id   uuid NOT NULL,
  step     text NOT NULL CHECK (step IN ('ended', 'arrived', 'changed'))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX flow_checks_due ON interlock.flow_checks (check_at);

CREATE TRIGGER operations_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.operations FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('recorded operations never change');
