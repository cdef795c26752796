-- Claim, and when the next job is due, on PostgreSQL.

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
(:alone::bool OR (j.lease_losses = 1 AND j.tries_left > 1))

-- fragment: known
EXISTS (SELECT FROM rules w WHERE w.kind = j.kind AND w.state = j.state AND w.lifecycle = j.lifecycle)
  AND j.id <> ALL(:skipped::text::uuid[])

-- fragment: heads
-- The first job of each queue, kind and priority, each found by one index lookup.
heads AS (
  SELECT l.queue, l.kind, l.free, h.priority, h.due_at FROM pairs l CROSS JOIN LATERAL (
    SELECT j.priority, j.due_at FROM interlock.jobs j WHERE j.queue = l.queue AND j.kind = l.kind AND {ready}
    ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1) h WHERE l.free > 0
  UNION ALL
  SELECT g.queue, g.kind, g.free, h.priority, h.due_at FROM heads g CROSS JOIN LATERAL (
    SELECT j.priority, j.due_at FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind
      AND j.priority < g.priority AND {ready}
    ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1) h),
expiring_heads AS (
  SELECT l.queue, l.kind, l.free, h.priority FROM pairs l CROSS JOIN LATERAL (
    SELECT j.priority FROM interlock.jobs j WHERE j.queue = l.queue AND j.kind = l.kind AND {expiring}
      ORDER BY j.priority DESC LIMIT 1) h WHERE l.free > 0
  UNION ALL
  SELECT g.queue, g.kind, g.free, h.priority FROM expiring_heads g CROSS JOIN LATERAL (
    SELECT j.priority FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority < g.priority
      AND {expiring} ORDER BY j.priority DESC LIMIT 1) h),
suspect_heads AS (
  SELECT l.queue, l.kind, least(l.free, :suspects::int) AS free, h.priority FROM pairs l CROSS JOIN LATERAL (
    SELECT j.priority FROM interlock.jobs j WHERE j.queue = l.queue AND j.kind = l.kind AND {suspect}
      ORDER BY j.priority DESC LIMIT 1) h
  WHERE least(l.free, :suspects::int) > 0
  UNION ALL
  SELECT g.queue, g.kind, g.free, h.priority FROM suspect_heads g CROSS JOIN LATERAL (
    SELECT j.priority FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority < g.priority
      AND {suspect} ORDER BY j.priority DESC LIMIT 1) h)

-- fragment: all_pairs
SELECT q.queue, k.kind FROM unnest(:queues::text::text[]) AS q(queue) CROSS JOIN unnest(:kinds::text::text[]) AS k(kind)

-- fragment: unlimited
-- Neither the queue nor the kind has a limit or a pause.
NOT EXISTS (SELECT FROM interlock.limits l WHERE (l.scope = 'queue' AND l.name = q.queue)
  OR (l.scope = 'kind' AND l.name = k.kind))

-- fragment: rules
rules AS MATERIALIZED (
  SELECT * FROM unnest(:kind::text::text[], :lifecycle::text::text[], :state::text::text[],
    :lifecycle_version::text::int[], :target::text::text[], :status::text::text[], :lease::text::float8[],
    :first_event::text::text[], :first_target::text::text[], :second_event::text::text[], :arrows::text::int[])
    WITH ORDINALITY
  AS w(kind, lifecycle, state, lifecycle_version, target, status, lease, first_event, first_target, second_event,
    arrows, ord))

