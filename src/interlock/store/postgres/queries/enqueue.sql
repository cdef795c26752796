-- Enqueue, on PostgreSQL.

-- fragment: key_order
a.kind COLLATE "C", coalesce(a.idempotency_key, '') COLLATE "C", coalesce(a.unique_key, '') COLLATE "C", a.id

-- name: enqueue
-- Sorted by key, so that two bulk calls with the same keys in opposite order wait for each other and do not deadlock.
-- Unique keys are taken first, in the same order.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT a.*, CASE WHEN a.unique_key IS NULL THEN true
    ELSE interlock.take_unique_key(a.id, a.redrive_of, a.kind, a.unique_key, a.unique_for, c.now) END AS free
  FROM (SELECT * FROM unnest(:id::text::uuid[], :kind::text::text[], :queue::text::text[], :priority::text::int[],
    :lifecycle::text::text[], :lifecycle_version::text::int[],
    :state::text::text[], :tries::text::int[], :delay::text::float8[], :run_at::text::timestamptz[],
      :ttl::text::float8[], :idempotency_key::text::text[],
    :unique_key::text::text[], :payload::text::text[], :tags::text::text[], :trace::text::text[],
      :scheduled_for::text::timestamptz[], :redrive_of::text::uuid[],
    :root::text::uuid[], :actor::text::text[], :concurrency_key::text::text[], :batch::text::uuid[],
    :blocked::text::bool[], :awaited::text::bool[], :unique_for::text::float8[])
  AS a(id, kind, queue, priority, lifecycle, lifecycle_version, state, tries, delay, run_at, ttl, idempotency_key,
    unique_key, payload, tags, trace, scheduled_for,
    redrive_of, root, actor, concurrency_key, batch, blocked, awaited, unique_for)
  ORDER BY {key_order}) a, clock c),
stored AS (
  INSERT INTO interlock.jobs (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left,
    due_at, expires_at, created_at, updated_at,
    idempotency_key, unique_key, payload, tags, trace, scheduled_for, redrive_of, root, concurrency_key, batch,
    blocked_at, awaited)
  SELECT a.id, a.kind, a.queue, a.priority, a.lifecycle, a.lifecycle_version, a.state, 'pending', a.tries, a.tries,
    coalesce(a.run_at, c.now) + a.delay * interval '1 second', c.now + a.ttl * interval '1 second', c.now, c.now,
    a.idempotency_key, a.unique_key, a.payload::json, a.tags::jsonb, a.trace::json, a.scheduled_for, a.redrive_of,
      a.root, a.concurrency_key, a.batch, CASE WHEN a.blocked THEN c.now END, nullif(a.awaited, false)
  FROM asked a, clock c WHERE a.free ORDER BY {key_order}
  ON CONFLICT DO NOTHING RETURNING id, state, created_at),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
  SELECT s.id, 0, 0, NULL, s.created_at, 'enqueue', NULL, s.state, a.actor FROM stored s JOIN asked a ON a.id = s.id),
notified AS MATERIALIZED (SELECT {notify} FROM stored LIMIT 1)
SELECT s.id::text FROM stored s CROSS JOIN notified

-- fragment: one_job
WITH stored AS (
  INSERT INTO interlock.jobs (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left,
    due_at, expires_at, created_at, updated_at,
    idempotency_key, unique_key, payload, tags, trace, scheduled_for, redrive_of, root)
  SELECT :id::text::uuid, :kind::text, :queue::text, :priority::text::int, :lifecycle::text,
    :lifecycle_version::text::int, :state::text, 'pending', :tries::text::int, :tries::text::int,
    coalesce(:run_at::text::timestamptz, c.now) + :delay::text::float8 * interval '1 second',
    c.now + :ttl::text::float8 * interval '1 second', c.now, c.now, :idempotency_key::text, :unique_key::text,
    :payload::text::json, :tags::text::jsonb, :trace::text::json, :scheduled_for::text::timestamptz,
    :redrive_of::text::uuid, :root::text::uuid
  FROM (SELECT interlock.clock() AS now) c

-- fragment: one_stored
  ON CONFLICT DO NOTHING RETURNING id, state, created_at),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
  SELECT s.id, 0, 0, NULL, s.created_at, 'enqueue', NULL, s.state, :actor::text FROM stored s),
notified AS MATERIALIZED (SELECT {notify} FROM stored LIMIT 1)
SELECT s.id::text FROM stored s CROSS JOIN notified

-- name: enqueue.one
-- One plain job, with plain parameters instead of arrays. It stores the same rows as `enqueue`.
{one_job}
{one_stored}

-- name: enqueue.unique
-- The same for a job with a unique key and no time for it. The trigger looks for a window once more.
{one_job}
  WHERE NOT EXISTS (SELECT FROM interlock.unique_windows w JOIN interlock.jobs h ON h.id = w.job_id
    AND h.phase <> 'failed'
    WHERE w.kind = :kind::text AND w.unique_key = :unique_key::text AND w.until > c.now)
{one_stored}

