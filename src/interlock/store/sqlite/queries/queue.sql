-- The statements of the SQLite store, by name. `:name` is a parameter, `{name}` a fragment of this file.
--
-- The names are those of the PostgreSQL store; what is one statement there and several here has its name before the dot.
-- differs: SQLite has one writer, so BEGIN IMMEDIATE stands in for row locks. Lists come as JSON arrays.
-- differs: `:now` is a parameter, from the clock that the store was given; durations are added to it before they come here.
-- differs: INDEXED BY and CROSS JOIN fix the plans, so there is no `steady`, and one writer needs no `archiving`; a file's lock has its own time-out, so there is no `guarded`; `now` is the store's own clock, and no server is `up_for` any time.
-- differs: the triggers look arrows up in the registered rows, so nothing is generated: there are no `live_versions`, `enforced_hops`, `enforced_phases`.
-- differs: a subquery in FROM cannot see its neighbour. What PostgreSQL writes as LATERAL … LIMIT is here json_each over the array of one correlated subquery; its values
-- begin with a time of fixed width, so that they sort.
-- differs: the one writer numbers remarks alone, so there are no `lock_jobs` and `lock_live`.
-- differs: LIMIT has a sum, because newer SQLite plans a statement anew whenever a bare parameter there is bound.

-- fragment: job
j.id, j.kind, j.queue, j.priority, j.lifecycle, j.lifecycle_version, j.state, j.phase, j.version, j.attempt, j.tries, j.tries_left, j.lease_losses,
j.payload, j.tags, j.trace, j.result, j.last_error, j.due_at, j.expires_at, j.scheduled_for, j.created_at, j.updated_at, j.finished_at,
j.idempotency_key, j.key_released, j.unique_key, j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.held_at, j.held_reason, j.redrive_of,
j.root

-- fragment: summary
-- The same without payload and result, which may be a megabyte each.
j.id, j.kind, j.queue, j.priority, j.lifecycle, j.lifecycle_version, j.state, j.phase, j.version, j.attempt, j.tries,
j.tries_left, j.lease_losses, '{}', j.tags, j.trace, NULL, j.last_error, j.due_at, j.expires_at,
j.scheduled_for, j.created_at, j.updated_at, j.finished_at, j.idempotency_key, j.key_released, j.unique_key,
j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.held_at, j.held_reason, j.redrive_of, j.root

-- fragment: claimed
-- The same of the row that a statement returns, which has no other name.
id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, version, attempt, tries, tries_left, lease_losses,
payload, tags, trace, result, last_error, due_at, expires_at, scheduled_for, created_at, updated_at, finished_at,
idempotency_key, key_released, unique_key, cancel_requested_at, cancel_requested_by, cancel_reason, held_at, held_reason, redrive_of,
root

-- fragment: execution
e.job_id, e.attempt, e.holder, e.kind, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.status, e.state, e.ended_by, e.error, e.external_id,
e.missing_since, e.next_check_at, e.progress, e.usage, e.result, e.leased_at, e.started_at, e.committed_at, e.finished_at

-- fragment: refreshed
-- The present, or where that is not later than the row's last change, one microsecond after it.
CASE WHEN updated_at < :now THEN :now
  ELSE strftime('%Y-%m-%dT%H:%M:%S', substr(updated_at, 1, 19), printf('+%d seconds', substr(updated_at, 21, 6) = '999999'))
    || printf('.%06dZ', (substr(updated_at, 21, 6) + 1) % 1000000) END

-- fragment: ready
j.phase = 'pending' AND j.expires_at IS NULL AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.lease_losses = 0

-- fragment: mortal
j.phase = 'pending' AND j.expires_at IS NOT NULL AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.lease_losses = 0

-- fragment: suspect
j.phase = 'pending' AND j.held_at IS NULL AND j.cancel_requested_at IS NULL AND j.lease_losses > 0

-- fragment: companionable
-- Where no place is left for jobs that must run alone, those that may share a process are taken.
(:alone OR (j.lease_losses = 1 AND j.tries_left > 1))

-- fragment: known
instr(h.states, ' ' || j.lifecycle || '/' || j.state || ' ') > 0 AND j.id NOT IN (SELECT value FROM json_each(:aside))

-- fragment: leased
e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (e.external_id IS NULL OR e.status = 'COMMITTED')

-- fragment: handed_over
e.status IN ('LEASED', 'IN_PROGRESS') AND e.external_id IS NOT NULL

-- fragment: resting
-- It is in nobody's hands: what ends at its `lease_expires_at` is not a lease, but the time until its next check.
e.lease_owner = 'external:' || e.kind

-- fragment: stoppable
EXISTS (SELECT 1 FROM interlock_lifecycle_edges d WHERE d.lifecycle = j.lifecycle AND d.version = j.lifecycle_version AND d.source = j.state AND d.event = 'cancel')

-- name: enqueue
-- differs: a key that is held is asked for before, because the trigger that refuses REPLACE would refuse the conflict too; and what was stored is then read, not returned,
-- so that the answer does not depend on how many statements it took.
INSERT INTO interlock_jobs (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left, due_at, expires_at, created_at, updated_at,
  idempotency_key, unique_key, payload, tags, trace, scheduled_for, redrive_of, root)
SELECT a.id, a.kind, a.queue, a.priority, a.lifecycle, a.lifecycle_version, a.state, 'pending', a.tries, a.tries, a.due_at, a.expires_at, :now, :now,
  a.idempotency_key, a.unique_key, a.payload, a.tags, a.trace, a.scheduled_for, a.redrive_of, a.root
FROM (
  SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS kind, json_extract(value, '$[2]') AS queue,
    json_extract(value, '$[3]') AS priority, json_extract(value, '$[4]') AS lifecycle, json_extract(value, '$[5]') AS lifecycle_version,
    json_extract(value, '$[6]') AS state, json_extract(value, '$[7]') AS tries, json_extract(value, '$[8]') AS due_at,
    json_extract(value, '$[9]') AS expires_at, json_extract(value, '$[10]') AS idempotency_key, json_extract(value, '$[11]') AS unique_key,
    json_extract(value, '$[12]') AS payload, json_extract(value, '$[13]') AS tags, json_extract(value, '$[14]') AS trace,
    json_extract(value, '$[15]') AS scheduled_for, json_extract(value, '$[16]') AS redrive_of, json_extract(value, '$[17]') AS root
  FROM json_each(:jobs)) a
