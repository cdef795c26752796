-- Batches and dependencies, on PostgreSQL.
--
-- Arrays of ids are unnested once. If the planner scans a table without statistics, it would convert a parameter for
-- each row.

-- name: batches.add
INSERT INTO interlock.batches (id, parent, name, created_at, created_by)
SELECT a.id, a.parent, a.name, (SELECT interlock.clock()), a.actor
FROM unnest(:id::text::uuid[], :parent::text::uuid[], :name::text::text[], :actor::text::text[])
  AS a(id, parent, name, actor)

-- name: dependencies.add
-- Each dependency must exist. Returns one that does not.
WITH asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :needs::text::uuid[], :is_batch::text::bool[], :on_failed::text::text[])
    AS a(job_id, needs, is_batch, on_failed)),
stored AS (
  INSERT INTO interlock.dependencies (job_id, needs, is_batch, on_failed) SELECT * FROM asked ON CONFLICT DO NOTHING),
arrived AS (
  INSERT INTO interlock.flow_checks (check_at, job_id, step)
  SELECT 'epoch', i.id, 'arrived' FROM unnest(:arrived::text::uuid[]) AS i(id))
SELECT a.needs::text FROM asked a WHERE CASE WHEN a.is_batch
  THEN NOT EXISTS (SELECT FROM interlock.batches b WHERE b.id = a.needs)
  ELSE NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.id = a.needs) END LIMIT 1

-- name: flow.take
-- What must be found out now.
DELETE FROM interlock.flow_checks WHERE ctid = ANY (ARRAY(
  SELECT f.ctid FROM interlock.flow_checks f WHERE f.check_at <= (SELECT interlock.clock())
  ORDER BY f.check_at LIMIT :limit::int FOR UPDATE SKIP LOCKED))
RETURNING step, job_id::text

-- name: flow.add
INSERT INTO interlock.flow_checks (check_at, job_id, step)
SELECT CASE WHEN :wait::float8 > 0 THEN interlock.clock() + :wait::float8 * interval '1 second' ELSE 'epoch' END, i.id,
  :step::text
FROM unnest(:id::text::uuid[]) AS i(id)

-- name: flow.await
-- Marks the running and waiting jobs that these jobs wait for, so that their end adds a check. It does not wait for a
-- locked row, but returns the jobs that wait for it.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
open AS MATERIALIZED (
  SELECT d.job_id, d.needs FROM interlock.dependencies d
  WHERE d.job_id = ANY(ARRAY(SELECT unnest(:id::text::uuid[]))) AND NOT d.is_batch AND d.outcome IS NULL),
free AS MATERIALIZED (
  SELECT j.id FROM interlock.jobs j WHERE j.id IN (SELECT o.needs FROM open o)
  ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED),
marked AS (
  UPDATE interlock.jobs j SET awaited = true, updated_at = {refreshed} FROM free f, clock c
  WHERE j.id = f.id AND j.finished_at IS NULL AND j.awaited IS NULL)
SELECT DISTINCT o.job_id::text FROM open o JOIN interlock.jobs j ON j.id = o.needs
WHERE NOT EXISTS (SELECT FROM free f WHERE f.id = o.needs)

-- name: flow.follow
-- A dependency on a failed job that was redriven becomes one on the new job, which the note in the audit names. Returns
-- the jobs that had such a dependency.
WITH moved AS MATERIALIZED (
  SELECT d.job_id, d.needs, d.on_failed, n.successor
  FROM interlock.dependencies d JOIN interlock.jobs j ON j.id = ANY (ARRAY[d.needs, d.needs]) AND j.phase = 'failed'
    CROSS JOIN LATERAL (
      SELECT substr(a.reason, 4, 36)::uuid AS successor FROM interlock.audit a
      WHERE a.job_id = j.id AND a.version = j.version AND a.n > 0 AND a.event = 'redrive'
      ORDER BY a.n DESC LIMIT 1) n
  WHERE d.job_id = ANY(ARRAY(SELECT unnest(:id::text::uuid[]))) AND NOT d.is_batch AND d.outcome IS NULL),
dropped AS (
  DELETE FROM interlock.dependencies d USING moved m WHERE d.job_id = m.job_id AND d.needs = m.needs),
added AS (
  INSERT INTO interlock.dependencies (job_id, needs, is_batch, on_failed)
  SELECT m.job_id, m.successor, false, m.on_failed FROM moved m ON CONFLICT DO NOTHING)
SELECT DISTINCT m.job_id::text FROM moved m

