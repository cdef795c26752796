-- The statements of the PostgreSQL store, by name. `:name` is a parameter, `{name}` a fragment of this file.
--
-- Batches come as array literals in text parameters, one array per column, so that every driver can send them and no plan depends on their number.
-- Rows are locked in the order of (job_id, attempt), always. A guard is written where the planner cannot use it for an index, as a comparison of rows:
-- it would otherwise look selective and draw the plan away from the primary key, which is what every batch is keyed by.

-- fragment: job
j.id::text, j.kind, j.queue, j.priority, j.lifecycle, j.lifecycle_version, j.state, j.phase, j.version, j.attempt, j.tries, j.tries_left, j.lease_losses,
j.payload::text, j.tags::text, j.trace::text, j.result::text, j.last_error, j.due_at, j.expires_at, j.scheduled_for, j.created_at, j.updated_at, j.finished_at,
j.idempotency_key, j.key_released, j.unique_key, j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.held_at, j.held_reason, j.redrive_of::text,
j.root::text

-- fragment: summary
-- The same without payload and result, which may be a megabyte each.
j.id::text, j.kind, j.queue, j.priority, j.lifecycle, j.lifecycle_version, j.state, j.phase, j.version, j.attempt, j.tries,
j.tries_left, j.lease_losses, '{}'::text, j.tags::text, j.trace::text, NULL::text, j.last_error, j.due_at, j.expires_at,
j.scheduled_for, j.created_at, j.updated_at, j.finished_at, j.idempotency_key, j.key_released, j.unique_key,
j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.held_at, j.held_reason, j.redrive_of::text, j.root::text

-- fragment: execution
e.job_id::text, e.attempt, e.holder, e.kind, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.status, e.state, e.ended_by, e.error, e.external_id,
e.missing_since, e.next_check_at, e.progress::text, e.usage::text, e.result::text, e.leased_at, e.started_at, e.committed_at, e.finished_at

-- fragment: refreshed
greatest(c.now, j.updated_at + interval '1 microsecond')

-- fragment: tell
-- To whoever listens, when this transaction commits; the same words in one transaction are said once.
pg_notify('interlock.jobs', '')

-- fragment: leased
e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (e.external_id IS NULL OR e.status = 'COMMITTED')

-- fragment: handed_over
e.status IN ('LEASED', 'IN_PROGRESS') AND e.external_id IS NOT NULL

-- fragment: resting
-- It is in nobody's hands: what ends at its `lease_expires_at` is not a lease, but the time until its next check.
e.lease_owner = 'external:' || e.kind

-- fragment: stoppable
EXISTS (SELECT 1 FROM interlock.lifecycle_edges d WHERE d.lifecycle = j.lifecycle AND d.version = j.lifecycle_version AND d.source = j.state AND d.event = 'cancel')

-- name: steady
-- Plans that stay as the tables grow and while statistics are stale; for this transaction only, and never where a caller's code runs.
-- A client that is frozen inside it holds its rows for 15 s at most: in the middle of a pipeline only where the server has a transaction_timeout, from 17 on.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true),
  set_config('enable_mergejoin', 'off', true), set_config('enable_material', 'off', true), set_config('jit', 'off', true),
  set_config('plan_cache_mode', 'force_generic_plan', true), set_config('lock_timeout', '10s', true),
  set_config('idle_in_transaction_session_timeout', '15s', true),
  CASE WHEN current_setting('server_version_num')::int >= 170000 THEN set_config('transaction_timeout', '15s', true) END

-- name: guarded
-- Where a caller's code runs inside our transaction: a frozen client must not hold a job for ever.
SELECT set_config('lock_timeout', '10s', true), set_config('idle_in_transaction_session_timeout', :idle::text, true),
  CASE WHEN current_setting('server_version_num')::int >= 170000 THEN set_config('transaction_timeout', :idle::text, true) END

-- name: now
SELECT interlock.clock()

-- name: up_for
SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())

-- name: enqueue
-- Sorted by key, so that two bulk calls with the same keys in opposite order wait for each other instead of dying together.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:id::text::uuid[], :kind::text::text[], :queue::text::text[], :priority::text::int[], :lifecycle::text::text[], :lifecycle_version::text::int[],
    :state::text::text[], :tries::text::int[], :delay::text::float8[], :run_at::text::timestamptz[], :ttl::text::float8[], :idempotency_key::text::text[],
    :unique_key::text::text[], :payload::text::text[], :tags::text::text[], :trace::text::text[], :scheduled_for::text::timestamptz[], :redrive_of::text::uuid[],
    :root::text::uuid[], :actor::text::text[])
  AS a(id, kind, queue, priority, lifecycle, lifecycle_version, state, tries, delay, run_at, ttl, idempotency_key, unique_key, payload, tags, trace, scheduled_for,
    redrive_of, root, actor)),
stored AS (
  INSERT INTO interlock.jobs (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left, due_at, expires_at, created_at, updated_at,
    idempotency_key, unique_key, payload, tags, trace, scheduled_for, redrive_of, root)
  SELECT a.id, a.kind, a.queue, a.priority, a.lifecycle, a.lifecycle_version, a.state, 'pending', a.tries, a.tries,
    coalesce(a.run_at, c.now) + a.delay * interval '1 second', c.now + a.ttl * interval '1 second', c.now, c.now,
    a.idempotency_key, a.unique_key, a.payload::json, a.tags::jsonb, a.trace::json, a.scheduled_for, a.redrive_of, a.root
  FROM asked a, clock c ORDER BY a.kind COLLATE "C", coalesce(a.idempotency_key, '') COLLATE "C", coalesce(a.unique_key, '') COLLATE "C", a.id
  ON CONFLICT DO NOTHING RETURNING id, state, created_at),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
  SELECT s.id, 0, 0, NULL, s.created_at, 'enqueue', NULL, s.state, a.actor FROM stored s JOIN asked a ON a.id = s.id),
told AS MATERIALIZED (SELECT {tell} FROM stored LIMIT 1)
SELECT s.id::text FROM stored s CROSS JOIN told

-- name: holders
-- A statement of its own: one that also inserts would not see the rival it waited for. Where the holder of a unique key has ended since it kept us out, it is still
-- the answer, being the one active job when we asked: the last to end, since a key's holders follow each other. Only its unique key can have kept such a job out.
SELECT a.ord, i.id::text, i.payload::text, i.state, coalesce(u.id, l.id)::text
FROM unnest(:ord::text::int[], :kind::text::text[], :idempotency_key::text::text[], :unique_key::text::text[], :tried::text::bool[])
  AS a(ord, kind, idempotency_key, unique_key, tried)
LEFT JOIN interlock.jobs i ON i.kind = a.kind AND i.idempotency_key = a.idempotency_key AND i.idempotency_key IS NOT NULL AND NOT i.key_released
LEFT JOIN interlock.jobs u ON u.kind = a.kind AND u.unique_key = a.unique_key AND u.unique_key IS NOT NULL AND u.phase IN ('pending', 'running')
LEFT JOIN LATERAL (
  SELECT x.id FROM interlock.jobs x WHERE u.id IS NULL AND a.tried AND a.idempotency_key IS NULL AND x.kind = a.kind AND x.unique_key = a.unique_key
    AND x.unique_key IS NOT NULL AND x.finished_at IS NOT NULL ORDER BY x.finished_at DESC LIMIT 1) l ON true

-- name: inherit
-- A redrive takes over what is known, and what is in doubt, of the job that it repeats.
INSERT INTO interlock.receipts (job_id, name, kind, attempt, holder, args_hash, value, asked_at, applied_at, decided_by)
SELECT a.id, r.name, r.kind, 0, 0, r.args_hash, r.value, r.asked_at, r.applied_at, r.decided_by
FROM unnest(:id::text::uuid[], :redrive_of::text::uuid[]) AS a(id, redrive_of) JOIN interlock.receipts r ON r.job_id = a.redrive_of

