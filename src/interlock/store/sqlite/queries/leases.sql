-- Renewal and takeover of executions, on SQLite.

-- name: renew
-- No worker owns an execution that was handed over: a late heartbeat must not postpone its next check.
-- differs: with one writer no row is locked.
UPDATE interlock_executions SET lease_expires_at = :until, heartbeat_at = :now,
  progress = coalesce(:progress, progress), usage = coalesce(:usage, usage)
WHERE job_id = :job_id AND attempt = :attempt AND holder = :holder AND status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')
  AND lease_owner <> 'external:' || kind

-- name: renew.cancels
SELECT j.id FROM json_each(:ids) a CROSS JOIN interlock_jobs j ON j.id = a.value WHERE j.cancel_requested_at IS NOT NULL

-- name: unrenewed
-- differs: read in the same transaction: executions that are still ours were renewed, except handed-over ones, which
--   count as busy.
SELECT a.key, e.job_id IS NOT NULL, {unowned} FROM json_each(:fences) a LEFT JOIN interlock_executions e
  ON e.job_id = json_extract(a.value, '$[0]') AND e.attempt = json_extract(a.value, '$[1]')
    AND e.holder = json_extract(a.value, '$[2]')
  AND e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')

-- name: lost_claims
-- Uses the two indexes of live executions.
SELECT e.job_id, e.attempt, e.holder FROM interlock_executions e INDEXED BY interlock_executions_leases
WHERE {leased} AND e.lease_owner = :by AND e.job_id NOT IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT e.job_id, e.attempt, e.holder FROM interlock_executions e INDEXED BY interlock_executions_external
WHERE {handed_over} AND e.lease_owner = :by AND e.job_id NOT IN (SELECT value FROM json_each(:ids))
ORDER BY 1

-- name: adopt
SELECT substr(p.value, 28, 36), CAST(substr(p.value, 64) AS INTEGER) FROM json_each(:kinds) k CROSS
  JOIN json_each((SELECT json_group_array(c.place) FROM (
  SELECT e.lease_expires_at || e.job_id || e.attempt AS place
    FROM interlock_executions e INDEXED BY interlock_executions_leases
  WHERE e.kind = k.value AND e.lease_expires_at <= :now AND {leased}
    AND (e.status <> 'COMMITTED' OR k.value IN (SELECT value FROM json_each(:committed)))
      ORDER BY e.lease_expires_at LIMIT :limit + 0) c)) p
ORDER BY p.value LIMIT :limit + 0

-- name: adopt.execution
UPDATE interlock_executions SET lease_owner = :by, holder = holder + 1, heartbeat_at = :now, lease_expires_at = :until
FROM json_each(:ended) a WHERE job_id = json_extract(a.value, '$[0]') AND attempt = json_extract(a.value, '$[1]')
  AND (lease_expires_at <= :now OR lease_owner = 'external:' || kind)
  AND status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')

-- name: adopt.adopted
SELECT {job}, e.holder, e.status, e.external_id, e.result, e.holder - e.committed_holder, e.missing_since
  FROM json_each(:ids) a CROSS JOIN interlock_jobs j ON j.id = a.value
CROSS JOIN interlock_executions e INDEXED BY interlock_executions_one ON e.job_id = j.id AND e.status <> 'ABORTED'
  ORDER BY j.id

-- name: adopt_external
SELECT substr(p.value, 28, 36), CAST(substr(p.value, 64) AS INTEGER) FROM json_each(:kinds) k CROSS
  JOIN json_each((SELECT json_group_array(c.place) FROM (
  SELECT e.lease_expires_at || e.job_id || e.attempt AS place
    FROM interlock_executions e INDEXED BY interlock_executions_external
  WHERE e.kind = k.value AND e.lease_expires_at <= :now AND {handed_over}
    ORDER BY e.lease_expires_at LIMIT :limit + 0) c)) p
ORDER BY p.value LIMIT :limit + 0

-- name: recall
-- Executions with a cancel request in a state that allows `cancel`, before their next check. It leaves those that a
-- worker owns.
SELECT substr(p.value, 28, 36), CAST(substr(p.value, 64) AS INTEGER) FROM json_each(:kinds) k CROSS
  JOIN json_each((SELECT json_group_array(c.place) FROM (
  SELECT j.cancel_requested_at || e.job_id || e.attempt AS place
    FROM interlock_jobs j INDEXED BY interlock_jobs_stopping
  CROSS JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt
  WHERE j.kind = k.value AND j.phase = 'running' AND j.finished_at IS NULL AND j.cancel_requested_at IS NOT NULL
      AND {handed_over} AND {unowned}
    AND {cancellable}
  ORDER BY j.cancel_requested_at LIMIT :limit + 0) c)) p
ORDER BY p.value LIMIT :limit + 0

-- name: recall_named
SELECT e.job_id, e.attempt FROM interlock_executions e INDEXED BY interlock_executions_external_id
WHERE e.kind IN (SELECT value FROM json_each(:kinds)) AND e.external_id = :external_id AND {handed_over}
  AND (e.lease_expires_at <= :now OR {unowned})
ORDER BY e.job_id LIMIT :limit + 0