-- fragment: outcomes
-- The outcome of each of the dependencies `edges`. A batch is complete if all its jobs have ended. If one fails before
-- that, only jobs that the failure cancels learn of it. A failed job of a batch that was redriven counts as its
-- successor. A dependency on a redriven job has no outcome: `flow.follow` moves it.
parts AS MATERIALIZED (
  SELECT x.needs AS whole, x.needs AS part FROM (SELECT DISTINCT e.needs FROM edges e WHERE e.is_batch) x
  UNION ALL
  SELECT x.needs, b.id FROM (SELECT DISTINCT e.needs FROM edges e WHERE e.is_batch) x
    JOIN interlock.batches b ON b.parent = x.needs),
states AS MATERIALIZED (
  SELECT p.whole, bool_or(EXISTS (SELECT FROM interlock.jobs j WHERE j.batch = p.part AND j.phase = 'pending')
      OR EXISTS (SELECT FROM interlock.jobs j WHERE j.batch = p.part AND j.phase = 'running')) AS open,
    bool_or(EXISTS (SELECT FROM interlock.jobs j WHERE j.batch = p.part AND j.phase = 'failed'
      AND NOT {redriven})) AS failed
  FROM parts p GROUP BY p.whole),
outcomes AS MATERIALIZED (
  SELECT e.job_id, e.needs, e.is_batch, CASE
    WHEN NOT e.is_batch AND j.id IS NULL THEN 'failed'
    WHEN NOT e.is_batch AND j.phase = 'failed' AND {redriven} THEN 'redriven'
    WHEN NOT e.is_batch AND j.finished_at IS NOT NULL THEN j.phase
    WHEN e.is_batch AND s.failed AND (NOT s.open OR e.on_failed = 'cancel') THEN 'failed'
    WHEN e.is_batch AND NOT s.open THEN 'succeeded' END AS outcome
  FROM edges e LEFT JOIN interlock.jobs j ON j.id = e.needs AND NOT e.is_batch
    LEFT JOIN states s ON s.whole = e.needs AND e.is_batch)

-- name: flow.outcomes
-- The dependencies that have an outcome now: on these jobs that have ended, on the batches and flows that contain them,
-- and whatever these other jobs wait for.
WITH ended AS MATERIALIZED (
  SELECT j.id, j.batch FROM interlock.jobs j WHERE j.id = ANY(ARRAY(SELECT unnest(:ended::text::uuid[])))),
sets AS MATERIALIZED (
  SELECT e.batch AS id FROM ended e WHERE e.batch IS NOT NULL
  UNION
  SELECT b.parent FROM ended e JOIN interlock.batches b ON b.id = e.batch WHERE b.parent IS NOT NULL),
edges AS MATERIALIZED (
  SELECT d.job_id, d.needs, d.is_batch, d.on_failed FROM interlock.dependencies d
  WHERE d.needs IN (SELECT e.id FROM ended e) AND d.outcome IS NULL
  UNION
  SELECT d.job_id, d.needs, d.is_batch, d.on_failed FROM interlock.dependencies d
  WHERE d.needs IN (SELECT s.id FROM sets s) AND d.outcome IS NULL
  UNION
  SELECT d.job_id, d.needs, d.is_batch, d.on_failed FROM interlock.dependencies d
  WHERE d.job_id = ANY(ARRAY(SELECT unnest(:arrived::text::uuid[]))) AND d.outcome IS NULL),
{outcomes}
SELECT o.job_id::text, o.needs::text, o.is_batch, o.outcome FROM outcomes o WHERE o.outcome IS NOT NULL

-- name: flow.lock_edges
-- Locks the jobs that wait, and the failed jobs and batches that they wait for, until their outcomes are stored. A
-- redrive locks the same rows, so it comes before or after. Nothing else waits for these shared locks but changes of
-- the waiting jobs. Returns the jobs of which another transaction has locked a row.
WITH asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :needs::text::uuid[], :is_batch::text::bool[], :outcome::text::text[])
    AS a(job_id, needs, is_batch, outcome)),
waiting AS MATERIALIZED (
  SELECT j.id FROM interlock.jobs j WHERE j.id = ANY(ARRAY(SELECT a.job_id FROM asked a))
  ORDER BY j.id FOR SHARE SKIP LOCKED),
failed AS MATERIALIZED (
  SELECT j.id FROM interlock.jobs j
  WHERE j.id = ANY(ARRAY(SELECT a.needs FROM asked a WHERE a.outcome = 'failed' AND NOT a.is_batch))
  ORDER BY j.id FOR SHARE SKIP LOCKED),
sets AS MATERIALIZED (
  SELECT b.id FROM interlock.batches b
  WHERE b.id = ANY(ARRAY(SELECT a.needs FROM asked a WHERE a.outcome = 'failed' AND a.is_batch))
  ORDER BY b.id FOR SHARE SKIP LOCKED)