-- name: enqueue.alike
-- Many jobs without keys that differ only in their ids and payloads. It stores the same rows as `enqueue`; without keys
-- there is no conflict to look for, and no order to keep. It stores all jobs or none, so it returns NULL, not ids.
WITH given AS MATERIALIZED (
  SELECT c.now, :kind::text AS kind, :queue::text AS queue, :priority::text::int AS priority,
    :lifecycle::text AS lifecycle, :lifecycle_version::text::int AS lifecycle_version, :state::text AS state,
    :tries::text::int AS tries,
    coalesce(:run_at::text::timestamptz, c.now) + :delay::text::float8 * interval '1 second' AS due_at,
    c.now + :ttl::text::float8 * interval '1 second' AS expires_at, :tags::text::jsonb AS tags,
    :trace::text::json AS trace, :scheduled_for::text::timestamptz AS scheduled_for,
    :redrive_of::text::uuid AS redrive_of, :root::text::uuid AS root, :concurrency_key::text AS concurrency_key,
    :batch::text::uuid AS batch, CASE WHEN :blocked::text::bool THEN c.now END AS blocked_at,
    nullif(:awaited::text::bool, false) AS awaited
  FROM (SELECT interlock.clock() AS now) c),
stored AS (
  INSERT INTO interlock.jobs (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left,
    due_at, expires_at, created_at, updated_at, payload, tags, trace, scheduled_for, redrive_of, root, concurrency_key,
    batch, blocked_at, awaited)
  SELECT a.id, g.kind, g.queue, g.priority, g.lifecycle, g.lifecycle_version, g.state, 'pending', g.tries, g.tries,
    g.due_at, g.expires_at, g.now, g.now, a.payload::json, g.tags, g.trace, g.scheduled_for, g.redrive_of, g.root,
    g.concurrency_key, g.batch, g.blocked_at, g.awaited
  FROM given g, unnest(:id::text::uuid[], :payload::text::text[]) AS a(id, payload)
  RETURNING id, state, created_at),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
  SELECT s.id, 0, 0, NULL, s.created_at, 'enqueue', NULL, s.state, :actor::text FROM stored s),
notified AS MATERIALIZED (SELECT {notify} FROM stored LIMIT 1)
SELECT NULL::text FROM notified

-- name: key_holders
-- A separate statement: one that also inserts would not see the concurrent row it waited for. If the job with a unique
-- key has ended since it blocked the insert, it is still the result, since it was active then: the last one to end. A
-- job that has ended may also keep the key by its window.
-- Only the unique key can have blocked such an insert.
SELECT a.ord, i.id::text, i.payload::text, i.state, coalesce(u.id, w.id, l.id)::text
FROM unnest(:ord::text::int[], :kind::text::text[], :idempotency_key::text::text[], :unique_key::text::text[],
  :tried::text::bool[])
  AS a(ord, kind, idempotency_key, unique_key, tried)
LEFT JOIN interlock.jobs i ON i.kind = a.kind AND i.idempotency_key = a.idempotency_key
  AND i.idempotency_key IS NOT NULL AND NOT i.key_freed
LEFT JOIN interlock.jobs u ON u.kind = a.kind AND u.unique_key = a.unique_key AND u.unique_key IS NOT NULL
  AND u.phase IN ('pending', 'running')
LEFT JOIN LATERAL (
  SELECT h.id FROM interlock.unique_windows w JOIN interlock.jobs h ON h.id = w.job_id AND h.phase <> 'failed'
  WHERE u.id IS NULL AND w.kind = a.kind AND w.unique_key = a.unique_key AND w.until > (SELECT interlock.clock())
  OFFSET 0) w ON true
LEFT JOIN LATERAL (
  SELECT x.id FROM interlock.jobs x WHERE coalesce(u.id, w.id) IS NULL AND a.tried AND a.idempotency_key IS NULL
    AND x.kind = a.kind AND x.unique_key = a.unique_key
    AND x.unique_key IS NOT NULL AND x.finished_at IS NOT NULL ORDER BY x.finished_at DESC LIMIT 1) l ON true

-- name: copy_receipts
-- A redrive copies the receipts, and the effects with unknown results, of the job that it repeats.
INSERT INTO interlock.receipts (job_id, name, kind, attempt, holder, args_hash, value, begun_at, applied_at, decided_by)
SELECT a.id, r.name, r.kind, 0, 0, r.args_hash, r.value, r.begun_at, r.applied_at, r.decided_by
FROM unnest(:id::text::uuid[], :redrive_of::text::uuid[]) AS a(id, redrive_of)
  JOIN interlock.receipts r ON r.job_id = a.redrive_of

-- name: make_due
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
made_due AS (
  UPDATE interlock.jobs j SET due_at = c.now, updated_at = {refreshed} FROM clock c
  WHERE j.id = ANY(:id::text::uuid[]) AND j.phase = 'pending' AND j.state = ANY(:resting::text::text[])
    AND j.due_at > c.now RETURNING j.id)
SELECT {notify} FROM made_due LIMIT 1
