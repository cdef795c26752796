-- The triggers that refuse invalid writes from any client.
--
-- The WHEN clause of a trigger accepts valid rows; it looks transitions up in the tables that `migrate` fills.
-- `IS NOT TRUE` refuses NULL as well. Updates are checked after the change, with the values that would be stored.
-- REPLACE deletes rows without running delete triggers, so the `_replace` triggers refuse inserts with an existing key.

CREATE TRIGGER interlock_jobs_insert BEFORE INSERT ON interlock_jobs WHEN (
    NEW.phase = 'pending' AND NEW.version = 0 AND NEW.attempt = 0 AND NEW.tries_left = NEW.tries
      AND NEW.lease_losses = 0
    AND NEW.cancel_requested_at IS NULL AND NEW.held_at IS NULL AND NEW.result IS NULL AND NEW.key_freed = 0
    AND EXISTS (SELECT 1 FROM interlock_lifecycles l WHERE l.name = NEW.lifecycle AND l.version = NEW.lifecycle_version
      AND l.initial = NEW.state)
  ) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT,
    'interlock refuses this INSERT on jobs: a new job must be pending, in its initial state, version 0, attempt 0');
END;

CREATE TRIGGER interlock_jobs_replace BEFORE INSERT ON interlock_jobs WHEN
    EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = NEW.id)
    OR (NEW.idempotency_key IS NOT NULL AND EXISTS (
      SELECT 1 FROM interlock_jobs j WHERE j.kind = NEW.kind AND j.idempotency_key = NEW.idempotency_key
        AND j.key_freed = 0))
    OR (NEW.unique_key IS NOT NULL AND EXISTS (
      SELECT 1 FROM interlock_jobs j WHERE j.kind = NEW.kind AND j.unique_key = NEW.unique_key
        AND j.phase IN ('pending', 'running')))
BEGIN
  SELECT RAISE(ABORT,
    'interlock refuses this INSERT on jobs: another job has this id or key, and jobs cannot be replaced');
END;

CREATE TRIGGER interlock_jobs_update AFTER UPDATE ON interlock_jobs WHEN (
    OLD.finished_at IS NULL
    AND NEW.updated_at > OLD.updated_at
    AND CASE WHEN NEW.state = OLD.state THEN NEW.version = OLD.version AND NEW.attempt - OLD.attempt IN (0, 1)
        ELSE EXISTS (SELECT 1 FROM interlock_lifecycle_changes h
          WHERE h.lifecycle = NEW.lifecycle AND h.version = NEW.lifecycle_version AND h.source = OLD.state
          AND h.target = NEW.state AND h.attempts = NEW.attempt - OLD.attempt
            AND h.arrows = NEW.version - OLD.version) END
    AND EXISTS (SELECT 1 FROM interlock_lifecycle_phases p
      WHERE p.lifecycle = NEW.lifecycle AND p.version = NEW.lifecycle_version AND p.state = NEW.state
      AND p.phase = NEW.phase)
    AND (NEW.lifecycle_version = OLD.lifecycle_version OR NEW.attempt > OLD.attempt)
    AND NEW.id = OLD.id AND NEW.kind = OLD.kind AND NEW.lifecycle = OLD.lifecycle AND NEW.created_at = OLD.created_at
    AND NEW.idempotency_key IS OLD.idempotency_key AND NEW.unique_key IS OLD.unique_key AND NEW.root IS OLD.root
      AND NEW.redrive_of IS OLD.redrive_of
    AND NEW.concurrency_key IS OLD.concurrency_key AND NEW.batch IS OLD.batch
    AND NEW.key_freed >= OLD.key_freed
  ) IS NOT TRUE
