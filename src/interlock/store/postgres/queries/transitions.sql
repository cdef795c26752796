-- Moves, takes and the locks of a commit, on PostgreSQL.
--
-- The statements for many jobs find a row by `id = ANY (ARRAY[x, x])`, not by `id = x`. With `id = x`, a plan that was
-- made while the table was small may read all of it in the order of its key, as for a merge join, and the session keeps
-- that plan while the table grows.

-- name: fixed_plans
-- Fixes the plans of this transaction or of the whole session, even if tables grow or statistics are stale. Never used
-- where a caller's code runs. A frozen client locks its rows for at most 15 s; in the middle of a pipeline only if the
-- server has transaction_timeout, from version 17 on.
SELECT set_config(s.name, s.value, :local::bool) FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),
  ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('enable_material', 'off'), ('jit', 'off'),
  ('plan_cache_mode', 'force_generic_plan'), ('lock_timeout', '10s'), ('idle_in_transaction_session_timeout', '15s'),
  ('transaction_timeout', '15s')) AS s(name, value)
WHERE s.name <> 'transaction_timeout' OR current_setting('server_version_num')::int >= 170000

-- name: commit_timeouts
-- For a caller's code inside our transaction: a frozen client must not lock a job forever.
SELECT set_config('lock_timeout', '10s', true), set_config('idle_in_transaction_session_timeout', :idle::text, true),
  CASE WHEN current_setting('server_version_num')::int >= 170000
    THEN set_config('transaction_timeout', :idle::text, true) END

-- name: lock
-- The first half of a commit: locks the rows of one move until the transaction ends, whose id is the last column.
SELECT {job}, pg_current_xact_id()::text FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id
WHERE e.job_id = :job_id::text::uuid AND e.attempt = :attempt::int
  AND (e.holder, e.status, j.state, j.attempt) IS NOT DISTINCT
    FROM (:holder::int, :from_status::text, :source::text, :attempt::int)
FOR NO KEY UPDATE OF e, j

-- name: lock_waiting
SELECT {job}, pg_current_xact_id()::text FROM interlock.jobs j
WHERE j.id = :job_id::text::uuid
  AND (j.version, j.state, j.phase) IS NOT DISTINCT FROM (:version::int, :source::text, 'pending')
FOR NO KEY UPDATE

-- name: lock_group
-- The first half of a group of commits. Every transaction locks jobs in the order of their ids. If another transaction
-- has locked a row of a job, the job is left out and committed alone: only that commit waits, with no other locks.
SELECT {job} FROM unnest(:job_id::text::uuid[], :attempt::text::int[], :holder::text::int[],
  :from_status::text::text[], :source::text::text[]) AS a(job_id, attempt, holder, from_status, source)
JOIN interlock.executions e ON e.job_id = ANY (ARRAY[a.job_id, a.job_id]) AND e.attempt = a.attempt
JOIN interlock.jobs j ON j.id = ANY (ARRAY[a.job_id, a.job_id])
WHERE (e.holder, e.status, j.state, j.attempt) IS NOT DISTINCT FROM (a.holder, a.from_status, a.source, a.attempt)
ORDER BY a.job_id FOR NO KEY UPDATE OF e, j SKIP LOCKED

-- name: group_timeouts
-- Ends the fixed plans of `lock_group`, because a caller's code runs next, and sets the limits of `commit_timeouts`.
SELECT set_config('enable_seqscan', NULL, true), set_config('enable_bitmapscan', NULL, true),
  set_config('enable_hashjoin', NULL, true), set_config('enable_mergejoin', NULL, true),
  set_config('enable_material', NULL, true), set_config('jit', NULL, true),
  set_config('plan_cache_mode', NULL, true), set_config('lock_timeout', '10s', true),
  set_config('idle_in_transaction_session_timeout', :idle::text, true),
  CASE WHEN current_setting('server_version_num')::int >= 170000
    THEN set_config('transaction_timeout', :idle::text, true) END

-- name: renew_left
-- Renews the leases of jobs that a group has locked and does not commit: no heartbeat could renew them meanwhile.
UPDATE interlock.executions e SET lease_expires_at = c.now + (e.lease_expires_at - e.heartbeat_at),
  heartbeat_at = c.now
