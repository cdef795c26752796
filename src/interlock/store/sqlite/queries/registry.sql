-- The schema, lifecycles and kinds, on SQLite.

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
SELECT name, lifecycle, hooks, queue, tries, key_until, admits, lifecycle_version, check_every, check_batch
  FROM interlock_kinds WHERE name = :name

-- name: lifecycle
SELECT l.initial, e.source, e.event, e.target FROM interlock_lifecycles l
  JOIN interlock_lifecycle_edges e ON e.lifecycle = l.name AND e.version = l.version
WHERE l.name = :name AND l.version = :version

-- name: register
INSERT INTO interlock_lifecycles (name, version, digest, initial)
SELECT :name, 1 + coalesce(max(version), 0), :digest, :initial FROM interlock_lifecycles WHERE name = :name
RETURNING version

-- name: register_edges
INSERT INTO interlock_lifecycle_edges (lifecycle, version, source, event, target)
  VALUES (:name, :version, :source, :event, :target)

-- name: register_changes
INSERT INTO interlock_lifecycle_changes (lifecycle, version, source, target, attempts, arrows)
  VALUES (:name, :version, :source, :target, :attempts, :arrows)
ON CONFLICT DO NOTHING

-- name: register_phases
INSERT INTO interlock_lifecycle_phases (lifecycle, version, state, phase) VALUES (:name, :version, :state, :phase)

-- name: register_kind
INSERT INTO interlock_kinds (name, lifecycle, lifecycle_version, queue, tries, hooks, key_until, admits, check_every,
  check_batch)
VALUES (:name, :lifecycle, coalesce(:version, (SELECT max(version) FROM interlock_lifecycles WHERE name = :lifecycle),
  0), :queue, :tries, :hooks, :key_until, :admits,
  :every, :batch)
ON CONFLICT (name) DO UPDATE SET lifecycle = excluded.lifecycle, lifecycle_version = excluded.lifecycle_version,
  queue = excluded.queue, tries = excluded.tries,
  hooks = excluded.hooks, key_until = excluded.key_until, admits = excluded.admits, check_every = excluded.check_every,
    check_batch = excluded.check_batch,
  registered_at = excluded.registered_at
WHERE (lifecycle, lifecycle_version, queue, tries, hooks, key_until, admits, check_every, check_batch)
  IS NOT (excluded.lifecycle, excluded.lifecycle_version, excluded.queue, excluded.tries, excluded.hooks,
    excluded.key_until, excluded.admits,
    excluded.check_every, excluded.check_batch)

-- name: stranded
-- Live jobs of a lifecycle in a state that its new version lacks.
SELECT state, count(*) FROM interlock_jobs WHERE lifecycle = :name AND phase IN ('pending', 'running')
  AND state NOT IN (SELECT value FROM json_each(:states))
GROUP BY state ORDER BY state

-- name: version_of
SELECT version FROM interlock_lifecycles WHERE name = :name AND digest = :digest