-- name: hasten
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
hastened AS (
  UPDATE interlock.jobs j SET due_at = c.now, updated_at = {refreshed} FROM clock c
  WHERE j.id = ANY(:id::text::uuid[]) AND j.phase = 'pending' AND j.state = ANY(:resting::text::text[]) AND j.due_at > c.now RETURNING j.id)
SELECT {tell} FROM hastened LIMIT 1

-- name: limits
-- Claimers of a limited kind or queue go one after the other: their count must be taken from a snapshot that is newer than this lock.
WITH k AS MATERIALIZED (SELECT 1 FROM interlock.kinds WHERE name = ANY(:kinds::text::text[]) AND max_running IS NOT NULL ORDER BY name FOR NO KEY UPDATE),
q AS MATERIALIZED (SELECT 1 FROM interlock.queues WHERE name = ANY(:queues::text::text[]) AND max_running IS NOT NULL ORDER BY name FOR NO KEY UPDATE)
SELECT (SELECT count(*) FROM k) + (SELECT count(*) FROM q)

-- fragment: ready
j.phase = 'pending' AND j.expires_at IS NULL AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.lease_losses = 0

-- fragment: mortal
j.phase = 'pending' AND j.expires_at IS NOT NULL AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.lease_losses = 0

-- fragment: suspect
j.phase = 'pending' AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.lease_losses > 0

-- fragment: companionable
-- Where no place is left for jobs that must run alone, those that may share a process are taken.
(:alone::bool OR (j.lease_losses = 1 AND j.tries_left > 1))

-- fragment: known
EXISTS (SELECT FROM ways w WHERE w.kind = j.kind AND w.state = j.state AND w.lifecycle = j.lifecycle) AND j.id <> ALL(:aside::text::uuid[])

-- fragment: heads
-- The first job of each queue, kind and priority, each found by one step down the index.
heads AS (
  SELECT l.queue, l.kind, l.free, h.priority, h.due_at FROM lines l CROSS JOIN LATERAL (
    SELECT j.priority, j.due_at FROM interlock.jobs j WHERE j.queue = l.queue AND j.kind = l.kind AND {ready}
    ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1) h WHERE l.free > 0
  UNION ALL
  SELECT g.queue, g.kind, g.free, h.priority, h.due_at FROM heads g CROSS JOIN LATERAL (
    SELECT j.priority, j.due_at FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority < g.priority AND {ready}
    ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1) h),
mortal_heads AS (
  SELECT l.queue, l.kind, l.free, h.priority FROM lines l CROSS JOIN LATERAL (
    SELECT j.priority FROM interlock.jobs j WHERE j.queue = l.queue AND j.kind = l.kind AND {mortal} ORDER BY j.priority DESC LIMIT 1) h WHERE l.free > 0
  UNION ALL
  SELECT g.queue, g.kind, g.free, h.priority FROM mortal_heads g CROSS JOIN LATERAL (
    SELECT j.priority FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority < g.priority AND {mortal} ORDER BY j.priority DESC LIMIT 1) h),
suspect_heads AS (
  SELECT l.queue, l.kind, least(l.free, :suspects::int) AS free, h.priority FROM lines l CROSS JOIN LATERAL (
    SELECT j.priority FROM interlock.jobs j WHERE j.queue = l.queue AND j.kind = l.kind AND {suspect} ORDER BY j.priority DESC LIMIT 1) h
  WHERE least(l.free, :suspects::int) > 0
  UNION ALL
  SELECT g.queue, g.kind, g.free, h.priority FROM suspect_heads g CROSS JOIN LATERAL (
    SELECT j.priority FROM interlock.jobs j WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority < g.priority AND {suspect} ORDER BY j.priority DESC LIMIT 1) h)

-- fragment: wanted
{known} AND (:only::text IS NULL OR j.id = ANY(:only::text::uuid[]))

-- fragment: candidates
-- Walk the ready index by queue, kind and priority, head by head, so that nothing that is delayed, foreign, held or expired is ever stepped through.
-- Suspects come by a walk of their own. Each line gives at most as many as are wanted of all, so one more than the lines' number of such portions has the first of all lines.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
ways AS MATERIALIZED (
  SELECT * FROM unnest(:kind::text::text[], :lifecycle::text::text[], :state::text::text[], :lifecycle_version::text::int[], :target::text::text[], :status::text::text[], :lease::text::float8[],
    :first_event::text::text[], :first_target::text::text[], :second_event::text::text[], :arrows::text::int[])
  AS w(kind, lifecycle, state, lifecycle_version, target, status, lease, first_event, first_target, second_event, arrows)),
room AS MATERIALIZED (
  SELECT k.name AS kind, k.max_running - (SELECT count(*) FROM interlock.executions r WHERE r.kind = k.name AND r.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')
    AND (r.external_id IS NULL OR r.status = 'COMMITTED')) - (SELECT count(*) FROM interlock.executions r WHERE r.kind = k.name
    AND r.status IN ('LEASED', 'IN_PROGRESS') AND r.external_id IS NOT NULL) AS free
  FROM interlock.kinds k WHERE k.max_running IS NOT NULL AND k.name = ANY(:kinds::text::text[])),
queue_room AS MATERIALIZED (
  SELECT q.name AS queue, q.max_running - (SELECT count(*) FROM interlock.executions r JOIN interlock.jobs j ON j.id = r.job_id
    WHERE r.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (r.external_id IS NULL OR r.status = 'COMMITTED') AND j.queue = q.name)
    - (SELECT count(*) FROM interlock.executions r JOIN interlock.jobs j ON j.id = r.job_id
    WHERE r.status IN ('LEASED', 'IN_PROGRESS') AND r.external_id IS NOT NULL AND j.queue = q.name) AS free
  FROM interlock.queues q WHERE q.max_running IS NOT NULL AND q.name = ANY(:queues::text::text[])),
