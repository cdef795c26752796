-- What an enqueue does with the waiting job that has its unique key, on PostgreSQL.

-- fragment: never_started
-- A redriven job repeats a job that was started, and an idempotency key stands for one payload.
j.phase = 'pending' AND j.attempt = 0 AND j.idempotency_key IS NULL AND j.redrive_of IS NULL

-- name: replaceable
-- Runs before `replace`, as `lock_jobs` runs before other notes. It waits for a claim of a job, and then leaves the job
-- out.
SELECT j.id::text FROM interlock.jobs j WHERE j.id = ANY(:id::text::uuid[]) AND {never_started}
ORDER BY j.id FOR NO KEY UPDATE

-- name: replace
-- The job takes the new payload, and with `debounce` the new due time, which is never after the end of its window. A
-- job that waits is announced: a claim may just have skipped the locked row, or the job is due earlier now.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
asked AS MATERIALIZED (
  SELECT * FROM unnest(:id::text::uuid[], :payload::text::text[], :actor::text::text[], :delay::text::float8[],
    :run_at::text::timestamptz[], :debounce::text::bool[]) AS a(id, payload, actor, delay, run_at, debounce)),
replaced AS (
  UPDATE interlock.jobs j SET payload = a.payload::json, updated_at = {refreshed},
    due_at = CASE WHEN a.debounce THEN least(coalesce(a.run_at, c.now) + a.delay * interval '1 second',
      (SELECT w.until FROM interlock.unique_windows w WHERE w.kind = j.kind AND w.unique_key = j.unique_key
        AND w.job_id = j.id)) ELSE j.due_at END
  FROM asked a, clock c WHERE j.id = ANY (ARRAY[a.id, a.id]) AND {never_started}
  RETURNING j.id, j.version, j.due_at, c.now, a.actor, a.debounce),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, at, event, actor, detail)
  SELECT r.id, r.version, 1 + coalesce((SELECT max(b.n) FROM interlock.audit b
    WHERE b.job_id = r.id AND b.version = r.version), 0), r.now,
    CASE WHEN r.debounce THEN 'debounced' ELSE 'replaced' END, r.actor, CASE WHEN r.debounce
      THEN json_build_object('due_at', to_char(r.due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) END
  FROM replaced r),
notified AS MATERIALIZED (SELECT {notify} FROM replaced LIMIT 1)
SELECT r.id::text FROM replaced r CROSS JOIN notified

-- name: unique_windows.forget
-- Windows that ended a minute ago: an enqueue that began before the end and waited for another one must still find the
-- row. An active job keeps its row. A row that an enqueue has locked stays for the next time.
DELETE FROM interlock.unique_windows WHERE ctid = ANY(ARRAY(
  SELECT w.ctid FROM interlock.unique_windows w WHERE w.until <= (SELECT interlock.clock()) - interval '1 minute'
    AND NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.id = w.job_id AND j.finished_at IS NULL)
  ORDER BY w.until LIMIT :limit::int FOR UPDATE OF w SKIP LOCKED))
