-- Cancel requests, holds and audit notes, on SQLite.

-- name: request_cancel
-- differs: the request and the audit note have statements of their own, in the same transaction.
SELECT j.id, j.cancel_requested_at IS NULL FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value CROSS
  JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt
WHERE j.phase = 'running' AND e.status IN ('LEASED', 'IN_PROGRESS')

-- name: request_cancel.job
UPDATE interlock_jobs SET cancel_requested_at = :now, cancel_requested_by = :by, cancel_reason = :reason,
  updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: request_cancel.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor, reason)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), j.attempt, :now, 'cancel_requested', :by, :reason
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: add_note
-- differs: moves use it too.
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor, reason)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), :attempt, :now, :event, :actor, :reason
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: release
-- differs: the receipts and the audit note have statements of their own, in the same transaction.
UPDATE interlock_jobs SET held_at = NULL, held_reason = NULL, due_at = :now, updated_at = {refreshed}
  WHERE id = :id AND held_at IS NOT NULL RETURNING attempt

-- name: release.happened
UPDATE interlock_receipts SET value = :value, applied_at = :now, decided_by = :by WHERE job_id = :id AND kind = 'effect'
  AND applied_at IS NULL RETURNING name

-- name: release.did_not
DELETE FROM interlock_receipts WHERE job_id = :id AND kind = 'effect' AND applied_at IS NULL RETURNING name

-- name: release.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor, reason, detail)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), j.attempt, :now, 'release', :by, :reason, :detail
FROM interlock_jobs j WHERE j.id = :id
