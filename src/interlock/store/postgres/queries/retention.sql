-- Deletion of old jobs and their audit, on PostgreSQL.

-- name: prune
DELETE FROM interlock.jobs WHERE id = ANY(ARRAY(
  SELECT j.id FROM interlock.jobs j WHERE j.phase = :phase::text
    AND j.finished_at < (SELECT interlock.clock()) - :age::float8 * interval '1 second' AND j.finished_at IS NOT NULL
    AND (:kinds::text IS NULL OR j.kind = ANY(:kinds::text::text[]))
  ORDER BY j.finished_at LIMIT :limit::int FOR UPDATE SKIP LOCKED))

-- name: lock_archive
-- One archive run at a time, or both would write the same entries.
LOCK TABLE interlock.archived IN SHARE ROW EXCLUSIVE MODE

-- name: archivable
SELECT a.job_id::text FROM interlock.audit a
WHERE a.version = 0 AND a.n = 0 AND NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.id = a.job_id)
  AND (SELECT max(b.at) FROM interlock.audit b
    WHERE b.job_id = a.job_id) < (SELECT interlock.clock()) - :age::float8 * interval '1 second'
ORDER BY a.job_id LIMIT :limit::int

-- name: archive
WITH marked AS (
  INSERT INTO interlock.archived (job_id, entries, digest, archived_at)
  SELECT m.job_id, m.entries, m.digest, (SELECT interlock.clock())
  FROM unnest(:job_id::text::uuid[], :entries::text::int[], :digest::text::text[]) AS m(job_id, entries, digest)
  ON CONFLICT DO NOTHING)
SELECT 1

-- name: delete_audit
DELETE FROM interlock.audit WHERE job_id = ANY(:job_id::text::uuid[])