WHERE (a.idempotency_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM interlock_jobs h INDEXED BY interlock_jobs_idempotency
    WHERE h.kind = a.kind AND h.idempotency_key = a.idempotency_key AND h.idempotency_key IS NOT NULL AND h.key_released = 0))
  AND (a.unique_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM interlock_jobs h INDEXED BY interlock_jobs_unique
    WHERE h.kind = a.kind AND h.unique_key = a.unique_key AND h.unique_key IS NOT NULL AND h.phase IN ('pending', 'running')))

-- name: enqueue.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
SELECT j.id, 0, 0, NULL, j.created_at, 'enqueue', NULL, j.state, a.value FROM json_each(:actors) a CROSS JOIN interlock_jobs j ON j.id = a.key

-- name: enqueue.stored
SELECT j.id FROM json_each(:ids) a CROSS JOIN interlock_jobs j ON j.id = a.value

-- name: holders
SELECT a.key, i.id, i.payload, i.state, (
    SELECT u.id FROM interlock_jobs u INDEXED BY interlock_jobs_unique
    WHERE u.kind = json_extract(a.value, '$[0]') AND u.unique_key = json_extract(a.value, '$[2]') AND u.unique_key IS NOT NULL AND u.phase IN ('pending', 'running'))
FROM json_each(:keys) a LEFT JOIN interlock_jobs i ON i.id = (
    SELECT h.id FROM interlock_jobs h INDEXED BY interlock_jobs_idempotency
    WHERE h.kind = json_extract(a.value, '$[0]') AND h.idempotency_key = json_extract(a.value, '$[1]') AND h.idempotency_key IS NOT NULL AND h.key_released = 0)

-- name: inherit
-- A redrive takes over what is known, and what is in doubt, of the job that it repeats.
INSERT INTO interlock_receipts (job_id, name, kind, attempt, holder, args_hash, value, asked_at, applied_at, decided_by)
SELECT a.key, r.name, r.kind, 0, 0, r.args_hash, r.value, r.asked_at, r.applied_at, r.decided_by
FROM json_each(:redrives) a CROSS JOIN interlock_receipts r ON r.job_id = a.value

-- name: hasten
UPDATE interlock_jobs SET due_at = :now, updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids)) AND phase = 'pending' AND state IN (SELECT value FROM json_each(:resting)) AND due_at > :now

-- name: limits
-- How many more jobs of a limited kind, or in a limited queue, may run: what lives is counted, by the indexes of leases.
-- differs: read inside the writer's own transaction, so that nothing has to be locked.
SELECT 'kind', k.name, k.max_running
  - (SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_leases WHERE e.kind = k.name AND {leased})
  - (SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_external WHERE e.kind = k.name AND {handed_over})
FROM interlock_kinds k WHERE k.max_running IS NOT NULL
UNION ALL
SELECT 'queue', q.name, q.max_running
  - (SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_leases CROSS JOIN interlock_jobs j ON j.id = e.job_id WHERE j.queue = q.name AND {leased})
  - (SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_external CROSS JOIN interlock_jobs j ON j.id = e.job_id WHERE j.queue = q.name AND {handed_over})
FROM interlock_queues q WHERE q.max_running IS NOT NULL

-- fragment: heads
-- The first job of each queue, kind and priority, each found by one step down the index.
lines(queue, kind, states) AS MATERIALIZED (
  SELECT q.value, json_extract(k.value, '$[0]'), json_extract(k.value, '$[1]') FROM json_each(:queues) q CROSS JOIN json_each(:kinds) k
  WHERE NOT EXISTS (SELECT 1 FROM interlock_queues p WHERE p.name = q.value AND p.paused_at IS NOT NULL)),
heads(queue, kind, states, priority) AS (
  SELECT l.queue, l.kind, l.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_ready WHERE j.queue = l.queue AND j.kind = l.kind AND {ready} ORDER BY j.priority DESC LIMIT 1) FROM lines l
  UNION ALL
  SELECT h.queue, h.kind, h.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_ready
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority < h.priority AND {ready} ORDER BY j.priority DESC LIMIT 1) FROM heads h WHERE h.priority IS NOT NULL),
mortal_heads(queue, kind, states, priority) AS (
  SELECT l.queue, l.kind, l.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_ready_mortal WHERE j.queue = l.queue AND j.kind = l.kind AND {mortal} ORDER BY j.priority DESC LIMIT 1) FROM lines l
  UNION ALL
  SELECT h.queue, h.kind, h.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_ready_mortal
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority < h.priority AND {mortal} ORDER BY j.priority DESC LIMIT 1) FROM mortal_heads h WHERE h.priority IS NOT NULL),
suspect_heads(queue, kind, states, priority) AS (
  SELECT l.queue, l.kind, l.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_suspect WHERE j.queue = l.queue AND j.kind = l.kind AND {suspect} ORDER BY j.priority DESC LIMIT 1)
  FROM lines l WHERE :suspects <> 0
  UNION ALL
  SELECT h.queue, h.kind, h.states, (
    SELECT j.priority FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority < h.priority AND {suspect} ORDER BY j.priority DESC LIMIT 1) FROM suspect_heads h WHERE h.priority IS NOT NULL)

-- name: pick
-- What a claim would take, in its order, limits apart. It walks the ready index by queue, kind and priority, head by head, so that nothing that is delayed, foreign, held or
-- expired is ever stepped through. Suspects come by a walk of their own: of each line at most `:suspects`, and `:most_suspects` in all.
WITH RECURSIVE
{heads},
suspects(queue, kind, priority, place) AS (
  SELECT h.queue, h.kind, h.priority, p.value FROM suspect_heads h CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
    SELECT j.due_at || j.id || j.state AS place FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority AND j.expires_at IS NULL AND j.due_at <= :now AND {suspect} AND {companionable} AND {known}
    ORDER BY j.due_at, j.id LIMIT :suspects + 0) c)) p WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT h.queue, h.kind, h.priority, p.value FROM suspect_heads h CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
    SELECT j.due_at || j.id || j.state AS place FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority AND j.expires_at > :now AND j.due_at <= :now AND {suspect} AND {companionable} AND {known}
    ORDER BY j.expires_at, j.due_at, j.id LIMIT :suspects + 0) c)) p WHERE h.priority IS NOT NULL),
