-- Limits, pauses and concurrency keys, on PostgreSQL.

-- fragment: concerned
-- The limits of these queues and kinds, and of the concurrency keys of these kinds.
((l.scope = 'queue' AND l.name = ANY(:queues::text::text[]))
  OR (l.scope IN ('kind', 'key') AND l.name = ANY(:kinds::text::text[])))

-- fragment: has_limits
EXISTS (SELECT FROM interlock.limits l WHERE {concerned})

-- fragment: has_flow_checks
EXISTS (SELECT FROM interlock.flow_checks f WHERE f.check_at <= (SELECT now FROM clock))

-- fragment: running
-- How many jobs of the queue or kind run.
CASE WHEN l.scope = 'kind' THEN (
    SELECT count(*) FROM interlock.executions e WHERE e.kind = l.name AND {leased}) + (
    SELECT count(*) FROM interlock.executions e WHERE e.kind = l.name AND {handed_over})
  WHEN l.scope = 'queue' THEN (
    SELECT count(*) FROM interlock.executions e JOIN interlock.jobs j ON j.id = ANY (ARRAY[e.job_id, e.job_id])
      WHERE {leased} AND j.queue = l.name) + (
    SELECT count(*) FROM interlock.executions e JOIN interlock.jobs j ON j.id = ANY (ARRAY[e.job_id, e.job_id])
      WHERE {handed_over} AND j.queue = l.name)
  ELSE 0 END

-- fragment: tokens
-- How many more jobs may start now by the rate.
least(l.burst, coalesce(l.tokens + greatest(extract(epoch FROM c.now - l.tokens_at)::float8, 0)
  * l.rate_count / l.rate_seconds, l.burst))

-- fragment: claims_lock
-- Claims share this lock of the database, and whoever pauses or limits something waits for it. Rows of limits are
-- locked before it, by everybody and in the order of (scope, name), so that there is no deadlock.
1768846437, 'interlock.limits'::regclass::oid::int

-- name: limits.lock
-- Claims of limited jobs run one after the other: they must count from a snapshot that is newer than this lock.
SELECT l.scope, l.name FROM interlock.limits l WHERE {concerned} ORDER BY l.scope COLLATE "C", l.name COLLATE "C"
  FOR NO KEY UPDATE

-- name: limits.share
-- From now on until the end of the claim, no limit and no pause is stored. `limits.read` sees all others.
SELECT pg_advisory_xact_lock_shared({claims_lock})

-- name: limits.wait
-- The last statement of a change: it waits for claims that may not have seen the change. Later ones see it. All claims
-- wait for it, so a frozen client must not hold it for long.
SELECT set_config('idle_in_transaction_session_timeout', '15s', true), pg_advisory_xact_lock({claims_lock})

-- name: limits.read
SELECT l.scope, l.name, l.paused_at IS NOT NULL, l.max_running,
  CASE WHEN l.max_running IS NULL THEN 0 ELSE {running} END::int, l.rate_count, l.rate_seconds, l.burst, {tokens},
  c.now, coalesce(l.tokens_at > c.now, false)
FROM interlock.limits l CROSS JOIN (SELECT interlock.clock() AS now) c WHERE {concerned}

-- fragment: open_limits
-- Which limits leave room for another job, and from when on by their rate.
limits_now AS MATERIALIZED (
  SELECT l.scope, l.name, l.paused_at IS NULL AND (l.max_running IS NULL OR {running} < l.max_running) AS open,
    -- If the clock was set back, a claim must store the tokens anew.
    CASE WHEN l.tokens_at > c.now THEN c.now
      ELSE c.now + greatest(0, (1 - {tokens}) * l.rate_seconds / l.rate_count) * interval '1 second' END AS not_before
  FROM interlock.limits l CROSS JOIN clock c WHERE l.scope <> 'key' AND {concerned}),
open_pairs AS MATERIALIZED (
  SELECT q.queue, k.kind, 1 AS free, greatest(lq.not_before, lk.not_before, (SELECT now FROM clock)) AS not_before,
    lq.name IS NOT NULL OR lk.name IS NOT NULL AS limited
  FROM unnest(:queues::text::text[]) AS q(queue) CROSS JOIN unnest(:kinds::text::text[]) AS k(kind)
    LEFT JOIN limits_now lq ON lq.scope = 'queue' AND lq.name = q.queue
    LEFT JOIN limits_now lk ON lk.scope = 'kind' AND lk.name = k.kind
  WHERE coalesce(lq.open, true) AND coalesce(lk.open, true)),
