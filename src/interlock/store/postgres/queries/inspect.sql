-- Reads, on PostgreSQL.

-- name: now
SELECT interlock.clock()

-- name: uptime
SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())

-- name: get
SELECT {job}, e.progress::text FROM interlock.jobs j LEFT JOIN interlock.executions e ON e.job_id = j.id
  AND e.attempt = j.attempt WHERE j.id = :id::text::uuid

-- name: find
SELECT j.id::text FROM interlock.jobs j
WHERE j.id BETWEEN :first::text::uuid AND :last::text::uuid ORDER BY j.id LIMIT :limit::int

-- name: find.pruned
SELECT a.job_id::text FROM interlock.audit a
WHERE a.job_id BETWEEN :first::text::uuid AND :last::text::uuid AND a.version = 0 AND a.n = 0
ORDER BY a.job_id LIMIT :limit::int

-- name: adjacent_ids
SELECT i.id::text, (SELECT j.id::text FROM interlock.jobs j WHERE j.id < i.id ORDER BY j.id DESC LIMIT 1),
  (SELECT j.id::text FROM interlock.jobs j WHERE j.id > i.id ORDER BY j.id LIMIT 1)
FROM unnest(:ids::text::uuid[]) AS i(id)

-- fragment: filtered
FROM interlock.jobs j LEFT JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt
WHERE {matching} AND (:after::text IS NULL OR j.id < :after::text::uuid)
ORDER BY j.id DESC LIMIT :limit::int

-- name: jobs
SELECT {job}, e.progress::text {filtered}

-- name: summaries
SELECT {summary}, e.progress::text {filtered}

-- name: executions
SELECT {execution} FROM interlock.executions e WHERE e.job_id = ANY(:id::text::uuid[]) ORDER BY e.job_id, e.attempt

-- fragment: audit_of
-- Job by job, which OFFSET 0 enforces: of a partitioned audit, only the partition of each job is read.
FROM unnest(:id::text::uuid[]) AS i(id) CROSS JOIN LATERAL (
  SELECT x.* FROM interlock.audit x WHERE x.job_id = i.id OFFSET 0) a
ORDER BY a.job_id, a.version, a.n

-- name: history
SELECT a.job_id::text, a.version, a.n, a.attempt, a.event, a.from_state, a.to_state, a.actor, a.reason, a.at,
  a.detail::text
{audit_of}

-- name: counts
SELECT lifecycle, state, count(*) FROM interlock.jobs GROUP BY lifecycle, state

-- name: expired
SELECT {job}, NULL FROM unnest(:kinds::text::text[]) AS k(kind) CROSS JOIN LATERAL (
  SELECT x.* FROM interlock.jobs x WHERE x.kind = k.kind AND x.phase = 'pending' AND x.expires_at IS NOT NULL
    AND x.expires_at <= (SELECT interlock.clock())
  ORDER BY x.expires_at LIMIT :limit::int) j ORDER BY j.expires_at, j.id LIMIT :limit::int

-- name: maintenance_due
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
kinds AS MATERIALIZED (SELECT k.kind FROM unnest(:kinds::text::text[]) AS k(kind))
SELECT c.now,
  EXISTS (SELECT FROM kinds k CROSS JOIN LATERAL (SELECT 1 FROM interlock.executions e
    WHERE e.kind = k.kind AND e.lease_expires_at <= (SELECT now FROM clock) AND {leased} LIMIT 1) x),
  EXISTS (SELECT FROM kinds k CROSS JOIN LATERAL (SELECT 1 FROM interlock.jobs j
    WHERE j.kind = k.kind AND j.phase = 'pending' AND j.expires_at IS NOT NULL
      AND j.expires_at <= (SELECT now FROM clock) LIMIT 1) x),
  {has_flow_checks} OR EXISTS (SELECT FROM kinds k CROSS JOIN LATERAL (SELECT 1 FROM interlock.jobs j
    WHERE j.kind = k.kind AND j.phase = 'pending' AND j.cancel_requested_at IS NOT NULL AND j.finished_at IS NULL
    LIMIT 1) x)
FROM clock c

-- name: stuck
-- Twice the lease after the last heartbeat is later than the lease's end, by which the index is sorted. It is walked
-- kind by kind, which OFFSET 0 enforces.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
kinds AS (
  SELECT (SELECT e.kind FROM interlock.executions e WHERE {leased} ORDER BY e.kind LIMIT 1) AS kind
  UNION ALL
  SELECT (SELECT e.kind FROM interlock.executions e WHERE e.kind > k.kind AND {leased} ORDER BY e.kind LIMIT 1)
    FROM kinds k WHERE k.kind IS NOT NULL)
SELECT {execution} FROM kinds k CROSS JOIN LATERAL (
  SELECT s.* FROM (
    SELECT e.* FROM interlock.executions e
    WHERE e.kind = k.kind AND e.lease_expires_at < (SELECT now FROM clock) AND {leased} AND e.external_id IS NULL
      AND e.heartbeat_at < (SELECT now FROM clock) - 2 * (e.lease_expires_at - e.heartbeat_at) OFFSET 0) s
  ORDER BY s.heartbeat_at, s.job_id LIMIT :limit::int) e
ORDER BY e.heartbeat_at, e.job_id

-- fragment: waiting_counts
count(*) FILTER (WHERE j.due_at <= c.now) AS due, count(*) FILTER (WHERE j.due_at > c.now) AS later,
  min(j.due_at) AS since

