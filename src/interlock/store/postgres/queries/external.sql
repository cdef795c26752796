-- Handed-over work, on PostgreSQL.

-- name: count_external
SELECT count(*)::int FROM interlock.executions e WHERE e.kind = :kind::text AND e.external_id = :external_id::text
  AND {handed_over}

-- name: asking_job
SELECT c.id::text FROM (
  SELECT j.id, j.phase, j.created_at FROM interlock.jobs j WHERE j.id = :root::text::uuid
  UNION ALL
  SELECT j.id, j.phase, j.created_at FROM interlock.jobs j WHERE j.root = :root::text::uuid) c
ORDER BY c.phase = 'failed', c.created_at DESC, c.id DESC LIMIT 1

-- name: external_work
SELECT k.name, s.handed, greatest(coalesce(extract(epoch FROM interlock.clock() - s.due), 0), 0)::float8, k.check_every,
  k.check_batch, k.external_failures, k.external_error,
  k.external_down_at
FROM interlock.kinds k CROSS JOIN LATERAL (
  SELECT count(*)::int AS handed, min(e.lease_expires_at) AS due FROM interlock.executions e
    WHERE e.kind = k.name AND {handed_over}) s
WHERE k.check_every IS NOT NULL ORDER BY k.name COLLATE "C"

-- name: report_check
UPDATE interlock.kinds k SET external_failures = CASE WHEN :error::text IS NULL THEN 0 ELSE k.external_failures + 1 END,
  external_error = :error::text,
  external_down_at = CASE WHEN :error::text IS NOT NULL THEN coalesce(k.external_down_at, interlock.clock()) END
WHERE k.name = :kind::text AND (k.external_error IS NOT NULL OR :error::text IS NOT NULL)