key_queues AS MATERIALIZED (
  -- An empty queue means all queues of the kind.
  SELECT p.kind, p.queue, p.not_before FROM open_pairs p
  UNION ALL
  SELECT p.kind, '', min(p.not_before) FROM open_pairs p GROUP BY p.kind)

-- name: due_in.limited
-- For jobs with limits.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
rules AS MATERIALIZED (SELECT * FROM unnest(:kind::text::text[], :lifecycle::text::text[], :state::text::text[])
  AS w(kind, lifecycle, state)),
{open_limits},
{check_heads},
pairs AS MATERIALIZED (SELECT p.queue, p.kind, p.free FROM open_pairs p WHERE p.limited),
{due_dates},
starts AS (
  SELECT p.not_before AS at FROM due d JOIN open_pairs p ON p.queue = d.queue AND p.kind = d.kind
  UNION ALL
  SELECT greatest(l.due_at, p.not_before) FROM later l JOIN open_pairs p ON p.queue = l.queue AND p.kind = l.kind
    WHERE l.due_at IS NOT NULL
  UNION ALL
  SELECT greatest(h.check_at, q.not_before) FROM check_heads h
    JOIN key_queues q ON q.kind = h.kind AND q.queue = h.queue)
SELECT CASE WHEN min(s.at) <= (SELECT now FROM clock) THEN 0
  ELSE extract(epoch FROM min(s.at) - (SELECT now FROM clock))::float8 END FROM starts s

-- fragment: check_heads
-- The first check of each kind, queue and priority, each found by one index lookup.
check_heads AS (
  SELECT p.kind, p.queue, h.priority, h.check_at FROM key_queues p CROSS JOIN LATERAL (
    SELECT c.priority, c.check_at FROM interlock.key_checks c WHERE c.kind = p.kind AND c.queue = p.queue
    ORDER BY c.priority DESC, c.check_at LIMIT 1) h
  UNION ALL
  SELECT g.kind, g.queue, h.priority, h.check_at FROM check_heads g CROSS JOIN LATERAL (
    SELECT c.priority, c.check_at FROM interlock.key_checks c WHERE c.kind = g.kind AND c.queue = g.queue
      AND c.priority < g.priority
    ORDER BY c.priority DESC, c.check_at LIMIT 1) h)

-- name: key_checks.take
-- Concurrency keys to look at now: higher priority first, then those that have waited longest. The claim adds the
-- checks again that it cannot complete.
WITH RECURSIVE clock AS MATERIALIZED (SELECT interlock.clock() AS now),
key_queues AS MATERIALIZED (SELECT * FROM unnest(:check_kind::text::text[], :check_queue::text::text[])
  AS p(kind, queue)),
{check_heads},
due AS MATERIALIZED (
  SELECT x.place FROM (SELECT * FROM check_heads h WHERE h.check_at <= (SELECT now FROM clock)
    ORDER BY h.priority DESC, h.check_at) g CROSS JOIN LATERAL (
    SELECT c.ctid AS place, c.priority, c.check_at FROM interlock.key_checks c
    WHERE c.kind = g.kind AND c.queue = g.queue AND c.priority = g.priority
      AND c.check_at <= (SELECT now FROM clock)
    ORDER BY c.check_at LIMIT :most::int FOR UPDATE SKIP LOCKED) x
  ORDER BY x.priority DESC, x.check_at LIMIT :most::int)
DELETE FROM interlock.key_checks c USING due d WHERE c.ctid = d.place
RETURNING c.kind, c.queue, c.concurrency_key, c.check_at, c.priority

-- name: key_checks.add
INSERT INTO interlock.key_checks (check_at, priority, kind, queue, concurrency_key)
SELECT coalesce(a.check_at, interlock.clock() + a.wait * interval '1 second'), a.priority, a.kind, a.queue, a.key
FROM unnest(:check_at::text::timestamptz[], :wait::text::float8[], :priority::text::int[], :kind::text::text[],
  :queue::text::text[], :key::text::text[]) AS a(check_at, wait, priority, kind, queue, key)

-- fragment: running_by_key
j.phase = 'running' AND j.concurrency_key IS NOT NULL AND j.finished_at IS NULL AND j.held_at IS NULL
  AND j.blocked_at IS NULL

-- fragment: waiting
j.phase = 'pending' AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.blocked_at IS NULL
  AND j.concurrency_key IS NOT NULL AND j.finished_at IS NULL

-- fragment: of_key
j.kind = r.kind AND j.concurrency_key = r.key AND {waiting}

-- fragment: fits
-- Whether this worker may lease the job.
{known} AND (j.lease_losses = 0 OR (:suspects::int > 0 AND {may_share}))