picked(queue, kind, priority, place, suspect) AS (
  SELECT h.queue, h.kind, h.priority, p.value, 0 FROM heads h CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
    SELECT j.due_at || j.id || j.state AS place FROM interlock_jobs j INDEXED BY interlock_jobs_ready
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority AND j.due_at <= :now AND {ready} AND {known}
    ORDER BY j.due_at, j.id LIMIT :limit + 0) c)) p WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT h.queue, h.kind, h.priority, p.value, 0 FROM mortal_heads h CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
    SELECT j.due_at || j.id || j.state AS place FROM interlock_jobs j INDEXED BY interlock_jobs_ready_mortal
    WHERE j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority AND j.expires_at > :now AND j.due_at <= :now AND {mortal} AND {known}
    ORDER BY j.expires_at, j.id LIMIT :limit + 0) c)) p WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT s.queue, s.kind, s.priority, s.place, 1 FROM (SELECT * FROM suspects ORDER BY priority DESC, place LIMIT :most_suspects + 0) s)
SELECT substr(place, 28, 36), kind, substr(place, 64), queue, suspect FROM picked ORDER BY priority DESC, place LIMIT :most + 0

-- fragment: here
j.queue = h.queue AND j.kind = h.kind AND j.priority = h.priority

-- name: due_in
-- When the soonest is due. What is due now is asked for first, and the first job found is enough. Jobs with a TTL stand by their end: only where nothing is due are all
-- of them looked at.
WITH RECURSIVE
{heads},
soonest(due_at) AS (
  SELECT (SELECT j.due_at FROM interlock_jobs j INDEXED BY interlock_jobs_ready WHERE {here} AND {ready} AND {known} ORDER BY j.due_at, j.id LIMIT 1)
  FROM heads h WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT (
    SELECT j.due_at FROM interlock_jobs j INDEXED BY interlock_jobs_suspect WHERE {here} AND j.expires_at IS NULL AND {suspect} AND {known} ORDER BY j.due_at, j.id LIMIT 1)
  FROM suspect_heads h WHERE h.priority IS NOT NULL),
due(due_at) AS (
  SELECT s.due_at FROM soonest s WHERE s.due_at <= :now
  UNION ALL
  SELECT :now FROM mortal_heads h WHERE h.priority IS NOT NULL AND EXISTS (
    SELECT 1 FROM interlock_jobs j INDEXED BY interlock_jobs_ready_mortal WHERE {here} AND j.expires_at > :now AND j.due_at <= :now AND {mortal} AND {known})
  UNION ALL
  SELECT :now FROM suspect_heads h WHERE h.priority IS NOT NULL AND EXISTS (
    SELECT 1 FROM interlock_jobs j INDEXED BY interlock_jobs_suspect WHERE {here} AND j.expires_at > :now AND j.due_at <= :now AND {suspect} AND {known})),
later(due_at) AS (
  SELECT s.due_at FROM soonest s
  UNION ALL
  SELECT (
    SELECT min(j.due_at) FROM interlock_jobs j INDEXED BY interlock_jobs_ready_mortal WHERE {here} AND j.expires_at > :now AND j.due_at < j.expires_at AND {mortal} AND {known})
  FROM mortal_heads h WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT (
    SELECT min(j.due_at) FROM interlock_jobs j INDEXED BY interlock_jobs_suspect WHERE {here} AND j.expires_at > :now AND j.due_at < j.expires_at AND {suspect} AND {known})
  FROM suspect_heads h WHERE h.priority IS NOT NULL)
SELECT CASE WHEN EXISTS (SELECT 1 FROM due) THEN :now ELSE (SELECT min(l.due_at) FROM later l) END

-- name: claim
-- The jobs of one way, as they are when claimed.
-- differs: SQLite has no writing CTE, so each table has its statement; and one statement per way, since what is common to its rows is then bound once.
UPDATE interlock_jobs SET state = :target, phase = 'running', version = version + :arrows, attempt = attempt + 1, lifecycle_version = :lifecycle_version,
  updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids)) AND kind = :kind AND lifecycle = :lifecycle AND state = :state AND phase = 'pending' RETURNING {claimed}

-- name: claim.execution
INSERT INTO interlock_executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status, state, leased_at, started_at)
SELECT j.id, j.attempt, 1, j.kind, :by, :until, :now, :status, j.state, :now, CASE WHEN :status = 'IN_PROGRESS' THEN :now END
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: claim.audit
-- One arrow of the way; `:ahead` arrows follow it.
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
SELECT j.id, j.version - :ahead, 0, j.attempt, :now, :event, :source, :target, :by FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: claim.remark
-- Where the way draws no arrow.
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a WHERE a.job_id = j.id AND a.version = j.version), 0), j.attempt, :now, 'claim', :by
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: lock
-- The first half of a commit: the rows of one move, if they still are what it found.
SELECT {job} FROM interlock_executions e CROSS JOIN interlock_jobs j ON j.id = e.job_id
WHERE e.job_id = :job_id AND e.attempt = :attempt AND e.holder = :holder AND e.status = :from_status AND j.state = :source AND j.attempt = :attempt

-- name: lock.file
-- differs: no row can be locked, so the file is, by a write that changes nothing; in a transaction that has only begun this makes its caller the writer.
UPDATE interlock_schema_version SET version = version WHERE version < 0

-- name: lock_waiting
SELECT {job} FROM interlock_jobs j WHERE j.id = :job_id AND j.version = :version AND j.state = :source AND j.phase = 'pending'

