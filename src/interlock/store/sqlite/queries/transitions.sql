-- Moves, takes and the locks of a commit, on SQLite.

-- name: lock
-- The first half of a commit: the rows of one move, if they are unchanged.
SELECT {job} FROM interlock_executions e CROSS JOIN interlock_jobs j ON j.id = e.job_id
WHERE e.job_id = :job_id AND e.attempt = :attempt AND e.holder = :holder AND e.status = :from_status
  AND j.state = :source AND j.attempt = :attempt

-- name: lock.file
-- differs: there are no row locks, so a write that changes nothing locks the file; it makes a transaction that has
--   only begun the writer.
UPDATE interlock_schema_version SET version = version WHERE version < 0

-- differs: a group of commits runs `lock` for each job, since the file is locked already, and not `lock_group`.
-- differs: a file's lock has its own timeout, so there is no `group_timeouts`.
-- differs: a group locks the whole file, and renewals are next in line for it, so there is no `renew_left`.
-- name: lock_waiting
SELECT {job} FROM interlock_jobs j WHERE j.id = :job_id AND j.version = :version AND j.state = :source
  AND j.phase = 'pending'

-- name: finish
-- The plain case of `move`: successes that differ only in job and result, each by one transition. It sets only the
-- columns that such a move changes, so that SQLite updates fewer indexes and runs fewer checks. The
-- audit is that of `move`.
-- differs: SQLite has no writing CTE, so each table has its own statement, and each group of equal moves too. This one
-- also matches the job, which nothing can change before `finish.job`, so there is no `check_in_step`.
UPDATE interlock_executions SET status = 'DONE', state = :source, ended_by = 'succeed',
  result = coalesce(r.value, result), heartbeat_at = :now, committed_at = :now, finished_at = :now,
  committed_holder = coalesce(committed_holder, holder)
FROM json_each(:results) r
WHERE job_id = r.key AND attempt = :attempt AND holder = :holder AND status = 'IN_PROGRESS'
  AND EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = r.key AND j.state = :source AND j.attempt = :attempt)
RETURNING job_id

-- name: finish.job
-- differs: it matches only the id, because `finish` has matched the job in the same transaction.
UPDATE interlock_jobs SET state = :target, phase = 'succeeded', version = version + 1, tries_left = :tries_left,
  finished_at = :now, result = coalesce(r.value, (SELECT e.result FROM interlock_executions e
    WHERE e.job_id = r.key AND e.attempt = :attempt)), updated_at = {refreshed}
FROM json_each(:results) r WHERE interlock_jobs.id = r.key

-- differs: there are no pipelines, so a commit sees that its move was refused before it ends, without `require_moved`.
-- name: move
-- One step of moves that differ only in job, result, progress and usage; `:shown` has progress and usage by job. The
-- execution is written first: its fence and the job's state decide.
-- differs: SQLite has no writing CTE, so each table has its own statement, and each group of equal moves too.
UPDATE interlock_executions SET status = :to_status, state = CASE WHEN :ended_by IS NULL THEN :target ELSE :source END,
  ended_by = :ended_by, error = coalesce(:error, error), result = coalesce(r.value, result), heartbeat_at = :now,
  progress = coalesce(json_extract(:shown, '$."' || r.key || '"[0]'), progress),
    usage = coalesce(json_extract(:shown, '$."' || r.key || '"[1]'), usage),
  started_at = CASE WHEN :to_status IN ('IN_PROGRESS', 'COMMITTED', 'DONE')
    THEN coalesce(started_at, :now) ELSE started_at END,
  committed_at = CASE WHEN :to_status IN ('COMMITTED', 'DONE') THEN coalesce(committed_at, :now) END,
  finished_at = CASE WHEN :to_status IN ('DONE', 'ABORTED') THEN :now END,
  external_id = coalesce(:external_id, external_id),
  lease_owner = CASE WHEN :check_at IS NULL THEN lease_owner ELSE 'external:' || kind END,
  missing_since = CASE WHEN :missing IS NULL THEN missing_since WHEN :missing THEN coalesce(missing_since, :now) END,
  committed_holder = CASE WHEN :to_status IN ('COMMITTED', 'DONE') THEN coalesce(committed_holder, holder) END,
  next_check_at = coalesce(:check_at, next_check_at),
  lease_expires_at = CASE WHEN :check_at IS NOT NULL THEN :check_at WHEN :ended_by IS NOT NULL THEN lease_expires_at
    ELSE (SELECT strftime('%Y-%m-%dT%H:%M:%S', x.us / 1000000, 'unixepoch') || printf('.%06dZ', x.us % 1000000) FROM (
      SELECT :now_us + (strftime('%s', lease_expires_at) - strftime('%s',
        heartbeat_at)) * 1000000 + substr(lease_expires_at, 21, 6) - substr(heartbeat_at, 21, 6) AS us) x) END