-- fragment: key_job
-- The columns of a waiting job, and whether this worker may lease it.
j.id, j.queue, j.priority, j.due_at, j.lease_losses > 0 AS suspect, {fits} AS fits

-- fragment: due_now
j.due_at <= (SELECT now FROM clock) AND (j.expires_at IS NULL OR j.expires_at > (SELECT now FROM clock))

-- name: key_jobs
-- For each concurrency key its running jobs, its tokens, and its first due jobs in each queue: as many as may start and
-- one more, and one of each queue that the worker does not serve. Most keys have jobs in one queue only. Some of these
-- may be jobs that the worker cannot lease: then it asks again for fitting ones, which are found by a scan.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
rules AS MATERIALIZED (SELECT * FROM unnest(:kind::text::text[], :lifecycle::text::text[], :state::text::text[])
  AS w(kind, lifecycle, state)),
asked AS MATERIALIZED (
  SELECT a.*, (SELECT count(*) FROM interlock.jobs j WHERE j.kind = a.kind AND j.concurrency_key = a.key
      AND {running_by_key})::int AS running,
    CASE WHEN a.per_second IS NOT NULL THEN coalesce(least(a.burst, k.tokens
      + greatest(extract(epoch FROM (SELECT now FROM clock) - k.tokens_at)::float8, 0) * a.per_second), a.burst)
    END AS tokens, coalesce(k.tokens_at > (SELECT now FROM clock), false) AS ahead
  FROM unnest(:key_kind::text::text[], :key::text::text[], :key_queue::text::text[], :most_running::text::int[],
    :per_second::text::float8[], :burst::text::float8[]) WITH ORDINALITY
    AS a(kind, key, queue, most_running, per_second, burst, n)
    LEFT JOIN LATERAL (SELECT r.tokens, r.tokens_at FROM interlock.key_rates r
      WHERE a.per_second IS NOT NULL AND r.kind = a.kind AND r.concurrency_key = a.key) k ON true),
ranges AS MATERIALIZED (
  -- A check of one queue looks only there.
  SELECT r.*, least(:limit::int, r.most_running - r.running, floor(r.tokens)::int) AS free,
    CASE WHEN r.queue <> '' THEN r.queue ELSE (SELECT j.queue FROM interlock.jobs j WHERE {of_key}
      ORDER BY j.queue LIMIT 1) END AS first_queue,
    CASE WHEN r.queue <> '' THEN r.queue ELSE (SELECT j.queue FROM interlock.jobs j WHERE {of_key}
      ORDER BY j.queue DESC LIMIT 1) END AS last_queue
  FROM asked r)
SELECT r.n::int, r.running, r.tokens, (SELECT now FROM clock), x.id::text, x.queue, x.priority, x.due_at, x.suspect,
  x.fits, r.ahead
FROM ranges r LEFT JOIN LATERAL (
  SELECT {key_job} FROM interlock.jobs j WHERE {of_key} AND j.queue = r.first_queue AND {due_now}
    AND (NOT :fitting::bool OR ({fits}))
  ORDER BY j.priority DESC, j.due_at, j.id
  LIMIT CASE WHEN r.first_queue = ANY(:queues::text::text[]) THEN r.free + 1 ELSE 1 END) x ON r.free > 0
UNION ALL
SELECT r.n::int, r.running, r.tokens, (SELECT now FROM clock), x.id::text, x.queue, x.priority, x.due_at, x.suspect,
  x.fits, r.ahead
FROM (SELECT * FROM ranges s WHERE s.free > 0 AND s.last_queue > s.first_queue) r CROSS JOIN LATERAL (
  WITH RECURSIVE queues AS (
    SELECT (SELECT j.queue FROM interlock.jobs j WHERE {of_key} AND j.queue > r.first_queue
      ORDER BY j.queue LIMIT 1) AS queue
    UNION ALL
    SELECT (SELECT j.queue FROM interlock.jobs j WHERE {of_key} AND j.queue > q.queue ORDER BY j.queue LIMIT 1)
    FROM queues q WHERE q.queue < r.last_queue)
  SELECT w.* FROM queues q CROSS JOIN LATERAL (
    SELECT {key_job} FROM interlock.jobs j WHERE {of_key} AND j.queue = q.queue AND {due_now}
      AND (NOT :fitting::bool OR ({fits}))
    ORDER BY j.priority DESC, j.due_at, j.id
    LIMIT CASE WHEN q.queue = ANY(:queues::text::text[]) THEN r.free + 1 ELSE 1 END) w) x