SELECT DISTINCT a.job_id::text FROM asked a
WHERE a.job_id NOT IN (SELECT w.id FROM waiting w)
  OR (a.outcome = 'failed' AND NOT a.is_batch AND a.needs NOT IN (SELECT f.id FROM failed f)
    AND EXISTS (SELECT FROM interlock.jobs j WHERE j.id = a.needs))
  OR (a.outcome = 'failed' AND a.is_batch AND a.needs NOT IN (SELECT s.id FROM sets s)
    AND EXISTS (SELECT FROM interlock.batches b WHERE b.id = a.needs))

-- name: flow.mark
-- Stores the outcomes of these dependencies. It finds them out again: what a redrive has changed before the locks were
-- taken is seen now.
WITH edges AS MATERIALIZED (
  SELECT d.job_id, d.needs, d.is_batch, d.on_failed
  FROM unnest(:job_id::text::uuid[], :needs::text::uuid[]) AS a(job_id, needs)
    JOIN interlock.dependencies d ON d.job_id = ANY (ARRAY[a.job_id, a.job_id]) AND d.needs = a.needs
  WHERE d.outcome IS NULL),
{outcomes}
UPDATE interlock.dependencies d SET outcome = o.outcome FROM outcomes o
WHERE d.job_id = o.job_id AND d.needs = o.needs AND d.outcome IS NULL AND o.outcome IN ('succeeded', 'failed')

-- name: flow.lock
-- The blocked jobs among these that no other transaction has locked, and the ids of those that one has.
WITH free AS MATERIALIZED (
  SELECT j.id FROM interlock.jobs j WHERE j.id = ANY(ARRAY(SELECT unnest(:id::text::uuid[])))
  ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED)
SELECT j.id::text FROM interlock.jobs j WHERE j.id = ANY(ARRAY(SELECT unnest(:id::text::uuid[])))
  AND NOT EXISTS (SELECT FROM free f WHERE f.id = j.id)

-- name: flow.blocked
-- Whether jobs still wait. The dependencies are counted only if the job waits no longer.
SELECT x.id::text, CASE WHEN x.open AND NOT x.cancels THEN 0 ELSE (SELECT count(*) FROM interlock.dependencies d
    WHERE d.job_id = x.id) END::int, x.open::int,
  CASE WHEN x.open AND NOT x.cancels THEN 0 ELSE (SELECT count(*) FROM interlock.dependencies d
    WHERE d.job_id = x.id AND d.outcome = 'failed') END::int, x.cancels::int, x.holds::int,
  (SELECT CASE WHEN d.is_batch THEN 'batch ' || (SELECT b.name FROM interlock.batches b WHERE b.id = d.needs)
      ELSE coalesce((SELECT n.kind FROM interlock.jobs n WHERE n.id = d.needs), 'job') || ' ' || d.needs::text END
    FROM interlock.dependencies d WHERE d.job_id = x.id AND d.outcome = 'failed' AND (x.cancels OR NOT x.open) LIMIT 1)
FROM (
  SELECT j.id, EXISTS (SELECT FROM interlock.dependencies d WHERE d.job_id = j.id AND d.outcome IS NULL) AS open,
    EXISTS (SELECT FROM interlock.dependencies d WHERE d.job_id = j.id AND d.outcome = 'failed'
      AND d.on_failed = 'cancel') AS cancels,
    EXISTS (SELECT FROM interlock.dependencies d WHERE d.job_id = j.id AND d.outcome = 'failed'
      AND d.on_failed = 'hold') AS holds
  FROM interlock.jobs j WHERE j.id = ANY(ARRAY(SELECT unnest(:id::text::uuid[]))) AND j.phase = 'pending'
    AND j.blocked_at IS NOT NULL AND j.cancel_requested_at IS NULL) x

-- name: flow.apply
-- Lets jobs run, holds them, or requests that a worker cancels them.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
matched AS MATERIALIZED (
  SELECT j.id, j.version, a.decision, a.reason, c.now
  FROM unnest(:id::text::uuid[], :decision::text::text[], :reason::text::text[]) AS a(id, decision, reason)
    CROSS JOIN clock c JOIN interlock.jobs j ON j.id = a.id
  WHERE j.phase = 'pending' AND j.blocked_at IS NOT NULL),
applied AS (
  UPDATE interlock.jobs j SET blocked_at = CASE WHEN h.decision = 'cancel' THEN j.blocked_at END,
    due_at = CASE WHEN h.decision = 'cancel' THEN j.due_at ELSE greatest(j.due_at, h.now) END,
    held_at = CASE WHEN h.decision = 'hold' THEN h.now END,
    held_reason = CASE WHEN h.decision = 'hold' THEN h.reason END,
    cancel_requested_at = CASE WHEN h.decision = 'cancel' THEN h.now END,
    cancel_requested_by = CASE WHEN h.decision = 'cancel' THEN :actor::text END,
    cancel_reason = CASE WHEN h.decision = 'cancel' THEN h.reason END,
    updated_at = greatest(h.now, j.updated_at + interval '1 microsecond')
  FROM matched h WHERE j.id = h.id),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, at, event, actor, reason)
  SELECT h.id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a
    WHERE a.job_id = h.id AND a.version = h.version), 0), h.now,
    CASE h.decision WHEN 'run' THEN 'unblock' WHEN 'hold' THEN 'hold' ELSE 'cancel_requested' END, :actor::text,
    h.reason
  FROM matched h)