FROM (SELECT interlock.clock() AS now) c, unnest(:job_id::text::uuid[], :attempt::text::int[], :holder::text::int[],
  :from_status::text::text[], :source::text::text[]) AS a(job_id, attempt, holder, from_status, source)
WHERE e.job_id = ANY (ARRAY[a.job_id, a.job_id]) AND e.attempt = a.attempt AND e.holder = a.holder
  AND e.status = a.from_status

-- name: lock_jobs
-- Runs before a statement that writes an audit note. A note takes the next free number, so its snapshot must be newer
-- than its lock: a statement that waits for its own lock would count with the snapshot from before the wait.
SELECT count(*) FROM (
  SELECT 1 FROM interlock.jobs j WHERE j.id = ANY(:id::text::uuid[]) ORDER BY j.id FOR NO KEY UPDATE) locked

-- name: lock_live
-- The same for the jobs and their current executions, in the order in which `move` locks them.
SELECT count(*) FROM (
  SELECT 1 FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id AND j.attempt = e.attempt
  WHERE j.id = ANY(:id::text::uuid[]) ORDER BY e.job_id, e.attempt FOR NO KEY UPDATE OF e, j) locked

-- name: move
-- One step of each move. Fence, status and state are matched on locked rows; execution, job and audit are written from
-- the match. If a job with a cancel request returns to a waiting state, the request is cleared, since a claim would
-- skip it. A job that waits again is announced even if it is due later, because an idle worker pauses until the next
-- job that it knows of.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :attempt::text::int[], :holder::text::int[], :from_status::text::text[],
    :to_status::text::text[], :source::text::text[],
    :target::text::text[], :event::text::text[], :phase::text::text[], :tries_left::text::int[], :lost::text::int[],
      :delay::text::float8[], :ended_by::text::text[],
    :error::text::text[], :result::text::text[], :frees_key::text::bool[], :held_reason::text::text[],
      :external_id::text::text[], :check_in::text::float8[],
    :missing::text::bool[], :actor::text::text[], :reason::text::text[], :moves_job::text::bool[],
      :refuse_if_cancel_requested::text::bool[], :progress::text::text[], :usage::text::text[]) WITH ORDINALITY
  AS a(job_id, attempt, holder, from_status, to_status, source, target, event, phase, tries_left, lost, delay, ended_by,
    error, result, frees_key, held_reason,
    external_id, check_in, missing, actor, reason, moves_job, refuse_if_cancel_requested, progress, usage, ord)),
matched AS MATERIALIZED (
  SELECT a.*, j.version, e.result AS kept_result, c.now, j.batch IS NOT NULL OR j.awaited AS awaited
  FROM asked a CROSS JOIN clock c
  JOIN interlock.executions e ON e.job_id = ANY (ARRAY[a.job_id, a.job_id]) AND e.attempt = a.attempt
  JOIN interlock.jobs j ON j.id = ANY (ARRAY[a.job_id, a.job_id])
  WHERE (e.holder, e.status, j.state, j.attempt) IS NOT DISTINCT FROM (a.holder, a.from_status, a.source, a.attempt)
    AND NOT (a.refuse_if_cancel_requested AND j.cancel_requested_at IS NOT NULL)
  ORDER BY a.job_id, a.attempt FOR NO KEY UPDATE OF e, j),
settled AS (
  UPDATE interlock.executions e SET status = h.to_status, state = CASE WHEN h.ended_by IS NULL
    THEN h.target ELSE h.source END,
    ended_by = h.ended_by, error = coalesce(h.error, e.error), result = coalesce(h.result::json, e.result),
      heartbeat_at = h.now,
    progress = coalesce(h.progress::json, e.progress), usage = coalesce(h.usage::json, e.usage),
    started_at = CASE WHEN h.to_status IN ('IN_PROGRESS', 'COMMITTED', 'DONE')
      THEN coalesce(e.started_at, h.now) ELSE e.started_at END,
    committed_at = CASE WHEN h.to_status IN ('COMMITTED', 'DONE') THEN coalesce(e.committed_at, h.now) END,
    finished_at = CASE WHEN h.to_status IN ('DONE', 'ABORTED') THEN h.now END,
    external_id = coalesce(h.external_id, e.external_id),
    lease_owner = CASE WHEN h.check_in IS NULL THEN e.lease_owner ELSE 'external:' || e.kind END,
    missing_since = CASE WHEN h.missing IS NULL THEN e.missing_since WHEN h.missing
      THEN coalesce(e.missing_since, h.now) END,
    committed_holder = CASE WHEN h.to_status IN ('COMMITTED', 'DONE') THEN coalesce(e.committed_holder, e.holder) END,
    next_check_at = coalesce(h.now + h.check_in * interval '1 second', e.next_check_at),
    lease_expires_at = CASE WHEN h.check_in IS NOT NULL THEN h.now + h.check_in * interval '1 second'
      WHEN h.ended_by IS NULL THEN h.now + (e.lease_expires_at - e.heartbeat_at) ELSE e.lease_expires_at END
  FROM matched h WHERE e.job_id = ANY (ARRAY[h.job_id, h.job_id]) AND e.attempt = h.attempt),