BEGIN
  SELECT CASE
    WHEN OLD.finished_at IS NOT NULL THEN RAISE(ABORT, 'interlock refuses this change of a job: the job has ended')
    WHEN NEW.state <> OLD.state AND NEW.version = OLD.version
      THEN RAISE(ABORT, 'interlock refuses this change of a job: version must increase with each change of state')
    WHEN NEW.updated_at <= OLD.updated_at THEN RAISE(ABORT,
      'interlock refuses this change of a job: updated_at must increase')
    WHEN NEW.attempt < OLD.attempt THEN RAISE(ABORT, 'interlock refuses this change of a job: attempt never decreases')
    WHEN NOT EXISTS (SELECT 1 FROM interlock_lifecycle_phases p
      WHERE p.lifecycle = NEW.lifecycle AND p.version = NEW.lifecycle_version AND p.state = NEW.state
      AND p.phase = NEW.phase)
      THEN RAISE(ABORT, 'interlock refuses this change of a job: its phase does not fit the state')
    WHEN NEW.lifecycle_version <> OLD.lifecycle_version AND NEW.attempt = OLD.attempt
      THEN RAISE(ABORT, 'interlock refuses this change of a job: only a claim changes the lifecycle version')
    WHEN NEW.state <> OLD.state
      THEN RAISE(ABORT, 'interlock refuses this change of a job: its lifecycle does not allow this transition')
    ELSE RAISE(ABORT,
      'interlock refuses this change of a job: identity, keys and created_at never change, version only with the state')
    END;
END;

-- A trigger on this column alone, so that other updates do not run it. A redriven job repeats a job that was started,
-- and an idempotency key stands for one payload.
CREATE TRIGGER interlock_jobs_payload AFTER UPDATE OF payload ON interlock_jobs WHEN (
    NEW.phase = 'pending' AND NEW.attempt = 0 AND NEW.idempotency_key IS NULL AND NEW.redrive_of IS NULL
  ) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on jobs: the payload of a job that was started never changes');
END;

CREATE TRIGGER interlock_jobs_delete BEFORE DELETE ON interlock_jobs WHEN OLD.finished_at IS NULL
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on jobs: only a job that has ended can be deleted');
END;

CREATE TRIGGER interlock_jobs_deleted AFTER DELETE ON interlock_jobs
BEGIN
  DELETE FROM interlock_executions WHERE job_id = OLD.id;
  DELETE FROM interlock_receipts WHERE job_id = OLD.id;
END;

-- The initial statuses are LEASED, IN_PROGRESS, and ABORTED by cancel, expire or reject.
CREATE TRIGGER interlock_executions_insert BEFORE INSERT ON interlock_executions WHEN (
    NEW.holder = 1 AND NEW.external_id IS NULL
    AND (NEW.status IN ('LEASED', 'IN_PROGRESS') OR (NEW.status = 'ABORTED'
      AND NEW.ended_by IN ('cancel', 'expire', 'reject')))
    AND EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = NEW.job_id AND j.attempt = NEW.attempt)
  ) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT,
    'interlock refuses this INSERT on executions: it needs holder 1, an initial status and its job''s current attempt');
END;

CREATE TRIGGER interlock_executions_replace BEFORE INSERT ON interlock_executions WHEN
    EXISTS (SELECT 1 FROM interlock_executions e WHERE e.job_id = NEW.job_id AND e.attempt = NEW.attempt)
    OR (NEW.status <> 'ABORTED' AND EXISTS (SELECT 1 FROM interlock_executions e
      WHERE e.job_id = NEW.job_id AND e.status <> 'ABORTED'))
BEGIN
  SELECT RAISE(ABORT,
    'interlock refuses this INSERT on executions: the job already has this attempt or a live execution');
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
  SELECT RAISE(ABORT,
    'interlock refuses this UPDATE on executions: status and holder only advance; identity and commit never change');
END;

CREATE TRIGGER interlock_executions_delete BEFORE DELETE ON interlock_executions
  WHEN EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on executions: the row is deleted only together with its job');
END;

CREATE TRIGGER interlock_receipts_insert BEFORE INSERT ON interlock_receipts
  WHEN NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = NEW.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on receipts: the job does not exist');
