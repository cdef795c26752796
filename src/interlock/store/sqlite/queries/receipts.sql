-- Saved results of steps and effects, on SQLite.

-- name: receipts
-- differs: the store computes the age from the time.
SELECT r.name, r.kind, r.attempt, r.holder, r.args_hash, r.value, r.applied_at IS NOT NULL,
  coalesce(r.applied_at, r.begun_at), r.decided_by
FROM interlock_receipts r WHERE r.job_id = :job_id ORDER BY r.name

-- fragment: fenced
FROM interlock_executions e
WHERE e.job_id = :job_id AND e.attempt = :attempt AND e.holder = :holder
  AND e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')

-- name: record_step
INSERT INTO interlock_receipts (job_id, name, kind, attempt, holder, args_hash, value, begun_at, applied_at)
SELECT e.job_id, :name, 'step', e.attempt, e.holder, :args_hash, :value, :now, :now {fenced}
  AND NOT EXISTS (SELECT 1 FROM interlock_receipts r WHERE r.job_id = :job_id AND r.name = :name AND r.kind <> 'step')
ON CONFLICT (job_id, name) DO UPDATE SET attempt = excluded.attempt, holder = excluded.holder,
  args_hash = excluded.args_hash, value = excluded.value,
  begun_at = excluded.begun_at, applied_at = excluded.applied_at
RETURNING 1

-- name: begin_effect
-- differs: an existing receipt is looked up first, because the trigger that refuses REPLACE would refuse the conflict
--   too.
INSERT INTO interlock_receipts (job_id, name, kind, attempt, holder, args_hash, begun_at)
SELECT e.job_id, :name, 'effect', e.attempt, e.holder, :args_hash, :now {fenced}
  AND NOT EXISTS (SELECT 1 FROM interlock_receipts r WHERE r.job_id = :job_id AND r.name = :name
    AND r.applied_at IS NOT NULL)
ON CONFLICT (job_id, name) DO UPDATE SET attempt = excluded.attempt, holder = excluded.holder,
  args_hash = excluded.args_hash, begun_at = excluded.begun_at
RETURNING 1

-- name: record_effect
-- A repeated write of the same result changes nothing.
UPDATE interlock_receipts SET value = :value, applied_at = coalesce(applied_at, :now),
  decided_by = coalesce(decided_by, :decided_by)
WHERE job_id = :job_id AND name = :name AND kind = 'effect' AND attempt = :attempt AND holder = :holder
  AND (applied_at IS NULL OR value IS :value)
RETURNING 1

-- name: discard_effect
DELETE FROM interlock_receipts
WHERE job_id = :job_id AND name = :name AND kind = 'effect' AND attempt = :attempt AND holder = :holder
  AND applied_at IS NULL
RETURNING 1