-- name: move
-- One hop of moves that differ only in the job, its result, and what it has to show: `:shown` has the progress and usage of those that have any, by job. The execution first: its fence, and that the job stands where the move found it, decide what is written.
-- differs: SQLite has no writing CTE, so each table has its statement; and one statement per group, since what is common to its rows is then bound once.
UPDATE interlock_executions SET status = :to_status, state = CASE WHEN :ended_by IS NULL THEN :target ELSE :source END,
  ended_by = :ended_by, error = coalesce(:error, error), result = coalesce(r.value, result), heartbeat_at = :now,
  progress = coalesce(json_extract(:shown, '$."' || r.key || '"[0]'), progress), usage = coalesce(json_extract(:shown, '$."' || r.key || '"[1]'), usage),
  started_at = CASE WHEN :to_status IN ('IN_PROGRESS', 'COMMITTED', 'DONE') THEN coalesce(started_at, :now) ELSE started_at END,
  committed_at = CASE WHEN :to_status IN ('COMMITTED', 'DONE') THEN coalesce(committed_at, :now) END,
  finished_at = CASE WHEN :to_status IN ('DONE', 'ABORTED') THEN :now END,
  external_id = coalesce(:external_id, external_id),
  lease_owner = CASE WHEN :check_at IS NULL THEN lease_owner ELSE 'external:' || kind END,
  missing_since = CASE WHEN :missing IS NULL THEN missing_since WHEN :missing THEN coalesce(missing_since, :now) END,
  committed_holder = CASE WHEN :to_status IN ('COMMITTED', 'DONE') THEN coalesce(committed_holder, holder) END,
  next_check_at = coalesce(:check_at, next_check_at),
  lease_expires_at = CASE WHEN :check_at IS NOT NULL THEN :check_at WHEN :ended_by IS NOT NULL THEN lease_expires_at
    ELSE (SELECT strftime('%Y-%m-%dT%H:%M:%S', x.us / 1000000, 'unixepoch') || printf('.%06dZ', x.us % 1000000) FROM (
      SELECT :now_us + (strftime('%s', lease_expires_at) - strftime('%s', heartbeat_at)) * 1000000 + substr(lease_expires_at, 21, 6) - substr(heartbeat_at, 21, 6) AS us) x) END
FROM json_each(:results) r
WHERE job_id = r.key AND attempt = :attempt AND holder = :holder AND status = :from_status
  AND EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = r.key AND j.state = :source AND j.attempt = :attempt AND NOT (:blind AND j.cancel_requested_at IS NOT NULL))
RETURNING job_id

-- name: move.job
-- A job that waits again although it was asked to stop cannot be stopped there: its request ends, or nobody would ever claim it.
UPDATE interlock_jobs SET state = :target, phase = :phase, version = version + (:event IS NOT NULL), tries_left = :tries_left, lease_losses = lease_losses + :lost,
  due_at = coalesce(:due_at, due_at), finished_at = CASE WHEN :phase IN ('succeeded', 'failed') THEN :now END, last_error = coalesce(:error, last_error),
  result = CASE WHEN :phase = 'succeeded' THEN (SELECT e.result FROM interlock_executions e WHERE e.job_id = interlock_jobs.id AND e.attempt = :attempt) END,
  key_released = max(key_released, :releases_key), held_at = CASE WHEN :held_reason IS NOT NULL THEN :now END, held_reason = :held_reason,
  cancel_requested_at = CASE WHEN :ended_by IS NULL OR :phase <> 'pending' THEN cancel_requested_at END,
  cancel_requested_by = CASE WHEN :ended_by IS NULL OR :phase <> 'pending' THEN cancel_requested_by END,
  cancel_reason = CASE WHEN :ended_by IS NULL OR :phase <> 'pending' THEN cancel_reason END, updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: move.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor, reason)
SELECT j.id, j.version, 0, :attempt, :now, :event, :source, :target, :actor, :reason FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: present
-- What stands in the way of a refused move.
SELECT j.id, e.attempt, e.holder, e.status, e.ended_by, j.state, j.version
FROM json_each(:asked) a CROSS JOIN interlock_jobs j ON j.id = json_extract(a.value, '$[0]')
LEFT JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = json_extract(a.value, '$[1]')

-- name: take
UPDATE interlock_jobs SET state = :target, phase = :phase, version = version + 1, attempt = attempt + 1, finished_at = :now,
  key_released = max(key_released, :releases_key), held_at = NULL, held_reason = NULL, last_error = coalesce(:reason, last_error), updated_at = {refreshed}
WHERE id = :job_id AND version = :version AND state = :source AND phase = 'pending' RETURNING id

-- name: take.execution
INSERT INTO interlock_executions (job_id, attempt, holder, kind, lease_owner, lease_expires_at, heartbeat_at, status, state, ended_by, error, leased_at, finished_at)
SELECT j.id, j.attempt, 1, j.kind, :actor, :now, :now, 'ABORTED', :source, :event, :reason, :now, :now FROM interlock_jobs j WHERE j.id = :job_id

-- name: take.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor, reason)
SELECT j.id, j.version, 0, j.attempt, :now, :event, :source, :target, :actor, :reason FROM interlock_jobs j WHERE j.id = :job_id

-- name: renew
-- What was handed over since is in nobody's hands: a late beat must not put its next check off.
-- differs: the one writer is never busy with the row it renews.
UPDATE interlock_executions SET lease_expires_at = :until, heartbeat_at = :now, progress = coalesce(:progress, progress), usage = coalesce(:usage, usage)
WHERE job_id = :job_id AND attempt = :attempt AND holder = :holder AND status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND lease_owner <> 'external:' || kind

-- name: renew.cancels
SELECT j.id FROM json_each(:ids) a CROSS JOIN interlock_jobs j ON j.id = a.value WHERE j.cancel_requested_at IS NOT NULL

-- name: unrenewed
-- differs: asked in the same transaction: what is still ours was renewed, but for what was handed over since, which counts as busy.
SELECT a.key, e.job_id IS NOT NULL, {resting} FROM json_each(:fences) a LEFT JOIN interlock_executions e
  ON e.job_id = json_extract(a.value, '$[0]') AND e.attempt = json_extract(a.value, '$[1]') AND e.holder = json_extract(a.value, '$[2]')
  AND e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')