moved AS (
  UPDATE interlock.jobs j SET state = h.target, phase = h.phase, version = CASE WHEN h.event IS NULL
    THEN j.version ELSE j.version + 1 END,
    tries_left = h.tries_left, lease_losses = j.lease_losses + h.lost,
      due_at = coalesce(h.now + h.delay * interval '1 second', j.due_at),
    finished_at = CASE WHEN h.phase IN ('succeeded', 'failed')
      THEN h.now END, last_error = coalesce(h.error, j.last_error),
    result = CASE WHEN h.phase = 'succeeded' THEN coalesce(h.result::json, h.kept_result) END, key_freed = j.key_freed
      OR h.frees_key,
    held_at = CASE WHEN h.held_reason IS NOT NULL THEN h.now END, held_reason = h.held_reason,
    cancel_requested_at = CASE WHEN h.ended_by IS NULL OR h.phase <> 'pending' THEN j.cancel_requested_at END,
    cancel_requested_by = CASE WHEN h.ended_by IS NULL OR h.phase <> 'pending' THEN j.cancel_requested_by END,
    cancel_reason = CASE WHEN h.ended_by IS NULL OR h.phase <> 'pending' THEN j.cancel_reason END,
    updated_at = greatest(h.now, j.updated_at + interval '1 microsecond')
  FROM matched h WHERE j.id = ANY (ARRAY[h.job_id, h.job_id]) AND h.moves_job),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor, reason)
  SELECT h.job_id, h.version + 1, 0, h.attempt, h.now, h.event, h.source, h.target, h.actor, h.reason FROM matched h
    WHERE h.event IS NOT NULL
  UNION ALL
  SELECT h.job_id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a
    WHERE a.job_id = h.job_id AND a.version = h.version), 0),
    h.attempt, h.now, h.ended_by, NULL, NULL, h.actor, h.reason FROM matched h
      WHERE h.event IS NULL AND h.ended_by IS NOT NULL AND h.held_reason IS NULL
  UNION ALL
  SELECT h.job_id, CASE WHEN h.event IS NULL THEN h.version ELSE h.version + 1 END,
    1 + coalesce((SELECT max(a.n) FROM interlock.audit a WHERE a.job_id = h.job_id AND a.version = CASE
      WHEN h.event IS NULL THEN h.version ELSE h.version + 1 END), 0),
    h.attempt, h.now, 'hold', NULL, NULL, h.actor, h.held_reason FROM matched h WHERE h.held_reason IS NOT NULL)
SELECT array_agg(h.ord::int), bool_or(h.awaited AND h.phase IN ('succeeded', 'failed')), (SELECT {notify} FROM matched w
  WHERE w.moves_job AND w.phase = 'pending' AND w.held_reason IS NULL LIMIT 1) FROM matched h

-- name: finish
-- The common move: executions succeed by one transition, with nothing else to store. It writes what `move` would write,
-- without a separate pass for the locks, and leaves out every execution that does not match. If an execution matches
-- and its job does not, nothing is written.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :attempt::text::int[], :holder::text::int[], :tries_left::text::int[],
    :result::text::text[]) WITH ORDINALITY AS a(job_id, attempt, holder, tries_left, result, ord)),