lines AS MATERIALIZED (
  SELECT q.queue, k.kind, least(:limit::int, r.free, s.free) AS free
  FROM unnest(:queues::text::text[]) AS q(queue) CROSS JOIN unnest(:kinds::text::text[]) AS k(kind)
  LEFT JOIN room r ON r.kind = k.kind LEFT JOIN queue_room s ON s.queue = q.queue
  WHERE NOT EXISTS (SELECT FROM interlock.queues p WHERE p.name = q.queue AND p.paused_at IS NOT NULL)),
{heads},
lasting AS MATERIALIZED (
  SELECT p.id, p.priority, p.due_at, p.queue, p.kind
  FROM (SELECT * FROM heads h WHERE h.due_at <= (SELECT now FROM clock) ORDER BY h.priority DESC, h.due_at) g CROSS JOIN LATERAL (
    SELECT j.id, j.priority, j.due_at, j.queue, j.kind FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.due_at <= (SELECT now FROM clock) AND {ready} AND {wanted}
    ORDER BY j.due_at, j.id LIMIT g.free FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT :limit::int),
mortal AS MATERIALIZED (
  SELECT p.id, p.priority, p.due_at, p.queue, p.kind
  FROM (SELECT * FROM mortal_heads h ORDER BY h.priority DESC) g CROSS JOIN LATERAL (
    SELECT j.id, j.priority, j.due_at, j.queue, j.kind FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.due_at <= (SELECT now FROM clock) AND j.expires_at > (SELECT now FROM clock)
      AND {mortal} AND {wanted}
    ORDER BY j.expires_at, j.id LIMIT g.free FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT :limit::int),
enough AS MATERIALIZED (SELECT :suspects::int * (1 + count(*)) AS most FROM lines),
lasting_suspects AS MATERIALIZED (
  SELECT p.id, p.priority, p.due_at, p.queue, p.kind
  FROM (SELECT * FROM suspect_heads h ORDER BY h.priority DESC) g CROSS JOIN LATERAL (
    SELECT j.id, j.priority, j.due_at, j.queue, j.kind FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.expires_at IS NULL AND j.due_at <= (SELECT now FROM clock)
      AND {suspect} AND {companionable} AND {wanted}
    ORDER BY j.expires_at, j.due_at, j.id LIMIT g.free FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT (SELECT m.most FROM enough m)),
mortal_suspects AS MATERIALIZED (
  SELECT p.id, p.priority, p.due_at, p.queue, p.kind
  FROM (SELECT * FROM suspect_heads h ORDER BY h.priority DESC) g CROSS JOIN LATERAL (
    SELECT j.id, j.priority, j.due_at, j.queue, j.kind FROM interlock.jobs j
    WHERE j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority AND j.expires_at > (SELECT now FROM clock) AND j.due_at <= (SELECT now FROM clock)
      AND {suspect} AND {companionable} AND {wanted}
    ORDER BY j.expires_at, j.due_at, j.id LIMIT g.free FOR NO KEY UPDATE SKIP LOCKED) p
  LIMIT (SELECT m.most FROM enough m)),
suspects AS MATERIALIZED (
  SELECT * FROM (SELECT * FROM lasting_suspects UNION ALL SELECT * FROM mortal_suspects) s ORDER BY s.priority DESC, s.due_at, s.id LIMIT :suspects::int),
found AS MATERIALIZED (SELECT * FROM lasting UNION ALL SELECT * FROM mortal UNION ALL SELECT * FROM suspects),
numbered AS MATERIALIZED (
  SELECT f.*, row_number() OVER (PARTITION BY f.kind ORDER BY f.priority DESC, f.due_at, f.id) AS of_kind,
    row_number() OVER (PARTITION BY f.queue ORDER BY f.priority DESC, f.due_at, f.id) AS of_queue
  FROM found f WHERE EXISTS (SELECT FROM room) OR EXISTS (SELECT FROM queue_room)),
chosen AS MATERIALIZED (
  SELECT p.id, p.priority, p.due_at FROM found p WHERE NOT EXISTS (SELECT FROM room) AND NOT EXISTS (SELECT FROM queue_room)
  UNION ALL
  SELECT p.id, p.priority, p.due_at FROM numbered p LEFT JOIN room r ON r.kind = p.kind LEFT JOIN queue_room s ON s.queue = p.queue
  WHERE p.of_kind <= coalesce(r.free, p.of_kind) AND p.of_queue <= coalesce(s.free, p.of_queue)
  ORDER BY 2 DESC, 3, 1 LIMIT :limit::int)

-- name: pick
-- What a claim would take, in its order: asked only when a row spoils its batch.
{candidates}
SELECT id::text FROM chosen

-- name: claim
{candidates},
claimed AS (
  UPDATE interlock.jobs j SET state = w.target, phase = 'running', version = j.version + w.arrows, attempt = j.attempt + 1,
    lifecycle_version = w.lifecycle_version, updated_at = {refreshed}
  FROM chosen p, clock c, ways w WHERE j.id = p.id AND w.kind = j.kind AND w.state = j.state AND w.lifecycle = j.lifecycle
  RETURNING {job}, w.status AS first_status, w.lease, j.id AS job_id, w.state AS waited, w.first_event, w.first_target, w.second_event, w.arrows, c.now),
leased AS (
  INSERT INTO interlock.executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status, state, leased_at, started_at)
  SELECT x.job_id, x.attempt, 1, x.kind, :by::text, x.now + x.lease * interval '1 second', x.now, x.first_status, x.state, x.now,
    CASE WHEN x.first_status = 'IN_PROGRESS' THEN x.now END
  FROM claimed x),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
  SELECT x.job_id, x.version - x.arrows + 1, 0, x.attempt, x.now, x.first_event, x.waited, x.first_target, :by::text FROM claimed x WHERE x.arrows >= 1
  UNION ALL
  SELECT x.job_id, x.version, 0, x.attempt, x.now, x.second_event, x.first_target, x.state, :by::text
  FROM claimed x WHERE x.arrows = 2)
SELECT * FROM claimed

-- name: claim.remark
-- A claim along no arrow writes a remark, in a statement after the one that locked the jobs: see `lock_jobs`.
INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor)
SELECT e.job_id, j.version,
  1 + coalesce((SELECT max(a.n) FROM interlock.audit a WHERE a.job_id = j.id AND a.version = j.version), 0),
  e.attempt, e.leased_at, 'claim', e.lease_owner
FROM interlock.jobs j JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt
WHERE j.id = ANY(:id::text::uuid[])

-- fragment: here
j.queue = g.queue AND j.kind = g.kind AND j.priority = g.priority

-- name: due_in
-- What is due now is asked for first, and the first job found is enough. Jobs with a TTL stand by their end: only where nothing is due are all of them looked at.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
ways AS MATERIALIZED (SELECT * FROM unnest(:kind::text::text[], :lifecycle::text::text[], :state::text::text[]) AS w(kind, lifecycle, state)),
lines AS MATERIALIZED (
  SELECT q.queue, k.kind, 1 AS free FROM unnest(:queues::text::text[]) AS q(queue) CROSS JOIN unnest(:kinds::text::text[]) AS k(kind)
  WHERE NOT EXISTS (SELECT FROM interlock.queues p WHERE p.name = q.queue AND p.paused_at IS NOT NULL)),
{heads},
soonest AS (
  SELECT p.due_at FROM heads g CROSS JOIN LATERAL (
    SELECT j.due_at FROM interlock.jobs j WHERE {here} AND {ready} AND {known} ORDER BY j.due_at, j.id LIMIT 1) p
  UNION ALL
  SELECT p.due_at FROM suspect_heads g CROSS JOIN LATERAL (
    SELECT j.due_at FROM interlock.jobs j WHERE {here} AND j.expires_at IS NULL AND {suspect} AND {known} ORDER BY j.expires_at, j.due_at, j.id LIMIT 1) p),
due AS (
  SELECT s.due_at FROM soonest s WHERE s.due_at <= (SELECT now FROM clock)
  UNION ALL
  SELECT p.due_at FROM mortal_heads g CROSS JOIN LATERAL (
    SELECT j.due_at FROM interlock.jobs j WHERE {here} AND j.expires_at > (SELECT now FROM clock) AND j.due_at <= (SELECT now FROM clock) AND {mortal} AND {known}
    ORDER BY j.expires_at, j.id LIMIT 1) p
  UNION ALL
  SELECT p.due_at FROM suspect_heads g CROSS JOIN LATERAL (
    SELECT j.due_at FROM interlock.jobs j WHERE {here} AND j.expires_at > (SELECT now FROM clock) AND j.due_at <= (SELECT now FROM clock) AND {suspect} AND {known}
    ORDER BY j.expires_at, j.due_at, j.id LIMIT 1) p),
later AS (
  SELECT s.due_at FROM soonest s
  UNION ALL
  SELECT p.due_at FROM mortal_heads g CROSS JOIN LATERAL (
    SELECT min(j.due_at) AS due_at FROM interlock.jobs j
    WHERE {here} AND j.expires_at > (SELECT now FROM clock) AND j.due_at < j.expires_at AND {mortal} AND {known}) p
  UNION ALL
  SELECT p.due_at FROM suspect_heads g CROSS JOIN LATERAL (
    SELECT min(j.due_at) AS due_at FROM interlock.jobs j
    WHERE {here} AND j.expires_at > (SELECT now FROM clock) AND j.due_at < j.expires_at AND {suspect} AND {known}) p)
SELECT CASE WHEN EXISTS (SELECT FROM due) THEN 0 ELSE extract(epoch FROM (SELECT min(l.due_at) FROM later l) - (SELECT now FROM clock))::float8 END

-- name: lock
-- The first half of a commit: the rows of one move, held until the transaction ends.
SELECT {job} FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id
WHERE e.job_id = :job_id::text::uuid AND e.attempt = :attempt::int
  AND (e.holder, e.status, j.state, j.attempt) IS NOT DISTINCT FROM (:holder::int, :from_status::text, :source::text, :attempt::int)
FOR NO KEY UPDATE OF e, j

-- name: lock_waiting
SELECT {job} FROM interlock.jobs j WHERE j.id = :job_id::text::uuid AND (j.version, j.state, j.phase) IS NOT DISTINCT FROM (:version::int, :source::text, 'pending')
FOR NO KEY UPDATE

