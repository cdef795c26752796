-- Batches and dependencies, on SQLite.
--
-- differs: SQLite has one writer, so no row is locked by another transaction: there is no `flow.lock`
-- differs: and no `flow.lock_edges`.

-- name: batches.add
INSERT INTO interlock_batches (id, parent, name, created_at, created_by)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), :now,
  json_extract(value, '$[3]') FROM json_each(:batches)

-- name: dependencies.add
INSERT INTO interlock_dependencies (job_id, needs, is_batch, on_failed)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
  json_extract(value, '$[3]') FROM json_each(:edges) WHERE true
ON CONFLICT DO NOTHING

-- name: dependencies.add_arrived
INSERT INTO interlock_flow_checks (check_at, job_id, step)
SELECT '1970-01-01T00:00:00.000000Z', value, 'arrived' FROM json_each(:arrived)

-- name: dependencies.missing
-- Each dependency must exist. Returns one that does not.
SELECT json_extract(value, '$[1]') FROM json_each(:edges)
WHERE CASE WHEN json_extract(value, '$[2]')
  THEN NOT EXISTS (SELECT 1 FROM interlock_batches b WHERE b.id = json_extract(value, '$[1]'))
  ELSE NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = json_extract(value, '$[1]')) END LIMIT 1

-- name: flow.take
-- What must be found out now.
DELETE FROM interlock_flow_checks WHERE id IN (
  SELECT f.id FROM interlock_flow_checks f INDEXED BY interlock_flow_checks_due WHERE f.check_at <= :now
  ORDER BY f.check_at LIMIT :limit + 0)
RETURNING step, job_id

-- name: flow.due
-- differs: one writer, so its own statement finds out what it has added; on PostgreSQL each move returns it.
SELECT {has_flow_checks}

-- name: flow.add
INSERT INTO interlock_flow_checks (check_at, job_id, step) SELECT :at, value, :step FROM json_each(:ids)

-- name: flow.await
-- Marks the running and waiting jobs that these jobs wait for, so that their end adds a check.
UPDATE interlock_jobs SET awaited = 1, updated_at = {refreshed}
WHERE id IN (SELECT d.needs FROM json_each(:ids) i CROSS JOIN interlock_dependencies d ON d.job_id = i.value
    WHERE NOT d.is_batch AND d.outcome IS NULL)
  AND finished_at IS NULL AND awaited IS NULL

-- name: flow.follow
-- A dependency on a failed job that was redriven becomes one on the new job, which the note in the audit names. Returns
-- the jobs that had such a dependency.
WITH moved(job_id, old, new) AS MATERIALIZED (
  SELECT d.job_id, d.needs, (SELECT substr(a.reason, 4, 36) FROM interlock_audit a
      WHERE a.job_id = j.id AND a.version = j.version AND a.n > 0 AND a.event = 'redrive' ORDER BY a.n DESC LIMIT 1)
  FROM json_each(:ids) i CROSS JOIN interlock_dependencies d ON d.job_id = i.value
    CROSS JOIN interlock_jobs j ON j.id = d.needs
  WHERE NOT d.is_batch AND d.outcome IS NULL AND j.phase = 'failed' AND {redriven})
UPDATE OR REPLACE interlock_dependencies SET needs = m.new FROM moved m
WHERE interlock_dependencies.job_id = m.job_id AND interlock_dependencies.needs = m.old
RETURNING job_id

-- fragment: outcomes
-- The outcome of each of the dependencies `edges`. A batch is complete if all its jobs have ended. If one fails before
-- that, only jobs that the failure cancels learn of it. A failed job of a batch that was redriven counts as its
-- successor. A dependency on a redriven job has no outcome: `flow.follow` moves it.
parts(whole, part) AS MATERIALIZED (
  SELECT x.needs, x.needs FROM (SELECT DISTINCT e.needs FROM edges e WHERE e.is_batch) x
  UNION ALL
  SELECT x.needs, b.id FROM (SELECT DISTINCT e.needs FROM edges e WHERE e.is_batch) x CROSS JOIN interlock_batches b
    ON b.parent = x.needs),
states(whole, open, failed) AS MATERIALIZED (
  SELECT p.whole, max(EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.batch = p.part AND j.phase = 'pending')
      OR EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.batch = p.part AND j.phase = 'running')),
    max(EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.batch = p.part AND j.phase = 'failed'
      AND NOT {redriven}))
  FROM parts p GROUP BY p.whole),