-- name: limits.spend
UPDATE interlock.limits l SET tokens = a.tokens, tokens_at = a.at
FROM unnest(:scope::text::text[], :name::text::text[], :tokens::text::float8[], :at::text::timestamptz[])
  AS a(scope, name, tokens, at)
WHERE l.scope = a.scope AND l.name = a.name

-- name: key_rates.spend
INSERT INTO interlock.key_rates (kind, concurrency_key, tokens, tokens_at)
SELECT * FROM unnest(:kind::text::text[], :key::text::text[], :tokens::text::float8[], :at::text::timestamptz[])
ON CONFLICT (kind, concurrency_key) DO UPDATE SET tokens = excluded.tokens, tokens_at = excluded.tokens_at

-- name: key_rates.forget
-- Buckets that are full again.
DELETE FROM interlock.key_rates r USING interlock.limits l
WHERE l.scope = 'key' AND l.name = r.kind AND (l.rate_count IS NULL OR r.tokens_at
  < (SELECT interlock.clock()) - l.burst * l.rate_seconds / l.rate_count * interval '1 second')

-- ---------------------------------------------------------------- changes by operators and declarations
-- name: limits.lock_declared
-- The rows that a migration may change, in the order of claims.
SELECT count(*) FROM (SELECT FROM interlock.limits l WHERE {of_kinds} OR {declared_now}
  ORDER BY l.scope COLLATE "C", l.name COLLATE "C" FOR UPDATE) locked

-- fragment: of_kinds
(l.scope IN ('kind', 'key') AND l.name = ANY(:kinds::text::text[]))

-- fragment: declared_now
((l.scope, l.name) IN (SELECT a.scope, a.name FROM unnest(:scopes::text::text[], :names::text::text[])
  AS a(scope, name)))

-- name: limits.undeclare
-- The code of these kinds declares the limit no more. A limit that was changed at run time stays as it was changed.
UPDATE interlock.limits l SET declared = NULL,
  max_running = CASE WHEN l.changed_by IS NULL THEN NULL ELSE l.max_running END,
  rate_count = CASE WHEN l.changed_by IS NULL THEN NULL ELSE l.rate_count END,
  rate_seconds = CASE WHEN l.changed_by IS NULL THEN NULL ELSE l.rate_seconds END,
  burst = CASE WHEN l.changed_by IS NULL THEN NULL ELSE l.burst END
WHERE l.declared IS NOT NULL AND {of_kinds} AND NOT {declared_now}
RETURNING l.scope, l.name

-- name: limits.declare
-- As the code declares it. A limit that was changed at run time stays as it was changed. No limit needs no row.
INSERT INTO interlock.limits AS l (scope, name, max_running, rate_count, rate_seconds, burst, declared)
SELECT :scope::text, :name::text, :max_running::text::int, :rate_count::text::float8, :rate_seconds::text::float8,
  :burst::text::float8, :declared::text::jsonb
WHERE :scope::text = 'key' OR :declared::text <> '{}'
  OR EXISTS (SELECT FROM interlock.limits k WHERE k.scope = :scope::text AND k.name = :name::text)
ON CONFLICT (scope, name) DO UPDATE SET declared = excluded.declared,
  max_running = CASE WHEN l.changed_by IS NULL THEN excluded.max_running ELSE l.max_running END,
  rate_count = CASE WHEN l.changed_by IS NULL THEN excluded.rate_count ELSE l.rate_count END,
  rate_seconds = CASE WHEN l.changed_by IS NULL THEN excluded.rate_seconds ELSE l.rate_seconds END,
  burst = CASE WHEN l.changed_by IS NULL THEN excluded.burst ELSE l.burst END
WHERE l.declared IS DISTINCT FROM excluded.declared
RETURNING l.scope, l.name

-- name: limits.drop_unused
-- Rows without effect. Those of concurrency keys stay, because jobs that have keys need them.
-- Locked rows stay until the next time: to wait for them could be a deadlock.
DELETE FROM interlock.limits WHERE ctid = ANY (ARRAY(
  SELECT l.ctid FROM interlock.limits l
  WHERE l.scope <> 'key' AND l.max_running IS NULL AND l.rate_count IS NULL AND l.paused_at IS NULL
    AND (l.declared IS NULL OR l.declared = '{}') AND l.changed_by IS NULL FOR UPDATE SKIP LOCKED))