-- name: lock_jobs
-- Runs before a statement that writes a remark. A remark takes the next free number, so its snapshot must be newer than
-- its lock: a statement that waits for its own lock counts by the snapshot that it had before it waited.
SELECT count(*) FROM (
  SELECT 1 FROM interlock.jobs j WHERE j.id = ANY(:id::text::uuid[]) ORDER BY j.id FOR NO KEY UPDATE) locked

-- name: lock_live
-- The same with the jobs' present executions, in the order in which `move` locks them.
SELECT count(*) FROM (
  SELECT 1 FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id AND j.attempt = e.attempt
  WHERE j.id = ANY(:id::text::uuid[]) ORDER BY e.job_id, e.attempt FOR NO KEY UPDATE OF e, j) locked

-- name: move
-- One hop of each move. Fence, status and state are matched on locked rows, and execution, job and audit are written from that match.
-- A job that waits again although it was asked to stop cannot be stopped there: its request ends, or nobody would ever claim it.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :attempt::text::int[], :holder::text::int[], :from_status::text::text[], :to_status::text::text[], :source::text::text[],
    :target::text::text[], :event::text::text[], :phase::text::text[], :tries_left::text::int[], :lost::text::int[], :delay::text::float8[], :ended_by::text::text[],
    :error::text::text[], :result::text::text[], :releases_key::text::bool[], :held_reason::text::text[], :external_id::text::text[], :check_in::text::float8[],
    :missing::text::bool[], :actor::text::text[], :reason::text::text[], :moves_job::text::bool[], :blind::text::bool[], :progress::text::text[], :usage::text::text[]) WITH ORDINALITY
  AS a(job_id, attempt, holder, from_status, to_status, source, target, event, phase, tries_left, lost, delay, ended_by, error, result, releases_key, held_reason,
    external_id, check_in, missing, actor, reason, moves_job, blind, progress, usage, ord)),
held AS MATERIALIZED (
  SELECT a.*, j.version, e.result AS kept_result, c.now
  FROM asked a CROSS JOIN clock c
  JOIN interlock.executions e ON e.job_id = a.job_id AND e.attempt = a.attempt
  JOIN interlock.jobs j ON j.id = a.job_id
  WHERE (e.holder, e.status, j.state, j.attempt) IS NOT DISTINCT FROM (a.holder, a.from_status, a.source, a.attempt)
    AND NOT (a.blind AND j.cancel_requested_at IS NOT NULL)
  ORDER BY a.job_id, a.attempt FOR NO KEY UPDATE OF e, j),
settled AS (
  UPDATE interlock.executions e SET status = h.to_status, state = CASE WHEN h.ended_by IS NULL THEN h.target ELSE h.source END,
    ended_by = h.ended_by, error = coalesce(h.error, e.error), result = coalesce(h.result::json, e.result), heartbeat_at = h.now,
    progress = coalesce(h.progress::json, e.progress), usage = coalesce(h.usage::json, e.usage),
    started_at = CASE WHEN h.to_status IN ('IN_PROGRESS', 'COMMITTED', 'DONE') THEN coalesce(e.started_at, h.now) ELSE e.started_at END,
    committed_at = CASE WHEN h.to_status IN ('COMMITTED', 'DONE') THEN coalesce(e.committed_at, h.now) END,
    finished_at = CASE WHEN h.to_status IN ('DONE', 'ABORTED') THEN h.now END,
    external_id = coalesce(h.external_id, e.external_id),
    lease_owner = CASE WHEN h.check_in IS NULL THEN e.lease_owner ELSE 'external:' || e.kind END,
    missing_since = CASE WHEN h.missing IS NULL THEN e.missing_since WHEN h.missing THEN coalesce(e.missing_since, h.now) END,
    committed_holder = CASE WHEN h.to_status IN ('COMMITTED', 'DONE') THEN coalesce(e.committed_holder, e.holder) END,
    next_check_at = coalesce(h.now + h.check_in * interval '1 second', e.next_check_at),
    lease_expires_at = CASE WHEN h.check_in IS NOT NULL THEN h.now + h.check_in * interval '1 second'
      WHEN h.ended_by IS NULL THEN h.now + (e.lease_expires_at - e.heartbeat_at) ELSE e.lease_expires_at END
  FROM held h WHERE e.job_id = h.job_id AND e.attempt = h.attempt),
moved AS (
  UPDATE interlock.jobs j SET state = h.target, phase = h.phase, version = CASE WHEN h.event IS NULL THEN j.version ELSE j.version + 1 END,
    tries_left = h.tries_left, lease_losses = j.lease_losses + h.lost, due_at = coalesce(h.now + h.delay * interval '1 second', j.due_at),
    finished_at = CASE WHEN h.phase IN ('succeeded', 'failed') THEN h.now END, last_error = coalesce(h.error, j.last_error),
    result = CASE WHEN h.phase = 'succeeded' THEN coalesce(h.result::json, h.kept_result) END, key_released = j.key_released OR h.releases_key,
    held_at = CASE WHEN h.held_reason IS NOT NULL THEN h.now END, held_reason = h.held_reason,
    cancel_requested_at = CASE WHEN h.ended_by IS NULL OR h.phase <> 'pending' THEN j.cancel_requested_at END,
    cancel_requested_by = CASE WHEN h.ended_by IS NULL OR h.phase <> 'pending' THEN j.cancel_requested_by END,
    cancel_reason = CASE WHEN h.ended_by IS NULL OR h.phase <> 'pending' THEN j.cancel_reason END,
    updated_at = greatest(h.now, j.updated_at + interval '1 microsecond')
  FROM held h WHERE j.id = h.job_id AND h.moves_job),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor, reason)
  SELECT h.job_id, h.version + 1, 0, h.attempt, h.now, h.event, h.source, h.target, h.actor, h.reason FROM held h WHERE h.event IS NOT NULL
  UNION ALL
  SELECT h.job_id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a WHERE a.job_id = h.job_id AND a.version = h.version), 0),
    h.attempt, h.now, h.ended_by, NULL, NULL, h.actor, h.reason FROM held h WHERE h.event IS NULL AND h.ended_by IS NOT NULL AND h.held_reason IS NULL
  UNION ALL
  SELECT h.job_id, CASE WHEN h.event IS NULL THEN h.version ELSE h.version + 1 END,
    1 + coalesce((SELECT max(a.n) FROM interlock.audit a WHERE a.job_id = h.job_id AND a.version = CASE WHEN h.event IS NULL THEN h.version ELSE h.version + 1 END), 0),
    h.attempt, h.now, 'hold', NULL, NULL, h.actor, h.held_reason FROM held h WHERE h.held_reason IS NOT NULL)
SELECT array_agg(h.ord::int), (SELECT {tell} FROM held w WHERE w.moves_job AND w.phase = 'pending' AND w.delay <= 0 AND w.held_reason IS NULL LIMIT 1) FROM held h

-- name: present
-- What stands in the way of a refused move. It is read after the refused statement, which waited for whoever held the rows.
SELECT j.id::text, e.attempt, e.holder, e.status, e.ended_by, j.state, j.version
FROM unnest(:job_id::text::uuid[], :attempt::text::int[]) AS a(job_id, attempt)
LEFT JOIN interlock.jobs j ON j.id = a.job_id LEFT JOIN interlock.executions e ON e.job_id = a.job_id AND e.attempt = a.attempt

-- name: take
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :version::text::int[], :source::text::text[], :target::text::text[], :event::text::text[], :phase::text::text[],
    :releases_key::text::bool[], :actor::text::text[], :reason::text::text[]) WITH ORDINALITY
  AS a(job_id, version, source, target, event, phase, releases_key, actor, reason, ord)),
held AS MATERIALIZED (
  SELECT a.*, j.attempt, j.kind, c.now FROM asked a CROSS JOIN clock c JOIN interlock.jobs j ON j.id = a.job_id
  WHERE (j.version, j.state, j.phase) IS NOT DISTINCT FROM (a.version, a.source, 'pending')
  ORDER BY a.job_id FOR NO KEY UPDATE OF j),
