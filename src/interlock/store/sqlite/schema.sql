-- Interlock on SQLite. The names of these tables and columns are a contract: your own SQL may read them.
--
-- jobs        one row per job; `state` is a projection of its executions, `phase` its coarse form
-- executions  one row per attempt, the durable truth; fenced by (job_id, attempt, holder)
-- audit       one row per arrow (n = 0) and per remark (n > 0); insert only
-- receipts    remembered values of steps and outside effects
--
-- Times are texts of one width, in UTC, so that they sort; truths are 0 and 1; JSON is text.
--
-- A write that breaks a rule is refused here, whoever sends it. Each trigger names in its WHEN clause what it accepts, and looks an arrow up in the tables that migrate fills,
-- so that nothing is ever created anew; `IS NOT TRUE` and not `NOT`, so that an unknown is refused as well. Updates are looked at after they are made, when every value is
-- what would be stored. REPLACE deletes without asking a delete trigger: where a key exists already, the insert is refused before. No table has a rowid, so that a row has no
-- key but those that are checked here.

CREATE TABLE interlock_schema_version (
  version     INTEGER NOT NULL PRIMARY KEY,
  instance    TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
  migrated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------- what is declared
CREATE TABLE interlock_lifecycles (
  name          TEXT NOT NULL,
  version       INTEGER NOT NULL,
  digest        TEXT NOT NULL,
  initial       TEXT NOT NULL,
  registered_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
  PRIMARY KEY (name, version),
  UNIQUE (name, digest)
) STRICT, WITHOUT ROWID;

-- The arrows as they are drawn.
CREATE TABLE interlock_lifecycle_edges (
  lifecycle TEXT NOT NULL,
  version   INTEGER NOT NULL,
  source    TEXT NOT NULL,
  event     TEXT NOT NULL,
  target    TEXT NOT NULL,
  PRIMARY KEY (lifecycle, version, source, event, target)
) STRICT, WITHOUT ROWID;

-- Every change of a job's state that is accepted, and by how much its attempt and its version grow in it.
CREATE TABLE interlock_lifecycle_hops (
  lifecycle TEXT NOT NULL,
  version   INTEGER NOT NULL,
  source    TEXT NOT NULL,
  target    TEXT NOT NULL,
  attempts  INTEGER NOT NULL,
  arrows    INTEGER NOT NULL,
  PRIMARY KEY (lifecycle, version, source, target, attempts, arrows)
) STRICT, WITHOUT ROWID;

-- Which phases a job may have in which state.
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
  outside_failures  INTEGER NOT NULL DEFAULT 0,
  outside_error     TEXT,
  outside_down_at   TEXT,
  max_running       INTEGER CHECK (max_running >= 0),
  registered_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
) STRICT, WITHOUT ROWID;