-- name: limits.change
WITH changed AS (
  INSERT INTO interlock.limits AS l (scope, name, max_running, rate_count, rate_seconds, burst, changed_by)
  VALUES (:scope::text, :name::text, :max_running::text::int, :rate_count::text::float8, :rate_seconds::text::float8,
    :burst::text::float8, :actor::text)
  ON CONFLICT (scope, name) DO UPDATE SET changed_by = excluded.changed_by,
    max_running = CASE WHEN :sets_running::bool THEN excluded.max_running ELSE l.max_running END,
    rate_count = CASE WHEN :sets_rate::bool THEN excluded.rate_count ELSE l.rate_count END,
    rate_seconds = CASE WHEN :sets_rate::bool THEN excluded.rate_seconds ELSE l.rate_seconds END,
    burst = CASE WHEN :sets_rate::bool THEN excluded.burst ELSE l.burst END
  RETURNING scope, name)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason, detail)
SELECT :id::text::uuid, interlock.clock(), c.scope, c.name, 'limit', :actor::text, :reason::text, :detail::text::json
FROM changed c

-- name: limits.reset
-- Back to what the code declares.
WITH changed AS (
  UPDATE interlock.limits SET changed_by = NULL, max_running = (declared ->> 'max_running')::int,
    rate_count = (declared ->> 'rate_count')::float8, rate_seconds = (declared ->> 'rate_seconds')::float8,
    burst = (declared ->> 'burst')::float8
  WHERE scope = :scope::text AND name = :name::text AND changed_by IS NOT NULL RETURNING scope, name)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason)
SELECT :id::text::uuid, interlock.clock(), c.scope, c.name, 'reset', :actor::text, :reason::text FROM changed c
RETURNING true

-- name: limits.pause
WITH paused AS (
  INSERT INTO interlock.limits AS l (scope, name, paused_at, paused_by, pause_reason)
  VALUES (:scope::text, :name::text, interlock.clock(), :actor::text, :reason::text)
  ON CONFLICT (scope, name) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by,
    pause_reason = excluded.pause_reason WHERE l.paused_at IS NULL
  RETURNING scope, name)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason)
SELECT :id::text::uuid, interlock.clock(), p.scope, p.name, 'pause', :actor::text, :reason::text FROM paused p
RETURNING true

-- name: limits.resume
WITH resumed AS (
  UPDATE interlock.limits SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
  WHERE scope = :scope::text AND name = :name::text AND paused_at IS NOT NULL RETURNING scope, name)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason)
SELECT :id::text::uuid, interlock.clock(), r.scope, r.name, 'resume', :actor::text, :reason::text FROM resumed r
RETURNING true

-- name: limits.announce
-- More jobs may start now. Each concurrency key of the kind is looked at again.
WITH looked AS (
  INSERT INTO interlock.key_checks (check_at, priority, kind, queue, concurrency_key)
  SELECT min(j.due_at), max(j.priority), j.kind, j.queue, j.concurrency_key FROM interlock.jobs j
  WHERE :scope::text = 'key' AND j.kind = :name::text AND {waiting}
  GROUP BY j.kind, j.queue, j.concurrency_key)
SELECT {notify}

-- name: limits.all
SELECT l.scope, l.name, l.max_running, l.rate_count, l.rate_seconds, l.burst, l.declared::text, l.changed_by,
  l.paused_at, l.paused_by, l.pause_reason, {running}::int,
  greatest(0, (1 - {tokens}) * l.rate_seconds / l.rate_count)
FROM interlock.limits l CROSS JOIN (SELECT interlock.clock() AS now) c ORDER BY l.scope, l.name COLLATE "C"

-- name: limits.of_key
-- How many jobs with this concurrency key run, and the seconds until the rate allows another start.
SELECT (SELECT count(*) FROM interlock.jobs j WHERE j.kind = :kind::text AND j.concurrency_key = :key::text
    AND {running_by_key})::int,
  (SELECT greatest(0, (1 - least(l.burst, r.tokens + greatest(extract(epoch FROM (SELECT interlock.clock())
    - r.tokens_at)::float8, 0) * l.rate_count / l.rate_seconds)) * l.rate_seconds / l.rate_count)
    FROM interlock.key_rates r JOIN interlock.limits l ON l.scope = 'key' AND l.name = r.kind
    WHERE r.kind = :kind::text AND r.concurrency_key = :key::text)

-- name: operations
SELECT o.id::text, o.at, o.scope, o.name, o.event, o.actor, o.reason, o.detail::text FROM interlock.operations o
WHERE (:scope::text IS NULL OR o.scope = :scope::text) AND (:name::text IS NULL OR o.name = :name::text)
  AND (:after::text IS NULL OR o.id < :after::text::uuid)
ORDER BY o.id DESC LIMIT :limit::int
