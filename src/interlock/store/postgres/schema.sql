-- Interlock on PostgreSQL. The names of these tables and columns are a contract: your own SQL may read them.
--
-- jobs        one row per job; `state` is a projection of its executions, `phase` its coarse form
-- executions  one row per attempt, the durable truth; fenced by (job_id, attempt, holder)
-- audit       one row per arrow (n = 0) and per remark (n > 0); insert only
-- receipts    remembered values of steps and outside effects
--
-- A write that breaks a rule is refused here, whoever sends it. Row triggers name what they accept in their WHEN clause, from immutable functions that are inlined, so
-- that a good write costs next to nothing; the trigger's own function runs only to refuse. They are AFTER triggers: a BEFORE trigger would lock every row once more.

CREATE SCHEMA IF NOT EXISTS interlock;

-- The clock that decides about leases. Statements read it once, as (SELECT interlock.clock()): a volatile call cannot be an index condition.
CREATE FUNCTION interlock.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

CREATE TABLE interlock.schema_version (
  version     int PRIMARY KEY,
  instance    uuid NOT NULL DEFAULT gen_random_uuid(),
  migrated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- ---------------------------------------------------------------- what is declared
CREATE TABLE interlock.lifecycles (
  name          text NOT NULL,
  version       int  NOT NULL,
  digest        text NOT NULL,
  initial       text NOT NULL,
  registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (name, version),
  UNIQUE (name, digest)
);

-- The arrows as they are drawn.
CREATE TABLE interlock.lifecycle_edges (
  lifecycle text NOT NULL,
  version   int  NOT NULL,
  source    text NOT NULL,
  event     text NOT NULL,
  target    text NOT NULL,
  PRIMARY KEY (lifecycle, version, source, event, target)
);

-- Every change of a job's state that is accepted, and by how much its attempt and its version grow in it.
CREATE TABLE interlock.lifecycle_hops (
  lifecycle text NOT NULL,
  version   int  NOT NULL,
  source    text NOT NULL,
  target    text NOT NULL,
  attempts  int  NOT NULL,
  arrows    int  NOT NULL,
  PRIMARY KEY (lifecycle, version, source, target, attempts, arrows)
);

-- Which phases a job may have in which state.
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
  outside_failures  int NOT NULL DEFAULT 0,
  outside_error     text,
  outside_down_at   timestamptz,
  max_running       int CHECK (max_running >= 0),
  registered_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE interlock.queues (
  name        text PRIMARY KEY,
  paused_at   timestamptz,
  paused_by   text,
  max_running int CHECK (max_running >= 0)
);

CREATE TABLE interlock.schedules (
  name      text PRIMARY KEY,
  kind      text NOT NULL,
  cron      text NOT NULL,
  tz        text NOT NULL,
  catch_up  text NOT NULL CHECK (catch_up IN ('last', 'none', 'all')),
  payload   json NOT NULL,
  last_tick timestamptz,
  paused_at timestamptz
);

CREATE TABLE interlock.workers (
  name       text PRIMARY KEY,
  host       text NOT NULL,
  pid        int  NOT NULL,
  state      text NOT NULL,
  slots      int  NOT NULL,
  busy       int  NOT NULL DEFAULT 0,
  kinds      jsonb NOT NULL,
  queues     jsonb NOT NULL,
  started_at timestamptz NOT NULL,
  beat_at    timestamptz NOT NULL
);

-- ---------------------------------------------------------------- jobs
CREATE TABLE interlock.jobs (
  id                  uuid PRIMARY KEY,
  kind                text NOT NULL,
  queue               text NOT NULL,
  priority            int  NOT NULL,
  lifecycle           text NOT NULL,
  lifecycle_version   int  NOT NULL,
  state               text NOT NULL,
  phase               text NOT NULL,
  version             int  NOT NULL DEFAULT 0,
  attempt             int  NOT NULL DEFAULT 0,
  tries               int  NOT NULL,
  tries_left          int  NOT NULL,
  lease_losses        int  NOT NULL DEFAULT 0,
  due_at              timestamptz NOT NULL,
  expires_at          timestamptz,
  created_at          timestamptz NOT NULL,
  updated_at          timestamptz NOT NULL,
  finished_at         timestamptz,
  key_released        boolean NOT NULL DEFAULT false,
  idempotency_key     text,
  unique_key          text,
  cancel_requested_at timestamptz,
  cancel_requested_by text,
  cancel_reason       text,
  held_at             timestamptz,
  held_reason         text,
  scheduled_for       timestamptz,
  redrive_of          uuid,
  root                uuid,
  payload             json NOT NULL,
  tags                jsonb,
  trace               json,
  result              json,
  last_error          text,
  CONSTRAINT jobs_phase    CHECK (phase IN ('pending', 'running', 'succeeded', 'failed')),
  CONSTRAINT jobs_finished CHECK ((finished_at IS NOT NULL) = (phase IN ('succeeded', 'failed'))),
  CONSTRAINT jobs_tries    CHECK (tries >= 1 AND tries_left BETWEEN 0 AND tries),
  CONSTRAINT jobs_held     CHECK (held_at IS NULL OR phase = 'pending'),
  CONSTRAINT jobs_keys     CHECK (length(idempotency_key) <= 255 AND length(unique_key) <= 255)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- What a claim walks. A job with a TTL stands in an index of its own, ordered by its end, so that a claim steps over any number of expired ones at once. Suspects,
-- which have lost a lease, stand apart: a claim may bound their number, and steps over none of them then.
CREATE INDEX jobs_ready ON interlock.jobs (queue, kind, priority DESC, due_at, id)
  WHERE phase = 'pending' AND expires_at IS NULL AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses = 0;
CREATE INDEX jobs_ready_mortal ON interlock.jobs (queue, kind, priority DESC, expires_at, id)
  WHERE phase = 'pending' AND expires_at IS NOT NULL AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses = 0;
CREATE INDEX jobs_suspect ON interlock.jobs (queue, kind, priority DESC, expires_at, due_at, id)
  WHERE phase = 'pending' AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses > 0;
-- What waits for an operator.
CREATE INDEX jobs_held ON interlock.jobs (kind, queue) WHERE held_at IS NOT NULL;
-- What the keeper expires.
CREATE INDEX jobs_expiring ON interlock.jobs (kind, expires_at) WHERE phase = 'pending' AND expires_at IS NOT NULL;
-- One job per key, until its lifecycle's end releases it.
CREATE UNIQUE INDEX jobs_idempotency ON interlock.jobs (kind, idempotency_key) WHERE idempotency_key IS NOT NULL AND NOT key_released;
-- One active job per key.
CREATE UNIQUE INDEX jobs_unique ON interlock.jobs (kind, unique_key) WHERE unique_key IS NOT NULL AND phase IN ('pending', 'running');
-- Who held a key last.
CREATE INDEX jobs_unique_holders ON interlock.jobs (kind, unique_key, finished_at) WHERE unique_key IS NOT NULL AND finished_at IS NOT NULL;
-- Who is asked to stop while it runs.
CREATE INDEX jobs_stopping ON interlock.jobs (kind, cancel_requested_at) WHERE cancel_requested_at IS NOT NULL AND phase = 'running';
-- What retention deletes.
CREATE INDEX jobs_finished ON interlock.jobs (phase, finished_at) WHERE finished_at IS NOT NULL;

-- ---------------------------------------------------------------- executions
CREATE TABLE interlock.executions (
  job_id           uuid NOT NULL REFERENCES interlock.jobs ON DELETE CASCADE,
  attempt          int  NOT NULL CHECK (attempt >= 1),
  holder           int  NOT NULL,
  committed_holder int,
  status           text NOT NULL,
  kind             text NOT NULL,
  lease_owner      text NOT NULL,
  lease_expires_at timestamptz NOT NULL,
  heartbeat_at     timestamptz NOT NULL,
  leased_at        timestamptz NOT NULL,
  started_at       timestamptz,
  committed_at     timestamptz,
  finished_at      timestamptz,
  missing_since    timestamptz,
  next_check_at    timestamptz,
  state            text NOT NULL,
  ended_by         text,
  error            text,
  external_id      text,
  progress         json,
  usage            json,
  result           json,
  PRIMARY KEY (job_id, attempt),
  CONSTRAINT executions_ended_by CHECK (ended_by IN ('succeed', 'retry', 'lose', 'fail', 'bury', 'reject', 'cancel', 'expire')),
  CONSTRAINT executions_stamps CHECK (CASE status
    WHEN 'LEASED'      THEN started_at IS NULL AND committed_at IS NULL AND finished_at IS NULL AND ended_by IS NULL
    WHEN 'IN_PROGRESS' THEN started_at IS NOT NULL AND committed_at IS NULL AND finished_at IS NULL AND ended_by IS NULL
    WHEN 'COMMITTED'   THEN started_at IS NOT NULL AND committed_at IS NOT NULL AND finished_at IS NULL AND ended_by IS NULL
    WHEN 'DONE'        THEN started_at IS NOT NULL AND committed_at IS NOT NULL AND finished_at IS NOT NULL AND ended_by IS NOT NULL
    WHEN 'ABORTED'     THEN committed_at IS NULL AND finished_at IS NOT NULL AND ended_by IS NOT NULL
    ELSE false END)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- One execution that is not aborted per job: one live lease, one COMMITTED, and none after DONE.
CREATE UNIQUE INDEX executions_one ON interlock.executions (job_id) WHERE status <> 'ABORTED';
-- Whose lease has ended. Handed-over work has no worker's lease, so it stands apart until it is past the commit boundary.
CREATE INDEX executions_leases ON interlock.executions (kind, lease_expires_at)
  WHERE status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (external_id IS NULL OR status = 'COMMITTED');
CREATE INDEX executions_external ON interlock.executions (kind, lease_expires_at)
  WHERE status IN ('LEASED', 'IN_PROGRESS') AND external_id IS NOT NULL;
-- What a callback from outside names.
CREATE INDEX executions_external_id ON interlock.executions (kind, external_id) WHERE external_id IS NOT NULL;

-- A step's value, or an outside call: `asked_at` without `applied_at` is a doubt. What a redrive took over has attempt 0 and holder 0, which no fence of the new job has.
CREATE TABLE interlock.receipts (
  job_id     uuid NOT NULL REFERENCES interlock.jobs ON DELETE CASCADE,
  name       text NOT NULL,
  kind       text NOT NULL CHECK (kind IN ('step', 'effect')),
  attempt    int  NOT NULL,
  holder     int  NOT NULL,
  args_hash  text NOT NULL,
  value      json,
  asked_at   timestamptz NOT NULL,
  applied_at timestamptz,
  decided_by text,
  PRIMARY KEY (job_id, name)
);

-- ---------------------------------------------------------------- audit
CREATE TABLE interlock.audit (
  job_id     uuid NOT NULL,
  version    int  NOT NULL,
  n          int  NOT NULL,
  attempt    int,
  at         timestamptz NOT NULL,
  event      text NOT NULL,
  from_state text,
  to_state   text,
  actor      text NOT NULL,
  reason     text,
  detail     json,
  PRIMARY KEY (job_id, version, n),
  CONSTRAINT audit_arrow CHECK (n > 0 OR (n = 0 AND to_state IS NOT NULL))
);

-- The one door through which audit leaves: a job that is gone, whose entries were handed out under this digest.
CREATE TABLE interlock.archived (
  job_id      uuid PRIMARY KEY,
  entries     int  NOT NULL,
  digest      text NOT NULL,
  archived_at timestamptz NOT NULL
);

CREATE VIEW interlock.jobs_now AS
  SELECT j.*, e.status AS execution_status, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.started_at, e.progress, e.usage, e.external_id, e.missing_since
  FROM interlock.jobs j LEFT JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt;

-- ---------------------------------------------------------------- what the database refuses
-- `hop`, `fits` and `starts` are written anew from the tables above by every migration; until then they accept nothing.
CREATE FUNCTION interlock.hop(lifecycle text, version int, source text, target text, attempts int, arrows int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
CREATE FUNCTION interlock.fits(lifecycle text, version int, state text, phase text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
CREATE FUNCTION interlock.starts(lifecycle text, version int, state text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';

CREATE FUNCTION interlock.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'interlock refuses this % on %: %', TG_OP, TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'check_violation';
END $$;

CREATE FUNCTION interlock.refuse_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'interlock refuses this change of job % (% -> %): %', OLD.id, OLD.state, NEW.state, CASE
    WHEN OLD.finished_at IS NOT NULL THEN 'it has ended'
    WHEN NEW.state <> OLD.state AND NEW.version = OLD.version THEN 'a state changes together with version'
    WHEN NEW.updated_at <= OLD.updated_at THEN 'updated_at is not refreshed'
    WHEN NEW.attempt < OLD.attempt THEN 'attempt only grows'
    WHEN NOT interlock.fits(NEW.lifecycle, NEW.lifecycle_version, NEW.state, NEW.phase) THEN 'phase ' || NEW.phase || ' does not fit the state'
    WHEN NEW.lifecycle_version <> OLD.lifecycle_version AND NEW.attempt = OLD.attempt THEN 'a lifecycle changes only with a claim'
    WHEN NEW.state <> OLD.state THEN 'lifecycle ' || NEW.lifecycle || ' (version ' || NEW.lifecycle_version || ') draws no such arrow for it'
    ELSE 'identity, keys and creation never change' END
  USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER jobs_insert AFTER INSERT ON interlock.jobs FOR EACH ROW WHEN ((
    interlock.starts(NEW.lifecycle, NEW.lifecycle_version, NEW.state)
    AND NEW.phase = 'pending' AND NEW.version = 0 AND NEW.attempt = 0 AND NEW.tries_left = NEW.tries AND NEW.lease_losses = 0
    AND NEW.cancel_requested_at IS NULL AND NEW.held_at IS NULL AND NEW.result IS NULL AND NOT NEW.key_released) IS NOT TRUE)
  EXECUTE FUNCTION interlock.refuse('a job begins in the initial state of a registered lifecycle, pending, with version 0 and attempt 0');

CREATE TRIGGER jobs_update AFTER UPDATE ON interlock.jobs FOR EACH ROW WHEN ((
    OLD.finished_at IS NULL
    AND NEW.updated_at > OLD.updated_at
    AND CASE WHEN NEW.state = OLD.state THEN NEW.version = OLD.version AND NEW.attempt - OLD.attempt IN (0, 1)
        ELSE interlock.hop(NEW.lifecycle, NEW.lifecycle_version, OLD.state, NEW.state, NEW.attempt - OLD.attempt, NEW.version - OLD.version) END
    AND interlock.fits(NEW.lifecycle, NEW.lifecycle_version, NEW.state, NEW.phase)
    AND (NEW.lifecycle_version = OLD.lifecycle_version OR NEW.attempt > OLD.attempt)
    AND NEW.id = OLD.id AND NEW.kind = OLD.kind AND NEW.lifecycle = OLD.lifecycle AND NEW.created_at = OLD.created_at
    AND NEW.idempotency_key IS NOT DISTINCT FROM OLD.idempotency_key AND NEW.unique_key IS NOT DISTINCT FROM OLD.unique_key
    AND NEW.root IS NOT DISTINCT FROM OLD.root AND NEW.redrive_of IS NOT DISTINCT FROM OLD.redrive_of
    AND NEW.key_released >= OLD.key_released) IS NOT TRUE)
  EXECUTE FUNCTION interlock.refuse_job();

-- By the columns that a statement names, so that it costs the others nothing.
CREATE TRIGGER jobs_payload BEFORE UPDATE OF payload ON interlock.jobs FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('a payload never changes');
CREATE TRIGGER jobs_delete BEFORE DELETE ON interlock.jobs FOR EACH ROW WHEN (OLD.finished_at IS NULL)
  EXECUTE FUNCTION interlock.refuse('only a job that has ended is deleted');

CREATE TRIGGER executions_insert AFTER INSERT ON interlock.executions FOR EACH ROW WHEN ((
    NEW.holder = 1 AND NEW.external_id IS NULL
    AND (NEW.status IN ('LEASED', 'IN_PROGRESS') OR (NEW.status = 'ABORTED' AND NEW.ended_by IN ('cancel', 'expire', 'reject')))) IS NOT TRUE)
  EXECUTE FUNCTION interlock.refuse('an execution begins leased, in progress, or as the taker''s own aborted one, with holder 1');

CREATE TRIGGER executions_update AFTER UPDATE ON interlock.executions FOR EACH ROW WHEN ((
    OLD.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')
    AND CASE OLD.status
      WHEN 'LEASED'      THEN NEW.status IN ('LEASED', 'IN_PROGRESS', 'ABORTED')
      WHEN 'IN_PROGRESS' THEN NEW.status IN ('IN_PROGRESS', 'COMMITTED', 'DONE', 'ABORTED')
      ELSE NEW.status IN ('COMMITTED', 'DONE') END
    AND NEW.job_id = OLD.job_id AND NEW.attempt = OLD.attempt AND NEW.kind = OLD.kind AND NEW.leased_at = OLD.leased_at
    AND NEW.holder - OLD.holder IN (0, 1)
    AND (OLD.started_at IS NULL OR NEW.started_at = OLD.started_at)
    AND (OLD.committed_at IS NULL OR (NEW.committed_at = OLD.committed_at AND NEW.result::text IS NOT DISTINCT FROM OLD.result::text))) IS NOT TRUE)
  EXECUTE FUNCTION interlock.refuse('an execution goes LEASED, IN_PROGRESS, COMMITTED, DONE, or ABORTED before the commit; what has ended or is committed stays; holder grows by one');

CREATE FUNCTION interlock.refuse_orphaning() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM interlock.jobs WHERE id = OLD.job_id) THEN
    RAISE EXCEPTION 'interlock refuses this DELETE on %: it goes only together with its job', TG_TABLE_NAME USING ERRCODE = 'check_violation';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER executions_delete BEFORE DELETE ON interlock.executions FOR EACH ROW EXECUTE FUNCTION interlock.refuse_orphaning();
-- An asking may be forgotten, or asked anew; what is known stays, but for a step's value, which may be taken afresh.
CREATE TRIGGER receipts_delete BEFORE DELETE ON interlock.receipts FOR EACH ROW WHEN (OLD.applied_at IS NOT NULL) EXECUTE FUNCTION interlock.refuse_orphaning();
CREATE TRIGGER receipts_update AFTER UPDATE ON interlock.receipts FOR EACH ROW WHEN ((
    NEW.job_id = OLD.job_id AND NEW.name = OLD.name AND NEW.kind = OLD.kind
    AND (OLD.kind = 'step' OR OLD.applied_at IS NULL
      OR (NEW.attempt, NEW.holder, NEW.args_hash, NEW.value::text, NEW.asked_at, NEW.applied_at, NEW.decided_by)
        IS NOT DISTINCT FROM (OLD.attempt, OLD.holder, OLD.args_hash, OLD.value::text, OLD.asked_at, OLD.applied_at, OLD.decided_by))) IS NOT TRUE)
  EXECUTE FUNCTION interlock.refuse('what an outside call answered never changes');

CREATE FUNCTION interlock.refuse_unarchived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM interlock.archived WHERE job_id = OLD.job_id) OR EXISTS (SELECT FROM interlock.jobs WHERE id = OLD.job_id) THEN
    RAISE EXCEPTION 'interlock refuses this DELETE on audit: entries leave only through the archive' USING ERRCODE = 'check_violation';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER audit_delete BEFORE DELETE ON interlock.audit FOR EACH ROW EXECUTE FUNCTION interlock.refuse_unarchived();
CREATE TRIGGER audit_update BEFORE UPDATE ON interlock.audit FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('audit is insert only');
CREATE TRIGGER edges_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.lifecycle_edges FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('arrows are only added, by migrate');
CREATE TRIGGER hops_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.lifecycle_hops FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('arrows are only added, by migrate');
CREATE TRIGGER phases_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.lifecycle_phases FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('arrows are only added, by migrate');
CREATE TRIGGER lifecycles_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.lifecycles FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('lifecycles are only added, by migrate');
CREATE TRIGGER jobs_truncate BEFORE TRUNCATE ON interlock.jobs FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('jobs are deleted one by one, after they ended');
CREATE TRIGGER executions_truncate BEFORE TRUNCATE ON interlock.executions FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('executions go together with their job');
CREATE TRIGGER receipts_truncate BEFORE TRUNCATE ON interlock.receipts FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('receipts go together with their job');
CREATE TRIGGER audit_truncate BEFORE TRUNCATE ON interlock.audit FOR EACH STATEMENT EXECUTE FUNCTION interlock.refuse('audit is insert only');