-- name: depths
-- Each part uses an index without ended jobs. Jobs of a paused queue or kind count as later; jobs past their TTL are
-- not counted.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
waiting AS (
  SELECT j.kind, j.queue, {waiting_counts} FROM interlock.jobs j, clock c WHERE {ready} GROUP BY j.kind, j.queue
  UNION ALL
  SELECT j.kind, j.queue, {waiting_counts} FROM interlock.jobs j, clock c WHERE {expiring} AND j.expires_at > c.now
    GROUP BY j.kind, j.queue
  UNION ALL
  SELECT j.kind, j.queue, {waiting_counts} FROM interlock.jobs j, clock c WHERE {suspect}
    AND (j.expires_at IS NULL OR j.expires_at > c.now) GROUP BY j.kind, j.queue
  UNION ALL
  SELECT j.kind, j.queue, {waiting_counts} FROM interlock.jobs j, clock c WHERE {waiting}
    AND (j.expires_at IS NULL OR j.expires_at > c.now) GROUP BY j.kind, j.queue),
parts AS (
  SELECT w.kind, w.queue, CASE WHEN p.paused THEN 0 ELSE w.due END AS due,
    CASE WHEN p.paused THEN w.due + w.later ELSE w.later END AS later, 0 AS held, 0 AS running,
    CASE WHEN NOT p.paused THEN least(w.since, c.now) END AS since, 0 AS blocked
  FROM waiting w CROSS JOIN clock c CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM interlock.limits l WHERE l.paused_at IS NOT NULL AND ((l.scope = 'queue'
      AND l.name = w.queue) OR (l.scope = 'kind' AND l.name = w.kind))) AS paused) p
  UNION ALL
  SELECT j.kind, j.queue, 0, 0, count(*), 0, NULL, 0 FROM interlock.jobs j WHERE j.held_at IS NOT NULL
    GROUP BY j.kind, j.queue
  UNION ALL
  SELECT j.kind, j.queue, 0, 0, 0, 0, NULL, count(*) FROM interlock.jobs j WHERE j.blocked_at IS NOT NULL
    GROUP BY j.kind, j.queue
  UNION ALL
  SELECT e.kind, j.queue, 0, 0, 0, count(*), NULL, 0 FROM interlock.executions e
    JOIN interlock.jobs j ON j.id = e.job_id WHERE {leased} GROUP BY e.kind, j.queue
  UNION ALL
  SELECT e.kind, j.queue, 0, 0, 0, count(*), NULL, 0 FROM interlock.executions e
    JOIN interlock.jobs j ON j.id = e.job_id WHERE {handed_over} GROUP BY e.kind, j.queue)
SELECT d.kind, d.queue, sum(d.due)::int, sum(d.later)::int, sum(d.held)::int, sum(d.running)::int,
  coalesce(extract(epoch FROM (SELECT now FROM clock) - min(d.since))::float8, 0), sum(d.blocked)::int
FROM parts d GROUP BY d.kind, d.queue ORDER BY d.kind COLLATE "C", d.queue COLLATE "C"

-- name: held_jobs
-- A few of each kind and queue, so that many of one do not hide another.
SELECT {job}, NULL FROM unnest(:kinds::text::text[], :queues::text::text[]) AS p(kind, queue) CROSS JOIN LATERAL (
  SELECT x.* FROM interlock.jobs x
  WHERE x.kind = p.kind AND x.queue = p.queue AND x.held_at IS NOT NULL LIMIT :limit::int) j
ORDER BY j.held_at, j.id

-- name: recent_failures
-- The index has the jobs that ended in this phase.
WITH failed AS (
  SELECT j.id, j.kind, count(*) OVER (PARTITION BY j.kind) AS number,
    row_number() OVER (PARTITION BY j.kind ORDER BY j.finished_at DESC, j.id DESC) AS place
  FROM interlock.jobs j
  WHERE j.phase = 'failed' AND j.finished_at IS NOT NULL
    AND j.finished_at > (SELECT interlock.clock()) - :age::float8 * interval '1 second'
    AND {ended_by_failure} AND NOT {redriven})
SELECT f.kind, f.number::int, j.id::text, j.state, j.attempt, j.finished_at, j.last_error
FROM failed f JOIN interlock.jobs j ON j.id = f.id WHERE f.place <= :newest::int ORDER BY f.kind COLLATE "C", f.place

-- name: page
SELECT {summary}, NULL FROM interlock.jobs j WHERE j.id > :after::text::uuid ORDER BY j.id LIMIT :limit::int

-- name: page_executions
-- Job by job. Without statistics, the planner would read all executions, and convert the array for each of them.
SELECT e.job_id::text, e.attempt, e.holder, e.kind, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.status,
  e.state,
  e.ended_by, NULL::text, e.external_id, e.missing_since, e.next_check_at, NULL::text, NULL::text, NULL::text,
    e.leased_at,
  e.started_at, e.committed_at, e.finished_at
FROM unnest(:id::text::uuid[]) AS i(id) CROSS JOIN LATERAL (
  SELECT x.* FROM interlock.executions x WHERE x.job_id = i.id OFFSET 0) e ORDER BY e.job_id, e.attempt

-- name: page_history
SELECT a.job_id::text, a.version, a.n, a.attempt, a.event, a.from_state, a.to_state, a.actor, NULL::text, a.at,
  NULL::text
{audit_of}

-- name: page_pruned
SELECT a.job_id::text FROM interlock.audit a
WHERE a.job_id > :after::text::uuid AND a.version = 0 AND a.n = 0 AND NOT EXISTS (SELECT FROM interlock.jobs j
  WHERE j.id = a.job_id)
ORDER BY a.job_id LIMIT :limit::int
