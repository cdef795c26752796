-- Operations on many jobs, on PostgreSQL.

-- fragment: selected
{matching} AND j.phase = ANY(:phases::text::text[]) AND (NOT :failures::boolean OR {ended_by_failure})
  AND (:ended_until::text IS NULL OR j.finished_at <= :ended_until::text::timestamptz)

-- fragment: counted
j.kind, j.state, count(*)::int, count(*) FILTER (WHERE :redriven::boolean AND {redriven})::int,
  min(j.id::text COLLATE "C"), max(j.id::text COLLATE "C"), max(j.finished_at)

-- fragment: selectable
-- The columns that a selection needs.
j.id, j.kind, j.queue, j.state, j.phase, j.version, j.attempt, j.created_at, j.finished_at, j.tags, j.last_error

-- name: count_live
-- Together, the indexes have every waiting and running job, and no ended one. Of waiting jobs, only blocked ones may
-- have a cancel request.
SELECT {counted} FROM (
  SELECT {selectable} FROM interlock.jobs j WHERE {ready}
  UNION ALL
  SELECT {selectable} FROM interlock.jobs j WHERE {expiring}
  UNION ALL
  SELECT {selectable} FROM interlock.jobs j WHERE {suspect}
  UNION ALL
  SELECT {selectable} FROM interlock.jobs j WHERE {waiting}
  UNION ALL
  SELECT {selectable} FROM interlock.jobs j WHERE j.held_at IS NOT NULL OR j.blocked_at IS NOT NULL
  UNION ALL
  SELECT {selectable} FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id WHERE {leased}
  UNION ALL
  SELECT {selectable} FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id WHERE {handed_over}) j
WHERE {selected} GROUP BY j.kind, j.state ORDER BY j.kind COLLATE "C", j.state COLLATE "C"

-- name: count_ended
-- The index has the jobs that ended in each phase, by the time of their end.
SELECT {counted} FROM interlock.jobs j
WHERE j.finished_at IS NOT NULL AND j.finished_at >= coalesce(:since::text::timestamptz, '-infinity')
  AND j.finished_at < coalesce(:until::text::timestamptz, 'infinity') AND {selected}
GROUP BY j.kind, j.state ORDER BY j.kind COLLATE "C", j.state COLLATE "C"

-- name: walk_plans
-- Makes a page walk the primary key, whatever the statistics of the table say: another plan would sort all jobs that
-- match, for every page. Unlike `fixed_plans` it sets no timeouts, because a page may have to read the whole table.
SELECT set_config(s.name, s.value, true) FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),
  ('enable_sort', 'off'), ('jit', 'off'), ('plan_cache_mode', 'force_generic_plan')) AS s(name, value)

-- name: page_selected
SELECT {summary}, :redriven::boolean AND {redriven} FROM interlock.jobs j
WHERE j.id >= :start::text::uuid AND j.id <= :last::text::uuid AND {selected}
ORDER BY j.id LIMIT :limit::int

-- name: jobs_by_id
SELECT {job} FROM interlock.jobs j WHERE j.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[]))) ORDER BY j.id

-- name: redrivable
-- A dependent of a job that had ended before has not marked it as `awaited`.
SELECT j.id::text, {redriven},
  j.batch IS NOT NULL OR EXISTS (SELECT FROM interlock.dependencies d WHERE d.needs = j.id),
  EXISTS (SELECT FROM interlock.dependencies d WHERE d.needs = j.id),
  EXISTS (SELECT FROM interlock.dependencies d WHERE d.job_id = j.id)
FROM interlock.jobs j
WHERE j.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[]))) AND j.phase = 'failed'

-- name: note_redrives
INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor, reason)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), NULL, (SELECT interlock.clock()), 'redrive', :actor::text,
  r.reason
FROM unnest(:ids::text::uuid[], :reasons::text::text[]) AS r(id, reason)
JOIN interlock.jobs j ON j.id = ANY (ARRAY[r.id, r.id])

-- name: delete_jobs
-- A trigger deletes the executions, and the receipts refer to the job. The audit stays, with a note.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
matched AS MATERIALIZED (SELECT j.id, j.version FROM interlock.jobs j
  WHERE j.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[]))) AND j.finished_at IS NOT NULL AND NOT {needed}
  ORDER BY j.id FOR UPDATE),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor, reason)
  SELECT h.id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a
    WHERE a.job_id = h.id AND a.version = h.version), 0), NULL, c.now, 'delete', :by::text, :reason::text
  FROM matched h, clock c)
DELETE FROM interlock.jobs j USING matched h WHERE j.id = ANY (ARRAY[h.id, h.id]) RETURNING j.id::text
