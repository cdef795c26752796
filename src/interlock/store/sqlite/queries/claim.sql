-- Claim, and when the next job is due, on SQLite.

-- fragment: claimed
-- The columns of `job` without an alias, for RETURNING.
id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, version, attempt, tries, tries_left,
  lease_losses,
payload, tags, trace, result, last_error, due_at, expires_at, scheduled_for, created_at, updated_at, finished_at,
idempotency_key, key_freed, unique_key, cancel_requested_at, cancel_requested_by, cancel_reason, held_at, held_reason,
  redrive_of,
root, concurrency_key, batch, blocked_at, awaited

-- fragment: ready
j.phase = 'pending' AND j.expires_at IS NULL AND j.held_at IS NULL AND j.cancel_requested_at IS NULL
  AND j.lease_losses = 0 AND j.blocked_at IS NULL AND j.concurrency_key IS NULL

-- fragment: expiring
j.phase = 'pending' AND j.expires_at IS NOT NULL AND j.held_at IS NULL AND j.cancel_requested_at IS NULL
  AND j.lease_losses = 0 AND j.blocked_at IS NULL AND j.concurrency_key IS NULL

-- fragment: suspect
j.phase = 'pending' AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.lease_losses > 0
  AND j.blocked_at IS NULL AND j.concurrency_key IS NULL

-- fragment: may_share
-- If the worker has no room for jobs that must run alone, only those that may share a process are claimed.
(:alone OR (j.lease_losses = 1 AND j.tries_left > 1))

-- fragment: known
instr(h.states, ' ' || j.lifecycle || '/' || j.state || ' ') > 0 AND j.id NOT IN (SELECT value FROM json_each(:skipped))

-- fragment: heads
-- The first job of each queue, kind and priority, each found by one index lookup.
pairs(queue, kind, states) AS MATERIALIZED (
  SELECT json_extract(p.value, '$[0]'), json_extract(p.value, '$[1]'), json_extract(p.value, '$[2]')
  FROM json_each(:pairs) p
  WHERE :limited OR NOT EXISTS (SELECT 1 FROM interlock_limits l
    WHERE (l.scope = 'queue' AND l.name = json_extract(p.value, '$[0]'))
      OR (l.scope = 'kind' AND l.name = json_extract(p.value, '$[1]')))),
heads(queue, kind, states, priority) AS (
  SELECT l.queue, l.kind, l.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_ready WHERE j.queue = l.queue AND j.kind = l.kind
      AND {ready} ORDER BY j.priority DESC LIMIT 1) FROM pairs l
  UNION ALL
  SELECT h.queue, h.kind, h.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_ready
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority < h.priority AND {ready}
      ORDER BY j.priority DESC LIMIT 1) FROM heads h WHERE h.priority IS NOT NULL),
expiring_heads(queue, kind, states, priority) AS (
  SELECT l.queue, l.kind, l.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_ready_expiring
      WHERE j.queue = l.queue AND j.kind = l.kind AND {expiring} ORDER BY j.priority DESC LIMIT 1) FROM pairs l
  UNION ALL
  SELECT h.queue, h.kind, h.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_ready_expiring
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority < h.priority AND {expiring}
      ORDER BY j.priority DESC LIMIT 1) FROM expiring_heads h WHERE h.priority IS NOT NULL),
suspect_heads(queue, kind, states, priority) AS (
  SELECT l.queue, l.kind, l.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
      WHERE j.queue = l.queue AND j.kind = l.kind AND {suspect} ORDER BY j.priority DESC LIMIT 1)
  FROM pairs l WHERE :suspects <> 0
  UNION ALL
  SELECT h.queue, h.kind, h.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority < h.priority AND {suspect}
      ORDER BY j.priority DESC LIMIT 1) FROM suspect_heads h WHERE h.priority IS NOT NULL)