taken AS (
  UPDATE interlock.jobs j SET state = h.target, phase = h.phase, version = j.version + 1, attempt = j.attempt + 1, finished_at = h.now,
    key_released = j.key_released OR h.releases_key, held_at = NULL, held_reason = NULL, last_error = coalesce(h.reason, j.last_error),
    updated_at = greatest(h.now, j.updated_at + interval '1 microsecond')
  FROM held h WHERE j.id = h.job_id),
recorded AS (
  INSERT INTO interlock.executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status, state, ended_by, error, leased_at, finished_at)
  SELECT h.job_id, h.attempt + 1, 1, h.kind, h.actor, h.now, h.now, 'ABORTED', h.source, h.event, h.reason, h.now, h.now FROM held h),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor, reason)
  SELECT h.job_id, h.version + 1, 0, h.attempt + 1, h.now, h.event, h.source, h.target, h.actor, h.reason FROM held h)
SELECT array_agg(h.ord::int) FROM held h

-- name: renew
-- Rows that our own report or commit holds this moment are skipped, not waited for; what is not listed is not renewed.
-- What was handed over since is in nobody's hands: a late beat must not put its next check off.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :attempt::text::int[], :holder::text::int[], :lease::text::float8[], :progress::text::text[], :usage::text::text[]) WITH ORDINALITY
  AS a(job_id, attempt, holder, lease, progress, usage, ord)),
held AS MATERIALIZED (
  SELECT a.*, c.now FROM asked a CROSS JOIN clock c JOIN interlock.executions e ON e.job_id = a.job_id AND e.attempt = a.attempt
  WHERE (e.holder, e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED'), {resting}) IS NOT DISTINCT FROM (a.holder, true, false)
  ORDER BY a.job_id, a.attempt FOR NO KEY UPDATE OF e SKIP LOCKED),
renewed AS (
  UPDATE interlock.executions e SET lease_expires_at = h.now + h.lease * interval '1 second', heartbeat_at = h.now,
    progress = coalesce(h.progress::json, e.progress), usage = coalesce(h.usage::json, e.usage)
  FROM held h WHERE e.job_id = h.job_id AND e.attempt = h.attempt RETURNING h.ord)
SELECT h.ord::int, 'renewed', j.cancel_requested_at IS NOT NULL FROM renewed r JOIN held h ON h.ord = r.ord LEFT JOIN interlock.jobs j ON j.id = h.job_id

-- name: unrenewed
-- Of the rows that a renewal skipped: busy if they are still ours, else lost.
SELECT a.ord, (e.holder, e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')) IS NOT DISTINCT FROM (a.holder, true)
FROM unnest(:ord::text::int[], :job_id::text::uuid[], :attempt::text::int[], :holder::text::int[]) AS a(ord, job_id, attempt, holder)
LEFT JOIN interlock.executions e ON e.job_id = a.job_id AND e.attempt = a.attempt

-- name: strays
-- Through the two indexes of what is live: the table is full of what has ended.
SELECT e.job_id::text, e.attempt, e.holder FROM interlock.executions e
WHERE e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (e.external_id IS NULL OR e.status = 'COMMITTED')
  AND e.lease_owner = :by::text AND e.job_id <> ALL(:job_id::text::uuid[])
UNION ALL
SELECT e.job_id::text, e.attempt, e.holder FROM interlock.executions e
WHERE e.status IN ('LEASED', 'IN_PROGRESS') AND e.external_id IS NOT NULL AND e.lease_owner = :by::text AND e.job_id <> ALL(:job_id::text::uuid[])

-- fragment: adopting
locked AS MATERIALIZED (
  SELECT e.job_id, e.attempt FROM ended x JOIN interlock.executions e ON e.job_id = x.job_id AND e.attempt = x.attempt JOIN interlock.jobs j ON j.id = e.job_id
  WHERE (e.lease_expires_at, e.holder, e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')) IS NOT DISTINCT FROM (x.lease_expires_at, x.holder, true)
  ORDER BY x.since, x.job_id LIMIT :limit::int FOR NO KEY UPDATE OF e, j SKIP LOCKED),
adopted AS (
  UPDATE interlock.executions e SET lease_owner = :by::text, holder = e.holder + 1, heartbeat_at = c.now, lease_expires_at = c.now + :lease::float8 * interval '1 second'
  FROM locked x, clock c WHERE e.job_id = x.job_id AND e.attempt = x.attempt
  RETURNING e.job_id, e.holder, e.status, e.external_id, e.result::text AS committed, e.holder - e.committed_holder AS crashes,
    extract(epoch FROM c.now - e.missing_since)::float8 AS missing_for)
SELECT {job}, a.holder, a.status, a.external_id, a.committed, a.crashes, a.missing_for FROM adopted a JOIN interlock.jobs j ON j.id = a.job_id ORDER BY j.id

-- name: adopt
-- Find per kind, then lock what is still so: a lease that was renewed meanwhile has another end. A few more are found than asked for, in case some are locked.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
ended AS MATERIALIZED (
  SELECT x.* FROM unnest(:kinds::text::text[]) AS k(kind) CROSS JOIN LATERAL (
    SELECT e.job_id, e.attempt, e.holder, e.lease_expires_at, e.lease_expires_at AS since FROM interlock.executions e
    WHERE e.kind = k.kind AND e.lease_expires_at <= (SELECT now FROM clock)
      AND e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (e.external_id IS NULL OR e.status = 'COMMITTED')
      AND (e.status <> 'COMMITTED' OR k.kind = ANY(:committed::text::text[]))
    ORDER BY e.lease_expires_at LIMIT 2 * :limit::int + 100) x),
{adopting}

-- name: adopt_external
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
ended AS MATERIALIZED (
  SELECT x.* FROM unnest(:kinds::text::text[]) AS k(kind) CROSS JOIN LATERAL (
    SELECT e.job_id, e.attempt, e.holder, e.lease_expires_at, e.lease_expires_at AS since FROM interlock.executions e
    WHERE e.kind = k.kind AND e.lease_expires_at <= (SELECT now FROM clock) AND e.status IN ('LEASED', 'IN_PROGRESS') AND e.external_id IS NOT NULL
    ORDER BY e.lease_expires_at LIMIT 2 * :limit::int + 100) x),
{adopting}

-- name: recall
-- Those asked to stop where that is drawn, whatever their next check; the others go on, and are left to it, as is what somebody has in hand.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
ended AS MATERIALIZED (
  SELECT x.* FROM unnest(:kinds::text::text[]) AS k(kind) CROSS JOIN LATERAL (
    SELECT e.job_id, e.attempt, e.holder, e.lease_expires_at, j.cancel_requested_at AS since FROM interlock.jobs j JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt
    WHERE j.kind = k.kind AND j.phase = 'running' AND j.cancel_requested_at IS NOT NULL AND {handed_over} AND {resting} AND {stoppable}
    ORDER BY j.cancel_requested_at LIMIT 2 * :limit::int + 100) x),
{adopting}

-- name: recall_named
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
ended AS MATERIALIZED (
  SELECT e.job_id, e.attempt, e.holder, e.lease_expires_at, e.lease_expires_at AS since FROM interlock.executions e
  WHERE e.kind = ANY(:kinds::text::text[]) AND e.external_id = :external_id::text AND {handed_over} AND (e.lease_expires_at <= (SELECT now FROM clock) OR {resting})
  ORDER BY e.job_id LIMIT 2 * :limit::int + 100),
{adopting}

-- name: handed
SELECT count(*)::int FROM interlock.executions e WHERE e.kind = :kind::text AND e.external_id = :external_id::text AND {handed_over}

-- name: request_cancel
-- Both rows are locked, so that a commit under way decides first.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
held AS MATERIALIZED (
  SELECT j.id, j.version, j.attempt, j.cancel_requested_at IS NULL AS fresh FROM interlock.jobs j JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt
  WHERE j.id = :id::text::uuid AND (j.phase, e.status IN ('LEASED', 'IN_PROGRESS')) IS NOT DISTINCT FROM ('running', true) FOR NO KEY UPDATE OF e, j),
asked AS (
  UPDATE interlock.jobs j SET cancel_requested_at = c.now, cancel_requested_by = :by::text, cancel_reason = :reason::text, updated_at = {refreshed}
  FROM held h, clock c WHERE j.id = h.id AND h.fresh),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor, reason)
  SELECT h.id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a WHERE a.job_id = h.id AND a.version = h.version), 0),
    h.attempt, c.now, 'cancel_requested', :by::text, :reason::text FROM held h, clock c WHERE h.fresh)
