-- Limits, pauses and concurrency keys, on SQLite.
--
-- differs: the claim's own transaction is the only writer, so there is no lock of limits; a listener sees every change,
-- so nothing is announced.
-- differs: there is no LATERAL, so each concurrency key is read by statements of its own.
-- differs: `due_in.limited` is computed in Python from `limits.read`, `due_in` and `key_checks.next`.

-- fragment: concerned
((l.scope = 'queue' AND l.name IN (SELECT value FROM json_each(:queues)))
  OR (l.scope IN ('kind', 'key') AND l.name IN (SELECT value FROM json_each(:kinds))))

-- fragment: has_limits
EXISTS (SELECT 1 FROM interlock_limits l WHERE {concerned})

-- fragment: has_flow_checks
EXISTS (SELECT 1 FROM interlock_flow_checks f WHERE f.check_at <= :now)

-- fragment: running
-- How many jobs of the queue or kind run.
CASE l.scope WHEN 'kind' THEN (
    SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_leases
      WHERE e.kind = l.name AND {leased}) + (
    SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_external
      WHERE e.kind = l.name AND {handed_over})
  WHEN 'queue' THEN (
    SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_leases CROSS
      JOIN interlock_jobs j ON j.id = e.job_id WHERE j.queue = l.name AND {leased}) + (
    SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_external CROSS
      JOIN interlock_jobs j ON j.id = e.job_id WHERE j.queue = l.name AND {handed_over})
  ELSE 0 END

-- name: limits.read
-- differs: the tokens are as stored; Python adds those of the time since.
SELECT l.scope, l.name, l.paused_at IS NOT NULL, l.max_running,
  CASE WHEN l.max_running IS NULL THEN 0 ELSE {running} END, l.rate_count, l.rate_seconds, l.burst, l.tokens,
  l.tokens_at
FROM interlock_limits l WHERE {concerned}

-- fragment: check_heads
-- Each kind, queue and priority with checks, each found by one index lookup.
key_queues(kind, queue) AS MATERIALIZED (
  SELECT json_extract(p.value, '$[0]'), json_extract(p.value, '$[1]') FROM json_each(:pairs) p),
check_heads(kind, queue, priority) AS (
  SELECT p.kind, p.queue, (SELECT c.priority FROM interlock_key_checks c INDEXED BY interlock_key_checks_due
    WHERE c.kind = p.kind AND c.queue = p.queue ORDER BY c.priority DESC LIMIT 1) FROM key_queues p
  UNION ALL
  SELECT h.kind, h.queue, (SELECT c.priority FROM interlock_key_checks c INDEXED BY interlock_key_checks_due
    WHERE c.kind = h.kind AND c.queue = h.queue AND c.priority < h.priority ORDER BY c.priority DESC LIMIT 1)
  FROM check_heads h WHERE h.priority IS NOT NULL)

-- name: key_checks.next
-- When the next concurrency key of these pairs of kind and queue is looked at.
WITH RECURSIVE {check_heads}
SELECT min((SELECT min(c.check_at) FROM interlock_key_checks c INDEXED BY interlock_key_checks_due
  WHERE c.kind = h.kind AND c.queue = h.queue AND c.priority = h.priority))
FROM check_heads h WHERE h.priority IS NOT NULL

-- name: key_checks.take
-- Concurrency keys to look at now: higher priority first, then those that have waited longest. The claim adds the
-- checks again that it cannot complete.
WITH RECURSIVE {check_heads},
due(id, priority, check_at) AS (
  SELECT json_extract(x.value, '$[0]'), h.priority, json_extract(x.value, '$[1]') FROM check_heads h CROSS
    JOIN json_each((SELECT json_group_array(json_array(k.id, k.check_at)) FROM (
      SELECT c.id, c.check_at FROM interlock_key_checks c INDEXED BY interlock_key_checks_due
      WHERE c.kind = h.kind AND c.queue = h.queue AND c.priority = h.priority AND c.check_at <= :now
      ORDER BY c.check_at LIMIT :most + 0) k)) x
  WHERE h.priority IS NOT NULL)
DELETE FROM interlock_key_checks WHERE id IN (
  SELECT d.id FROM due d ORDER BY d.priority DESC, d.check_at LIMIT :most + 0)
RETURNING kind, queue, concurrency_key, check_at, priority

-- name: key_checks.add
INSERT INTO interlock_key_checks (check_at, priority, kind, queue, concurrency_key)
VALUES (:check_at, :priority, :kind, :queue, :key)

