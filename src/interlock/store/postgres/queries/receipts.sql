-- Saved results of steps and effects, on PostgreSQL.

-- name: receipts
SELECT r.name, r.kind, r.attempt, r.holder, r.args_hash, r.value::text, r.applied_at IS NOT NULL,
  extract(epoch FROM (SELECT interlock.clock()) - coalesce(r.applied_at, r.begun_at))::float8, r.decided_by
FROM interlock.receipts r WHERE r.job_id = :job_id::text::uuid ORDER BY r.name COLLATE "C"

-- fragment: fenced
-- The execution is locked: a worker that adopts it comes after this write and reads it.
clock AS MATERIALIZED (SELECT interlock.clock() AS now),
matched AS MATERIALIZED (
  SELECT e.job_id FROM interlock.executions e WHERE e.job_id = :job_id::text::uuid AND e.attempt = :attempt::int
    AND (e.holder, e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')) IS NOT DISTINCT
      FROM (:holder::int, true) FOR NO KEY UPDATE)

-- name: record_step
WITH {fenced}
INSERT INTO interlock.receipts AS r (job_id, name, kind, attempt, holder, args_hash, value, begun_at, applied_at)
SELECT h.job_id, :name::text, 'step', :attempt::int, :holder::int, :args_hash::text, :value::text::json, c.now, c.now
  FROM matched h, clock c
ON CONFLICT (job_id, name) DO UPDATE SET attempt = excluded.attempt, holder = excluded.holder,
  args_hash = excluded.args_hash, value = excluded.value,
  begun_at = excluded.begun_at, applied_at = excluded.applied_at WHERE r.kind = 'step'
RETURNING 1

-- name: begin_effect
WITH {fenced}
INSERT INTO interlock.receipts AS r (job_id, name, kind, attempt, holder, args_hash, begun_at)
SELECT h.job_id, :name::text, 'effect', :attempt::int, :holder::int, :args_hash::text, c.now FROM matched h, clock c
ON CONFLICT (job_id, name) DO UPDATE SET attempt = excluded.attempt, holder = excluded.holder,
  args_hash = excluded.args_hash, begun_at = excluded.begun_at
  WHERE r.applied_at IS NULL
RETURNING 1

-- name: record_effect
-- A repeated write of the same result changes nothing.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now)
UPDATE interlock.receipts r SET value = :value::text::json, applied_at = coalesce(r.applied_at, c.now),
  decided_by = coalesce(r.decided_by, :decided_by::text) FROM clock c
WHERE r.job_id = :job_id::text::uuid AND r.name = :name::text AND r.kind = 'effect' AND r.attempt = :attempt::int
  AND r.holder = :holder::int
  AND (r.applied_at IS NULL OR r.value::text IS NOT DISTINCT FROM :value::text)
RETURNING 1

-- name: discard_effect
DELETE FROM interlock.receipts r
WHERE r.job_id = :job_id::text::uuid AND r.name = :name::text AND r.kind = 'effect' AND r.attempt = :attempt::int
  AND r.holder = :holder::int AND r.applied_at IS NULL
RETURNING 1