outcomes(job_id, needs, is_batch, outcome) AS MATERIALIZED (
  SELECT e.job_id, e.needs, e.is_batch, CASE
    WHEN NOT e.is_batch AND j.id IS NULL THEN 'failed'
    WHEN NOT e.is_batch AND j.phase = 'failed' AND {redriven} THEN 'redriven'
    WHEN NOT e.is_batch AND j.finished_at IS NOT NULL THEN j.phase
    WHEN e.is_batch AND s.failed AND (NOT s.open OR e.on_failed = 'cancel') THEN 'failed'
    WHEN e.is_batch AND NOT s.open THEN 'succeeded' END
  FROM edges e LEFT JOIN interlock_jobs j ON j.id = e.needs AND NOT e.is_batch
    LEFT JOIN states s ON s.whole = e.needs AND e.is_batch)

-- name: flow.outcomes
-- The dependencies that have an outcome now: on these jobs that have ended, on the batches and flows that contain them,
-- and whatever these other jobs wait for.
WITH ended AS MATERIALIZED (
  SELECT j.id, j.batch FROM json_each(:ended) i CROSS JOIN interlock_jobs j ON j.id = i.value),
sets AS MATERIALIZED (
  SELECT e.batch AS id FROM ended e WHERE e.batch IS NOT NULL
  UNION
  SELECT b.parent FROM ended e CROSS JOIN interlock_batches b ON b.id = e.batch WHERE b.parent IS NOT NULL),
edges AS MATERIALIZED (
  SELECT d.job_id, d.needs, d.is_batch, d.on_failed FROM ended e CROSS JOIN interlock_dependencies d ON d.needs = e.id
    WHERE d.outcome IS NULL
  UNION
  SELECT d.job_id, d.needs, d.is_batch, d.on_failed FROM sets s CROSS JOIN interlock_dependencies d ON d.needs = s.id
    WHERE d.outcome IS NULL
  UNION
  SELECT d.job_id, d.needs, d.is_batch, d.on_failed FROM json_each(:arrived) i CROSS JOIN interlock_dependencies d
    ON d.job_id = i.value WHERE d.outcome IS NULL),
{outcomes}
SELECT o.job_id, o.needs, o.is_batch, o.outcome FROM outcomes o WHERE o.outcome IS NOT NULL

-- name: flow.mark
-- Stores the outcomes of these dependencies.
-- differs: one writer, so they cannot have changed since they were found out; PostgreSQL finds them out again.
UPDATE interlock_dependencies SET outcome = json_extract(a.value, '$[2]') FROM json_each(:edges) a
WHERE interlock_dependencies.job_id = json_extract(a.value, '$[0]')
  AND interlock_dependencies.needs = json_extract(a.value, '$[1]')

-- name: flow.blocked
-- Whether jobs still wait. The dependencies are counted only if the job waits no longer.
SELECT x.id, CASE WHEN x.open AND NOT x.cancels THEN 0 ELSE (SELECT count(*) FROM interlock_dependencies d
    WHERE d.job_id = x.id) END, x.open,
  CASE WHEN x.open AND NOT x.cancels THEN 0 ELSE (SELECT count(*) FROM interlock_dependencies d
    WHERE d.job_id = x.id AND d.outcome = 'failed') END, x.cancels, x.holds,
  (SELECT CASE WHEN d.is_batch THEN 'batch ' || (SELECT b.name FROM interlock_batches b WHERE b.id = d.needs)
      ELSE coalesce((SELECT n.kind FROM interlock_jobs n WHERE n.id = d.needs), 'job') || ' ' || d.needs END
    FROM interlock_dependencies d WHERE d.job_id = x.id AND d.outcome = 'failed' AND (x.cancels OR NOT x.open) LIMIT 1)
FROM (
  SELECT j.id, EXISTS (SELECT 1 FROM interlock_dependencies d WHERE d.job_id = j.id AND d.outcome IS NULL) AS open,
    EXISTS (SELECT 1 FROM interlock_dependencies d WHERE d.job_id = j.id AND d.outcome = 'failed'
      AND d.on_failed = 'cancel') AS cancels,
    EXISTS (SELECT 1 FROM interlock_dependencies d WHERE d.job_id = j.id AND d.outcome = 'failed'
      AND d.on_failed = 'hold') AS holds
  FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value
  WHERE j.phase = 'pending' AND j.blocked_at IS NOT NULL AND j.cancel_requested_at IS NULL) x

