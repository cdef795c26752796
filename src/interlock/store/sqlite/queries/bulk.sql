-- Operations on many jobs, on SQLite.
--
-- differs: a page walks the primary key because no other index fits, so there is no `walk_plans`.

-- fragment: selected
{matching} AND j.phase IN (SELECT value FROM json_each(:phases)) AND (NOT :failures OR {ended_by_failure})
  AND (:ended_until IS NULL OR j.finished_at <= :ended_until)

-- fragment: counted
j.kind, j.state, count(*), sum(:redriven AND {redriven}), min(j.id), max(j.id), max(j.finished_at)

-- fragment: selectable
-- The columns that a selection needs.
j.id, j.kind, j.queue, j.state, j.phase, j.version, j.attempt, j.created_at, j.finished_at, j.tags, j.last_error

-- name: count_live
-- Together, the indexes have every waiting and running job, and no ended one. Of waiting jobs, only blocked ones may
-- have a cancel request.
SELECT {counted} FROM (
  SELECT {selectable} FROM interlock_jobs j INDEXED BY interlock_jobs_ready WHERE {ready}
  UNION ALL
  SELECT {selectable} FROM interlock_jobs j INDEXED BY interlock_jobs_ready_expiring WHERE {expiring}
  UNION ALL
  SELECT {selectable} FROM interlock_jobs j INDEXED BY interlock_jobs_suspect WHERE {suspect}
  UNION ALL
  SELECT {selectable} FROM interlock_jobs j INDEXED BY interlock_jobs_by_key WHERE {waiting}
  UNION ALL
  SELECT {selectable} FROM interlock_jobs j INDEXED BY interlock_jobs_aside WHERE {aside}
  UNION ALL
  SELECT {selectable} FROM interlock_executions e INDEXED BY interlock_executions_leases
    CROSS JOIN interlock_jobs j ON j.id = e.job_id WHERE {leased}
  UNION ALL
  SELECT {selectable} FROM interlock_executions e INDEXED BY interlock_executions_external
    CROSS JOIN interlock_jobs j ON j.id = e.job_id WHERE {handed_over}) j
WHERE {selected} GROUP BY j.kind, j.state ORDER BY j.kind, j.state

-- name: count_ended
-- The index has the jobs that ended in each phase, by the time of their end.
SELECT {counted} FROM json_each(:phases) p CROSS JOIN interlock_jobs j INDEXED BY interlock_jobs_finished
  ON j.phase = p.value AND j.finished_at IS NOT NULL AND j.finished_at >= coalesce(:since, '')
    AND j.finished_at < coalesce(:until, '~')
WHERE {selected} GROUP BY j.kind, j.state ORDER BY j.kind, j.state

-- name: page_selected
SELECT {summary}, :redriven AND {redriven} FROM interlock_jobs j
WHERE j.id >= :start AND j.id <= :last AND {selected}
ORDER BY j.id LIMIT :limit + 0

-- name: jobs_by_id
SELECT {job} FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value ORDER BY j.id

-- name: redrivable
-- A dependent of a job that had ended before has not marked it as `awaited`.
SELECT j.id, {redriven}, j.batch IS NOT NULL OR EXISTS (SELECT 1 FROM interlock_dependencies d WHERE d.needs = j.id),
  EXISTS (SELECT 1 FROM interlock_dependencies d WHERE d.needs = j.id),
  EXISTS (SELECT 1 FROM interlock_dependencies d WHERE d.job_id = j.id)
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value WHERE j.phase = 'failed'

-- name: note_redrives
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor, reason)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), NULL, :now, 'redrive', :actor, r.value
FROM json_each(:reasons) r CROSS JOIN interlock_jobs j ON j.id = r.key

-- name: delete_jobs
-- A trigger deletes the executions and the receipts. The audit stays, with a note.
-- differs: the note has a statement of its own, before this one in the same transaction.
DELETE FROM interlock_jobs WHERE id IN (
  SELECT j.id FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value
  WHERE j.finished_at IS NOT NULL AND NOT {needed}) RETURNING id

-- name: delete_jobs.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor, reason)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), NULL, :now, 'delete', :by, :reason
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value WHERE j.finished_at IS NOT NULL
  AND NOT {needed}
