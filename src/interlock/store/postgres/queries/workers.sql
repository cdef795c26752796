-- Workers, on PostgreSQL.

-- name: report_worker
INSERT INTO interlock.workers AS w (name, host, pid, state, slots, busy, kinds, queues, schedules, started_at,
  heartbeat_at)
SELECT :name::text, :host::text, :pid::int, :state::text, :slots::int, :busy::int, :kinds::text::jsonb,
  :queues::text::jsonb, :schedules::text::jsonb, c.now, c.now
FROM (SELECT interlock.clock() AS now) c
ON CONFLICT (name) DO UPDATE SET host = excluded.host, pid = excluded.pid, state = excluded.state,
  slots = excluded.slots, busy = excluded.busy,
  kinds = excluded.kinds, queues = excluded.queues, schedules = excluded.schedules,
  heartbeat_at = excluded.heartbeat_at

-- name: remove_worker
DELETE FROM interlock.workers WHERE name = :name::text

-- name: workers
SELECT name, host, pid, state, slots, busy, kinds::text, queues::text, schedules::text, started_at, heartbeat_at,
  extract(epoch FROM (SELECT interlock.clock()) - heartbeat_at)::float8
FROM interlock.workers ORDER BY name COLLATE "C"

-- name: forget_workers
DELETE FROM interlock.workers WHERE heartbeat_at <= (SELECT interlock.clock()) - :silent::float8 * interval '1 second'