-- name: strays
-- Over what lives now, never over what has ended.
SELECT e.job_id, e.attempt, e.holder FROM interlock_executions e INDEXED BY interlock_executions_leases
WHERE {leased} AND e.lease_owner = :by AND e.job_id NOT IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT e.job_id, e.attempt, e.holder FROM interlock_executions e INDEXED BY interlock_executions_external
WHERE {handed_over} AND e.lease_owner = :by AND e.job_id NOT IN (SELECT value FROM json_each(:ids))
ORDER BY 1

-- name: adopt
SELECT substr(p.value, 28, 36), CAST(substr(p.value, 64) AS INTEGER) FROM json_each(:kinds) k CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
  SELECT e.lease_expires_at || e.job_id || e.attempt AS place FROM interlock_executions e INDEXED BY interlock_executions_leases
  WHERE e.kind = k.value AND e.lease_expires_at <= :now AND {leased}
    AND (e.status <> 'COMMITTED' OR k.value IN (SELECT value FROM json_each(:committed))) ORDER BY e.lease_expires_at LIMIT :limit + 0) c)) p
ORDER BY p.value LIMIT :limit + 0

-- name: adopt.execution
UPDATE interlock_executions SET lease_owner = :by, holder = holder + 1, heartbeat_at = :now, lease_expires_at = :until
FROM json_each(:ended) a WHERE job_id = json_extract(a.value, '$[0]') AND attempt = json_extract(a.value, '$[1]') AND (lease_expires_at <= :now OR lease_owner = 'external:' || kind) AND status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')

-- name: adopt.adopted
SELECT {job}, e.holder, e.status, e.external_id, e.result, e.holder - e.committed_holder, e.missing_since FROM json_each(:ids) a CROSS JOIN interlock_jobs j ON j.id = a.value
CROSS JOIN interlock_executions e INDEXED BY interlock_executions_one ON e.job_id = j.id AND e.status <> 'ABORTED' ORDER BY j.id

-- name: adopt_external
SELECT substr(p.value, 28, 36), CAST(substr(p.value, 64) AS INTEGER) FROM json_each(:kinds) k CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
  SELECT e.lease_expires_at || e.job_id || e.attempt AS place FROM interlock_executions e INDEXED BY interlock_executions_external
  WHERE e.kind = k.value AND e.lease_expires_at <= :now AND {handed_over} ORDER BY e.lease_expires_at LIMIT :limit + 0) c)) p
ORDER BY p.value LIMIT :limit + 0

-- name: recall
-- Those asked to stop where that is drawn, whatever their next check; the others go on, and are left to it, as is what somebody has in hand.
SELECT substr(p.value, 28, 36), CAST(substr(p.value, 64) AS INTEGER) FROM json_each(:kinds) k CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
  SELECT j.cancel_requested_at || e.job_id || e.attempt AS place FROM interlock_jobs j INDEXED BY interlock_jobs_stopping
  CROSS JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt
  WHERE j.kind = k.value AND j.phase = 'running' AND j.cancel_requested_at IS NOT NULL AND {handed_over} AND {resting} AND {stoppable}
  ORDER BY j.cancel_requested_at LIMIT :limit + 0) c)) p
ORDER BY p.value LIMIT :limit + 0

-- name: recall_named
SELECT e.job_id, e.attempt FROM interlock_executions e INDEXED BY interlock_executions_external_id
WHERE e.kind IN (SELECT value FROM json_each(:kinds)) AND e.external_id = :external_id AND {handed_over} AND (e.lease_expires_at <= :now OR {resting})
ORDER BY e.job_id LIMIT :limit + 0

-- name: handed
SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_external_id WHERE e.kind = :kind AND e.external_id = :external_id AND {handed_over}

-- name: request_cancel
SELECT j.attempt, j.cancel_requested_at IS NULL FROM interlock_jobs j CROSS JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt
WHERE j.id = :id AND j.phase = 'running' AND e.status IN ('LEASED', 'IN_PROGRESS')

-- name: request_cancel.job
UPDATE interlock_jobs SET cancel_requested_at = :now, cancel_requested_by = :by, cancel_reason = :reason, updated_at = {refreshed}
WHERE id = :id AND cancel_requested_at IS NULL

-- name: remark
-- differs: moves write theirs by it too.
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor, reason)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a WHERE a.job_id = j.id AND a.version = j.version), 0), :attempt, :now, :event, :actor, :reason
FROM json_each(:ids) i CROSS JOIN interlock_jobs j ON j.id = i.value

-- name: release
-- differs: the receipts and the remark have statements of their own, in the same transaction.
UPDATE interlock_jobs SET held_at = NULL, held_reason = NULL, due_at = :now, updated_at = {refreshed} WHERE id = :id AND held_at IS NOT NULL RETURNING attempt

-- name: release.happened
UPDATE interlock_receipts SET value = :value, applied_at = :now, decided_by = :by WHERE job_id = :id AND kind = 'effect' AND applied_at IS NULL RETURNING name

-- name: release.did_not
DELETE FROM interlock_receipts WHERE job_id = :id AND kind = 'effect' AND applied_at IS NULL RETURNING name

-- name: release.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, actor, reason, detail)
SELECT j.id, j.version, 1 + coalesce((SELECT max(a.n) FROM interlock_audit a WHERE a.job_id = j.id AND a.version = j.version), 0), j.attempt, :now, 'release', :by, :reason, :detail
FROM interlock_jobs j WHERE j.id = :id

-- name: receipts
-- differs: how old each is, is reckoned from its time by the store.
SELECT r.name, r.kind, r.attempt, r.holder, r.args_hash, r.value, r.applied_at IS NOT NULL, coalesce(r.applied_at, r.asked_at), r.decided_by
FROM interlock_receipts r WHERE r.job_id = :job_id ORDER BY r.name

-- fragment: fenced
FROM interlock_executions e
WHERE e.job_id = :job_id AND e.attempt = :attempt AND e.holder = :holder AND e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED')

-- name: remember
INSERT INTO interlock_receipts (job_id, name, kind, attempt, holder, args_hash, value, asked_at, applied_at)
SELECT e.job_id, :name, 'step', e.attempt, e.holder, :args_hash, :value, :now, :now {fenced}
  AND NOT EXISTS (SELECT 1 FROM interlock_receipts r WHERE r.job_id = :job_id AND r.name = :name AND r.kind <> 'step')
