-- Cancel requests, holds and audit notes, on PostgreSQL.

-- name: request_cancel
-- Both rows of each job are locked, so that a running commit ends first.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
matched AS MATERIALIZED (
  SELECT j.id, j.version, j.attempt, j.cancel_requested_at IS NULL AS fresh FROM interlock.jobs j
    JOIN interlock.executions e ON e.job_id = ANY (ARRAY[j.id, j.id]) AND e.attempt = j.attempt
  WHERE j.id = ANY(ARRAY(SELECT unnest(:ids::text::uuid[])))
    AND (j.phase, e.status IN ('LEASED', 'IN_PROGRESS')) IS NOT DISTINCT FROM ('running', true)
  ORDER BY j.id, j.attempt FOR NO KEY UPDATE OF e, j),
asked AS (
  UPDATE interlock.jobs j SET cancel_requested_at = c.now, cancel_requested_by = :by::text,
    cancel_reason = :reason::text, updated_at = {refreshed}
  FROM matched h, clock c WHERE j.id = ANY (ARRAY[h.id, h.id]) AND h.fresh),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor, reason)
  SELECT h.id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a
    WHERE a.job_id = h.id AND a.version = h.version), 0),
    h.attempt, c.now, 'cancel_requested', :by::text, :reason::text FROM matched h, clock c WHERE h.fresh)
SELECT h.id::text, h.fresh FROM matched h

-- name: add_note
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
matched AS MATERIALIZED (SELECT j.id, j.version FROM interlock.jobs j WHERE j.id = :id::text::uuid FOR NO KEY UPDATE)
INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor, reason)
SELECT h.id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a
  WHERE a.job_id = h.id AND a.version = h.version), 0),
  :attempt::int, c.now, :event::text, :actor::text, :reason::text FROM matched h, clock c

-- name: release
-- The receipts are written from the match: nothing changes if the job is not held.
WITH clock AS MATERIALIZED (SELECT interlock.clock() AS now),
matched AS MATERIALIZED (SELECT j.id, j.version, j.attempt FROM interlock.jobs j
  WHERE j.id = :id::text::uuid AND j.held_at IS NOT NULL FOR NO KEY UPDATE),
released AS (
  UPDATE interlock.jobs j SET held_at = NULL, held_reason = NULL, due_at = c.now, updated_at = {refreshed}
    FROM matched h, clock c WHERE j.id = h.id),
happened AS (
  UPDATE interlock.receipts r SET value = :value::text::json, applied_at = c.now, decided_by = :by::text
    FROM matched h, clock c
  WHERE r.job_id = h.id AND r.kind = 'effect' AND r.applied_at IS NULL AND :happened::boolean RETURNING r.name),
did_not AS (
  DELETE FROM interlock.receipts r USING matched h WHERE r.job_id = h.id AND r.kind = 'effect' AND r.applied_at IS NULL
    AND NOT :happened::boolean RETURNING r.name),
noted AS (
  INSERT INTO interlock.audit (job_id, version, n, attempt, at, event, actor, reason, detail)
  SELECT h.id, h.version, 1 + coalesce((SELECT max(a.n) FROM interlock.audit a
    WHERE a.job_id = h.id AND a.version = h.version), 0), h.attempt, c.now,
    'release', :by::text, :reason::text, CASE WHEN :happened::boolean IS NOT NULL
      THEN json_build_object('happened', :happened::boolean, 'effects',
      (SELECT coalesce(json_agg(d.name ORDER BY d.name), '[]')
        FROM (SELECT name FROM happened UNION ALL SELECT name FROM did_not) d)) END
  FROM matched h, clock c)
SELECT count(*), (SELECT {notify} FROM matched LIMIT 1) FROM matched
