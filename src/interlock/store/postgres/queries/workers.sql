-- Workers and schedules, on PostgreSQL.

-- name: report_worker
INSERT INTO interlock.workers AS w (name, host, pid, state, slots, busy, kinds, queues, started_at, heartbeat_at)
SELECT :name::text, :host::text, :pid::int, :state::text, :slots::int, :busy::int, :kinds::text::jsonb,
  :queues::text::jsonb, c.now, c.now
FROM (SELECT interlock.clock() AS now) c
ON CONFLICT (name) DO UPDATE SET host = excluded.host, pid = excluded.pid, state = excluded.state,
  slots = excluded.slots, busy = excluded.busy,
  kinds = excluded.kinds, queues = excluded.queues, heartbeat_at = excluded.heartbeat_at

-- name: remove_worker
DELETE FROM interlock.workers WHERE name = :name::text

-- name: workers
SELECT name, host, pid, state, slots, busy, kinds::text, queues::text, started_at, heartbeat_at, extract(epoch
  FROM (SELECT interlock.clock()) - heartbeat_at)::float8
FROM interlock.workers ORDER BY name COLLATE "C"

-- name: forget_workers
DELETE FROM interlock.workers WHERE heartbeat_at <= (SELECT interlock.clock()) - :silent::float8 * interval '1 second'

-- name: save_schedule
-- An unchanged schedule is not written.
INSERT INTO interlock.schedules AS s (name, kind, cron, tz, catch_up, payload, last_tick)
VALUES (:name::text, :kind::text, :cron::text, :tz::text, :catch_up::text, :payload::text::json, interlock.clock())
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, cron = excluded.cron, tz = excluded.tz,
  catch_up = excluded.catch_up, payload = excluded.payload
WHERE (s.kind, s.cron, s.tz, s.catch_up, s.payload::text) IS DISTINCT
  FROM (excluded.kind, excluded.cron, excluded.tz, excluded.catch_up, excluded.payload::text)

-- name: save_schedule.stored
-- A separate statement: the one that inserts would not see a concurrent row.
SELECT coalesce(last_tick, (SELECT interlock.clock())) FROM interlock.schedules
  WHERE name = :name::text AND paused_at IS NULL

-- name: mark_tick
UPDATE interlock.schedules SET last_tick = :tick::timestamptz
  WHERE name = :name::text AND (last_tick IS NULL OR last_tick < :tick::timestamptz)
