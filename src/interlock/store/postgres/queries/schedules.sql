-- Schedules, on PostgreSQL.

-- fragment: schedule
s.name, s.kind, s.cron, s.tz, s.catch_up, s.payload::text, s.options::text, s.declared IS NOT NULL, s.changed_by,
  s.changed_at, s.paused_at, s.paused_by, s.pause_reason, s.starts_at, s.last_tick

-- name: schedules.times
-- Every worker reads this every few seconds, so it leaves out payloads.
SELECT s.name, s.kind, s.cron, s.tz, s.declared IS NOT NULL, s.paused_at IS NOT NULL, s.changed_at, s.starts_at,
  s.last_tick
FROM interlock.schedules s ORDER BY s.name COLLATE "C"

-- name: schedules.all
SELECT {schedule} FROM interlock.schedules s ORDER BY s.name COLLATE "C"

-- name: schedules.get
SELECT {schedule} FROM interlock.schedules s WHERE s.name = :name::text

-- name: schedules.lock
-- A tick locks the schedule, enqueues its jobs and marks the tick in one transaction. Every change locks it first, in a
-- statement of its own: so the time that the change records is later than any tick that it waited for.
SELECT {schedule} FROM interlock.schedules s WHERE s.name = :name::text FOR NO KEY UPDATE

-- name: schedules.mark_tick
UPDATE interlock.schedules SET last_tick = :tick::text::timestamptz
WHERE name = :name::text AND (last_tick IS NULL OR last_tick < :tick::text::timestamptz)

-- ---------------------------------------------------------------- declarations and changes by operators
-- name: schedules.declare
-- As the code declares it; an unchanged declaration is not written. A schedule that was changed at run time stays as it
-- was changed.
INSERT INTO interlock.schedules AS s (name, kind, cron, tz, catch_up, payload, options, declared, changed_at, starts_at)
SELECT :name::text, :kind::text, :cron::text, :tz::text, :catch_up::text, :payload::text::json, :options::text::json,
  :declared::text::json, c.now, c.now
FROM (SELECT interlock.clock() AS now) c
ON CONFLICT (name) DO UPDATE SET declared = excluded.declared,
  kind = CASE WHEN s.changed_by IS NULL THEN excluded.kind ELSE s.kind END,
  cron = CASE WHEN s.changed_by IS NULL THEN excluded.cron ELSE s.cron END,
  tz = CASE WHEN s.changed_by IS NULL THEN excluded.tz ELSE s.tz END,
  catch_up = CASE WHEN s.changed_by IS NULL THEN excluded.catch_up ELSE s.catch_up END,
  payload = CASE WHEN s.changed_by IS NULL THEN excluded.payload ELSE s.payload END,
  options = CASE WHEN s.changed_by IS NULL THEN excluded.options ELSE s.options END,
  changed_at = CASE WHEN s.changed_by IS NULL THEN excluded.changed_at ELSE s.changed_at END
WHERE s.declared::text IS DISTINCT FROM excluded.declared::text

-- name: schedules.create
WITH created AS (
  INSERT INTO interlock.schedules (name, kind, cron, tz, catch_up, payload, options, changed_by, changed_at, starts_at)
  SELECT :name::text, :kind::text, :cron::text, :tz::text, :catch_up::text, :payload::text::json,
    :options::text::json, :actor::text, c.now, c.now
  FROM (SELECT interlock.clock() AS now) c
  ON CONFLICT (name) DO NOTHING RETURNING name, changed_at)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason, detail)
SELECT :id::text::uuid, c.changed_at, 'schedule', c.name, 'create', :actor::text, :reason::text, :detail::text::json
FROM created c RETURNING true

-- name: schedules.change
-- Another cron line or time zone starts from now.
WITH changed AS (
  UPDATE interlock.schedules s SET kind = coalesce(:kind::text, s.kind), cron = coalesce(:cron::text, s.cron),
    tz = coalesce(:tz::text, s.tz), catch_up = coalesce(:catch_up::text, s.catch_up),
    payload = coalesce(:payload::text::json, s.payload), options = coalesce(:options::text::json, s.options),
    starts_at = CASE WHEN (s.cron, s.tz) = (coalesce(:cron::text, s.cron), coalesce(:tz::text, s.tz))
      THEN s.starts_at ELSE c.now END,
    changed_by = :actor::text, changed_at = c.now
  FROM (SELECT interlock.clock() AS now) c WHERE s.name = :name::text RETURNING s.name, s.changed_at)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason, detail)
SELECT :id::text::uuid, c.changed_at, 'schedule', c.name, 'change', :actor::text, :reason::text, :detail::text::json
FROM changed c RETURNING true

-- name: schedules.reset
-- Back to what the code declares. Another cron line or time zone starts from now.
WITH changed AS (
  UPDATE interlock.schedules s SET kind = declared ->> 'kind', cron = declared ->> 'cron', tz = declared ->> 'tz',
    catch_up = declared ->> 'catch_up', payload = (declared ->> 'payload')::json,
    options = (declared ->> 'options')::json,
    starts_at = CASE WHEN (s.cron, s.tz) = (declared ->> 'cron', declared ->> 'tz')
      THEN s.starts_at ELSE c.now END,
    changed_by = NULL, changed_at = c.now
  FROM (SELECT interlock.clock() AS now) c
  WHERE s.name = :name::text AND s.changed_by IS NOT NULL AND s.declared IS NOT NULL RETURNING s.name, s.changed_at)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason)
SELECT :id::text::uuid, c.changed_at, 'schedule', c.name, 'reset', :actor::text, :reason::text
FROM changed c RETURNING true

-- name: schedules.pause
WITH paused AS (
  UPDATE interlock.schedules SET paused_at = interlock.clock(), paused_by = :actor::text, pause_reason = :reason::text
  WHERE name = :name::text AND paused_at IS NULL RETURNING name, paused_at)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason)
SELECT :id::text::uuid, p.paused_at, 'schedule', p.name, 'pause', :actor::text, :reason::text FROM paused p
RETURNING true

-- name: schedules.resume
-- The pause skips its ticks.
WITH resumed AS (
  UPDATE interlock.schedules s SET paused_at = NULL, paused_by = NULL, pause_reason = NULL,
    starts_at = c.now
  FROM (SELECT interlock.clock() AS now) c
  WHERE s.name = :name::text AND s.paused_at IS NOT NULL RETURNING s.name, c.now)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason)
SELECT :id::text::uuid, r.now, 'schedule', r.name, 'resume', :actor::text, :reason::text FROM resumed r
RETURNING true

-- name: schedules.delete
WITH deleted AS (DELETE FROM interlock.schedules WHERE name = :name::text RETURNING name)
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason, detail)
SELECT :id::text::uuid, interlock.clock(), 'schedule', d.name, 'delete', :actor::text, :reason::text,
  :detail::text::json
FROM deleted d RETURNING true

-- name: operations.add
INSERT INTO interlock.operations (id, at, scope, name, event, actor, reason, detail)
VALUES (:id::text::uuid, interlock.clock(), :scope::text, :name::text, :event::text, :actor::text, :reason::text,
  :detail::text::json)