SELECT count(*) FROM held

-- name: remark
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
held AS MATERIALIZED (SELECT j.id, j.version FROM interlock.jobs j WHERE j.id = :id::text::uuid FOR NO KEY UPDATE)
INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor, reason)
SELECT h.id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a WHERE a.job_id = h.id AND a.version = h.version), 0),
  :attempt::int, c.now, :event::text, :actor::text, :reason::text FROM held h, clock c

-- name: release
-- The receipts are written from the match, as the job is: nothing of a job that is not held is touched.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
held AS MATERIALIZED (SELECT j.id, j.version, j.attempt FROM interlock.jobs j WHERE j.id = :id::text::uuid AND j.held_at IS NOT NULL FOR NO KEY UPDATE),
freed AS (
  UPDATE interlock.jobs j SET held_at = NULL, held_reason = NULL, due_at = c.now, updated_at = {refreshed} FROM held h, clock c WHERE j.id = h.id),
happened AS (
  UPDATE interlock.receipts r SET value = :value::text::json, applied_at = c.now, decided_by = :by::text FROM held h, clock c
  WHERE r.job_id = h.id AND r.kind = 'effect' AND r.applied_at IS NULL AND :happened::boolean RETURNING r.name),
did_not AS (
  DELETE FROM interlock.receipts r USING held h WHERE r.job_id = h.id AND r.kind = 'effect' AND r.applied_at IS NULL AND NOT :happened::boolean RETURNING r.name),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor, reason, detail)
  SELECT h.id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a WHERE a.job_id = h.id AND a.version = h.version), 0), h.attempt, c.now,
    'release', :by::text, :reason::text, CASE WHEN :happened::boolean IS NOT NULL THEN json_build_object('happened', :happened::boolean, 'effects',
      (SELECT coalesce(json_agg(d.name ORDER BY d.name), '[]') FROM (SELECT name FROM happened UNION ALL SELECT name FROM did_not) d)) END
  FROM held h, clock c)
SELECT count(*), (SELECT {tell} FROM held LIMIT 1) FROM held

-- name: receipts
SELECT r.name, r.kind, r.attempt, r.holder, r.args_hash, r.value::text, r.applied_at IS NOT NULL,
  extract(epoch FROM (SELECT interlock.clock()) - coalesce(r.applied_at, r.asked_at))::float8, r.decided_by
FROM interlock.receipts r WHERE r.job_id = :job_id::text::uuid ORDER BY r.name COLLATE "C"

-- fragment: fenced
-- The execution is locked: whoever adopts it comes after this write, and reads it.
clock AS MATERIALIZED (SELECT interlock.clock() AS now),
held AS MATERIALIZED (
  SELECT e.job_id FROM interlock.executions e WHERE e.job_id = :job_id::text::uuid AND e.attempt = :attempt::int
    AND (e.holder, e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')) IS NOT DISTINCT FROM (:holder::int, true) FOR NO KEY UPDATE)

-- name: remember
WITH {fenced}
INSERT INTO interlock.receipts AS r (job_id, name, kind, attempt, holder, args_hash, value, asked_at, applied_at)
SELECT h.job_id, :name::text, 'step', :attempt::int, :holder::int, :args_hash::text, :value::text::json, c.now, c.now FROM held h, clock c
ON CONFLICT (job_id, name) DO UPDATE SET attempt = excluded.attempt, holder = excluded.holder, args_hash = excluded.args_hash, value = excluded.value,
  asked_at = excluded.asked_at, applied_at = excluded.applied_at WHERE r.kind = 'step'
RETURNING 1

-- name: ask
WITH {fenced}
INSERT INTO interlock.receipts AS r (job_id, name, kind, attempt, holder, args_hash, asked_at)
SELECT h.job_id, :name::text, 'effect', :attempt::int, :holder::int, :args_hash::text, c.now FROM held h, clock c
ON CONFLICT (job_id, name) DO UPDATE SET attempt = excluded.attempt, holder = excluded.holder, args_hash = excluded.args_hash, asked_at = excluded.asked_at
  WHERE r.applied_at IS NULL
RETURNING 1

-- name: apply
-- The same answer sent again finds itself written, and changes nothing.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now)
UPDATE interlock.receipts r SET value = :value::text::json, applied_at = coalesce(r.applied_at, c.now), decided_by = coalesce(r.decided_by, :decided_by::text) FROM clock c
WHERE r.job_id = :job_id::text::uuid AND r.name = :name::text AND r.kind = 'effect' AND r.attempt = :attempt::int AND r.holder = :holder::int
  AND (r.applied_at IS NULL OR r.value::text IS NOT DISTINCT FROM :value::text)
RETURNING 1

-- name: unask
DELETE FROM interlock.receipts r
WHERE r.job_id = :job_id::text::uuid AND r.name = :name::text AND r.kind = 'effect' AND r.attempt = :attempt::int AND r.holder = :holder::int AND r.applied_at IS NULL
RETURNING 1

-- name: prune
DELETE FROM interlock.jobs WHERE id = ANY(ARRAY(
  SELECT j.id FROM interlock.jobs j WHERE j.phase = :phase::text AND j.finished_at < (SELECT interlock.clock()) - :age::float8 * interval '1 second' AND j.finished_at IS NOT NULL
    AND (:kinds::text IS NULL OR j.kind = ANY(:kinds::text::text[]))
  ORDER BY j.finished_at LIMIT :limit::int FOR UPDATE SKIP LOCKED))

-- name: archiving
-- One archivist at a time, or both would write the same entries.
LOCK TABLE interlock.archived IN SHARE ROW EXCLUSIVE MODE

-- name: archivable
SELECT a.job_id::text FROM interlock.audit a
WHERE a.version = 0 AND a.n = 0 AND NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.id = a.job_id)
  AND (SELECT max(b.at) FROM interlock.audit b WHERE b.job_id = a.job_id) < (SELECT interlock.clock()) - :age::float8 * interval '1 second'
ORDER BY a.job_id LIMIT :limit::int

-- name: archive
WITH marked AS (
  INSERT INTO interlock.archived (job_id, entries, digest, archived_at)
  SELECT m.job_id, m.entries, m.digest, (SELECT interlock.clock())
  FROM unnest(:job_id::text::uuid[], :entries::text::int[], :digest::text::text[]) AS m(job_id, entries, digest)
  ON CONFLICT DO NOTHING)
SELECT 1

-- name: unaudit
DELETE FROM interlock.audit WHERE job_id = ANY(:job_id::text::uuid[])

-- name: get
SELECT {job}, e.progress::text FROM interlock.jobs j LEFT JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt WHERE j.id = :id::text::uuid

-- name: find
SELECT j.id::text FROM interlock.jobs j
WHERE j.id BETWEEN :first::text::uuid AND :last::text::uuid ORDER BY j.id LIMIT :limit::int

-- name: find.pruned
SELECT a.job_id::text FROM interlock.audit a
WHERE a.job_id BETWEEN :first::text::uuid AND :last::text::uuid AND a.version = 0 AND a.n = 0
ORDER BY a.job_id LIMIT :limit::int

-- name: neighbours
SELECT i.id::text, (SELECT j.id::text FROM interlock.jobs j WHERE j.id < i.id ORDER BY j.id DESC LIMIT 1),
  (SELECT j.id::text FROM interlock.jobs j WHERE j.id > i.id ORDER BY j.id LIMIT 1)
FROM unnest(:ids::text::uuid[]) AS i(id)