-- fragment: running_by_key
j.phase = 'running' AND j.concurrency_key IS NOT NULL AND j.finished_at IS NULL AND j.held_at IS NULL
  AND j.blocked_at IS NULL

-- fragment: waiting
j.phase = 'pending' AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.blocked_at IS NULL
  AND j.concurrency_key IS NOT NULL AND j.finished_at IS NULL

-- name: key_jobs.state
-- The running jobs of a concurrency key, and its stored tokens.
SELECT (SELECT count(*) FROM interlock_jobs j INDEXED BY interlock_jobs_by_key
    WHERE j.kind = :kind AND j.concurrency_key = :key AND {running_by_key}),
  r.tokens, r.tokens_at
FROM (SELECT 1) LEFT JOIN interlock_key_rates r ON r.kind = :kind AND r.concurrency_key = :key

-- name: key_jobs.queues
-- The queues in which jobs with this key wait, each found by one index lookup.
WITH RECURSIVE queues(queue) AS (
  SELECT (SELECT j.queue FROM interlock_jobs j INDEXED BY interlock_jobs_by_key
    WHERE j.kind = :kind AND j.concurrency_key = :key AND {waiting} ORDER BY j.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT j.queue FROM interlock_jobs j INDEXED BY interlock_jobs_by_key
    WHERE j.kind = :kind AND j.concurrency_key = :key AND j.queue > q.queue AND {waiting} ORDER BY j.queue LIMIT 1)
  FROM queues q WHERE q.queue IS NOT NULL)
SELECT queue FROM queues WHERE queue IS NOT NULL

-- fragment: fits
-- Whether this worker may lease the job.
{known} AND (j.lease_losses = 0 OR (:suspects + 0 > 0 AND {may_share}))

-- name: key_jobs
-- The first due jobs with this key in a queue, and whether this worker may lease them. If it may not lease some of
-- them, it asks again for fitting ones, which are found by a scan.
SELECT j.id, j.priority, j.due_at, j.lease_losses > 0, {fits}
FROM interlock_jobs j INDEXED BY interlock_jobs_by_key CROSS JOIN (SELECT :states AS states) h
WHERE j.kind = :kind AND j.concurrency_key = :key AND j.queue = :queue AND j.due_at <= :now
  AND (j.expires_at IS NULL OR j.expires_at > :now) AND {waiting} AND (NOT :fitting OR ({fits}))
ORDER BY j.priority DESC, j.due_at, j.id LIMIT :limit + 0

-- name: limits.spend
UPDATE interlock_limits SET tokens = :tokens, tokens_at = :now WHERE scope = :scope AND name = :name

-- name: key_rates.spend
INSERT INTO interlock_key_rates (kind, concurrency_key, tokens, tokens_at) VALUES (:kind, :key, :tokens, :now)
ON CONFLICT (kind, concurrency_key) DO UPDATE SET tokens = excluded.tokens, tokens_at = excluded.tokens_at

-- name: key_rates.forget
-- Buckets that are full again.
DELETE FROM interlock_key_rates WHERE EXISTS (SELECT 1 FROM interlock_limits l
  WHERE l.scope = 'key' AND l.name = interlock_key_rates.kind AND (l.rate_count IS NULL
    OR julianday(:now) - julianday(interlock_key_rates.tokens_at) > l.burst * l.rate_seconds / l.rate_count / 86400.0))

-- ---------------------------------------------------------------- changes by operators and declarations
-- name: limits.undeclare
-- The code of these kinds declares the limit no more. A limit that was changed at run time stays as it was changed.
UPDATE interlock_limits SET declared = NULL,
  max_running = CASE WHEN changed_by IS NULL THEN NULL ELSE max_running END,
  rate_count = CASE WHEN changed_by IS NULL THEN NULL ELSE rate_count END,
  rate_seconds = CASE WHEN changed_by IS NULL THEN NULL ELSE rate_seconds END,
  burst = CASE WHEN changed_by IS NULL THEN NULL ELSE burst END
WHERE declared IS NOT NULL AND scope IN ('kind', 'key') AND name IN (SELECT value FROM json_each(:kinds))
  AND NOT EXISTS (SELECT 1 FROM json_each(:scopes) s JOIN json_each(:names) n ON n.key = s.key
    WHERE s.value = scope AND n.value = name)
RETURNING scope, name