FROM json_each(:results) r
WHERE job_id = r.key AND attempt = :attempt AND holder = :holder AND status = :from_status
  AND EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = r.key AND j.state = :source AND j.attempt = :attempt
    AND NOT (:refuse_if_cancel_requested AND j.cancel_requested_at IS NOT NULL))
RETURNING job_id

-- name: move.job
-- If a job with a cancel request returns to a waiting state, the request is cleared, since a claim would skip it.
UPDATE interlock_jobs SET state = :target, phase = :phase, version = version + (:event IS NOT NULL),
  tries_left = :tries_left, lease_losses = lease_losses + :lost,
  due_at = coalesce(:due_at, due_at), finished_at = CASE WHEN :phase IN ('succeeded', 'failed')
    THEN :now END, last_error = coalesce(:error, last_error),
  result = CASE WHEN :phase = 'succeeded' THEN (SELECT e.result FROM interlock_executions e
    WHERE e.job_id = interlock_jobs.id AND e.attempt = :attempt) END,
  key_freed = max(key_freed, :frees_key), held_at = CASE WHEN :held_reason IS NOT NULL
    THEN :now END, held_reason = :held_reason,
  cancel_requested_at = CASE WHEN :ended_by IS NULL OR :phase <> 'pending' THEN cancel_requested_at END,
  cancel_requested_by = CASE WHEN :ended_by IS NULL OR :phase <> 'pending' THEN cancel_requested_by END,
  cancel_reason = CASE WHEN :ended_by IS NULL OR :phase <> 'pending' THEN cancel_reason END, updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: move.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor, reason)
SELECT j.id, j.version, 0, :attempt, :now, :event, :source, :target, :actor, :reason FROM json_each(:ids) i CROSS
  JOIN interlock_jobs j ON j.id = i.value

-- name: present
-- The rows that a refused move did not match.
SELECT j.id, e.attempt, e.holder, e.status, e.ended_by, j.state, j.version
FROM json_each(:asked) a CROSS JOIN interlock_jobs j ON j.id = json_extract(a.value, '$[0]')
LEFT JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = json_extract(a.value, '$[1]')

-- name: take
-- Takes that differ only in the job.
-- differs: SQLite has no writing CTE, so each table has its own statement, and each group of equal takes too.
UPDATE interlock_jobs SET state = :target, phase = :phase, version = version + 1, attempt = attempt + 1,
  finished_at = :now,
  key_freed = max(key_freed, :frees_key), held_at = NULL, held_reason = NULL, blocked_at = NULL,
    last_error = coalesce(:reason, last_error), updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids)) AND version = :version AND state = :source AND phase = 'pending'
RETURNING id

-- name: take.execution
INSERT INTO interlock_executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status,
  state, ended_by, error, leased_at, finished_at)
SELECT j.id, j.attempt, 1, j.kind, :actor, :now, :now, 'ABORTED', :source, :event, :reason, :now, :now
  FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: take.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor, reason)
SELECT j.id, j.version, 0, j.attempt, :now, :event, :source, :target, :actor, :reason
  FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value