settled AS (
  UPDATE interlock.executions e SET status = 'DONE', ended_by = 'succeed', result = coalesce(a.result::json, e.result),
    heartbeat_at = c.now, committed_at = c.now, finished_at = c.now, committed_holder = e.holder
  FROM asked a CROSS JOIN clock c
  WHERE e.job_id = ANY (ARRAY[a.job_id, a.job_id]) AND e.attempt = a.attempt
    AND (e.holder, e.status, e.state) IS NOT DISTINCT FROM (a.holder, 'IN_PROGRESS', :source::text)
  RETURNING a.ord, a.job_id, a.attempt, a.tries_left, e.result, c.now),
moved AS (
  UPDATE interlock.jobs j SET state = :target::text, phase = 'succeeded', version = j.version + 1,
    tries_left = s.tries_left, finished_at = s.now, result = s.result,
    updated_at = greatest(s.now, j.updated_at + interval '1 microsecond')
  FROM settled s
  WHERE j.id = ANY (ARRAY[s.job_id, s.job_id]) AND (j.state, j.attempt) IS NOT DISTINCT FROM (:source::text, s.attempt)
  RETURNING j.id, j.version, j.attempt, s.now, s.ord, j.batch IS NOT NULL OR j.awaited AS awaited),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
  SELECT m.id, m.version, 0, m.attempt, m.now, 'succeed', :source::text, :target::text, :actor::text FROM moved m)
SELECT array_agg(m.ord::int), bool_or(m.awaited),
  interlock.check_in_step((SELECT count(*) FROM settled), count(*)) FROM moved m

-- name: require_moved
-- Fails unless the move is written and this is still the transaction of the lock, so that a COMMIT in the same pipeline
-- never stores a caller's writes without the move.
SELECT 1 / count(*) FROM interlock.executions e JOIN interlock.jobs j ON j.id = e.job_id
WHERE e.job_id = :job_id::text::uuid AND e.attempt = :attempt::int AND e.status = :status::text
  AND j.version = :version::int AND pg_current_xact_id() = :transaction::text::xid8

-- name: present
-- The rows that a refused move did not match. Read after the refused statement, which waited for their locks.
SELECT j.id::text, e.attempt, e.holder, e.status, e.ended_by, j.state, j.version
FROM unnest(:job_id::text::uuid[], :attempt::text::int[]) AS a(job_id, attempt)
LEFT JOIN interlock.jobs j ON j.id = ANY (ARRAY[a.job_id, a.job_id])
LEFT JOIN interlock.executions e ON e.job_id = ANY (ARRAY[a.job_id, a.job_id]) AND e.attempt = a.attempt

-- name: take
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:job_id::text::uuid[], :version::text::int[], :source::text::text[], :target::text::text[],
    :event::text::text[], :phase::text::text[],
    :frees_key::text::bool[], :actor::text::text[], :reason::text::text[]) WITH ORDINALITY
  AS a(job_id, version, source, target, event, phase, frees_key, actor, reason, ord)),
matched AS MATERIALIZED (
  SELECT a.*, j.attempt, j.kind, c.now, j.batch IS NOT NULL OR j.awaited AS awaited FROM asked a CROSS JOIN clock c
  JOIN interlock.jobs j ON j.id = ANY (ARRAY[a.job_id, a.job_id])
  WHERE (j.version, j.state, j.phase) IS NOT DISTINCT FROM (a.version, a.source, 'pending')
  ORDER BY a.job_id FOR NO KEY UPDATE OF j),
taken AS (
  UPDATE interlock.jobs j SET state = h.target, phase = h.phase, version = j.version + 1, attempt = j.attempt + 1,
    finished_at = h.now,
    key_freed = j.key_freed OR h.frees_key, held_at = NULL, held_reason = NULL, blocked_at = NULL,
      last_error = coalesce(h.reason, j.last_error),
    updated_at = greatest(h.now, j.updated_at + interval '1 microsecond')
  FROM matched h WHERE j.id = ANY (ARRAY[h.job_id, h.job_id])),
recorded AS (
  INSERT INTO interlock.executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status,
    state, ended_by, error, leased_at, finished_at)
  SELECT h.job_id, h.attempt + 1, 1, h.kind, h.actor, h.now, h.now, 'ABORTED', h.source, h.event, h.reason, h.now, h.now
    FROM matched h),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, from_state, to_state, actor, reason)
  SELECT h.job_id, h.version + 1, 0, h.attempt + 1, h.now, h.event, h.source, h.target, h.actor, h.reason
    FROM matched h)
SELECT array_agg(h.ord::int), bool_or(h.awaited) FROM matched h
