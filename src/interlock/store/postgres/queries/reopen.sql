-- A redrive re-opens what waits for the failed job, on PostgreSQL.

-- name: dependencies.of
-- What jobs waited for, and whether it was deleted since.
SELECT d.job_id::text, d.needs::text, d.is_batch, d.on_failed, d.outcome, CASE WHEN d.is_batch
  THEN NOT EXISTS (SELECT FROM interlock.batches b WHERE b.id = d.needs)
  ELSE NOT EXISTS (SELECT FROM interlock.jobs n WHERE n.id = d.needs) END
FROM interlock.dependencies d
WHERE d.job_id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[]))) ORDER BY d.job_id, d.needs

-- fragment: sets_of
-- The batches and flows that contain these jobs.
sets AS MATERIALIZED (
  SELECT j.batch AS id FROM interlock.jobs j WHERE j.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[])))
    AND j.batch IS NOT NULL
  UNION
  SELECT b.parent FROM interlock.jobs j JOIN interlock.batches b ON b.id = j.batch
    WHERE j.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[]))) AND b.parent IS NOT NULL)

-- fragment: reopened
-- A job that still waits, or that a failed dependency has cancelled.
(w.finished_at IS NULL OR (w.phase = 'failed' AND w.cancel_requested_by = :actor::text))

-- name: reopen.lock
-- The jobs that wait for these jobs, and the batches and flows of these jobs. Another redrive of what they wait for
-- must not run at the same time: of two that each repeat one of two failed jobs, the second must see the first. Nor is
-- a failure stored with a dependency (`flow.lock_edges`), even of a job that begins to wait for a batch now.
WITH {sets_of},
locked_sets AS MATERIALIZED (
  SELECT b.id FROM interlock.batches b WHERE b.id IN (SELECT s.id FROM sets s) ORDER BY b.id FOR NO KEY UPDATE)
SELECT count(*), (SELECT count(*) FROM locked_sets) FROM (
  SELECT FROM interlock.jobs w WHERE w.id IN (
    SELECT d.job_id FROM interlock.dependencies d WHERE d.needs = ANY(ARRAY(SELECT unnest(:ids::text::uuid[])))
    UNION
    SELECT d.job_id FROM interlock.dependencies d WHERE d.needs IN (SELECT s.id FROM sets s))
  ORDER BY w.id FOR NO KEY UPDATE) locked

-- name: reopen
-- Jobs that wait for an old job wait for the new one. Jobs that wait for a batch wait for it again, if no
-- failed job of the batch is left that was not redriven.
WITH {sets_of},
repeated AS MATERIALIZED (
  SELECT * FROM unnest(:ids::text::uuid[], :new::text::uuid[]) AS r(old, new)),
complete AS MATERIALIZED (
  SELECT s.id FROM sets s WHERE NOT EXISTS (
    SELECT FROM interlock.batches p JOIN interlock.jobs j ON j.batch = p.id AND j.phase = 'failed'
    WHERE (p.id = s.id OR p.parent = s.id) AND NOT {redriven}))
UPDATE interlock.dependencies d SET needs = coalesce(r.new, d.needs), outcome = NULL
FROM interlock.dependencies e LEFT JOIN repeated r ON r.old = e.needs JOIN interlock.jobs w ON w.id = e.job_id
WHERE d.job_id = e.job_id AND d.needs = e.needs AND {reopened}
  AND (r.old IS NOT NULL OR (e.is_batch AND e.outcome = 'failed' AND e.needs IN (SELECT c.id FROM complete c)))
  AND (e.needs = ANY(ARRAY(SELECT unnest(:ids::text::uuid[]))) OR e.needs IN (SELECT s.id FROM sets s))
RETURNING d.job_id::text

-- name: reopen.block
-- Jobs that the failure holds, or is about to cancel, are blocked again.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
blocked AS (
  UPDATE interlock.jobs j SET blocked_at = c.now, held_at = NULL, held_reason = NULL, cancel_requested_at = NULL,
    cancel_requested_by = NULL, cancel_reason = NULL, updated_at = {refreshed}
  FROM clock c WHERE j.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[]))) AND j.phase = 'pending' AND j.attempt = 0
    AND (j.held_at IS NOT NULL OR j.cancel_requested_at IS NOT NULL)
  RETURNING j.id, j.version, c.now)
INSERT INTO interlock.audit (job_id, version, n, at, event, actor, reason)
SELECT b.id, b.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a
  WHERE a.job_id = b.id AND a.version = b.version), 0), b.now, 'block', :actor::text,
  'a failed dependency was redriven' FROM blocked b

-- name: reopenable
-- Jobs that a failed dependency has cancelled, and whose dependencies have all been redriven now.
SELECT {job} FROM interlock.jobs j WHERE j.phase = 'failed' AND j.cancel_requested_by = :actor::text AND NOT {redriven}
  AND j.id IN (
    SELECT d.job_id FROM interlock.dependencies d WHERE d.needs = ANY(ARRAY(SELECT unnest(:ids::text::uuid[])))
    UNION SELECT d.job_id FROM interlock.dependencies d WHERE d.needs IN (
      SELECT n.batch FROM interlock.jobs n WHERE n.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[])))
      UNION SELECT b.parent FROM interlock.jobs n JOIN interlock.batches b ON b.id = n.batch
        WHERE n.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[])))))
  AND NOT EXISTS (SELECT FROM interlock.dependencies d WHERE d.job_id = j.id AND d.outcome = 'failed')
ORDER BY j.id
