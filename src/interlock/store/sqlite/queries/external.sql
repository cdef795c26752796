-- Handed-over work, on SQLite.

-- name: count_external
SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_external_id
  WHERE e.kind = :kind AND e.external_id = :external_id AND {handed_over}

-- name: asking_job
SELECT c.id FROM (
  SELECT j.id, j.phase, j.created_at FROM interlock_jobs j WHERE j.id = :root
  UNION ALL
  SELECT j.id, j.phase, j.created_at FROM interlock_jobs j WHERE j.root = :root) c
ORDER BY c.phase = 'failed', c.created_at DESC, c.id DESC LIMIT 1

-- name: external_work
SELECT k.name, (SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_external
  WHERE e.kind = k.name AND {handed_over}),
  (SELECT min(e.lease_expires_at) FROM interlock_executions e INDEXED BY interlock_executions_external
    WHERE e.kind = k.name AND {handed_over}),
  k.check_every, k.check_batch, k.external_failures, k.external_error, k.external_down_at
FROM interlock_kinds k WHERE k.check_every IS NOT NULL ORDER BY k.name

-- name: report_check
-- differs: runs only if something changes, since a write wakes every listener.
UPDATE interlock_kinds SET external_failures = CASE WHEN :error IS NULL THEN 0 ELSE external_failures + 1 END,
  external_error = :error,
  external_down_at = CASE WHEN :error IS NOT NULL THEN coalesce(external_down_at, :now) END
WHERE name = :kind

-- name: report_check.changes
SELECT 1 FROM interlock_kinds WHERE name = :kind AND (external_error IS NOT NULL OR :error IS NOT NULL)
