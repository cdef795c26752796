-- Enqueue, on SQLite.

-- fragment: asked
json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS kind, json_extract(value, '$[2]') AS queue,
json_extract(value, '$[3]') AS priority, json_extract(value, '$[4]') AS lifecycle,
  json_extract(value, '$[5]') AS lifecycle_version,
json_extract(value, '$[6]') AS state, json_extract(value, '$[7]') AS tries, json_extract(value, '$[8]') AS due_at,
json_extract(value, '$[9]') AS expires_at, json_extract(value, '$[10]') AS idempotency_key,
  json_extract(value, '$[11]') AS unique_key,
json_extract(value, '$[12]') AS payload, json_extract(value, '$[13]') AS tags, json_extract(value, '$[14]') AS trace,
json_extract(value, '$[15]') AS scheduled_for, json_extract(value, '$[16]') AS redrive_of,
  json_extract(value, '$[17]') AS root

-- fragment: columns_of_new
id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left, due_at, expires_at,
  created_at, updated_at, idempotency_key, unique_key, payload, tags, trace, scheduled_for, redrive_of, root

-- fragment: values_of_new
a.id, a.kind, a.queue, a.priority, a.lifecycle, a.lifecycle_version, a.state, 'pending', a.tries, a.tries, a.due_at,
  a.expires_at, :now, :now, a.idempotency_key, a.unique_key, a.payload, a.tags, a.trace, a.scheduled_for, a.redrive_of,
  a.root

-- fragment: keys_are_free
(a.idempotency_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM interlock_jobs h INDEXED BY interlock_jobs_idempotency
    WHERE h.kind = a.kind AND h.idempotency_key = a.idempotency_key AND h.idempotency_key IS NOT NULL
      AND h.key_freed = 0))
  AND (a.unique_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM interlock_jobs h INDEXED BY interlock_jobs_unique
    WHERE h.kind = a.kind AND h.unique_key = a.unique_key AND h.unique_key IS NOT NULL
      AND h.phase IN ('pending', 'running')))
  AND (a.unique_key IS NULL OR a.redrive_of IS NOT NULL OR NOT EXISTS (
    SELECT 1 FROM interlock_unique_windows w CROSS JOIN interlock_jobs h ON h.id = w.job_id AND h.phase <> 'failed'
    WHERE w.kind = a.kind AND w.unique_key = a.unique_key AND w.until > :now))

-- name: enqueue
-- differs: taken keys are looked up first, because the trigger that refuses REPLACE would refuse the conflict too;
--   the stored ids are read afterwards, so that the result does not depend on the number of statements.
INSERT INTO interlock_jobs ({columns_of_new}) SELECT {values_of_new} FROM (SELECT {asked} FROM json_each(:jobs)) a
WHERE {keys_are_free}

-- name: enqueue.flow
-- The same for jobs with a concurrency key, in a batch, or with dependencies.
-- differs: each more column of the list costs a plain job time.
INSERT INTO interlock_jobs ({columns_of_new}, concurrency_key, batch, blocked_at, awaited)
SELECT {values_of_new}, a.concurrency_key, a.batch, CASE WHEN a.blocked THEN :now END, CASE WHEN a.awaited THEN 1 END
FROM (
  SELECT {asked}, json_extract(value, '$[18]') AS concurrency_key, json_extract(value, '$[19]') AS batch,
    json_extract(value, '$[20]') AS blocked, json_extract(value, '$[21]') AS awaited
  FROM json_each(:jobs)) a
WHERE {keys_are_free}

-- name: enqueue.one
-- One job without keys. No other job can have its key, so the insert either stores it or fails.
INSERT INTO interlock_jobs (id, kind, queue, priority, lifecycle, lifecycle_version, state, phase, tries, tries_left,
  due_at, expires_at, created_at, updated_at, payload, tags, trace, scheduled_for, redrive_of, root)
VALUES (:id, :kind, :queue, :priority, :lifecycle, :lifecycle_version, :state, 'pending', :tries, :tries, :due_at,
  :expires_at, :now, :now, :payload, :tags, :trace, :scheduled_for, :redrive_of, :root)

-- name: enqueue.one_audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
VALUES (:id, 0, 0, NULL, :now, 'enqueue', NULL, :state, :actor)

-- name: enqueue.audit
INSERT INTO interlock_audit (job_id, version, n, attempt, at, event, from_state, to_state, actor)
SELECT j.id, 0, 0, NULL, j.created_at, 'enqueue', NULL, j.state, a.value FROM json_each(:actors) a CROSS
  JOIN interlock_jobs j ON j.id = a.key

-- name: enqueue.windows
-- differs: one writer, so a window is taken after the job is stored. A job that was not stored takes none.
INSERT INTO interlock_unique_windows (kind, unique_key, job_id, until)
SELECT j.kind, j.unique_key, j.id, a.value FROM json_each(:until) a CROSS JOIN interlock_jobs j ON j.id = a.key
WHERE true ON CONFLICT (kind, unique_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until

-- name: enqueue.inherited_windows
-- A redrive takes over the window of the job that it repeats.
UPDATE interlock_unique_windows SET job_id = j.id
FROM json_each(:ids) a CROSS JOIN interlock_jobs j ON j.id = a.value
WHERE interlock_unique_windows.kind = j.kind AND interlock_unique_windows.unique_key = j.unique_key
  AND interlock_unique_windows.job_id = j.redrive_of

-- name: enqueue.stored
SELECT j.id FROM json_each(:ids) a CROSS JOIN interlock_jobs j ON j.id = a.value

-- name: key_holders
-- A job that has ended may keep the key by its window.
SELECT a.key, i.id, i.payload, i.state, coalesce((
    SELECT u.id FROM interlock_jobs u INDEXED BY interlock_jobs_unique
    WHERE u.kind = json_extract(a.value, '$[0]') AND u.unique_key = json_extract(a.value, '$[2]')
      AND u.unique_key IS NOT NULL AND u.phase IN ('pending', 'running')), (
    SELECT h.id FROM interlock_unique_windows w CROSS JOIN interlock_jobs h ON h.id = w.job_id AND h.phase <> 'failed'
    WHERE w.kind = json_extract(a.value, '$[0]') AND w.unique_key = json_extract(a.value, '$[2]') AND w.until > :now))
FROM json_each(:keys) a LEFT JOIN interlock_jobs i ON i.id = (
    SELECT h.id FROM interlock_jobs h INDEXED BY interlock_jobs_idempotency
    WHERE h.kind = json_extract(a.value, '$[0]') AND h.idempotency_key = json_extract(a.value, '$[1]')
      AND h.idempotency_key IS NOT NULL AND h.key_freed = 0)

-- name: copy_receipts
-- A redrive copies the receipts, and the effects with unknown results, of the job that it repeats.
INSERT INTO interlock_receipts (job_id, name, kind, attempt, holder, args_hash, value, begun_at, applied_at, decided_by)
SELECT a.key, r.name, r.kind, 0, 0, r.args_hash, r.value, r.begun_at, r.applied_at, r.decided_by
FROM json_each(:redrives) a CROSS JOIN interlock_receipts r ON r.job_id = a.value

-- name: make_due
UPDATE interlock_jobs SET due_at = :now, updated_at = {refreshed}
WHERE id IN (SELECT value FROM json_each(:ids)) AND phase = 'pending'
  AND state IN (SELECT value FROM json_each(:resting)) AND due_at > :now
