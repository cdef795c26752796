-- Reads, on SQLite.

-- name: get
SELECT {job}, e.progress FROM interlock_jobs j LEFT JOIN interlock_executions e ON e.job_id = j.id
  AND e.attempt = j.attempt WHERE j.id = :id

-- name: find
SELECT j.id FROM interlock_jobs j WHERE j.id BETWEEN :first AND :last ORDER BY j.id LIMIT :limit + 0

-- name: find.pruned
SELECT a.job_id FROM interlock_audit a
WHERE a.job_id BETWEEN :first AND :last AND a.version = 0 AND a.n = 0 ORDER BY a.job_id LIMIT :limit + 0

-- name: adjacent_ids
SELECT i.value, (SELECT j.id FROM interlock_jobs j WHERE j.id < i.value ORDER BY j.id DESC LIMIT 1),
  (SELECT j.id FROM interlock_jobs j WHERE j.id > i.value ORDER BY j.id LIMIT 1)
FROM json_each(:ids) i

-- fragment: filtered
FROM interlock_jobs j LEFT JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt
WHERE {matching} AND (:after IS NULL OR j.id < :after)
ORDER BY j.id DESC LIMIT :limit + 0

-- name: jobs
SELECT {job}, e.progress {filtered}

-- name: summaries
SELECT {summary}, e.progress {filtered}

-- name: executions
SELECT {execution} FROM json_each(:ids) i CROSS JOIN interlock_executions e ON e.job_id = i.value
  ORDER BY e.job_id, e.attempt

-- name: history
SELECT a.job_id, a.version, a.n, a.attempt, a.event, a.from_state, a.to_state, a.actor, a.reason, a.at, a.detail
FROM json_each(:ids) i CROSS JOIN interlock_audit a ON a.job_id = i.value ORDER BY a.job_id, a.version, a.n

-- name: counts
SELECT lifecycle, state, count(*) FROM interlock_jobs GROUP BY lifecycle, state

-- name: expired
SELECT {job}, NULL FROM json_each(:kinds) k CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
  SELECT x.expires_at || x.id AS place FROM interlock_jobs x INDEXED BY interlock_jobs_expiring
  WHERE x.kind = k.value AND x.phase = 'pending' AND x.expires_at IS NOT NULL AND x.expires_at <= :now
    ORDER BY x.expires_at LIMIT :limit + 0) c)) p
CROSS JOIN interlock_jobs j ON j.id = substr(p.value, 28) ORDER BY p.value LIMIT :limit + 0

-- name: maintenance_due
SELECT EXISTS (SELECT 1 FROM json_each(:kinds) k
    CROSS JOIN interlock_executions e INDEXED BY interlock_executions_leases
    WHERE e.kind = k.value AND e.lease_expires_at <= :now AND {leased}),
  EXISTS (SELECT 1 FROM json_each(:kinds) k CROSS JOIN interlock_jobs j INDEXED BY interlock_jobs_expiring
    WHERE j.kind = k.value AND j.phase = 'pending' AND j.expires_at IS NOT NULL AND j.expires_at <= :now),
  {has_flow_checks} OR EXISTS (SELECT 1 FROM json_each(:kinds) k CROSS JOIN interlock_jobs j
      INDEXED BY interlock_jobs_stopping
    WHERE j.kind = k.value AND j.phase = 'pending' AND j.cancel_requested_at IS NOT NULL AND j.finished_at IS NULL)

