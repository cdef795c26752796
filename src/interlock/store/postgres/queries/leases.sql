-- Renewal and takeover of executions, on PostgreSQL. Rows are found by their keys: see transitions.sql.

-- name: renew
-- Rows that another transaction has locked are skipped. Executions that are not listed are not renewed.
-- No worker owns an execution that was handed over: a late heartbeat must not postpone its next check.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :attempt::text::int[], :holder::text::int[], :lease::text::float8[],
    :progress::text::text[], :usage::text::text[]) WITH ORDINALITY
  AS a(job_id, attempt, holder, lease, progress, usage, ord)),
matched AS MATERIALIZED (
  SELECT a.*, c.now FROM asked a CROSS JOIN clock c
  JOIN interlock.executions e ON e.job_id = ANY (ARRAY[a.job_id, a.job_id]) AND e.attempt = a.attempt
  WHERE (e.holder, e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED'), {unowned}) IS NOT DISTINCT
    FROM (a.holder, true, false)
  ORDER BY a.job_id, a.attempt FOR NO KEY UPDATE OF e SKIP LOCKED),
renewed AS (
  UPDATE interlock.executions e SET lease_expires_at = h.now + h.lease * interval '1 second', heartbeat_at = h.now,
    progress = coalesce(h.progress::json, e.progress), usage = coalesce(h.usage::json, e.usage)
  FROM matched h WHERE e.job_id = ANY (ARRAY[h.job_id, h.job_id]) AND e.attempt = h.attempt RETURNING h.ord)
SELECT h.ord::int, 'renewed', j.cancel_requested_at IS NOT NULL FROM renewed r JOIN matched h ON h.ord = r.ord LEFT
  JOIN interlock.jobs j ON j.id = ANY (ARRAY[h.job_id, h.job_id])

-- name: unrenewed
-- For the rows that a renewal skipped: busy if they are still ours, else lost.
SELECT a.ord, (e.holder, e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')) IS NOT DISTINCT FROM (a.holder, true)
FROM unnest(:ord::text::int[], :job_id::text::uuid[], :attempt::text::int[], :holder::text::int[])
  AS a(ord, job_id, attempt, holder)
LEFT JOIN interlock.executions e ON e.job_id = ANY (ARRAY[a.job_id, a.job_id]) AND e.attempt = a.attempt

-- name: lost_claims
-- Uses the two indexes of live executions, since most rows of the table have ended.
SELECT e.job_id::text, e.attempt, e.holder FROM interlock.executions e
WHERE e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (e.external_id IS NULL OR e.status = 'COMMITTED')
  AND e.lease_owner = :by::text AND e.job_id <> ALL(:job_id::text::uuid[])
UNION ALL
SELECT e.job_id::text, e.attempt, e.holder FROM interlock.executions e
WHERE e.status IN ('LEASED', 'IN_PROGRESS') AND e.external_id IS NOT NULL AND e.lease_owner = :by::text
  AND e.job_id <> ALL(:job_id::text::uuid[])

-- fragment: adopting
locked AS MATERIALIZED (
  SELECT e.job_id, e.attempt FROM ended x
    JOIN interlock.executions e ON e.job_id = ANY (ARRAY[x.job_id, x.job_id]) AND e.attempt = x.attempt
    JOIN interlock.jobs j ON j.id = ANY (ARRAY[e.job_id, e.job_id])
  WHERE (e.lease_expires_at, e.holder, e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')) IS NOT DISTINCT
    FROM (x.lease_expires_at, x.holder, true)
  ORDER BY x.since, x.job_id LIMIT :limit::int FOR NO KEY UPDATE OF e, j SKIP LOCKED),
adopted AS (
  UPDATE interlock.executions e SET lease_owner = :by::text, holder = e.holder + 1, heartbeat_at = c.now,
    lease_expires_at = c.now + :lease::float8 * interval '1 second'
  FROM locked x, clock c WHERE e.job_id = ANY (ARRAY[x.job_id, x.job_id]) AND e.attempt = x.attempt
  RETURNING e.job_id, e.holder, e.status, e.external_id, e.result::text AS committed,
    e.holder - e.committed_holder AS crashes,
    extract(epoch FROM c.now - e.missing_since)::float8 AS missing_for)
SELECT {job}, a.holder, a.status, a.external_id, a.committed, a.crashes, a.missing_for FROM adopted a
  JOIN interlock.jobs j ON j.id = ANY (ARRAY[a.job_id, a.job_id]) ORDER BY a.job_id

-- name: adopt
-- Finds rows per kind, then locks those that are unchanged: a lease renewed in between has another end. It finds more
-- than the limit, in case some are locked.
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
    WHERE e.kind = k.kind AND e.lease_expires_at <= (SELECT now FROM clock) AND e.status IN ('LEASED', 'IN_PROGRESS')
      AND e.external_id IS NOT NULL
    ORDER BY e.lease_expires_at LIMIT 2 * :limit::int + 100) x),
{adopting}

-- name: recall
-- Executions with a cancel request in a state that allows `cancel`, before their next check. It leaves those that a
-- worker owns.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
ended AS MATERIALIZED (
  SELECT x.* FROM unnest(:kinds::text::text[]) AS k(kind) CROSS JOIN LATERAL (
    SELECT e.job_id, e.attempt, e.holder, e.lease_expires_at, j.cancel_requested_at AS since FROM interlock.jobs j
      JOIN interlock.executions e ON e.job_id = j.id AND e.attempt = j.attempt
    WHERE j.kind = k.kind AND j.phase = 'running' AND j.finished_at IS NULL AND j.cancel_requested_at IS NOT NULL
      AND {handed_over} AND {unowned}
      AND {cancellable}
    ORDER BY j.cancel_requested_at LIMIT 2 * :limit::int + 100) x),
{adopting}

-- name: recall_named
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
ended AS MATERIALIZED (
  SELECT e.job_id, e.attempt, e.holder, e.lease_expires_at, e.lease_expires_at AS since FROM interlock.executions e
  WHERE e.kind = ANY(:kinds::text::text[]) AND e.external_id = :external_id::text AND {handed_over}
    AND (e.lease_expires_at <= (SELECT now FROM clock) OR {unowned})
  ORDER BY e.job_id LIMIT 2 * :limit::int + 100),
{adopting}
