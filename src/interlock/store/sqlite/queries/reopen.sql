-- A redrive re-opens what waits for the failed job, on SQLite.
--
-- differs: one writer, so nothing must be locked: there is no `reopen.lock`.

-- name: dependencies.of
-- What jobs waited for, and whether it was deleted since.
SELECT d.job_id, d.needs, d.is_batch, d.on_failed, d.outcome, CASE WHEN d.is_batch
  THEN NOT EXISTS (SELECT 1 FROM interlock_batches b WHERE b.id = d.needs)
  ELSE NOT EXISTS (SELECT 1 FROM interlock_jobs n WHERE n.id = d.needs) END
FROM json_each(:ids) i CROSS JOIN interlock_dependencies d ON d.job_id = i.value ORDER BY d.job_id, d.needs

-- fragment: sets_of
-- The batches and flows that contain these jobs.
sets(id) AS MATERIALIZED (
  SELECT j.batch FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value WHERE j.batch IS NOT NULL
  UNION
  SELECT b.parent FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value
    CROSS JOIN interlock_batches b ON b.id = j.batch WHERE b.parent IS NOT NULL)

-- fragment: reopened
-- A job that still waits, or that a failed dependency has cancelled.
(w.finished_at IS NULL OR (w.phase = 'failed' AND w.cancel_requested_by = :actor))

-- name: reopen
-- Jobs that wait for an old job wait for the new one. Jobs that wait for a batch wait for it again, if no
-- failed job of the batch is left that was not redriven.
WITH {sets_of},
repeated(old, new) AS MATERIALIZED (SELECT r.key, r.value FROM json_each(:repeated) r),
complete(id) AS MATERIALIZED (
  SELECT s.id FROM sets s WHERE NOT EXISTS (
    SELECT 1 FROM interlock_batches p CROSS JOIN interlock_jobs j INDEXED BY interlock_jobs_batch
      ON j.batch = p.id AND j.batch IS NOT NULL AND j.phase = 'failed'
    WHERE (p.id = s.id OR p.parent = s.id) AND NOT {redriven})),
edges(job_id, needs, new) AS MATERIALIZED (
  SELECT e.job_id, e.needs, r.new FROM repeated r CROSS JOIN interlock_dependencies e ON e.needs = r.old
    CROSS JOIN interlock_jobs w ON w.id = e.job_id WHERE {reopened}
  UNION ALL
  SELECT e.job_id, e.needs, e.needs FROM complete c CROSS JOIN interlock_dependencies e ON e.needs = c.id
    CROSS JOIN interlock_jobs w ON w.id = e.job_id WHERE e.outcome = 'failed' AND {reopened})
UPDATE interlock_dependencies SET needs = e.new, outcome = NULL FROM edges e
WHERE interlock_dependencies.job_id = e.job_id AND interlock_dependencies.needs = e.needs
RETURNING job_id

-- name: reopen.block
-- Jobs that the failure holds, or is about to cancel, are blocked again.
UPDATE interlock_jobs SET blocked_at = :now, held_at = NULL, held_reason = NULL, cancel_requested_at = NULL,
  cancel_requested_by = NULL, cancel_reason = NULL, updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids)) AND phase = 'pending' AND attempt = 0
  AND (held_at IS NOT NULL OR cancel_requested_at IS NOT NULL)

-- name: reopen.block_audit
-- differs: SQLite has no writing CTE, so the note has a statement of its own, before the change.
INSERT INTO interlock_audit (job_id, version, n, at, event, actor, reason)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), :now, 'block', :actor, 'a failed dependency was redriven'
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value
WHERE j.phase = 'pending' AND j.attempt = 0 AND (j.held_at IS NOT NULL OR j.cancel_requested_at IS NOT NULL)

-- name: reopenable
-- Jobs that a failed dependency has cancelled, and whose dependencies have all been redriven now.
WITH {sets_of}
SELECT {job} FROM interlock_jobs j WHERE j.id IN (
    SELECT d.job_id FROM json_each(:ids) i CROSS JOIN interlock_dependencies d ON d.needs = i.value
    UNION SELECT d.job_id FROM sets s CROSS JOIN interlock_dependencies d ON d.needs = s.id)
  AND j.phase = 'failed' AND j.cancel_requested_by = :actor AND NOT {redriven}
  AND NOT EXISTS (SELECT 1 FROM interlock_dependencies d WHERE d.job_id = j.id AND d.outcome = 'failed')
ORDER BY j.id
