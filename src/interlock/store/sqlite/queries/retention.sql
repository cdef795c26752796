-- Deletion of old jobs and their audit, on SQLite.
--
-- differs: SQLite has no partitions, so there are no `partition_audit`, `add_partitions`, `droppable`,
-- differs: `read_committed`, `drop_partition`, `delete_archived`.

-- fragment: needed
-- Whether a job that has not ended waits for this one, or for a batch that contains it. Also if this one had ended
-- before: then it is not marked as `awaited`.
(EXISTS (SELECT 1 FROM interlock_dependencies) AND EXISTS (
  SELECT 1 FROM interlock_dependencies d CROSS JOIN interlock_jobs w ON w.id = d.job_id AND w.finished_at IS NULL
  WHERE d.needs IN (j.id, j.batch, (SELECT b.parent FROM interlock_batches b WHERE b.id = j.batch))))

-- fragment: keeps_key
-- Whether the job still has its unique key, because of its window.
(j.unique_key IS NOT NULL AND j.phase = 'succeeded' AND EXISTS (
  SELECT 1 FROM interlock_unique_windows w
  WHERE w.kind = j.kind AND w.unique_key = j.unique_key AND w.job_id = j.id AND w.until > :now))

-- name: prune
-- Jobs that another job still waits for, or whose results it may still read, are kept. So are jobs that still have
-- their unique key.
-- differs: a trigger deletes executions and receipts.
DELETE FROM interlock_jobs WHERE id IN (
  SELECT j.id FROM interlock_jobs j INDEXED BY interlock_jobs_finished
    WHERE j.phase = :phase AND j.finished_at < :before AND j.finished_at IS NOT NULL
    AND (:kinds IS NULL OR j.kind IN (SELECT value FROM json_each(:kinds)))
    AND NOT {needed} AND NOT {keeps_key}
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
