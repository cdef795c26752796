-- What an enqueue does with the waiting job that has its unique key, on SQLite.

-- fragment: never_started
-- A redriven job repeats a job that was started, and an idempotency key stands for one payload.
j.phase = 'pending' AND j.attempt = 0 AND j.idempotency_key IS NULL AND j.redrive_of IS NULL

-- name: replaceable
-- differs: the one writer needs no lock.
SELECT j.id FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value WHERE {never_started} ORDER BY j.id

-- name: replace
-- The job takes the new payload, and with `debounce` the new due time, which is never after the end of its window.
-- differs: it runs once for each job, because a list of payloads would be read again for each of them.
UPDATE interlock_jobs AS j SET payload = :payload, updated_at = {refreshed}, due_at = CASE WHEN :debounce
  THEN min(:due_at, coalesce((SELECT w.until FROM interlock_unique_windows w WHERE w.kind = j.kind
    AND w.unique_key = j.unique_key AND w.job_id = j.id), :due_at)) ELSE due_at END
WHERE j.id = :id AND {never_started}

-- name: replace.audit
INSERT INTO interlock_audit (job_id, version, n, at, event, actor, detail)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), :now, CASE WHEN :debounce THEN 'debounced' ELSE 'replaced' END,
  :actor, CASE WHEN :debounce THEN json_object('due_at', j.due_at) END
FROM interlock_jobs j WHERE j.id = :id AND {never_started}

-- name: replace.stored
SELECT j.id FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: unique_windows.forget
-- Windows that ended a minute ago: an enqueue that began before the end must still find the row. An active job keeps
-- its row.
DELETE FROM interlock_unique_windows WHERE (kind, unique_key) IN (
  SELECT w.kind, w.unique_key FROM interlock_unique_windows w WHERE w.until <= :before
    AND NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = w.job_id AND j.finished_at IS NULL)
  ORDER BY w.until LIMIT :limit + 0)