-- name: flow.apply
-- Lets jobs run, holds them, or requests that a worker cancels them.
UPDATE interlock_jobs SET blocked_at = CASE WHEN :decision = 'cancel' THEN blocked_at END,
  due_at = CASE WHEN :decision = 'cancel' THEN due_at ELSE max(due_at, :now) END,
  held_at = CASE WHEN :decision = 'hold' THEN :now END, held_reason = CASE WHEN :decision = 'hold' THEN :reason END,
  cancel_requested_at = CASE WHEN :decision = 'cancel' THEN :now END,
  cancel_requested_by = CASE WHEN :decision = 'cancel' THEN :actor END,
  cancel_reason = CASE WHEN :decision = 'cancel' THEN :reason END, updated_at = {refreshed}
WHERE id = :id

-- name: flow.to_cancel
SELECT {job}, NULL FROM interlock_jobs j INDEXED BY interlock_jobs_stopping
WHERE j.kind IN (SELECT value FROM json_each(:kinds)) AND j.phase = 'pending' AND j.cancel_requested_at IS NOT NULL
  AND j.finished_at IS NULL
ORDER BY j.cancel_requested_at, j.id LIMIT :limit + 0

-- name: flow.needs
SELECT d.needs, d.is_batch, d.on_failed, d.outcome, CASE WHEN d.is_batch THEN b.name ELSE j.kind END,
  CASE WHEN d.is_batch THEN NULL ELSE j.state END
FROM interlock_dependencies d LEFT JOIN interlock_jobs j ON j.id = d.needs AND NOT d.is_batch
  LEFT JOIN interlock_batches b ON b.id = d.needs AND d.is_batch
WHERE d.job_id = :id
ORDER BY d.outcome IS NULL DESC, d.outcome = 'failed' DESC, d.needs LIMIT :limit + 0

-- name: flow.count_needs
SELECT count(*) FILTER (WHERE d.outcome IS NULL), count(*) FROM interlock_dependencies d WHERE d.job_id = :id

-- fragment: parts_of
-- The batch, and its own batches if it is a flow.
(SELECT b.id FROM interlock_batches b WHERE b.id = :id OR b.parent = :id)

-- name: flow.results
WITH sets(id) AS MATERIALIZED (
  SELECT d.needs FROM interlock_dependencies d WHERE d.job_id = :id AND d.is_batch
  UNION
  SELECT b.id FROM interlock_dependencies d CROSS JOIN interlock_batches b ON b.parent = d.needs
    WHERE d.job_id = :id AND d.is_batch),
needed(id) AS MATERIALIZED (
  SELECT d.needs FROM interlock_dependencies d WHERE d.job_id = :id AND NOT d.is_batch
  UNION
  SELECT j.id FROM sets s CROSS JOIN interlock_jobs j INDEXED BY interlock_jobs_batch
    ON j.batch = s.id AND j.batch IS NOT NULL AND j.phase = 'succeeded')
SELECT j.result FROM needed n CROSS JOIN interlock_jobs j ON j.id = n.id
WHERE j.kind = :kind AND j.phase = 'succeeded' ORDER BY j.id

-- fragment: batch
-- A batch and its counts. Of jobs that were redriven, only the last one counts.
b.id, b.name, b.parent, b.created_at, b.created_by, count(*) FILTER (WHERE j.phase = 'pending'
    AND j.blocked_at IS NOT NULL),
  count(*) FILTER (WHERE j.phase = 'pending' AND j.blocked_at IS NULL), count(*) FILTER (WHERE j.phase = 'running'),
  count(*) FILTER (WHERE j.phase = 'succeeded'),
  count(*) FILTER (WHERE j.phase = 'failed' AND NOT {redriven})
FROM interlock_batches b LEFT JOIN interlock_batches p ON p.id = b.id OR p.parent = b.id
  LEFT JOIN interlock_jobs j ON j.batch = p.id

-- name: flow.batch
SELECT {batch} WHERE b.id = :id GROUP BY b.id

-- name: flow.batches
SELECT {batch} WHERE b.id IN (
  SELECT x.id FROM interlock_batches x WHERE x.parent IS :parent AND (:after IS NULL OR x.id < :after)
    ORDER BY x.id DESC LIMIT :limit + 0)
GROUP BY b.id ORDER BY b.id DESC

-- name: flow.members
SELECT {job}, NULL FROM interlock_jobs j WHERE j.batch IN {parts_of}
  AND (:phase IS NULL OR j.phase = :phase) AND (:after IS NULL OR j.id > :after)
  AND (:redriven OR j.phase <> 'failed' OR NOT {redriven})
ORDER BY j.id LIMIT :limit + 0