-- fragment: filtered
FROM interlock.jobs j LEFT JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt
WHERE (:kind::text IS NULL OR j.kind = :kind::text) AND (:state::text IS NULL OR j.state = :state::text) AND (:phase::text IS NULL OR j.phase = :phase::text)
  AND (:queue::text IS NULL OR j.queue = :queue::text) AND (:tags::text IS NULL OR j.tags @> :tags::text::jsonb) AND (:after::text IS NULL OR j.id < :after::text::uuid)
ORDER BY j.id DESC LIMIT :limit::int

-- name: jobs
SELECT {job}, e.progress::text {filtered}

-- name: summaries
SELECT {summary}, e.progress::text {filtered}

-- name: executions
SELECT {execution} FROM interlock.executions e WHERE e.job_id = ANY(:id::text::uuid[]) ORDER BY e.job_id, e.attempt

-- name: history
SELECT a.job_id::text, a.version, a.n, a.attempt, a.event, a.from_state, a.to_state, a.actor, a.reason, a.at, a.detail::text
FROM interlock.audit a WHERE a.job_id = ANY(:id::text::uuid[]) ORDER BY a.job_id, a.version, a.n

-- name: counts
SELECT lifecycle, state, count(*) FROM interlock.jobs GROUP BY lifecycle, state

-- name: expired
SELECT {job}, NULL FROM unnest(:kinds::text::text[]) AS k(kind) CROSS JOIN LATERAL (
  SELECT x.* FROM interlock.jobs x WHERE x.kind = k.kind AND x.phase = 'pending' AND x.expires_at IS NOT NULL AND x.expires_at <= (SELECT interlock.clock())
  ORDER BY x.expires_at LIMIT :limit::int) j ORDER BY j.expires_at, j.id LIMIT :limit::int

-- name: stuck
-- Twice the lease after the last beat is later than the lease's own end, by which the index stands; it is walked kind by kind, to which OFFSET 0 holds the planner.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
kinds AS (
  SELECT (SELECT e.kind FROM interlock.executions e WHERE {leased} ORDER BY e.kind LIMIT 1) AS kind
  UNION ALL
  SELECT (SELECT e.kind FROM interlock.executions e WHERE e.kind > k.kind AND {leased} ORDER BY e.kind LIMIT 1) FROM kinds k WHERE k.kind IS NOT NULL)
SELECT {execution} FROM kinds k CROSS JOIN LATERAL (
  SELECT s.* FROM (
    SELECT e.* FROM interlock.executions e
    WHERE e.kind = k.kind AND e.lease_expires_at < (SELECT now FROM clock) AND {leased} AND e.external_id IS NULL
      AND e.heartbeat_at < (SELECT now FROM clock) - 2 * (e.lease_expires_at - e.heartbeat_at) OFFSET 0) s
  ORDER BY s.heartbeat_at, s.job_id LIMIT :limit::int) e
ORDER BY e.heartbeat_at, e.job_id

-- name: depths
-- Each part comes by an index that has no ended job in it. What stands in a paused queue waits for its time, and what is past its TTL waits for nothing.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
waiting AS (
  SELECT j.kind, j.queue, count(*) FILTER (WHERE j.due_at <= c.now) AS due, count(*) FILTER (WHERE j.due_at > c.now) AS later, min(j.due_at) AS since
  FROM interlock.jobs j, clock c WHERE {ready} GROUP BY j.kind, j.queue
  UNION ALL
  SELECT j.kind, j.queue, count(*) FILTER (WHERE j.due_at <= c.now), count(*) FILTER (WHERE j.due_at > c.now), min(j.due_at)
  FROM interlock.jobs j, clock c WHERE {mortal} AND j.expires_at > c.now GROUP BY j.kind, j.queue
  UNION ALL
  SELECT j.kind, j.queue, count(*) FILTER (WHERE j.due_at <= c.now), count(*) FILTER (WHERE j.due_at > c.now), min(j.due_at)
  FROM interlock.jobs j, clock c WHERE {suspect} AND (j.expires_at IS NULL OR j.expires_at > c.now) GROUP BY j.kind, j.queue),
parts AS (
  SELECT w.kind, w.queue, CASE WHEN p.name IS NULL THEN w.due ELSE 0 END AS due, CASE WHEN p.name IS NULL THEN w.later ELSE w.due + w.later END AS later,
    0 AS held, 0 AS running, CASE WHEN p.name IS NULL THEN least(w.since, c.now) END AS since
  FROM waiting w CROSS JOIN clock c LEFT JOIN interlock.queues p ON p.name = w.queue AND p.paused_at IS NOT NULL
  UNION ALL
  SELECT j.kind, j.queue, 0, 0, count(*), 0, NULL FROM interlock.jobs j WHERE j.held_at IS NOT NULL GROUP BY j.kind, j.queue
  UNION ALL
  SELECT e.kind, j.queue, 0, 0, 0, count(*), NULL FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id WHERE {leased} GROUP BY e.kind, j.queue
  UNION ALL
  SELECT e.kind, j.queue, 0, 0, 0, count(*), NULL FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id WHERE {handed_over} GROUP BY e.kind, j.queue)
SELECT d.kind, d.queue, sum(d.due)::int, sum(d.later)::int, sum(d.held)::int, sum(d.running)::int,
  coalesce(extract(epoch FROM (SELECT now FROM clock) - min(d.since))::float8, 0)
FROM parts d GROUP BY d.kind, d.queue ORDER BY d.kind COLLATE "C", d.queue COLLATE "C"

-- name: held
-- A few of each kind and queue, so that no crowd of one hides another.
SELECT {job}, NULL FROM unnest(:kinds::text::text[], :queues::text::text[]) AS p(kind, queue) CROSS JOIN LATERAL (
  SELECT x.* FROM interlock.jobs x
  WHERE x.kind = p.kind AND x.queue = p.queue AND x.held_at IS NOT NULL LIMIT :limit::int) j
ORDER BY j.held_at, j.id

-- name: failures
-- The index has what ended in this phase since then. The execution says what ended the job,
-- and a remark says that an operator drove it again.
WITH failed AS (
  SELECT j.id, j.kind, count(*) OVER (PARTITION BY j.kind) AS number,
    row_number() OVER (PARTITION BY j.kind ORDER BY j.finished_at DESC, j.id DESC) AS place
  FROM interlock.jobs j
  WHERE j.phase = 'failed' AND j.finished_at IS NOT NULL
    AND j.finished_at > (SELECT interlock.clock()) - :age::float8 * interval '1 second'
    AND EXISTS (SELECT 1 FROM interlock.executions e
      WHERE e.job_id = j.id AND e.attempt = j.attempt AND e.ended_by NOT IN ('reject', 'cancel', 'expire'))
    AND NOT EXISTS (SELECT 1 FROM interlock.audit a
      WHERE a.job_id = j.id AND a.version = j.version AND a.n > 0 AND a.event = 'redrive'))
SELECT f.kind, f.number::int, j.id::text, j.state, j.attempt, j.finished_at, j.last_error
FROM failed f JOIN interlock.jobs j ON j.id = f.id WHERE f.place <= :newest::int ORDER BY f.kind COLLATE "C", f.place

-- name: outside
SELECT k.name, s.handed, greatest(coalesce(extract(epoch FROM interlock.clock() - s.due), 0), 0)::float8, k.check_every, k.check_batch, k.outside_failures, k.outside_error,
  k.outside_down_at
FROM interlock.kinds k CROSS JOIN LATERAL (
  SELECT count(*)::int AS handed, min(e.lease_expires_at) AS due FROM interlock.executions e WHERE e.kind = k.name AND {handed_over}) s
WHERE k.check_every IS NOT NULL ORDER BY k.name COLLATE "C"

-- name: report_outside
UPDATE interlock.kinds k SET outside_failures = CASE WHEN :error::text IS NULL THEN 0 ELSE k.outside_failures + 1 END, outside_error = :error::text,
  outside_down_at = CASE WHEN :error::text IS NOT NULL THEN coalesce(k.outside_down_at, interlock.clock()) END
