-- Workers and schedules, on SQLite.

-- name: report_worker
INSERT INTO interlock_workers (name, host, pid, state, slots, busy, kinds, queues, started_at, heartbeat_at)
VALUES (:name, :host, :pid, :state, :slots, :busy, :kinds, :queues, :now, :now)
ON CONFLICT (name) DO UPDATE SET host = excluded.host, pid = excluded.pid, state = excluded.state,
  slots = excluded.slots, busy = excluded.busy,
  kinds = excluded.kinds, queues = excluded.queues, heartbeat_at = excluded.heartbeat_at

-- name: remove_worker
DELETE FROM interlock_workers WHERE name = :name

-- name: workers
SELECT name, host, pid, state, slots, busy, kinds, queues, started_at, heartbeat_at FROM interlock_workers ORDER BY name

-- name: forget_workers
DELETE FROM interlock_workers WHERE heartbeat_at <= :before

-- name: save_schedule
-- differs: runs after `save_schedule.stored`, and only if something has changed, since a write wakes every listener.
INSERT INTO interlock_schedules (name, kind, cron, tz, catch_up, payload, last_tick)
  VALUES (:name, :kind, :cron, :tz, :catch_up, :payload, :now)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, cron = excluded.cron, tz = excluded.tz,
  catch_up = excluded.catch_up, payload = excluded.payload

-- name: save_schedule.stored
SELECT last_tick, paused_at, (kind, cron, tz, catch_up, payload) = (:kind, :cron, :tz, :catch_up, :payload)
  FROM interlock_schedules WHERE name = :name

-- name: mark_tick
UPDATE interlock_schedules SET last_tick = :tick WHERE name = :name AND (last_tick IS NULL OR last_tick < :tick)