ON CONFLICT (job_id, name) DO UPDATE SET attempt = excluded.attempt, holder = excluded.holder, args_hash = excluded.args_hash, value = excluded.value,
  asked_at = excluded.asked_at, applied_at = excluded.applied_at
RETURNING 1

-- name: ask
-- differs: that there is no receipt is asked for before, because the trigger that refuses REPLACE would refuse the conflict too.
INSERT INTO interlock_receipts (job_id, name, kind, attempt, holder, args_hash, asked_at)
SELECT e.job_id, :name, 'effect', e.attempt, e.holder, :args_hash, :now {fenced}
  AND NOT EXISTS (SELECT 1 FROM interlock_receipts r WHERE r.job_id = :job_id AND r.name = :name AND r.applied_at IS NOT NULL)
ON CONFLICT (job_id, name) DO UPDATE SET attempt = excluded.attempt, holder = excluded.holder, args_hash = excluded.args_hash, asked_at = excluded.asked_at
RETURNING 1

-- name: apply
-- The same answer sent again finds itself written, and changes nothing.
UPDATE interlock_receipts SET value = :value, applied_at = coalesce(applied_at, :now), decided_by = coalesce(decided_by, :decided_by)
WHERE job_id = :job_id AND name = :name AND kind = 'effect' AND attempt = :attempt AND holder = :holder AND (applied_at IS NULL OR value IS :value)
RETURNING 1

-- name: unask
DELETE FROM interlock_receipts
WHERE job_id = :job_id AND name = :name AND kind = 'effect' AND attempt = :attempt AND holder = :holder AND applied_at IS NULL
RETURNING 1

-- name: prune
-- differs: executions and receipts go by trigger.
DELETE FROM interlock_jobs WHERE id IN (
  SELECT j.id FROM interlock_jobs j INDEXED BY interlock_jobs_finished WHERE j.phase = :phase AND j.finished_at < :before AND j.finished_at IS NOT NULL
    AND (:kinds IS NULL OR j.kind IN (SELECT value FROM json_each(:kinds)))
  ORDER BY j.finished_at LIMIT :limit + 0)

-- name: archivable
SELECT a.job_id FROM interlock_audit a
WHERE a.version = 0 AND a.n = 0 AND NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = a.job_id)
  AND (SELECT max(b.at) FROM interlock_audit b WHERE b.job_id = a.job_id) < :before
ORDER BY a.job_id LIMIT :limit + 0

-- name: archive
INSERT INTO interlock_archived (job_id, entries, digest, archived_at) VALUES (:job_id, :entries, :digest, :now) ON CONFLICT DO NOTHING

-- name: unaudit
DELETE FROM interlock_audit WHERE job_id = :job_id

-- name: get
SELECT {job}, e.progress FROM interlock_jobs j LEFT JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt WHERE j.id = :id

-- name: find
SELECT j.id FROM interlock_jobs j WHERE j.id BETWEEN :first AND :last ORDER BY j.id LIMIT :limit + 0

-- name: find.pruned
SELECT a.job_id FROM interlock_audit a
WHERE a.job_id BETWEEN :first AND :last AND a.version = 0 AND a.n = 0 ORDER BY a.job_id LIMIT :limit + 0

-- name: neighbours
SELECT i.value, (SELECT j.id FROM interlock_jobs j WHERE j.id < i.value ORDER BY j.id DESC LIMIT 1),
  (SELECT j.id FROM interlock_jobs j WHERE j.id > i.value ORDER BY j.id LIMIT 1)
FROM json_each(:ids) i

-- fragment: filtered
FROM interlock_jobs j LEFT JOIN interlock_executions e ON e.job_id = j.id AND e.attempt = j.attempt
WHERE (:kind IS NULL OR j.kind = :kind) AND (:state IS NULL OR j.state = :state) AND (:phase IS NULL OR j.phase = :phase)
  AND (:queue IS NULL OR j.queue = :queue) AND (:after IS NULL OR j.id < :after)
  AND (:tags IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(:tags) t WHERE NOT EXISTS (SELECT 1 FROM json_each(j.tags) h WHERE h.key = t.key AND h.value = t.value)))
ORDER BY j.id DESC LIMIT :limit + 0

-- name: jobs
SELECT {job}, e.progress {filtered}

-- name: summaries
SELECT {summary}, e.progress {filtered}

-- name: executions
SELECT {execution} FROM json_each(:ids) i CROSS JOIN interlock_executions e ON e.job_id = i.value ORDER BY e.job_id, e.attempt

-- name: history
SELECT a.job_id, a.version, a.n, a.attempt, a.event, a.from_state, a.to_state, a.actor, a.reason, a.at, a.detail
FROM json_each(:ids) i CROSS JOIN interlock_audit a ON a.job_id = i.value ORDER BY a.job_id, a.version, a.n

-- name: counts
SELECT lifecycle, state, count(*) FROM interlock_jobs GROUP BY lifecycle, state

-- name: expired
SELECT {job}, NULL FROM json_each(:kinds) k CROSS JOIN json_each((SELECT json_group_array(c.place) FROM (
  SELECT x.expires_at || x.id AS place FROM interlock_jobs x INDEXED BY interlock_jobs_expiring
  WHERE x.kind = k.value AND x.phase = 'pending' AND x.expires_at IS NOT NULL AND x.expires_at <= :now ORDER BY x.expires_at LIMIT :limit + 0) c)) p
CROSS JOIN interlock_jobs j ON j.id = substr(p.value, 28) ORDER BY p.value LIMIT :limit + 0

-- name: stuck
-- Twice the lease after the last beat is later than the lease's own end, by which the index stands; it is walked kind by kind.
WITH RECURSIVE kinds(kind) AS (
  SELECT (SELECT e.kind FROM interlock_executions e INDEXED BY interlock_executions_leases WHERE {leased} ORDER BY e.kind LIMIT 1)
  UNION ALL
  SELECT (SELECT e.kind FROM interlock_executions e INDEXED BY interlock_executions_leases WHERE e.kind > k.kind AND {leased} ORDER BY e.kind LIMIT 1)
  FROM kinds k WHERE k.kind IS NOT NULL),