WHERE k.name = :kind::text AND (k.outside_error IS NOT NULL OR :error::text IS NOT NULL)

-- name: report_worker
INSERT INTO interlock.workers AS w (name, host, pid, state, slots, busy, kinds, queues, started_at, beat_at)
SELECT :name::text, :host::text, :pid::int, :state::text, :slots::int, :busy::int, :kinds::text::jsonb, :queues::text::jsonb, c.now, c.now
FROM (SELECT interlock.clock() AS now) c
ON CONFLICT (name) DO UPDATE SET host = excluded.host, pid = excluded.pid, state = excluded.state, slots = excluded.slots, busy = excluded.busy,
  kinds = excluded.kinds, queues = excluded.queues, beat_at = excluded.beat_at

-- name: remove_worker
DELETE FROM interlock.workers WHERE name = :name::text

-- name: workers
SELECT name, host, pid, state, slots, busy, kinds::text, queues::text, started_at, beat_at, extract(epoch FROM (SELECT interlock.clock()) - beat_at)::float8
FROM interlock.workers ORDER BY name COLLATE "C"

-- name: forget_workers
DELETE FROM interlock.workers WHERE beat_at <= (SELECT interlock.clock()) - :silent::float8 * interval '1 second'

-- name: schedule
-- Where nothing has changed, nothing is written.
INSERT INTO interlock.schedules AS s (name, kind, cron, tz, catch_up, payload, last_tick)
VALUES (:name::text, :kind::text, :cron::text, :tz::text, :catch_up::text, :payload::text::json, interlock.clock())
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, cron = excluded.cron, tz = excluded.tz, catch_up = excluded.catch_up, payload = excluded.payload
WHERE (s.kind, s.cron, s.tz, s.catch_up, s.payload::text) IS DISTINCT FROM (excluded.kind, excluded.cron, excluded.tz, excluded.catch_up, excluded.payload::text)

-- name: schedule.kept
-- A statement of its own: the one that keeps it would not see a rival's row.
SELECT coalesce(last_tick, (SELECT interlock.clock())) FROM interlock.schedules WHERE name = :name::text AND paused_at IS NULL

-- name: ticked
UPDATE interlock.schedules SET last_tick = :tick::timestamptz WHERE name = :name::text AND (last_tick IS NULL OR last_tick < :tick::timestamptz)

-- name: page
SELECT {summary}, NULL FROM interlock.jobs j WHERE j.id > :after::text::uuid ORDER BY j.id LIMIT :limit::int

-- name: page_executions
SELECT e.job_id::text, e.attempt, e.holder, e.kind, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.status, e.state,
  e.ended_by, NULL::text, e.external_id, e.missing_since, e.next_check_at, NULL::text, NULL::text, NULL::text, e.leased_at,
  e.started_at, e.committed_at, e.finished_at
FROM interlock.executions e WHERE e.job_id = ANY(:id::text::uuid[]) ORDER BY e.job_id, e.attempt

-- name: page_history
SELECT a.job_id::text, a.version, a.n, a.attempt, a.event, a.from_state, a.to_state, a.actor, NULL::text, a.at, NULL::text
FROM interlock.audit a WHERE a.job_id = ANY(:id::text::uuid[]) ORDER BY a.job_id, a.version, a.n

-- name: page_pruned
SELECT a.job_id::text FROM interlock.audit a
WHERE a.job_id > :after::text::uuid AND a.version = 0 AND a.n = 0 AND NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.id = a.job_id)
ORDER BY a.job_id LIMIT :limit::int

-- name: exists
SELECT to_regclass(:table::text) IS NOT NULL

-- name: instance
SELECT instance::text FROM interlock.schema_version ORDER BY version LIMIT 1

-- name: kind
SELECT name, lifecycle, hooks::text, queue, tries, key_until::text, admits, lifecycle_version, check_every, check_batch FROM interlock.kinds WHERE name = :name::text

-- name: lifecycle
SELECT l.initial, e.source, e.event, e.target FROM interlock.lifecycles l JOIN interlock.lifecycle_edges e ON e.lifecycle = l.name AND e.version = l.version
WHERE l.name = :name::text AND l.version = :version::int

-- name: register
INSERT INTO interlock.lifecycles (name, version, digest, initial)
SELECT :name::text, 1 + coalesce(max(version), 0), :digest::text, :initial::text FROM interlock.lifecycles WHERE name = :name::text
RETURNING version

-- name: register_edges
INSERT INTO interlock.lifecycle_edges (lifecycle, version, source, event, target)
SELECT :name::text, :version::int, * FROM unnest(:source::text::text[], :event::text::text[], :target::text::text[])

-- name: register_hops
INSERT INTO interlock.lifecycle_hops (lifecycle, version, source, target, attempts, arrows)
SELECT DISTINCT :name::text, :version::int, h.* FROM unnest(:source::text::text[], :target::text::text[], :attempts::text::int[], :arrows::text::int[]) AS h

-- name: register_phases
INSERT INTO interlock.lifecycle_phases (lifecycle, version, state, phase)
SELECT :name::text, :version::int, p.* FROM unnest(:state::text::text[], :phase::text::text[]) AS p

-- name: register_kind
INSERT INTO interlock.kinds (name, lifecycle, lifecycle_version, queue, tries, hooks, key_until, admits, check_every, check_batch)
SELECT :name::text, :lifecycle::text, coalesce(:version::text::int, (SELECT max(version) FROM interlock.lifecycles WHERE name = :lifecycle::text), 0),
  :queue::text, :tries::text::int, :hooks::text::jsonb, :key_until::text::jsonb, :admits::text::boolean, :every::text::float8, :batch::text::int
ON CONFLICT (name) DO UPDATE SET lifecycle = excluded.lifecycle, lifecycle_version = excluded.lifecycle_version, queue = excluded.queue, tries = excluded.tries,
  hooks = excluded.hooks, key_until = excluded.key_until, admits = excluded.admits, check_every = excluded.check_every, check_batch = excluded.check_batch,
  registered_at = clock_timestamp()
WHERE (kinds.lifecycle, kinds.lifecycle_version, kinds.queue, kinds.tries, kinds.hooks, kinds.key_until, kinds.admits, kinds.check_every, kinds.check_batch)
  IS DISTINCT FROM (excluded.lifecycle, excluded.lifecycle_version, excluded.queue, excluded.tries, excluded.hooks, excluded.key_until, excluded.admits,
    excluded.check_every, excluded.check_batch)

-- name: live_versions
-- Versions that the database still has to know: the two newest of each lifecycle (a rolling deploy runs both), what was registered a day ago or is migrated to now,
-- and any that a live job is pinned to.
SELECT l.name, l.version, l.initial FROM interlock.lifecycles l
WHERE l.version > (SELECT max(m.version) FROM interlock.lifecycles m WHERE m.name = l.name) - 2 OR l.registered_at > clock_timestamp() - interval '1 day'
  OR EXISTS (SELECT FROM unnest(:name::text::text[], :version::text::int[]) AS k(name, version) WHERE k.name = l.name AND k.version = l.version)
  OR EXISTS (SELECT FROM interlock.jobs j WHERE j.lifecycle = l.name AND j.lifecycle_version = l.version AND j.phase IN ('pending', 'running'))
ORDER BY l.name, l.version

-- name: stranded
-- Live jobs of a lifecycle in a state that its new version lacks.
SELECT state, count(*) FROM interlock.jobs WHERE lifecycle = :name::text AND phase IN ('pending', 'running') AND state <> ALL(:states::text::text[]) GROUP BY state ORDER BY state

-- name: enforced_hops
SELECT lifecycle, version, source, target, attempts, arrows FROM interlock.lifecycle_hops ORDER BY 1, 2, 3, 4, 5, 6

-- name: enforced_phases
SELECT lifecycle, version, state, phase FROM interlock.lifecycle_phases ORDER BY 1, 2, 3, 4

-- name: version_of
SELECT version FROM interlock.lifecycles WHERE name = :name::text AND digest = :digest::text
