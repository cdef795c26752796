-- Workers, on SQLite.

-- name: report_worker
INSERT INTO interlock_workers (name, host, pid, state, slots, busy, kinds, queues, schedules, started_at,
  heartbeat_at)
VALUES (:name, :host, :pid, :state, :slots, :busy, :kinds, :queues, :schedules, :now, :now)
ON CONFLICT (name) DO UPDATE SET host = excluded.host, pid = excluded.pid, state = excluded.state,
  slots = excluded.slots, busy = excluded.busy,
  kinds = excluded.kinds, queues = excluded.queues, schedules = excluded.schedules,
  heartbeat_at = excluded.heartbeat_at

-- name: remove_worker
DELETE FROM interlock_workers WHERE name = :name

-- name: workers
SELECT name, host, pid, state, slots, busy, kinds, queues, schedules, started_at, heartbeat_at FROM interlock_workers
ORDER BY name

-- name: forget_workers
DELETE FROM interlock_workers WHERE heartbeat_at <= :before