stuck AS (
  SELECT e.job_id, e.attempt, row_number() OVER (PARTITION BY e.kind ORDER BY e.heartbeat_at, e.job_id) AS place
  FROM kinds k CROSS JOIN interlock_executions e INDEXED BY interlock_executions_leases
    ON e.kind = k.kind AND e.lease_expires_at < :now AND {leased} AND e.external_id IS NULL
  WHERE 2 * (strftime('%s', e.lease_expires_at) * 1000000 + substr(e.lease_expires_at, 21, 6))
    - strftime('%s', e.heartbeat_at) * 1000000 - substr(e.heartbeat_at, 21, 6) < :now_us)
SELECT {execution} FROM stuck s CROSS JOIN interlock_executions e ON e.job_id = s.job_id AND e.attempt = s.attempt
WHERE s.place <= :limit ORDER BY e.heartbeat_at, e.job_id

-- name: depths
-- Each part comes by an index that has no ended job in it. What stands in a paused queue waits for its time, and what is past its TTL waits for nothing.
WITH waiting(kind, queue, due, later, since) AS (
  SELECT j.kind, j.queue, sum(j.due_at <= :now), sum(j.due_at > :now), min(j.due_at) FROM interlock_jobs j INDEXED BY interlock_jobs_ready
  WHERE {ready} GROUP BY j.queue, j.kind
  UNION ALL
  SELECT j.kind, j.queue, sum(j.due_at <= :now), sum(j.due_at > :now), min(j.due_at) FROM interlock_jobs j INDEXED BY interlock_jobs_ready_mortal
  WHERE {mortal} AND j.expires_at > :now GROUP BY j.queue, j.kind
  UNION ALL
  SELECT j.kind, j.queue, sum(j.due_at <= :now), sum(j.due_at > :now), min(j.due_at) FROM interlock_jobs j INDEXED BY interlock_jobs_suspect
  WHERE {suspect} AND (j.expires_at IS NULL OR j.expires_at > :now) GROUP BY j.queue, j.kind),
parts(kind, queue, due, later, held, running, since) AS (
  SELECT w.kind, w.queue, CASE WHEN p.name IS NULL THEN w.due ELSE 0 END, CASE WHEN p.name IS NULL THEN w.later ELSE w.due + w.later END, 0, 0,
    CASE WHEN p.name IS NULL THEN min(w.since, :now) END
  FROM waiting w LEFT JOIN interlock_queues p ON p.name = w.queue AND p.paused_at IS NOT NULL
  UNION ALL
  SELECT j.kind, j.queue, 0, 0, count(*), 0, NULL FROM interlock_jobs j INDEXED BY interlock_jobs_held WHERE j.held_at IS NOT NULL GROUP BY j.kind, j.queue
  UNION ALL
  SELECT e.kind, j.queue, 0, 0, 0, count(*), NULL FROM interlock_executions e INDEXED BY interlock_executions_leases CROSS JOIN interlock_jobs j ON j.id = e.job_id
  WHERE {leased} GROUP BY e.kind, j.queue
  UNION ALL
  SELECT e.kind, j.queue, 0, 0, 0, count(*), NULL FROM interlock_executions e INDEXED BY interlock_executions_external CROSS JOIN interlock_jobs j ON j.id = e.job_id
  WHERE {handed_over} GROUP BY e.kind, j.queue)
SELECT d.kind, d.queue, sum(d.due), sum(d.later), sum(d.held), sum(d.running), min(d.since) FROM parts d GROUP BY d.kind, d.queue ORDER BY d.kind, d.queue

-- name: held
-- A few of each kind and queue, so that no crowd of one hides another.
SELECT {job}, NULL FROM json_each(:places) p CROSS JOIN json_each((SELECT json_group_array(c.id) FROM (
  SELECT x.id FROM interlock_jobs x INDEXED BY interlock_jobs_held
  WHERE x.kind = json_extract(p.value, '$[0]') AND x.queue = json_extract(p.value, '$[1]') AND x.held_at IS NOT NULL
  LIMIT :limit + 0) c)) h
CROSS JOIN interlock_jobs j ON j.id = h.value ORDER BY j.held_at, j.id

-- name: failures
-- The index has what ended in this phase since then. The execution says what ended the job,
-- and a remark says that an operator drove it again.
WITH failed AS (
  SELECT j.id, j.kind, count(*) OVER (PARTITION BY j.kind) AS number,
    row_number() OVER (PARTITION BY j.kind ORDER BY j.finished_at DESC, j.id DESC) AS place
  FROM interlock_jobs j INDEXED BY interlock_jobs_finished
  WHERE j.phase = 'failed' AND j.finished_at IS NOT NULL AND j.finished_at > :since
    AND EXISTS (SELECT 1 FROM interlock_executions e
      WHERE e.job_id = j.id AND e.attempt = j.attempt AND e.ended_by NOT IN ('reject', 'cancel', 'expire'))
    AND NOT EXISTS (SELECT 1 FROM interlock_audit a
      WHERE a.job_id = j.id AND a.version = j.version AND a.n > 0 AND a.event = 'redrive'))
SELECT f.kind, f.number, j.id, j.state, j.attempt, j.finished_at, j.last_error
FROM failed f CROSS JOIN interlock_jobs j ON j.id = f.id WHERE f.place <= :newest ORDER BY f.kind, f.place

-- name: outside
SELECT k.name, (SELECT count(*) FROM interlock_executions e INDEXED BY interlock_executions_external WHERE e.kind = k.name AND {handed_over}),
  (SELECT min(e.lease_expires_at) FROM interlock_executions e INDEXED BY interlock_executions_external WHERE e.kind = k.name AND {handed_over}),
  k.check_every, k.check_batch, k.outside_failures, k.outside_error, k.outside_down_at
FROM interlock_kinds k WHERE k.check_every IS NOT NULL ORDER BY k.name

-- name: report_outside
-- differs: asked for only where something changes: a write wakes every listener.
UPDATE interlock_kinds SET outside_failures = CASE WHEN :error IS NULL THEN 0 ELSE outside_failures + 1 END, outside_error = :error,
  outside_down_at = CASE WHEN :error IS NOT NULL THEN coalesce(outside_down_at, :now) END
