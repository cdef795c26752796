-- Deletion of old jobs and their audit, on PostgreSQL.

-- fragment: needed
-- Whether a job that has not ended waits for this one, or for a batch that contains it. Also if this one had ended
-- before: then it is not marked as `awaited`.
(EXISTS (SELECT FROM interlock.dependencies) AND EXISTS (
  SELECT FROM interlock.dependencies d JOIN interlock.jobs w ON w.id = ANY (ARRAY[d.job_id, d.job_id])
    AND w.finished_at IS NULL
  WHERE d.needs IN (j.id, j.batch, (SELECT b.parent FROM interlock.batches b WHERE b.id = j.batch))))

-- fragment: keeps_key
-- Whether the job still has its unique key, because of its window.
(j.unique_key IS NOT NULL AND j.phase = 'succeeded' AND EXISTS (
  SELECT FROM interlock.unique_windows w WHERE w.kind = j.kind AND w.unique_key = j.unique_key AND w.job_id = j.id
    AND w.until > (SELECT interlock.clock())))

-- name: prune
-- Jobs that another job still waits for, or whose results it may still read, are kept. So are jobs that still have
-- their unique key.
DELETE FROM interlock.jobs WHERE id = ANY(ARRAY(
  SELECT j.id FROM interlock.jobs j WHERE j.phase = :phase::text
    AND j.finished_at < (SELECT interlock.clock()) - :age::float8 * interval '1 second' AND j.finished_at IS NOT NULL
    AND (:kinds::text IS NULL OR j.kind = ANY(:kinds::text::text[]))
    AND NOT {needed} AND NOT {keeps_key}
  ORDER BY j.finished_at LIMIT :limit::int FOR UPDATE SKIP LOCKED))

-- name: lock_archive
-- One archive run at a time, or both would write the same entries.
LOCK TABLE interlock.archived IN SHARE ROW EXCLUSIVE MODE

-- fragment: by_row
-- Entries outside the monthly partitions: only these are deleted by row when they are archived.
a.tableoid IN ('interlock.audit'::regclass, to_regclass('interlock.audit_default'))

-- name: archivable
-- differs: the audit of archived jobs may still be stored, in the partition of a month, and the next batch begins after
-- the last one.
SELECT a.job_id::text FROM interlock.audit a
WHERE a.job_id > :after::text::uuid AND a.version = 0 AND a.n = 0
  AND NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.id = a.job_id)
  AND ({by_row} OR NOT EXISTS (SELECT FROM interlock.archived r WHERE r.job_id = a.job_id))
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
-- differs: entries in the partition of a month stay until the partition is dropped.
DELETE FROM interlock.audit a WHERE a.job_id = ANY(:job_id::text::uuid[])
  AND {by_row}

-- name: read_committed
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: droppable
SELECT p.name FROM interlock.audit_partitions p
WHERE p.ends_at <= (SELECT interlock.clock()) - :age::float8 * interval '1 second'
  AND interlock.is_archived(p.first_id, p.end_id)
ORDER BY p.first_id

-- name: drop_partition
SELECT interlock.drop_audit_partition(:name::text)

-- name: delete_archived
-- Archived entries of months that a stored job has kept from being dropped for 31 days.
DELETE FROM interlock.audit WHERE job_id = ANY(ARRAY(
  SELECT h.job_id FROM interlock.audit_partitions p CROSS JOIN LATERAL (
    SELECT a.job_id FROM interlock.audit a JOIN interlock.archived r ON r.job_id = a.job_id
    WHERE a.job_id >= p.first_id AND a.job_id < p.end_id AND a.version = 0 AND a.n = 0
      AND NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.id = a.job_id)
      AND r.entries = (SELECT count(*) FROM interlock.audit b WHERE b.job_id = a.job_id) LIMIT :limit::int) h
  WHERE p.ends_at <= (SELECT interlock.clock()) - :age::float8 * interval '1 second' - interval '31 days'
    AND EXISTS (SELECT FROM interlock.jobs j WHERE j.id >= p.first_id AND j.id < p.end_id)
  LIMIT :limit::int))

-- name: partition_audit
SELECT interlock.partition_audit()

-- name: add_partitions
SELECT interlock.add_audit_partitions()