-- fragment: candidates
-- Walks the ready index by queue, kind and priority, so that it never scans delayed, foreign, held or expired jobs.
-- Suspects are found by a separate walk. Each pair of queue and kind yields at most the wanted number, so the limit
-- below includes the first jobs of all pairs.
{heads},
non_expiring AS MATERIALIZED (
  SELECT p.* FROM (SELECT * FROM heads h WHERE h.due_at <= (SELECT now FROM clock)
    ORDER BY h.priority DESC, h.due_at, h.queue, h.kind) g CROSS JOIN LATERAL (
    SELECT j.id, j.kind, j.queue, j.priority, j.due_at, false AS suspect FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.due_at <= (SELECT now FROM clock)
      AND {ready} AND {known}
    ORDER BY j.due_at, j.id LIMIT g.free FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT :limit::int),
expiring AS MATERIALIZED (
  SELECT p.* FROM (SELECT * FROM expiring_heads h ORDER BY h.priority DESC, h.queue, h.kind) g CROSS JOIN LATERAL (
    SELECT j.id, j.kind, j.queue, j.priority, j.due_at, false AS suspect FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.due_at <= (SELECT now FROM clock)
      AND j.expires_at > (SELECT now FROM clock)
      AND {expiring} AND {known}
    ORDER BY j.expires_at, j.id LIMIT g.free FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT :limit::int),
enough AS MATERIALIZED (SELECT :suspects::int * (1 + count(*)) AS most FROM pairs),
non_expiring_suspects AS MATERIALIZED (
  SELECT p.* FROM (SELECT * FROM suspect_heads h ORDER BY h.priority DESC, h.queue, h.kind) g CROSS JOIN LATERAL (
    SELECT j.id, j.kind, j.queue, j.priority, j.due_at, true AS suspect FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.expires_at IS NULL
      AND j.due_at <= (SELECT now FROM clock)
      AND {suspect} AND {may_share} AND {known}
    ORDER BY j.expires_at, j.due_at, j.id LIMIT g.free FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT (SELECT m.most FROM enough m)),
expiring_suspects AS MATERIALIZED (
  SELECT p.* FROM (SELECT * FROM suspect_heads h ORDER BY h.priority DESC, h.queue, h.kind) g CROSS JOIN LATERAL (
    SELECT j.id, j.kind, j.queue, j.priority, j.due_at, true AS suspect FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.expires_at > (SELECT now FROM clock)
      AND j.due_at <= (SELECT now FROM clock)
      AND {suspect} AND {may_share} AND {known}
    ORDER BY j.expires_at, j.due_at, j.id LIMIT g.free FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT (SELECT m.most FROM enough m)),
suspects AS MATERIALIZED (
  SELECT * FROM (SELECT * FROM non_expiring_suspects UNION ALL SELECT * FROM expiring_suspects) s
    ORDER BY s.priority DESC, s.due_at, s.id LIMIT :suspects::int),
found AS MATERIALIZED (SELECT * FROM non_expiring UNION ALL SELECT * FROM expiring UNION ALL SELECT * FROM suspects)

-- fragment: of_claimed
-- What a claim needs of a job that it leases: no column that the rule decides.
j.id, w.ord, j.queue, j.priority, j.version, j.attempt, j.tries, j.tries_left, j.payload, j.tags, j.trace,
    j.last_error, j.due_at, j.scheduled_for, j.created_at, j.updated_at, j.idempotency_key, j.key_freed, j.unique_key,
    j.redrive_of, j.root, j.batch, j.kind, w.status, w.state AS waited, j.state, w.lease

-- fragment: claimed_job
x.id::text, x.ord::int, x.queue, x.priority, x.version, x.attempt, x.tries, x.tries_left,
  x.payload::text, x.tags::text, x.trace::text, x.last_error, x.due_at, x.scheduled_for, x.created_at, x.updated_at,
  x.idempotency_key, x.key_freed, x.unique_key, x.redrive_of::text, x.root::text, x.batch::text

-- fragment: of_special
-- Further columns of a job that the plain claim leaves to the others.
x.lease_losses, x.expires_at, x.concurrency_key

-- fragment: new_execution
  SELECT x.id, x.attempt, 1, x.kind, :by::text, x.now + x.lease * interval '1 second', x.now, x.status,
    x.state, x.now, CASE WHEN x.status = 'IN_PROGRESS' THEN x.now END
  FROM claimed x

-- fragment: leasing
-- Leases the jobs in `chosen`.
claimed AS (
  UPDATE interlock.jobs j SET state = w.target, phase = 'running', version = j.version + w.arrows,
    attempt = j.attempt + 1, limited = p.limited,
    lifecycle_version = w.lifecycle_version, updated_at = {refreshed}
  FROM chosen p, clock c, rules w WHERE j.id = ANY (ARRAY[p.id, p.id]) AND w.kind = j.kind AND w.state = j.state
    AND w.lifecycle = j.lifecycle
  RETURNING {of_claimed}, j.lease_losses, j.expires_at, j.concurrency_key, w.first_event, w.first_target,
    w.second_event, w.arrows, c.now),
leased AS (
  INSERT INTO interlock.executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status,
    state, leased_at, started_at)
{new_execution}),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
  SELECT x.id, x.version - x.arrows + 1, 0, x.attempt, x.now, x.first_event, x.waited, x.first_target, :by::text
    FROM claimed x WHERE x.arrows >= 1
  UNION ALL
  SELECT x.id, x.version, 0, x.attempt, x.now, x.second_event, x.first_target, x.state, :by::text
  FROM claimed x WHERE x.arrows = 2)

-- fragment: limit_or_flow
CASE WHEN {has_flow_checks} THEN 'flow' WHEN NOT :past_limits::bool AND {has_limits} THEN 'limit' END

-- name: claim
-- Jobs without limits, of any form. If there are limits, or dependencies to resolve, it leases none and says so.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
{rules},
special AS MATERIALIZED (SELECT {limit_or_flow} AS found),
pairs AS MATERIALIZED (SELECT p.queue, p.kind, :limit::int AS free FROM (
  {all_pairs} WHERE (SELECT s.found FROM special s) IS NULL AND (NOT :past_limits::bool OR {unlimited})) p),
{candidates},
chosen AS MATERIALIZED (
  SELECT p.id, NULL::boolean AS limited FROM found p ORDER BY p.priority DESC, p.due_at, p.id LIMIT :limit::int),
{leasing}
SELECT s.found, {claimed_job}, {of_special} FROM special s LEFT JOIN claimed x ON true

-- name: pick
-- The jobs that a claim may choose from, of pairs of queue and kind with room for so many more.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
{rules},
pairs AS MATERIALIZED (SELECT * FROM unnest(:pair_queue::text::text[], :pair_kind::text::text[],
  :pair_free::text::int[]) AS p(queue, kind, free)),
{candidates}
SELECT f.id::text, f.kind, f.queue, f.priority, f.due_at, f.suspect FROM found f

-- name: claim.picked
-- Leases the chosen jobs that still wait.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
{rules},
chosen AS MATERIALIZED (
  SELECT j.id, p.limited FROM unnest(:id::text::uuid[], :limited::text::boolean[]) AS p(id, limited)
    JOIN interlock.jobs j ON j.id = ANY (ARRAY[p.id, p.id])
  WHERE j.phase = 'pending' AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.blocked_at IS NULL
    AND {known}
  ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED),
{leasing}
SELECT x.now, {claimed_job}, {of_special} FROM claimed x

-- name: claim.plain
-- The common claim: rules of one transition, and no job with a TTL and no suspect. It leases the jobs without limits
-- that `claim` would lease. If there is anything else, it leases none and says in `special` what there is.
-- A bound is the due time at which recent claims of a queue, kind and priority ended. The walk starts there, because
-- PostgreSQL would visit every entry of a claimed job again until the next vacuum.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
rules AS MATERIALIZED (
  SELECT * FROM unnest(:kind::text::text[], :lifecycle::text::text[], :state::text::text[],
    :lifecycle_version::text::int[], :target::text::text[], :status::text::text[], :lease::text::float8[],
    :first_event::text::text[]) WITH ORDINALITY
  AS w(kind, lifecycle, state, lifecycle_version, target, status, lease, event, ord)),
pairs AS MATERIALIZED ({all_pairs} WHERE NOT :past_limits::bool OR {unlimited}),
special AS MATERIALIZED (
  SELECT coalesce({limit_or_flow}, CASE
    WHEN EXISTS (SELECT FROM pairs g CROSS JOIN LATERAL (
      SELECT FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind AND {expiring} LIMIT 1) x)
    OR EXISTS (SELECT FROM pairs g CROSS JOIN LATERAL (
      SELECT FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind AND {suspect} LIMIT 1) x)
    THEN 'other' END) AS found),
bounds AS MATERIALIZED (
  SELECT * FROM unnest(:bound_queue::text::text[], :bound_kind::text::text[], :bound_priority::text::int[],
    :bound_due_at::text::timestamptz[]) AS b(queue, kind, priority, due_at)),
ranges AS (
  SELECT g.queue, g.kind, b.priority AS above, NULL::int AS below FROM pairs g
    LEFT JOIN bounds b ON b.queue = g.queue AND b.kind = g.kind
  UNION ALL
  SELECT b.queue, b.kind, NULL, b.priority FROM bounds b),
heads AS (
  SELECT l.queue, l.kind, l.above, h.priority, h.due_at FROM ranges l CROSS JOIN LATERAL (
    SELECT j.priority, j.due_at FROM interlock.jobs j WHERE j.queue = l.queue AND j.kind = l.kind
      AND j.priority > coalesce(l.above::bigint, -2147483649) AND j.priority < coalesce(l.below::bigint, 2147483648)
      AND {ready}
    ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1) h WHERE (SELECT s.found FROM special s) IS NULL
  UNION ALL
  SELECT g.queue, g.kind, g.above, h.priority, h.due_at FROM heads g CROSS JOIN LATERAL (
    SELECT j.priority, j.due_at FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind
      AND j.priority > coalesce(g.above::bigint, -2147483649) AND j.priority < g.priority AND {ready}
    ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1) h),
bounded_heads AS (
  SELECT b.queue, b.kind, b.priority, h.due_at FROM bounds b CROSS JOIN LATERAL (
    SELECT j.due_at FROM interlock.jobs j WHERE j.queue = b.queue AND j.kind = b.kind AND j.priority = b.priority
      AND j.due_at >= b.due_at AND {ready}
    ORDER BY j.due_at, j.id LIMIT 1) h WHERE (SELECT s.found FROM special s) IS NULL),
chosen AS MATERIALIZED (
  SELECT p.place FROM (
    SELECT * FROM (SELECT h.queue, h.kind, h.priority, h.due_at FROM heads h UNION ALL SELECT * FROM bounded_heads) h
    WHERE h.due_at <= (SELECT now FROM clock)
    ORDER BY h.priority DESC, h.due_at, h.queue, h.kind) g CROSS JOIN LATERAL (
    SELECT j.ctid AS place FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.due_at >= g.due_at
      AND j.due_at <= (SELECT now FROM clock) AND {ready}
      AND EXISTS (SELECT FROM rules w WHERE w.kind = j.kind AND w.state = j.state AND w.lifecycle = j.lifecycle)
    ORDER BY j.due_at, j.id LIMIT :limit::int FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT :limit::int),
claimed AS (
  UPDATE interlock.jobs j SET state = w.target, phase = 'running', version = j.version + 1, attempt = j.attempt + 1,
    limited = NULL, lifecycle_version = w.lifecycle_version, updated_at = {refreshed}
  FROM chosen p CROSS JOIN clock c CROSS JOIN rules w
  WHERE j.ctid = p.place AND w.kind = j.kind AND w.state = j.state AND w.lifecycle = j.lifecycle
  RETURNING {of_claimed}, w.event, c.now),
leased AS (
  INSERT INTO interlock.executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status,
    state, leased_at, started_at)
{new_execution}),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
  SELECT x.id, x.version, 0, x.attempt, x.now, x.event, x.waited, x.state, :by::text FROM claimed x)
SELECT s.found, {claimed_job}
FROM special s LEFT JOIN claimed x ON true

-- name: claim.note
-- A claim without a transition writes an audit note, in a statement after the one that locked the jobs: see
-- `lock_jobs`.
INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor)
SELECT e.job_id, j.version,
  1 + coalesce((SELECT max(a.n) FROM interlock.audit a WHERE a.job_id = j.id AND a.version = j.version), 0),
  e.attempt, e.leased_at, 'claim', e.lease_owner