WHERE name = :kind

-- name: report_outside.kept
SELECT 1 FROM interlock_kinds WHERE name = :kind AND (outside_error IS NOT NULL OR :error IS NOT NULL)

-- name: report_worker
INSERT INTO interlock_workers (name, host, pid, state, slots, busy, kinds, queues, started_at, beat_at)
VALUES (:name, :host, :pid, :state, :slots, :busy, :kinds, :queues, :now, :now)
ON CONFLICT (name) DO UPDATE SET host = excluded.host, pid = excluded.pid, state = excluded.state, slots = excluded.slots, busy = excluded.busy,
  kinds = excluded.kinds, queues = excluded.queues, beat_at = excluded.beat_at

-- name: remove_worker
DELETE FROM interlock_workers WHERE name = :name

-- name: workers
SELECT name, host, pid, state, slots, busy, kinds, queues, started_at, beat_at FROM interlock_workers ORDER BY name

-- name: forget_workers
DELETE FROM interlock_workers WHERE beat_at <= :before

-- name: schedule
-- differs: asked for after `schedule.kept`, and only where something has changed: a write wakes every listener.
INSERT INTO interlock_schedules (name, kind, cron, tz, catch_up, payload, last_tick) VALUES (:name, :kind, :cron, :tz, :catch_up, :payload, :now)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, cron = excluded.cron, tz = excluded.tz, catch_up = excluded.catch_up, payload = excluded.payload

-- name: schedule.kept
SELECT last_tick, paused_at, (kind, cron, tz, catch_up, payload) = (:kind, :cron, :tz, :catch_up, :payload) FROM interlock_schedules WHERE name = :name

-- name: ticked
UPDATE interlock_schedules SET last_tick = :tick WHERE name = :name AND (last_tick IS NULL OR last_tick < :tick)

-- name: page
SELECT {summary}, NULL FROM interlock_jobs j WHERE j.id > :after ORDER BY j.id LIMIT :limit + 0

-- name: page_executions
SELECT e.job_id, e.attempt, e.holder, e.kind, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.status, e.state,
  e.ended_by, NULL, e.external_id, e.missing_since, e.next_check_at, NULL, NULL, NULL, e.leased_at,
  e.started_at, e.committed_at, e.finished_at
FROM json_each(:ids) i CROSS JOIN interlock_executions e ON e.job_id = i.value ORDER BY e.job_id, e.attempt

-- name: page_history
SELECT a.job_id, a.version, a.n, a.attempt, a.event, a.from_state, a.to_state, a.actor, NULL, a.at, NULL
FROM json_each(:ids) i CROSS JOIN interlock_audit a ON a.job_id = i.value ORDER BY a.job_id, a.version, a.n

-- name: page_pruned
SELECT a.job_id FROM interlock_audit a
WHERE a.job_id > :after AND a.version = 0 AND a.n = 0 AND NOT EXISTS (SELECT 1 FROM interlock_jobs j WHERE j.id = a.job_id)
ORDER BY a.job_id LIMIT :limit + 0

-- name: exists
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = :table

-- name: instance
SELECT instance FROM interlock_schema_version ORDER BY version LIMIT 1

-- name: instance.tables
SELECT count(*) FROM sqlite_schema

-- name: instance.version
SELECT max(version) FROM interlock_schema_version

-- name: instance.first
INSERT INTO interlock_schema_version (version) VALUES (:version)

-- name: kind
SELECT name, lifecycle, hooks, queue, tries, key_until, admits, lifecycle_version, check_every, check_batch FROM interlock_kinds WHERE name = :name

-- name: lifecycle
SELECT l.initial, e.source, e.event, e.target FROM interlock_lifecycles l JOIN interlock_lifecycle_edges e ON e.lifecycle = l.name AND e.version = l.version
WHERE l.name = :name AND l.version = :version

-- name: register
INSERT INTO interlock_lifecycles (name, version, digest, initial)
SELECT :name, 1 + coalesce(max(version), 0), :digest, :initial FROM interlock_lifecycles WHERE name = :name
RETURNING version

-- name: register_edges
INSERT INTO interlock_lifecycle_edges (lifecycle, version, source, event, target) VALUES (:name, :version, :source, :event, :target)

-- name: register_hops
INSERT INTO interlock_lifecycle_hops (lifecycle, version, source, target, attempts, arrows) VALUES (:name, :version, :source, :target, :attempts, :arrows)
ON CONFLICT DO NOTHING

-- name: register_phases
INSERT INTO interlock_lifecycle_phases (lifecycle, version, state, phase) VALUES (:name, :version, :state, :phase)

-- name: register_kind
INSERT INTO interlock_kinds (name, lifecycle, lifecycle_version, queue, tries, hooks, key_until, admits, check_every, check_batch)
VALUES (:name, :lifecycle, coalesce(:version, (SELECT max(version) FROM interlock_lifecycles WHERE name = :lifecycle), 0), :queue, :tries, :hooks, :key_until, :admits,
  :every, :batch)
ON CONFLICT (name) DO UPDATE SET lifecycle = excluded.lifecycle, lifecycle_version = excluded.lifecycle_version, queue = excluded.queue, tries = excluded.tries,
  hooks = excluded.hooks, key_until = excluded.key_until, admits = excluded.admits, check_every = excluded.check_every, check_batch = excluded.check_batch,
  registered_at = excluded.registered_at
WHERE (lifecycle, lifecycle_version, queue, tries, hooks, key_until, admits, check_every, check_batch)
  IS NOT (excluded.lifecycle, excluded.lifecycle_version, excluded.queue, excluded.tries, excluded.hooks, excluded.key_until, excluded.admits,
    excluded.check_every, excluded.check_batch)

-- name: stranded
-- Live jobs of a lifecycle in a state that its new version lacks.
SELECT state, count(*) FROM interlock_jobs WHERE lifecycle = :name AND phase IN ('pending', 'running') AND state NOT IN (SELECT value FROM json_each(:states))
GROUP BY state ORDER BY state

-- name: version_of
SELECT version FROM interlock_lifecycles WHERE name = :name AND digest = :digest
