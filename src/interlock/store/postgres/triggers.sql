-- The triggers that refuse invalid writes from any client.
--
-- Functions check new and updated jobs and executions. PostgreSQL plans their conditions once per session, and inlines
-- the immutable functions that they call. It would compile a WHEN clause or a CHECK constraint again for every
-- statement, which costs some 40 µs. Most other row triggers use WHEN, and their function only raises the error. Row
-- triggers run AFTER the write, because a BEFORE trigger would lock every row once more.

-- Every migration replaces these three functions from the registered rows; until then they accept nothing.
CREATE FUNCTION interlock.accepts_change(lifecycle text, version int, source text, target text, attempts int,
  arrows int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
CREATE FUNCTION interlock.accepts_phase(lifecycle text, version int, state text, phase text) RETURNS boolean
  LANGUAGE sql IMMUTABLE AS 'SELECT false';
CREATE FUNCTION interlock.accepts_start(lifecycle text, version int, state text) RETURNS boolean
  LANGUAGE sql IMMUTABLE AS 'SELECT false';

CREATE FUNCTION interlock.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'interlock refuses this % on %: %', TG_OP, TG_TABLE_NAME,
    TG_ARGV[0] USING ERRCODE = 'check_violation';
END $$;

-- A function of its own, because the trigger evaluates a condition without a query ten times as fast.
CREATE FUNCTION interlock.note_new_key(job interlock.jobs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM interlock.limits l WHERE l.scope = 'key' AND l.name = job.kind) THEN
    RAISE EXCEPTION 'interlock refuses this INSERT on jobs: kind % has no limit per concurrency key', job.kind
      USING ERRCODE = 'check_violation';
  END IF;
  IF job.blocked_at IS NULL THEN
    INSERT INTO interlock.key_checks (check_at, priority, kind, queue, concurrency_key)
      VALUES (job.due_at, job.priority, job.kind, job.queue, job.concurrency_key);
  END IF;
END $$;

CREATE FUNCTION interlock.check_new_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (
    interlock.accepts_start(NEW.lifecycle, NEW.lifecycle_version, NEW.state)
    AND NEW.phase = 'pending' AND NEW.version = 0 AND NEW.attempt = 0 AND NEW.tries_left = NEW.tries AND NEW.tries >= 1
    AND NEW.lease_losses = 0 AND NEW.finished_at IS NULL AND NEW.cancel_requested_at IS NULL AND NEW.held_at IS NULL
    AND NEW.result IS NULL AND NOT NEW.key_freed
    AND coalesce(length(NEW.idempotency_key), 0) <= 255 AND coalesce(length(NEW.unique_key), 0) <= 255
    AND coalesce(length(NEW.concurrency_key), 0) <= 255) IS TRUE THEN
    IF NEW.concurrency_key IS NOT NULL THEN
      PERFORM interlock.note_new_key(NEW);
    END IF;
    IF NEW.unique_key IS NOT NULL AND NEW.redrive_of IS NULL THEN
      PERFORM interlock.check_unique_window(NEW);
    END IF;
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'interlock refuses this INSERT on jobs: %', CASE
    WHEN length(NEW.idempotency_key) > 255 OR length(NEW.unique_key) > 255 OR length(NEW.concurrency_key) > 255
      THEN 'a key must have at most 255 characters'
    WHEN NEW.tries < 1 THEN 'tries must be at least 1'
    ELSE 'a new job must be pending, in its initial state, version 0, attempt 0' END
  USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER jobs_insert AFTER INSERT ON interlock.jobs FOR EACH ROW EXECUTE FUNCTION interlock.check_new_job();

-- Records what a change of a job with a concurrency key, in a batch or with dependents means for others.
CREATE FUNCTION interlock.note_change(was interlock.jobs, job interlock.jobs) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  stopped boolean := was.phase = 'running' AND job.phase <> 'running';
BEGIN
  IF job.concurrency_key IS NOT NULL THEN
    IF stopped THEN
      INSERT INTO interlock.key_checks (check_at, priority, kind, queue, concurrency_key)
        VALUES (interlock.clock(), coalesce((SELECT j.priority FROM interlock.jobs j
            WHERE j.kind = job.kind AND j.concurrency_key = job.concurrency_key AND j.queue = job.queue
              AND j.phase = 'pending' AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.blocked_at IS NULL
              AND j.concurrency_key IS NOT NULL AND j.finished_at IS NULL
            ORDER BY j.priority DESC LIMIT 1), job.priority),
          job.kind, '', job.concurrency_key);
    END IF;
    IF job.phase = 'pending' AND job.held_at IS NULL AND job.blocked_at IS NULL
      AND job.cancel_requested_at IS NULL THEN
      INSERT INTO interlock.key_checks (check_at, priority, kind, queue, concurrency_key)
        VALUES (job.due_at, job.priority, job.kind, job.queue, job.concurrency_key);
    END IF;
  END IF;
  IF job.finished_at IS NOT NULL AND (job.batch IS NOT NULL OR job.awaited) THEN
    INSERT INTO interlock.flow_checks (check_at, job_id, step) VALUES ('epoch', job.id, 'ended');
  END IF;
  IF stopped AND job.limited THEN
    PERFORM pg_notify('interlock.jobs', '');
  END IF;
END $$;

CREATE FUNCTION interlock.check_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (
    OLD.finished_at IS NULL
    AND NEW.updated_at > OLD.updated_at
    AND CASE WHEN NEW.state = OLD.state THEN NEW.version = OLD.version AND NEW.attempt - OLD.attempt IN (0, 1)
        ELSE interlock.accepts_change(NEW.lifecycle, NEW.lifecycle_version, OLD.state, NEW.state,
          NEW.attempt - OLD.attempt, NEW.version - OLD.version) END
    AND interlock.accepts_phase(NEW.lifecycle, NEW.lifecycle_version, NEW.state, NEW.phase)
    AND (NEW.finished_at IS NOT NULL) = (NEW.phase IN ('succeeded', 'failed'))
    AND NEW.tries >= 1 AND NEW.tries_left BETWEEN 0 AND NEW.tries
    AND (coalesce(NEW.held_at, NEW.blocked_at) IS NULL OR NEW.phase = 'pending')
    AND (NEW.lifecycle_version = OLD.lifecycle_version OR NEW.attempt > OLD.attempt)
    AND NEW.id = OLD.id AND NEW.kind = OLD.kind AND NEW.lifecycle = OLD.lifecycle AND NEW.created_at = OLD.created_at
    AND NEW.idempotency_key IS NOT DISTINCT FROM OLD.idempotency_key AND NEW.unique_key IS NOT DISTINCT
      FROM OLD.unique_key
    AND NEW.root IS NOT DISTINCT FROM OLD.root AND NEW.redrive_of IS NOT DISTINCT FROM OLD.redrive_of
    AND NEW.concurrency_key IS NOT DISTINCT FROM OLD.concurrency_key AND NEW.batch IS NOT DISTINCT FROM OLD.batch
    AND NEW.key_freed >= OLD.key_freed) IS TRUE THEN
    IF NEW.phase <> 'running' AND (NEW.limited OR NEW.awaited OR NEW.concurrency_key IS NOT NULL
      OR NEW.batch IS NOT NULL) THEN
      PERFORM interlock.note_change(OLD, NEW);
    END IF;
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'interlock refuses this change of job % (% -> %): %', OLD.id, OLD.state, NEW.state, CASE
    WHEN OLD.finished_at IS NOT NULL THEN 'the job has ended'
    WHEN NEW.state <> OLD.state AND NEW.version = OLD.version THEN 'version must increase with each change of state'
    WHEN NEW.updated_at <= OLD.updated_at THEN 'updated_at must increase'
    WHEN NEW.attempt < OLD.attempt THEN 'attempt never decreases'
    WHEN NOT interlock.accepts_phase(NEW.lifecycle, NEW.lifecycle_version, NEW.state, NEW.phase)
      THEN 'phase ' || NEW.phase || ' does not fit the state'
    WHEN (NEW.finished_at IS NOT NULL) <> (NEW.phase IN ('succeeded', 'failed'))
      THEN 'finished_at must be set if the job has ended, and only then'
    WHEN NEW.tries < 1 OR NEW.tries_left NOT BETWEEN 0 AND NEW.tries
      THEN 'tries must be at least 1, and tries_left between 0 and tries'
    WHEN coalesce(NEW.held_at, NEW.blocked_at) IS NOT NULL AND NEW.phase <> 'pending'
      THEN 'only a pending job can be held or blocked'
    WHEN NEW.lifecycle_version <> OLD.lifecycle_version AND NEW.attempt = OLD.attempt
      THEN 'only a claim changes the lifecycle version'
    WHEN NEW.state <> OLD.state THEN 'lifecycle ' || NEW.lifecycle || ' (version ' || NEW.lifecycle_version
      || ') does not allow this transition'
    ELSE 'identity, keys and created_at never change, version only with the state' END
  USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER jobs_update AFTER UPDATE ON interlock.jobs FOR EACH ROW EXECUTE FUNCTION interlock.check_job();

-- A trigger on this column alone, so that other updates do not run it. A redriven job repeats a job that was started,
-- and an idempotency key stands for one payload.
CREATE TRIGGER jobs_payload AFTER UPDATE OF payload ON interlock.jobs FOR EACH ROW WHEN ((
    NEW.phase = 'pending' AND NEW.attempt = 0 AND NEW.idempotency_key IS NULL AND NEW.redrive_of IS NULL) IS NOT TRUE)
  EXECUTE FUNCTION interlock.refuse('the payload of a job that was started never changes');
CREATE TRIGGER jobs_delete BEFORE DELETE ON interlock.jobs FOR EACH ROW WHEN (OLD.finished_at IS NULL)
  EXECUTE FUNCTION interlock.refuse('only a job that has ended can be deleted');

-- Whether the timestamps of an execution fit its status.
CREATE FUNCTION interlock.timestamps_fit(status text, started_at timestamptz, committed_at timestamptz,
  finished_at timestamptz, ended_by text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE status
    WHEN 'LEASED'      THEN started_at IS NULL AND committed_at IS NULL AND finished_at IS NULL AND ended_by IS NULL
    WHEN 'IN_PROGRESS' THEN started_at IS NOT NULL AND committed_at IS NULL AND finished_at IS NULL AND ended_by IS NULL
    WHEN 'COMMITTED'   THEN started_at IS NOT NULL AND committed_at IS NOT NULL AND finished_at IS NULL
      AND ended_by IS NULL
    WHEN 'DONE'        THEN started_at IS NOT NULL AND committed_at IS NOT NULL AND finished_at IS NOT NULL
      AND ended_by IN ('succeed', 'retry', 'lose', 'fail', 'bury', 'reject', 'cancel', 'expire')
    WHEN 'ABORTED'     THEN committed_at IS NULL AND finished_at IS NOT NULL
      AND ended_by IN ('succeed', 'retry', 'lose', 'fail', 'bury', 'reject', 'cancel', 'expire')
    ELSE false END;

-- Replaces a foreign key, which would look up each row by a query of its own. It also requires the job's present
-- attempt. The lock is that of a foreign key: the job cannot be deleted meanwhile. OFFSET 0 makes it look up each job
-- by its key, whatever the statistics of the table say when the plan is made.
CREATE FUNCTION interlock.check_new_executions() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  found_jobs bigint;
  new_executions bigint;
  leases bigint;
  refused bigint;
BEGIN
  SELECT count(*), count(*) FILTER (WHERE a.status <> 'ABORTED'),
    count(*) FILTER (WHERE (a.holder = 1 AND a.attempt >= 1 AND a.external_id IS NULL
      AND interlock.timestamps_fit(a.status, a.started_at, a.committed_at, a.finished_at, a.ended_by)
      AND (a.status IN ('LEASED', 'IN_PROGRESS') OR (a.status = 'ABORTED'
        AND a.ended_by IN ('cancel', 'expire', 'reject')))) IS NOT TRUE)
  INTO new_executions, leases, refused FROM added a;
  IF refused > 0 THEN
    RAISE EXCEPTION 'interlock refuses this INSERT on executions: %',
      'it must have holder 1 and attempt 1 or more, be LEASED, IN_PROGRESS, or ABORTED by cancel, expire or reject, '
      'and have timestamps that fit its status'
      USING ERRCODE = 'check_violation';
  END IF;
  PERFORM FROM added a CROSS JOIN LATERAL (
    SELECT FROM interlock.jobs j WHERE j.id = a.job_id AND j.attempt = a.attempt OFFSET 0 FOR KEY SHARE) found;
  GET DIAGNOSTICS found_jobs = ROW_COUNT;
  IF found_jobs <> new_executions THEN
    RAISE EXCEPTION 'interlock refuses this INSERT on executions: it must be the current attempt of a job'
      USING ERRCODE = 'foreign_key_violation';
  END IF;
  IF leases > 0 THEN
    -- Whoever stores a pause or a new limit waits for this lock: it ends with the claim. The queries below begin after
    -- it, so they see every pause and limit that did not wait for this claim.
    PERFORM pg_advisory_xact_lock_shared(1768846437, 'interlock.limits'::regclass::oid::int);
    IF EXISTS (SELECT FROM interlock.limits l WHERE l.scope <> 'key') THEN
      PERFORM FROM added a JOIN interlock.jobs j ON j.id = ANY (ARRAY[a.job_id, a.job_id])
        JOIN interlock.limits l ON (l.scope = 'queue' AND l.name = j.queue) OR (l.scope = 'kind' AND l.name = a.kind)
        WHERE a.status <> 'ABORTED' AND (l.paused_at IS NOT NULL
          OR (j.limited IS NOT TRUE AND (l.max_running IS NOT NULL OR l.rate_count IS NOT NULL)));
      IF FOUND THEN
        RAISE EXCEPTION 'interlock refuses this INSERT on executions: the queue or kind was paused or limited meanwhile'
          USING ERRCODE = 'IL002';
      END IF;
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER executions_insert AFTER INSERT ON interlock.executions REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION interlock.check_new_executions();

CREATE FUNCTION interlock.check_execution() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (
    OLD.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')
    AND CASE OLD.status
      WHEN 'LEASED'      THEN NEW.status IN ('LEASED', 'IN_PROGRESS', 'ABORTED')
      WHEN 'IN_PROGRESS' THEN NEW.status IN ('IN_PROGRESS', 'COMMITTED', 'DONE', 'ABORTED')
      ELSE NEW.status IN ('COMMITTED', 'DONE') END
    AND interlock.timestamps_fit(NEW.status, NEW.started_at, NEW.committed_at, NEW.finished_at, NEW.ended_by)
    AND NEW.job_id = OLD.job_id AND NEW.attempt = OLD.attempt AND NEW.kind = OLD.kind AND NEW.leased_at = OLD.leased_at
    AND NEW.holder - OLD.holder IN (0, 1)
    AND (OLD.started_at IS NULL OR NEW.started_at = OLD.started_at)
    AND (OLD.committed_at IS NULL OR (NEW.committed_at = OLD.committed_at AND NEW.result::text IS NOT DISTINCT
      FROM OLD.result::text))) IS TRUE THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'interlock refuses this UPDATE on executions: %',
    'status and holder can only advance, timestamps must fit the status, and identity and commit cannot change'
    USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER executions_update AFTER UPDATE ON interlock.executions FOR EACH ROW
  EXECUTE FUNCTION interlock.check_execution();

-- Deletes the dependencies of deleted jobs, and the batches that contain nothing any more.
CREATE FUNCTION interlock.delete_flow(jobs uuid[], sets uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM interlock.dependencies d WHERE d.job_id = ANY (jobs);
  -- First the batches, then the flows that contained them, with their batches that never had a job.
  WHILE cardinality(sets) > 0 LOOP
    WITH gone AS (
      DELETE FROM interlock.batches b WHERE b.id = ANY (sets)
        AND NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.batch = b.id)
        AND NOT EXISTS (SELECT FROM interlock.batches c CROSS JOIN LATERAL (
            SELECT FROM interlock.jobs j WHERE j.batch = c.id LIMIT 1) filled WHERE c.parent = b.id)
      RETURNING b.id, b.parent),
    emptied AS (
      DELETE FROM interlock.batches c USING gone g WHERE c.parent = g.id)
    SELECT coalesce(array_agg(DISTINCT g.parent), '{}') INTO sets FROM gone g WHERE g.parent IS NOT NULL;
  END LOOP;
END $$;

-- Deletes the executions of deleted jobs, in place of ON DELETE CASCADE.
CREATE FUNCTION interlock.delete_executions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM interlock.batches) OR EXISTS (SELECT FROM interlock.dependencies) THEN
    PERFORM interlock.delete_flow(ARRAY(SELECT r.id FROM removed r),
      ARRAY(SELECT DISTINCT r.batch FROM removed r WHERE r.batch IS NOT NULL));
  END IF;
  DELETE FROM interlock.executions WHERE ctid = ANY (ARRAY(
    SELECT found.place FROM removed r CROSS JOIN LATERAL (
      SELECT e.ctid AS place FROM interlock.executions e WHERE e.job_id = r.id OFFSET 0) found));
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_deleted AFTER DELETE ON interlock.jobs REFERENCING OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION interlock.delete_executions();

-- `finish` calls it with the numbers of executions and jobs that it has written.
CREATE FUNCTION interlock.check_in_step(executions bigint, jobs bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF executions <> jobs THEN
    RAISE EXCEPTION 'interlock refuses this finish: % executions match, but only % of their jobs', executions, jobs
      USING ERRCODE = 'IL001';
  END IF;
  RETURN true;
END $$;

CREATE FUNCTION interlock.refuse_orphaning() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM interlock.jobs WHERE id = OLD.job_id) THEN
    RAISE EXCEPTION 'interlock refuses this DELETE on %: the row is deleted only together with its job',
      TG_TABLE_NAME USING ERRCODE = 'check_violation';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER executions_delete BEFORE DELETE ON interlock.executions FOR EACH ROW
  EXECUTE FUNCTION interlock.refuse_orphaning();
-- An effect that has begun may be discarded or begun again; its result is final. A step's value may be replaced.
CREATE TRIGGER receipts_delete BEFORE DELETE ON interlock.receipts FOR EACH ROW WHEN (OLD.applied_at IS NOT NULL)
  EXECUTE FUNCTION interlock.refuse_orphaning();
CREATE TRIGGER receipts_update AFTER UPDATE ON interlock.receipts FOR EACH ROW WHEN ((
    NEW.job_id = OLD.job_id AND NEW.name = OLD.name AND NEW.kind = OLD.kind
    AND (OLD.kind = 'step' OR OLD.applied_at IS NULL
      OR (NEW.attempt, NEW.holder, NEW.args_hash, NEW.value::text, NEW.begun_at, NEW.applied_at, NEW.decided_by)
        IS NOT DISTINCT FROM (OLD.attempt, OLD.holder, OLD.args_hash, OLD.value::text, OLD.begun_at, OLD.applied_at,
          OLD.decided_by))) IS NOT TRUE)
  EXECUTE FUNCTION interlock.refuse('the result of an effect never changes');

CREATE FUNCTION interlock.refuse_unarchived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM interlock.archived WHERE job_id = OLD.job_id) OR EXISTS (SELECT FROM interlock.jobs
    WHERE id = OLD.job_id) THEN
    RAISE EXCEPTION 'interlock refuses this DELETE on audit: only archived entries of deleted jobs can be deleted'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER audit_delete BEFORE DELETE ON interlock.audit FOR EACH ROW
  EXECUTE FUNCTION interlock.refuse_unarchived();
CREATE TRIGGER audit_update BEFORE UPDATE ON interlock.audit FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('audit entries never change');
CREATE TRIGGER edges_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.lifecycle_edges FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('registered transitions never change');
CREATE TRIGGER changes_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.lifecycle_changes FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('registered transitions never change');
CREATE TRIGGER phases_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.lifecycle_phases FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('registered transitions never change');
CREATE TRIGGER lifecycles_update BEFORE UPDATE OR DELETE OR TRUNCATE ON interlock.lifecycles FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('registered lifecycles never change');
CREATE TRIGGER jobs_truncate BEFORE TRUNCATE ON interlock.jobs FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('only a job that has ended can be deleted');
CREATE TRIGGER executions_truncate BEFORE TRUNCATE ON interlock.executions FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('executions are deleted only together with their job');
CREATE TRIGGER receipts_truncate BEFORE TRUNCATE ON interlock.receipts FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('receipts are deleted only together with their job');
CREATE TRIGGER audit_truncate BEFORE TRUNCATE ON interlock.audit FOR EACH STATEMENT
  EXECUTE FUNCTION interlock.refuse('audit entries never change');