FROM interlock.jobs j JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt
WHERE j.id = ANY(:id::text::uuid[])

-- fragment: here
j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority

-- fragment: due_dates
-- When the next job of each pair is due. Jobs with a TTL are sorted by their expiry: all of them are scanned only if no
-- job is due.
{heads},
soonest AS (
  SELECT g.queue, g.kind, p.due_at FROM heads g CROSS JOIN LATERAL (
    SELECT j.due_at FROM interlock.jobs j WHERE {here} AND {ready} AND {known} ORDER BY j.due_at, j.id LIMIT 1) p
  UNION ALL
  SELECT g.queue, g.kind, p.due_at FROM suspect_heads g CROSS JOIN LATERAL (
    SELECT j.due_at FROM interlock.jobs j WHERE {here} AND j.expires_at IS NULL AND {suspect} AND {known}
      ORDER BY j.expires_at, j.due_at, j.id LIMIT 1) p),
due AS (
  SELECT s.queue, s.kind FROM soonest s WHERE s.due_at <= (SELECT now FROM clock)
  UNION ALL
  SELECT g.queue, g.kind FROM expiring_heads g CROSS JOIN LATERAL (
    SELECT FROM interlock.jobs j WHERE {here} AND j.expires_at > (SELECT now FROM clock)
      AND j.due_at <= (SELECT now FROM clock) AND {expiring} AND {known}
    ORDER BY j.expires_at, j.id LIMIT 1) p
  UNION ALL
  SELECT g.queue, g.kind FROM suspect_heads g CROSS JOIN LATERAL (
    SELECT FROM interlock.jobs j WHERE {here} AND j.expires_at > (SELECT now FROM clock)
      AND j.due_at <= (SELECT now FROM clock) AND {suspect} AND {known}
    ORDER BY j.expires_at, j.due_at, j.id LIMIT 1) p),
