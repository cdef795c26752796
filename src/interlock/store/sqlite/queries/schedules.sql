-- Schedules, on SQLite.

-- fragment: schedule
s.name, s.kind, s.cron, s.tz, s.catch_up, s.payload, s.options, s.declared IS NOT NULL, s.changed_by, s.changed_at,
  s.paused_at, s.paused_by, s.pause_reason, s.starts_at, s.last_tick

-- name: schedules.times
-- Every worker reads this every few seconds, so it leaves out payloads.
SELECT s.name, s.kind, s.cron, s.tz, s.declared IS NOT NULL, s.paused_at IS NOT NULL, s.changed_at, s.starts_at,
  s.last_tick
FROM interlock_schedules s ORDER BY s.name

-- name: schedules.all
SELECT {schedule} FROM interlock_schedules s ORDER BY s.name

-- name: schedules.get
SELECT {schedule} FROM interlock_schedules s WHERE s.name = :name

-- name: schedules.lock
-- differs: a write takes the file's lock, also in a caller's transaction that has only read so far; `schedules.get`
-- reads the row after it.
UPDATE interlock_schedules SET last_tick = last_tick WHERE name = :name

-- name: schedules.mark_tick
UPDATE interlock_schedules SET last_tick = :tick WHERE name = :name AND (last_tick IS NULL OR last_tick < :tick)

-- ---------------------------------------------------------------- declarations and changes by operators
-- name: schedules.declare
-- differs: runs after `schedules.declare.unchanged`, and only if something has changed, since a write wakes every
-- listener.
-- As the code declares it. A schedule that was changed at run time stays as it was changed.
INSERT INTO interlock_schedules (name, kind, cron, tz, catch_up, payload, options, declared, changed_at, starts_at)
VALUES (:name, :kind, :cron, :tz, :catch_up, :payload, :options, :declared, :now, :now)
ON CONFLICT (name) DO UPDATE SET declared = excluded.declared,
  kind = CASE WHEN changed_by IS NULL THEN excluded.kind ELSE kind END,
  cron = CASE WHEN changed_by IS NULL THEN excluded.cron ELSE cron END,
  tz = CASE WHEN changed_by IS NULL THEN excluded.tz ELSE tz END,
  catch_up = CASE WHEN changed_by IS NULL THEN excluded.catch_up ELSE catch_up END,
  payload = CASE WHEN changed_by IS NULL THEN excluded.payload ELSE payload END,
  options = CASE WHEN changed_by IS NULL THEN excluded.options ELSE options END,
  changed_at = CASE WHEN changed_by IS NULL THEN excluded.changed_at ELSE changed_at END
WHERE declared IS NOT excluded.declared

-- name: schedules.declare.unchanged
SELECT 1 FROM interlock_schedules WHERE name = :name AND declared = :declared

-- name: schedules.create
INSERT INTO interlock_schedules (name, kind, cron, tz, catch_up, payload, options, changed_by, changed_at, starts_at)
VALUES (:name, :kind, :cron, :tz, :catch_up, :payload, :options, :actor, :now, :now)
ON CONFLICT (name) DO NOTHING RETURNING name

-- name: schedules.change
-- Another cron line or time zone starts from now.
UPDATE interlock_schedules SET kind = coalesce(:kind, kind), cron = coalesce(:cron, cron), tz = coalesce(:tz, tz),
  catch_up = coalesce(:catch_up, catch_up), payload = coalesce(:payload, payload),
  options = coalesce(:options, options),
  starts_at = CASE WHEN (cron, tz) = (coalesce(:cron, cron), coalesce(:tz, tz)) THEN starts_at
    ELSE :now END,
  changed_by = :actor, changed_at = :now
WHERE name = :name RETURNING name

-- name: schedules.reset
-- Back to what the code declares. Another cron line or time zone starts from now.
UPDATE interlock_schedules SET kind = json_extract(declared, '$.kind'), cron = json_extract(declared, '$.cron'),
  tz = json_extract(declared, '$.tz'), catch_up = json_extract(declared, '$.catch_up'),
  payload = json_extract(declared, '$.payload'), options = json_extract(declared, '$.options'),
  starts_at = CASE WHEN (cron, tz) = (json_extract(declared, '$.cron'), json_extract(declared, '$.tz')) THEN starts_at
    ELSE :now END,
  changed_by = NULL, changed_at = :now
WHERE name = :name AND changed_by IS NOT NULL AND declared IS NOT NULL RETURNING name

-- name: schedules.pause
UPDATE interlock_schedules SET paused_at = :now, paused_by = :actor, pause_reason = :reason
WHERE name = :name AND paused_at IS NULL RETURNING name

-- name: schedules.resume
-- The pause skips its ticks.
UPDATE interlock_schedules SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, starts_at = :now
WHERE name = :name AND paused_at IS NOT NULL RETURNING name

-- name: schedules.delete
DELETE FROM interlock_schedules WHERE name = :name RETURNING name