-- name: pick
-- The jobs that a claim would lease, in order, of pairs of queue and kind without limits or, if `:limited`, of the
-- given pairs; `plain` marks those that `claim.plain` may take. It walks the ready index by queue, kind and priority,
-- so that it never scans delayed, foreign, held or expired jobs. Suspects are found by a separate walk: at most
-- `:suspects` of each queue, kind and priority, with and without a TTL, and `:most_suspects` in all.
WITH RECURSIVE
{heads},
suspects(queue, kind, priority, place) AS (
  SELECT h.queue, h.kind, h.priority, p.value FROM suspect_heads h CROSS
    JOIN json_each((SELECT json_group_array(c.place) FROM (
    SELECT j.due_at || j.id || j.state AS place FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority AND j.expires_at IS NULL
      AND j.due_at <= :now AND {suspect} AND {may_share} AND {known}
    ORDER BY j.due_at, j.id LIMIT :suspects + 0) c)) p WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT h.queue, h.kind, h.priority, p.value FROM suspect_heads h CROSS
    JOIN json_each((SELECT json_group_array(c.place) FROM (
    SELECT j.due_at || j.id || j.state AS place FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority AND j.expires_at > :now AND j.due_at <= :now
      AND {suspect} AND {may_share} AND {known}
    ORDER BY j.expires_at, j.due_at, j.id LIMIT :suspects + 0) c)) p WHERE h.priority IS NOT NULL),
picked(queue, kind, priority, place, suspect, plain) AS (
  SELECT h.queue, h.kind, h.priority, p.value, 0, 1 FROM heads h CROSS
    JOIN json_each((SELECT json_group_array(c.place) FROM (
    SELECT j.due_at || j.id || j.state AS place FROM interlock_jobs j INDEXED BY interlock_jobs_ready
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority AND j.due_at <= :now AND {ready} AND {known}
    ORDER BY j.due_at, j.id LIMIT :limit + 0) c)) p WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT h.queue, h.kind, h.priority, p.value, 0, 0 FROM expiring_heads h CROSS
    JOIN json_each((SELECT json_group_array(c.place) FROM (
    SELECT j.due_at || j.id || j.state AS place FROM interlock_jobs j INDEXED BY interlock_jobs_ready_expiring
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority AND j.expires_at > :now AND j.due_at <= :now
      AND {expiring} AND {known}
    ORDER BY j.expires_at, j.id LIMIT :limit + 0) c)) p WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT s.queue, s.kind, s.priority, s.place, 1, 0 FROM (SELECT * FROM suspects
    ORDER BY priority DESC, place LIMIT :most_suspects + 0) s)
SELECT substr(place, 28, 36), kind, substr(place, 64), queue, suspect, plain, priority, substr(place, 1, 27) FROM picked
  ORDER BY priority DESC, place LIMIT :most + 0

-- fragment: here
j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority

-- name: due_in
-- The time at which the next of the jobs that `pick` may choose from is due. Due jobs are searched first,
-- and one is enough. Jobs with a TTL are sorted by their expiry: all of them are scanned only if no job is due.
WITH RECURSIVE
{heads},
soonest(due_at) AS (
  SELECT (SELECT j.due_at FROM interlock_jobs j INDEXED BY interlock_jobs_ready WHERE {here} AND {ready} AND {known}
    ORDER BY j.due_at, j.id LIMIT 1)
  FROM heads h WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT (
    SELECT j.due_at FROM interlock_jobs j INDEXED BY interlock_jobs_suspect WHERE {here} AND j.expires_at IS NULL
      AND {suspect} AND {known} ORDER BY j.due_at, j.id LIMIT 1)
  FROM suspect_heads h WHERE h.priority IS NOT NULL),