SELECT count(*)::int, (SELECT {notify} FROM matched w WHERE w.decision = 'run' LIMIT 1) FROM matched

-- name: flow.to_cancel
SELECT {job}, NULL FROM unnest(:kinds::text::text[]) AS k(kind) CROSS JOIN LATERAL (
  SELECT x.* FROM interlock.jobs x WHERE x.kind = k.kind AND x.phase = 'pending' AND x.cancel_requested_at IS NOT NULL
    AND x.finished_at IS NULL
  ORDER BY x.cancel_requested_at LIMIT :limit::int) j ORDER BY j.cancel_requested_at, j.id LIMIT :limit::int

-- name: flow.needs
SELECT d.needs::text, d.is_batch, d.on_failed, d.outcome, CASE WHEN d.is_batch THEN b.name ELSE j.kind END,
  CASE WHEN d.is_batch THEN NULL ELSE j.state END
FROM interlock.dependencies d LEFT JOIN interlock.jobs j ON j.id = d.needs AND NOT d.is_batch
  LEFT JOIN interlock.batches b ON b.id = d.needs AND d.is_batch
WHERE d.job_id = :id::text::uuid
ORDER BY (d.outcome IS NULL) DESC, (d.outcome = 'failed') DESC, d.needs LIMIT :limit::int

-- name: flow.count_needs
SELECT count(*) FILTER (WHERE d.outcome IS NULL)::int, count(*)::int FROM interlock.dependencies d
WHERE d.job_id = :id::text::uuid

-- fragment: parts_of
-- The batch, and its own batches if it is a flow.
(SELECT b.id FROM interlock.batches b WHERE b.id = :id::text::uuid OR b.parent = :id::text::uuid)

-- name: flow.results
WITH sets AS (
  SELECT d.needs AS id FROM interlock.dependencies d WHERE d.job_id = :id::text::uuid AND d.is_batch
  UNION
  SELECT b.id FROM interlock.dependencies d JOIN interlock.batches b ON b.parent = d.needs
    WHERE d.job_id = :id::text::uuid AND d.is_batch),
needed AS (
  SELECT d.needs AS id FROM interlock.dependencies d WHERE d.job_id = :id::text::uuid AND NOT d.is_batch
  UNION
  SELECT j.id FROM sets s JOIN interlock.jobs j ON j.batch = s.id AND j.phase = 'succeeded')
SELECT j.result::text FROM needed n JOIN interlock.jobs j ON j.id = n.id
WHERE j.kind = :kind::text AND j.phase = 'succeeded' ORDER BY j.id

-- fragment: batch
-- A batch and its counts. Of jobs that were redriven, only the last one counts.
b.id::text, b.name, b.parent::text, b.created_at, b.created_by, n.blocked::int, n.waiting::int, n.running::int,
n.succeeded::int, n.failed::int
FROM interlock.batches b CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE j.phase = 'pending' AND j.blocked_at IS NOT NULL) AS blocked,
    count(*) FILTER (WHERE j.phase = 'pending' AND j.blocked_at IS NULL) AS waiting,
    count(*) FILTER (WHERE j.phase = 'running') AS running, count(*) FILTER (WHERE j.phase = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE j.phase = 'failed' AND NOT {redriven}) AS failed
  FROM interlock.batches p JOIN interlock.jobs j ON j.batch = p.id WHERE p.id = b.id OR p.parent = b.id) n

-- name: flow.batch
SELECT {batch} WHERE b.id = :id::text::uuid

-- name: flow.batches
SELECT {batch} WHERE b.id IN (
  SELECT x.id FROM interlock.batches x WHERE x.parent IS NOT DISTINCT FROM :parent::text::uuid
    AND (:after::text IS NULL OR x.id < :after::text::uuid) ORDER BY x.id DESC LIMIT :limit::int)
ORDER BY b.id DESC

-- name: flow.members
SELECT {job}, NULL FROM interlock.jobs j WHERE j.batch IN {parts_of}
  AND (:phase::text IS NULL OR j.phase = :phase::text) AND (:after::text IS NULL OR j.id > :after::text::uuid)
  AND (:redriven::boolean OR j.phase <> 'failed' OR NOT {redriven})
ORDER BY j.id LIMIT :limit::int