-- name: limits.declare
-- As the code declares it. A limit that was changed at run time stays as it was changed. No limit needs no row.
INSERT INTO interlock_limits (scope, name, max_running, rate_count, rate_seconds, burst, declared)
SELECT :scope, :name, CAST(:max_running AS INTEGER), CAST(:rate_count AS REAL), CAST(:rate_seconds AS REAL),
  CAST(:burst AS REAL), :declared
WHERE :scope = 'key' OR :declared <> '{}'
  OR EXISTS (SELECT 1 FROM interlock_limits k WHERE k.scope = :scope AND k.name = :name)
ON CONFLICT (scope, name) DO UPDATE SET declared = excluded.declared,
  max_running = CASE WHEN changed_by IS NULL THEN excluded.max_running ELSE max_running END,
  rate_count = CASE WHEN changed_by IS NULL THEN excluded.rate_count ELSE rate_count END,
  rate_seconds = CASE WHEN changed_by IS NULL THEN excluded.rate_seconds ELSE rate_seconds END,
  burst = CASE WHEN changed_by IS NULL THEN excluded.burst ELSE burst END
WHERE declared IS NOT excluded.declared
RETURNING scope, name

-- name: limits.drop_unused
-- Rows without effect. Those of concurrency keys stay, because jobs that have keys need them.
DELETE FROM interlock_limits WHERE scope <> 'key' AND max_running IS NULL AND rate_count IS NULL AND paused_at IS NULL
  AND (declared IS NULL OR declared = '{}') AND changed_by IS NULL

-- name: limits.change
INSERT INTO interlock_limits (scope, name, max_running, rate_count, rate_seconds, burst, changed_by)
VALUES (:scope, :name, CAST(:max_running AS INTEGER), CAST(:rate_count AS REAL), CAST(:rate_seconds AS REAL),
  CAST(:burst AS REAL), :actor)
ON CONFLICT (scope, name) DO UPDATE SET changed_by = excluded.changed_by,
  max_running = CASE WHEN :sets_running THEN excluded.max_running ELSE max_running END,
  rate_count = CASE WHEN :sets_rate THEN excluded.rate_count ELSE rate_count END,
  rate_seconds = CASE WHEN :sets_rate THEN excluded.rate_seconds ELSE rate_seconds END,
  burst = CASE WHEN :sets_rate THEN excluded.burst ELSE burst END
RETURNING scope

-- name: limits.reset
-- Back to what the code declares.
UPDATE interlock_limits SET changed_by = NULL, max_running = json_extract(declared, '$.max_running'),
  rate_count = json_extract(declared, '$.rate_count'), rate_seconds = json_extract(declared, '$.rate_seconds'),
  burst = json_extract(declared, '$.burst')
WHERE scope = :scope AND name = :name AND changed_by IS NOT NULL RETURNING scope

-- name: limits.pause
INSERT INTO interlock_limits (scope, name, paused_at, paused_by, pause_reason)
VALUES (:scope, :name, :now, :actor, :reason)
ON CONFLICT (scope, name) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by,
  pause_reason = excluded.pause_reason WHERE paused_at IS NULL
RETURNING scope

-- name: limits.resume
UPDATE interlock_limits SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
WHERE scope = :scope AND name = :name AND paused_at IS NOT NULL RETURNING scope

-- name: limits.announce
-- Each concurrency key of the kind is looked at again.
INSERT INTO interlock_key_checks (check_at, priority, kind, queue, concurrency_key)
SELECT min(j.due_at), max(j.priority), j.kind, j.queue, j.concurrency_key
FROM interlock_jobs j INDEXED BY interlock_jobs_by_key WHERE :scope = 'key' AND j.kind = :name AND {waiting}
GROUP BY j.kind, j.queue, j.concurrency_key

-- name: limits.all
SELECT l.scope, l.name, l.max_running, l.rate_count, l.rate_seconds, l.burst, l.declared, l.changed_by, l.paused_at,
  l.paused_by, l.pause_reason, {running}, l.tokens, l.tokens_at
FROM interlock_limits l ORDER BY l.scope, l.name

-- name: operations.add
-- differs: SQLite has no writing CTE, so every change adds its operation by this statement.
INSERT INTO interlock_operations (id, at, scope, name, event, actor, reason, detail)
VALUES (:id, :now, :scope, :name, :event, :actor, :reason, :detail)

-- name: operations
SELECT o.id, o.at, o.scope, o.name, o.event, o.actor, o.reason, o.detail FROM interlock_operations o
WHERE (:scope IS NULL OR o.scope = :scope) AND (:name IS NULL OR o.name = :name) AND (:after IS NULL OR o.id < :after)
ORDER BY o.id DESC LIMIT :limit + 0
