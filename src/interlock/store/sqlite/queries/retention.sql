-- Deletion of old jobs and their audit, on SQLite.
--
-- differs: SQLite has no partitions, so there are no `partition_audit`, `add_partitions`, `droppable`,
-- differs: `read_committed`, `drop_partition`, `delete_archived`.

-- name: prune
-- differs: a trigger deletes executions and receipts.
DELETE FROM interlock_jobs WHERE id IN (
  SELECT j.id FROM interlock_jobs j INDEXED BY interlock_jobs_finished
    WHERE j.phase = :phase AND j.finished_at < :before AND j.finished_at IS NOT NULL
    AND (:kinds IS NULL OR j.kind IN (SELECT value FROM json_each(:kinds)))
  ORDER BY j.finished_at LIMIT :limit + 0)

-- name: archivable
SELECT a.job_id FROM interlock_audit a
WHERE a.version = 0 AND a.n = 0 AND NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = a.job_id)
  AND (SELECT max(b.at) FROM interlock_audit b WHERE b.job_id = a.job_id) < :before
ORDER BY a.job_id LIMIT :limit + 0

-- name: archive
INSERT INTO interlock_archived (job_id, entries, digest, archived_at)
  VALUES (:job_id, :entries, :digest, :now) ON CONFLICT DO NOTHING

-- name: delete_audit
DELETE FROM interlock_audit WHERE job_id = :job_id