CREATE TABLE interlock_queues (
  name        TEXT NOT NULL PRIMARY KEY,
  paused_at   TEXT,
  paused_by   TEXT,
  max_running INTEGER CHECK (max_running >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE interlock_schedules (
  name      TEXT NOT NULL PRIMARY KEY,
  kind      TEXT NOT NULL,
  cron      TEXT NOT NULL,
  tz        TEXT NOT NULL,
  catch_up  TEXT NOT NULL CHECK (catch_up IN ('last', 'none', 'all')),
  payload   TEXT NOT NULL CHECK (json_valid(payload)),
  last_tick TEXT,
  paused_at TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE interlock_workers (
  name       TEXT NOT NULL PRIMARY KEY,
  host       TEXT NOT NULL,
  pid        INTEGER NOT NULL,
  state      TEXT NOT NULL,
  slots      INTEGER NOT NULL,
  busy       INTEGER NOT NULL DEFAULT 0,
  kinds      TEXT NOT NULL CHECK (json_valid(kinds)),
  queues     TEXT NOT NULL CHECK (json_valid(queues)),
  started_at TEXT NOT NULL,
  beat_at    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------- jobs
-- What a claim reads and writes stands in front: a long payload lies on pages of its own, which are read only for itself.
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
  key_released        INTEGER NOT NULL DEFAULT 0 CHECK (key_released IN (0, 1)),
  idempotency_key     TEXT,
  unique_key          TEXT,
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
  CONSTRAINT jobs_held     CHECK (held_at IS NULL OR phase = 'pending'),
  CONSTRAINT jobs_keys     CHECK (length(idempotency_key) <= 255 AND length(unique_key) <= 255)
) STRICT, WITHOUT ROWID;

-- What a claim walks. A job with a TTL stands in an index of its own, ordered by its end, so that a claim steps over any number of expired ones at once. Suspects,
-- which have lost a lease, stand apart: a claim may bound their number, and steps over none of them then.
CREATE INDEX interlock_jobs_ready ON interlock_jobs (queue, kind, priority DESC, due_at, id)
  WHERE phase = 'pending' AND expires_at IS NULL AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses = 0;
CREATE INDEX interlock_jobs_ready_mortal ON interlock_jobs (queue, kind, priority DESC, expires_at, id)
  WHERE phase = 'pending' AND expires_at IS NOT NULL AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses = 0;
CREATE INDEX interlock_jobs_suspect ON interlock_jobs (queue, kind, priority DESC, expires_at, due_at, id)
  WHERE phase = 'pending' AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses > 0;
-- What waits for an operator.
CREATE INDEX interlock_jobs_held ON interlock_jobs (kind, queue) WHERE held_at IS NOT NULL;
-- What the keeper expires.
CREATE INDEX interlock_jobs_expiring ON interlock_jobs (kind, expires_at) WHERE phase = 'pending' AND expires_at IS NOT NULL;
-- One job per key, until its lifecycle's end releases it.
CREATE UNIQUE INDEX interlock_jobs_idempotency ON interlock_jobs (kind, idempotency_key) WHERE idempotency_key IS NOT NULL AND key_released = 0;
-- One active job per key.
CREATE UNIQUE INDEX interlock_jobs_unique ON interlock_jobs (kind, unique_key) WHERE unique_key IS NOT NULL AND phase IN ('pending', 'running');
-- Who is asked to stop while it runs.
CREATE INDEX interlock_jobs_stopping ON interlock_jobs (kind, cancel_requested_at) WHERE cancel_requested_at IS NOT NULL AND phase = 'running';
-- What retention deletes.
CREATE INDEX interlock_jobs_finished ON interlock_jobs (phase, finished_at) WHERE finished_at IS NOT NULL;

-- ---------------------------------------------------------------- executions
-- That an execution and a receipt have a job, and go with it, is held by triggers: foreign keys are a switch of each connection, and off where nobody asked.
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
    WHEN 'COMMITTED'   THEN started_at IS NOT NULL AND committed_at IS NOT NULL AND finished_at IS NULL AND ended_by IS NULL
    WHEN 'DONE'        THEN started_at IS NOT NULL AND committed_at IS NOT NULL AND finished_at IS NOT NULL AND ended_by IS NOT NULL
    WHEN 'ABORTED'     THEN committed_at IS NULL AND finished_at IS NOT NULL AND ended_by IS NOT NULL
    ELSE 0 END)
) STRICT, WITHOUT ROWID;

-- One execution that is not aborted per job: one live lease, one COMMITTED, and none after DONE.
CREATE UNIQUE INDEX interlock_executions_one ON interlock_executions (job_id) WHERE status <> 'ABORTED';
-- Whose lease has ended. Handed-over work has no worker's lease, so it stands apart until it is past the commit boundary.
CREATE INDEX interlock_executions_leases ON interlock_executions (kind, lease_expires_at)
  WHERE status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (external_id IS NULL OR status = 'COMMITTED');
CREATE INDEX interlock_executions_external ON interlock_executions (kind, lease_expires_at)
  WHERE status IN ('LEASED', 'IN_PROGRESS') AND external_id IS NOT NULL;
-- What a callback from outside names.
CREATE INDEX interlock_executions_external_id ON interlock_executions (kind, external_id) WHERE external_id IS NOT NULL;

-- A step's value, or an outside call: `asked_at` without `applied_at` is a doubt. What a redrive took over has attempt 0 and holder 0, which no fence of the new job has.
CREATE TABLE interlock_receipts (
  job_id     TEXT NOT NULL,
  name       TEXT NOT NULL,
  kind       TEXT NOT NULL CHECK (kind IN ('step', 'effect')),
  attempt    INTEGER NOT NULL,
  holder     INTEGER NOT NULL,
  args_hash  TEXT NOT NULL,
  value      TEXT CHECK (value IS NULL OR json_valid(value)),
  asked_at   TEXT NOT NULL CHECK (asked_at GLOB '????-??-??T??:??:??.??????Z'),
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

-- The one door through which audit leaves: a job that is gone, whose entries were handed out under this digest.
CREATE TABLE interlock_archived (
  job_id      TEXT NOT NULL PRIMARY KEY,
  entries     INTEGER NOT NULL,
  digest      TEXT NOT NULL,
  archived_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE VIEW interlock_jobs_now AS
  SELECT j.*, e.status AS execution_status, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.started_at, e.progress, e.usage, e.external_id, e.missing_since
  FROM interlock_jobs j LEFT JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt;

-- ---------------------------------------------------------------- what the database refuses
CREATE TRIGGER interlock_jobs_insert BEFORE INSERT ON interlock_jobs WHEN (
    NEW.phase = 'pending' AND NEW.version = 0 AND NEW.attempt = 0 AND NEW.tries_left = NEW.tries AND NEW.lease_losses = 0
    AND NEW.cancel_requested_at IS NULL AND NEW.held_at IS NULL AND NEW.result IS NULL AND NEW.key_released = 0
    AND EXISTS (SELECT 1 FROM interlock_lifecycles l WHERE l.name = NEW.lifecycle AND l.version = NEW.lifecycle_version AND l.initial = NEW.state)
  ) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on jobs: a job begins in the initial state of a registered lifecycle, pending, with version 0 and attempt 0');
END;

CREATE TRIGGER interlock_jobs_replace BEFORE INSERT ON interlock_jobs WHEN
    EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = NEW.id)
    OR (NEW.idempotency_key IS NOT NULL AND EXISTS (
      SELECT 1 FROM interlock_jobs j WHERE j.kind = NEW.kind AND j.idempotency_key = NEW.idempotency_key AND j.key_released = 0))
    OR (NEW.unique_key IS NOT NULL AND EXISTS (
      SELECT 1 FROM interlock_jobs j WHERE j.kind = NEW.kind AND j.unique_key = NEW.unique_key AND j.phase IN ('pending', 'running')))
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on jobs: its id or a key of it belongs to a job already, and none is replaced');
END;

CREATE TRIGGER interlock_jobs_update AFTER UPDATE ON interlock_jobs WHEN (
    OLD.finished_at IS NULL
    AND NEW.updated_at > OLD.updated_at
    AND CASE WHEN NEW.state = OLD.state THEN NEW.version = OLD.version AND NEW.attempt - OLD.attempt IN (0, 1)
        ELSE EXISTS (SELECT 1 FROM interlock_lifecycle_hops h WHERE h.lifecycle = NEW.lifecycle AND h.version = NEW.lifecycle_version AND h.source = OLD.state
          AND h.target = NEW.state AND h.attempts = NEW.attempt - OLD.attempt AND h.arrows = NEW.version - OLD.version) END
    AND EXISTS (SELECT 1 FROM interlock_lifecycle_phases p WHERE p.lifecycle = NEW.lifecycle AND p.version = NEW.lifecycle_version AND p.state = NEW.state AND p.phase = NEW.phase)
    AND (NEW.lifecycle_version = OLD.lifecycle_version OR NEW.attempt > OLD.attempt)
    AND NEW.id = OLD.id AND NEW.kind = OLD.kind AND NEW.lifecycle = OLD.lifecycle AND NEW.created_at = OLD.created_at
    AND NEW.idempotency_key IS OLD.idempotency_key AND NEW.unique_key IS OLD.unique_key AND NEW.root IS OLD.root AND NEW.redrive_of IS OLD.redrive_of
    AND NEW.key_released >= OLD.key_released
  ) IS NOT TRUE
BEGIN
  SELECT CASE
    WHEN OLD.finished_at IS NOT NULL THEN RAISE(ABORT, 'interlock refuses this change of a job: it has ended')
    WHEN NEW.state <> OLD.state AND NEW.version = OLD.version THEN RAISE(ABORT, 'interlock refuses this change of a job: a state changes together with version')
    WHEN NEW.updated_at <= OLD.updated_at THEN RAISE(ABORT, 'interlock refuses this change of a job: updated_at is not refreshed')
    WHEN NEW.attempt < OLD.attempt THEN RAISE(ABORT, 'interlock refuses this change of a job: attempt only grows')
    WHEN NOT EXISTS (SELECT 1 FROM interlock_lifecycle_phases p WHERE p.lifecycle = NEW.lifecycle AND p.version = NEW.lifecycle_version AND p.state = NEW.state AND p.phase = NEW.phase)
      THEN RAISE(ABORT, 'interlock refuses this change of a job: its phase does not fit the state')
    WHEN NEW.lifecycle_version <> OLD.lifecycle_version AND NEW.attempt = OLD.attempt
      THEN RAISE(ABORT, 'interlock refuses this change of a job: a lifecycle changes only with a claim')
    WHEN NEW.state <> OLD.state THEN RAISE(ABORT, 'interlock refuses this change of a job: its lifecycle draws no such arrow for it')
    ELSE RAISE(ABORT, 'interlock refuses this change of a job: identity, keys and creation never change') END;
END;

-- By the columns that a statement names, so that it costs the others nothing.
CREATE TRIGGER interlock_jobs_payload BEFORE UPDATE OF payload ON interlock_jobs
BEGIN SELECT RAISE(ABORT, 'interlock refuses this UPDATE on jobs: a payload never changes'); END;

CREATE TRIGGER interlock_jobs_delete BEFORE DELETE ON interlock_jobs WHEN OLD.finished_at IS NULL
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on jobs: only a job that has ended is deleted');
END;

CREATE TRIGGER interlock_jobs_deleted AFTER DELETE ON interlock_jobs
BEGIN
  DELETE FROM interlock_executions WHERE job_id = OLD.id;
  DELETE FROM interlock_receipts WHERE job_id = OLD.id;
END;

CREATE TRIGGER interlock_executions_insert BEFORE INSERT ON interlock_executions WHEN (
    NEW.holder = 1 AND NEW.external_id IS NULL
    AND (NEW.status IN ('LEASED', 'IN_PROGRESS') OR (NEW.status = 'ABORTED' AND NEW.ended_by IN ('cancel', 'expire', 'reject')))
    AND EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = NEW.job_id)
  ) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on executions: an execution of a job begins leased, in progress, or as the taker''s own aborted one, with holder 1');
END;

CREATE TRIGGER interlock_executions_replace BEFORE INSERT ON interlock_executions WHEN
    EXISTS (SELECT 1 FROM interlock_executions e WHERE e.job_id = NEW.job_id AND e.attempt = NEW.attempt)
    OR (NEW.status <> 'ABORTED' AND EXISTS (SELECT 1 FROM interlock_executions e WHERE e.job_id = NEW.job_id AND e.status <> 'ABORTED'))
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on executions: the job has this attempt already, or one that is not aborted, and none is replaced');
END;

CREATE TRIGGER interlock_executions_update AFTER UPDATE ON interlock_executions WHEN (
    CASE OLD.status
      WHEN 'LEASED'      THEN NEW.status IN ('LEASED', 'IN_PROGRESS', 'ABORTED')
      WHEN 'IN_PROGRESS' THEN NEW.status IN ('IN_PROGRESS', 'COMMITTED', 'DONE', 'ABORTED')
      WHEN 'COMMITTED'   THEN NEW.status IN ('COMMITTED', 'DONE')
      ELSE 0 END
    AND NEW.job_id = OLD.job_id AND NEW.attempt = OLD.attempt AND NEW.kind = OLD.kind AND NEW.leased_at = OLD.leased_at
    AND NEW.holder - OLD.holder IN (0, 1)
    AND (OLD.started_at IS NULL OR NEW.started_at = OLD.started_at)
    AND (OLD.committed_at IS NULL OR (NEW.committed_at = OLD.committed_at AND NEW.result IS OLD.result))
  ) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on executions: an execution goes LEASED, IN_PROGRESS, COMMITTED, DONE, or ABORTED before the commit; what has ended or is committed stays; holder grows by one');
END;

CREATE TRIGGER interlock_executions_delete BEFORE DELETE ON interlock_executions WHEN EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on executions: it goes only together with its job');
END;

CREATE TRIGGER interlock_receipts_insert BEFORE INSERT ON interlock_receipts WHEN NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = NEW.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on receipts: there is no such job');
END;

-- An asking may be forgotten, or asked anew; what is known stays, but for a step's value, which may be taken afresh.
CREATE TRIGGER interlock_receipts_replace BEFORE INSERT ON interlock_receipts
  WHEN EXISTS (SELECT 1 FROM interlock_receipts r WHERE r.job_id = NEW.job_id AND r.name = NEW.name AND r.kind = 'effect' AND r.applied_at IS NOT NULL)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on receipts: what an outside call answered never changes');
END;

CREATE TRIGGER interlock_receipts_update AFTER UPDATE ON interlock_receipts WHEN (
    NEW.job_id = OLD.job_id AND NEW.name = OLD.name AND NEW.kind = OLD.kind
    AND (OLD.kind = 'step' OR OLD.applied_at IS NULL
      OR (NEW.attempt, NEW.holder, NEW.args_hash, NEW.value, NEW.asked_at, NEW.applied_at, NEW.decided_by)
        IS (OLD.attempt, OLD.holder, OLD.args_hash, OLD.value, OLD.asked_at, OLD.applied_at, OLD.decided_by))
  ) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on receipts: what an outside call answered never changes');
END;

CREATE TRIGGER interlock_receipts_delete BEFORE DELETE ON interlock_receipts
  WHEN OLD.applied_at IS NOT NULL AND EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on receipts: it goes only together with its job');
END;

CREATE TRIGGER interlock_audit_replace BEFORE INSERT ON interlock_audit
  WHEN EXISTS (SELECT 1 FROM interlock_audit a WHERE a.job_id = NEW.job_id AND a.version = NEW.version AND a.n = NEW.n)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on audit: the entry is written already, and none is replaced');
END;

CREATE TRIGGER interlock_audit_update BEFORE UPDATE ON interlock_audit
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on audit: audit is insert only');
END;

CREATE TRIGGER interlock_audit_delete BEFORE DELETE ON interlock_audit
  WHEN NOT EXISTS (SELECT 1 FROM interlock_archived a WHERE a.job_id = OLD.job_id) OR EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on audit: entries leave only through the archive');
END;

-- What the triggers above look up is only added to.
CREATE TRIGGER interlock_lifecycles_replace BEFORE INSERT ON interlock_lifecycles
  WHEN EXISTS (SELECT 1 FROM interlock_lifecycles l WHERE l.name = NEW.name AND (l.version = NEW.version OR l.digest = NEW.digest))
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on lifecycles: it is registered already, and none is replaced');
END;

CREATE TRIGGER interlock_lifecycles_update BEFORE UPDATE ON interlock_lifecycles
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on lifecycles: lifecycles are only added, by migrate');
END;

CREATE TRIGGER interlock_lifecycles_delete BEFORE DELETE ON interlock_lifecycles
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on lifecycles: lifecycles are only added, by migrate');
END;

CREATE TRIGGER interlock_edges_update BEFORE UPDATE ON interlock_lifecycle_edges
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on lifecycle_edges: arrows are only added, by migrate');
END;

CREATE TRIGGER interlock_edges_delete BEFORE DELETE ON interlock_lifecycle_edges
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on lifecycle_edges: arrows are only added, by migrate');
END;

CREATE TRIGGER interlock_hops_update BEFORE UPDATE ON interlock_lifecycle_hops
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on lifecycle_hops: arrows are only added, by migrate');
END;

CREATE TRIGGER interlock_hops_delete BEFORE DELETE ON interlock_lifecycle_hops
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on lifecycle_hops: arrows are only added, by migrate');
END;

CREATE TRIGGER interlock_phases_update BEFORE UPDATE ON interlock_lifecycle_phases
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on lifecycle_phases: arrows are only added, by migrate');
END;

CREATE TRIGGER interlock_phases_delete BEFORE DELETE ON interlock_lifecycle_phases
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on lifecycle_phases: arrows are only added, by migrate');
END;