-- name: stuck
-- Twice the lease after the last heartbeat is later than the lease's end, by which the index is sorted. It is walked
-- kind by kind.
WITH RECURSIVE kinds(kind) AS (
  SELECT (SELECT e.kind FROM interlock_executions e INDEXED BY interlock_executions_leases WHERE {leased}
    ORDER BY e.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT e.kind FROM interlock_executions e INDEXED BY interlock_executions_leases
    WHERE e.kind > k.kind AND {leased} ORDER BY e.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL),
stuck AS (
  SELECT e.job_id, e.attempt, row_number() OVER (PARTITION BY e.kind ORDER BY e.heartbeat_at, e.job_id) AS place
  FROM kinds k CROSS JOIN interlock_executions e INDEXED BY interlock_executions_leases
    ON e.kind = k.kind AND e.lease_expires_at < :now AND {leased} AND e.external_id IS NULL
  WHERE 2 * (strftime('%s', e.lease_expires_at) * 1000000 + substr(e.lease_expires_at, 21, 6))
    - strftime('%s', e.heartbeat_at) * 1000000 - substr(e.heartbeat_at, 21, 6) < :now_us)
SELECT {execution} FROM stuck s CROSS JOIN interlock_executions e ON e.job_id = s.job_id AND e.attempt = s.attempt
WHERE s.place <= :limit ORDER BY e.heartbeat_at, e.job_id

-- fragment: aside
(j.held_at IS NOT NULL OR j.blocked_at IS NOT NULL)

-- fragment: waiting_counts
j.kind, j.queue, sum(j.due_at <= :now), sum(j.due_at > :now), min(j.due_at)

-- name: depths
-- Each part uses an index without ended jobs. Jobs of a paused queue or kind count as later; jobs past their TTL are
-- not counted.
WITH waiting(kind, queue, due, later, since) AS (
  SELECT {waiting_counts} FROM interlock_jobs j INDEXED BY interlock_jobs_ready WHERE {ready} GROUP BY j.queue, j.kind
  UNION ALL
  SELECT {waiting_counts} FROM interlock_jobs j INDEXED BY interlock_jobs_ready_expiring
    WHERE {expiring} AND j.expires_at > :now GROUP BY j.queue, j.kind
  UNION ALL
  SELECT {waiting_counts} FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
    WHERE {suspect} AND (j.expires_at IS NULL OR j.expires_at > :now) GROUP BY j.queue, j.kind
  UNION ALL
  SELECT {waiting_counts} FROM interlock_jobs j INDEXED BY interlock_jobs_by_key
    WHERE {waiting} AND (j.expires_at IS NULL OR j.expires_at > :now) GROUP BY j.kind, j.queue),
judged(kind, queue, due, later, since, paused) AS (
  SELECT w.*, EXISTS (SELECT 1 FROM interlock_limits l WHERE l.paused_at IS NOT NULL AND ((l.scope = 'queue'
    AND l.name = w.queue) OR (l.scope = 'kind' AND l.name = w.kind))) FROM waiting w),
parts(kind, queue, due, later, held, running, since, blocked) AS (
  SELECT w.kind, w.queue, CASE WHEN w.paused THEN 0 ELSE w.due END, CASE WHEN w.paused
    THEN w.due + w.later ELSE w.later END, 0, 0, CASE WHEN NOT w.paused THEN min(w.since, :now) END, 0
  FROM judged w
  UNION ALL
  SELECT j.kind, j.queue, 0, 0, count(*), 0, NULL, 0 FROM interlock_jobs j INDEXED BY interlock_jobs_aside
    WHERE {aside} AND j.held_at IS NOT NULL GROUP BY j.kind, j.queue
  UNION ALL
  SELECT j.kind, j.queue, 0, 0, 0, 0, NULL, count(*) FROM interlock_jobs j INDEXED BY interlock_jobs_aside
    WHERE {aside} AND j.blocked_at IS NOT NULL GROUP BY j.kind, j.queue
  UNION ALL
  SELECT e.kind, j.queue, 0, 0, 0, count(*), NULL, 0 FROM interlock_executions e INDEXED BY interlock_executions_leases
    CROSS JOIN interlock_jobs j ON j.id = e.job_id
  WHERE {leased} GROUP BY e.kind, j.queue
  UNION ALL
  SELECT e.kind, j.queue, 0, 0, 0, count(*), NULL, 0
  FROM interlock_executions e INDEXED BY interlock_executions_external CROSS JOIN interlock_jobs j ON j.id = e.job_id
  WHERE {handed_over} GROUP BY e.kind, j.queue)
SELECT d.kind, d.queue, sum(d.due), sum(d.later), sum(d.held), sum(d.running), min(d.since), sum(d.blocked)
FROM parts d GROUP BY d.kind, d.queue ORDER BY d.kind, d.queue

-- name: held_jobs
-- A few of each kind and queue, so that many of one do not hide another.
SELECT {job}, NULL FROM json_each(:places) p CROSS JOIN json_each((SELECT json_group_array(c.id) FROM (
  SELECT x.id FROM interlock_jobs x INDEXED BY interlock_jobs_aside
  WHERE x.kind = json_extract(p.value, '$[0]') AND x.queue = json_extract(p.value, '$[1]')
    AND (x.held_at IS NOT NULL OR x.blocked_at IS NOT NULL) AND x.held_at IS NOT NULL
  LIMIT :limit + 0) c)) h
CROSS JOIN interlock_jobs j ON j.id = h.value ORDER BY j.held_at, j.id

-- name: recent_failures
-- The index has the jobs that ended in this phase.
WITH failed AS (
  SELECT j.id, j.kind, count(*) OVER (PARTITION BY j.kind) AS number,
    row_number() OVER (PARTITION BY j.kind ORDER BY j.finished_at DESC, j.id DESC) AS place
  FROM interlock_jobs j INDEXED BY interlock_jobs_finished
  WHERE j.phase = 'failed' AND j.finished_at IS NOT NULL AND j.finished_at > :since
    AND {ended_by_failure} AND NOT {redriven})
SELECT f.kind, f.number, j.id, j.state, j.attempt, j.finished_at, j.last_error
FROM failed f CROSS JOIN interlock_jobs j ON j.id = f.id WHERE f.place <= :newest ORDER BY f.kind, f.place

-- name: page
SELECT {summary}, NULL FROM interlock_jobs j WHERE j.id > :after ORDER BY j.id LIMIT :limit + 0

-- name: page_executions
SELECT e.job_id, e.attempt, e.holder, e.kind, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.status, e.state,
  e.ended_by, NULL, e.external_id, e.missing_since, e.next_check_at, NULL, NULL, NULL, e.leased_at,
  e.started_at, e.committed_at, e.finished_at
FROM json_each(:ids) i CROSS JOIN interlock_executions e ON e.job_id = i.value ORDER BY e.job_id, e.attempt

-- name: page_history
SELECT a.job_id, a.version, a.n, a.attempt, a.event, a.from_state, a.to_state, a.actor, NULL, a.at, NULL
FROM json_each(:ids) i CROSS JOIN interlock_audit a ON a.job_id = i.value ORDER BY a.job_id, a.version, a.n

-- name: page_pruned
SELECT a.job_id FROM interlock_audit a
WHERE a.job_id > :after AND a.version = 0 AND a.n = 0 AND NOT EXISTS (SELECT 1 FROM interlock_jobs j
  WHERE j.id = a.job_id)
ORDER BY a.job_id LIMIT :limit + 0