due(due_at) AS (
  SELECT s.due_at FROM soonest s WHERE s.due_at <= :now
  UNION ALL
  SELECT :now FROM expiring_heads h WHERE h.priority IS NOT NULL AND EXISTS (
    SELECT 1 FROM interlock_jobs j INDEXED BY interlock_jobs_ready_expiring WHERE {here} AND j.expires_at > :now
      AND j.due_at <= :now AND {expiring} AND {known})
  UNION ALL
  SELECT :now FROM suspect_heads h WHERE h.priority IS NOT NULL AND EXISTS (
    SELECT 1 FROM interlock_jobs j INDEXED BY interlock_jobs_suspect WHERE {here} AND j.expires_at > :now
      AND j.due_at <= :now AND {suspect} AND {known})),
later(due_at) AS (
  SELECT s.due_at FROM soonest s
  UNION ALL
  SELECT (
    SELECT min(j.due_at) FROM interlock_jobs j INDEXED BY interlock_jobs_ready_expiring
      WHERE {here} AND j.expires_at > :now AND j.due_at < j.expires_at AND {expiring} AND {known})
  FROM expiring_heads h WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT (
    SELECT min(j.due_at) FROM interlock_jobs j INDEXED BY interlock_jobs_suspect WHERE {here} AND j.expires_at > :now
      AND j.due_at < j.expires_at AND {suspect} AND {known})
  FROM suspect_heads h WHERE h.priority IS NOT NULL)
SELECT CASE WHEN EXISTS (SELECT 1 FROM due) THEN :now ELSE (SELECT min(l.due_at) FROM later l) END

-- name: claim.special
-- Whether dependencies must be resolved, and whether there are limits.
-- differs: `pick` finds all other jobs, so there is nothing else to say.
SELECT {has_flow_checks}, {has_limits}

-- name: claim.states
-- The states of jobs that were chosen within limits.
SELECT j.id, j.state FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: claim
-- The jobs of one claim rule.
-- differs: SQLite has no writing CTE, so each table has its own statement, and each claim rule too.
UPDATE interlock_jobs SET state = :target, phase = 'running', version = version + :arrows, attempt = attempt + 1,
  lifecycle_version = :lifecycle_version,
  updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids)) AND kind = :kind AND lifecycle = :lifecycle AND state = :state
  AND phase = 'pending' RETURNING {claimed}

-- name: claim.plain
-- The same for jobs without a TTL, a lost lease, a hold or a cancel request, and one transition for each. It returns
-- only the columns that follow neither from the rule nor from these conditions.
-- differs: `pick` has chosen the jobs, and says of each whether it is plain. So there are no bounds and no `special`:
-- other jobs in the same claim take `claim`, and do not keep the plain ones from this statement.
UPDATE interlock_jobs SET state = :target, phase = 'running', version = version + 1, attempt = attempt + 1,
  lifecycle_version = :lifecycle_version, updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids)) AND kind = :kind AND lifecycle = :lifecycle AND state = :state
  AND phase = 'pending' AND expires_at IS NULL AND held_at IS NULL AND cancel_requested_at IS NULL AND lease_losses = 0
  AND blocked_at IS NULL AND concurrency_key IS NULL
RETURNING id, queue, priority, version, attempt, tries, tries_left, payload, tags, trace, last_error, due_at,
  scheduled_for, created_at, updated_at, idempotency_key, key_freed, unique_key, redrive_of, root, batch

-- name: claim.execution
INSERT INTO interlock_executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status,
  state, leased_at, started_at)
SELECT j.id, j.attempt, 1, j.kind, :by, :until, :now, :status, j.state, :now, CASE WHEN :status = 'IN_PROGRESS'
  THEN :now END
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: claim.audit
-- One transition of the rule; `:ahead` more follow it.
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
SELECT j.id, j.version - :ahead, 0, j.attempt, :now, :event, :source, :target, :by FROM json_each(:ids) i CROSS
  JOIN interlock_jobs j ON j.id = i.value

-- name: claim.note
-- For a rule without a transition.
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version), 0), j.attempt, :now, 'claim', :by
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value