later AS (
  SELECT s.queue, s.kind, s.due_at FROM soonest s
  UNION ALL
  SELECT g.queue, g.kind, p.due_at FROM expiring_heads g CROSS JOIN LATERAL (
    SELECT min(j.due_at) AS due_at FROM interlock.jobs j
    WHERE {here} AND j.expires_at > (SELECT now FROM clock) AND j.due_at < j.expires_at AND {expiring} AND {known}) p
  UNION ALL
  SELECT g.queue, g.kind, p.due_at FROM suspect_heads g CROSS JOIN LATERAL (
    SELECT min(j.due_at) AS due_at FROM interlock.jobs j
    WHERE {here} AND j.expires_at > (SELECT now FROM clock) AND j.due_at < j.expires_at AND {suspect} AND {known}) p)

-- name: due_in
-- For jobs without limits, and whether there are limits. Due jobs are searched first, and one is enough.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
rules AS MATERIALIZED (SELECT * FROM unnest(:kind::text::text[], :lifecycle::text::text[], :state::text::text[])
  AS w(kind, lifecycle, state)),
pairs AS MATERIALIZED (SELECT p.queue, p.kind, 1 AS free FROM ({all_pairs} WHERE {unlimited}) p),
{due_dates}
SELECT CASE WHEN {has_flow_checks} OR EXISTS (SELECT FROM due) THEN 0 ELSE extract(epoch
  FROM (SELECT min(l.due_at) FROM later l) - (SELECT now FROM clock))::float8 END, {has_limits}