END;

-- An effect that has begun may be discarded or begun again; its result is final. A step's value may be replaced.
CREATE TRIGGER interlock_receipts_replace BEFORE INSERT ON interlock_receipts
  WHEN EXISTS (SELECT 1 FROM interlock_receipts r WHERE r.job_id = NEW.job_id AND r.name = NEW.name
    AND r.kind = 'effect' AND r.applied_at IS NOT NULL)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on receipts: the result of an effect never changes');
END;

CREATE TRIGGER interlock_receipts_update AFTER UPDATE ON interlock_receipts WHEN (
    NEW.job_id = OLD.job_id AND NEW.name = OLD.name AND NEW.kind = OLD.kind
    AND (OLD.kind = 'step' OR OLD.applied_at IS NULL
      OR (NEW.attempt, NEW.holder, NEW.args_hash, NEW.value, NEW.begun_at, NEW.applied_at, NEW.decided_by)
        IS (OLD.attempt, OLD.holder, OLD.args_hash, OLD.value, OLD.begun_at, OLD.applied_at, OLD.decided_by))
  ) IS NOT TRUE
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on receipts: the result of an effect never changes');
END;

CREATE TRIGGER interlock_receipts_delete BEFORE DELETE ON interlock_receipts
  WHEN OLD.applied_at IS NOT NULL AND EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on receipts: the row is deleted only together with its job');
END;

CREATE TRIGGER interlock_audit_replace BEFORE INSERT ON interlock_audit
  WHEN EXISTS (SELECT 1 FROM interlock_audit a WHERE a.job_id = NEW.job_id AND a.version = NEW.version AND a.n = NEW.n)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on audit: the entry exists, and audit entries never change');
END;

CREATE TRIGGER interlock_audit_update BEFORE UPDATE ON interlock_audit
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on audit: audit entries never change');
END;

CREATE TRIGGER interlock_audit_delete BEFORE DELETE ON interlock_audit
  WHEN NOT EXISTS (SELECT 1 FROM interlock_archived a WHERE a.job_id = OLD.job_id)
    OR EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on audit: only archived entries of deleted jobs can be deleted');
END;

-- The triggers above look these rows up, so they can be added but never changed.
CREATE TRIGGER interlock_lifecycles_replace BEFORE INSERT ON interlock_lifecycles
  WHEN EXISTS (SELECT 1 FROM interlock_lifecycles l WHERE l.name = NEW.name
    AND (l.version = NEW.version OR l.digest = NEW.digest))
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on lifecycles: registered lifecycles never change');
END;

CREATE TRIGGER interlock_lifecycles_update BEFORE UPDATE ON interlock_lifecycles
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on lifecycles: registered lifecycles never change');
END;

CREATE TRIGGER interlock_lifecycles_delete BEFORE DELETE ON interlock_lifecycles
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on lifecycles: registered lifecycles never change');
END;

CREATE TRIGGER interlock_edges_update BEFORE UPDATE ON interlock_lifecycle_edges
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on lifecycle_edges: registered transitions never change');
END;

CREATE TRIGGER interlock_edges_delete BEFORE DELETE ON interlock_lifecycle_edges
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on lifecycle_edges: registered transitions never change');
END;

CREATE TRIGGER interlock_changes_update BEFORE UPDATE ON interlock_lifecycle_changes
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on lifecycle_changes: registered transitions never change');
END;

CREATE TRIGGER interlock_changes_delete BEFORE DELETE ON interlock_lifecycle_changes
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on lifecycle_changes: registered transitions never change');
END;

CREATE TRIGGER interlock_phases_update BEFORE UPDATE ON interlock_lifecycle_phases
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this UPDATE on lifecycle_phases: registered transitions never change');
END;

CREATE TRIGGER interlock_phases_delete BEFORE DELETE ON interlock_lifecycle_phases
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this DELETE on lifecycle_phases: registered transitions never change');
END;
