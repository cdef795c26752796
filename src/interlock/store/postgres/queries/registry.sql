-- The schema, lifecycles and kinds, on PostgreSQL.

-- name: exists
SELECT to_regclass(:table::text) IS NOT NULL

-- name: instance
SELECT instance::text FROM interlock.schema_version ORDER BY version LIMIT 1

-- name: kind
SELECT name, lifecycle, hooks::text, queue, tries, key_until::text, admits, lifecycle_version, check_every, check_batch
  FROM interlock.kinds WHERE name = :name::text

-- name: lifecycle
SELECT l.initial, e.source, e.event, e.target FROM interlock.lifecycles l
  JOIN interlock.lifecycle_edges e ON e.lifecycle = l.name AND e.version = l.version
WHERE l.name = :name::text AND l.version = :version::int

-- name: register
INSERT INTO interlock.lifecycles (name, version, digest, initial)
SELECT :name::text, 1 + coalesce(max(version), 0), :digest::text, :initial::text FROM interlock.lifecycles
  WHERE name = :name::text
RETURNING version

-- name: register_edges
INSERT INTO interlock.lifecycle_edges (lifecycle, version, source, event, target)
SELECT :name::text, :version::int, * FROM unnest(:source::text::text[], :event::text::text[], :target::text::text[])

-- name: register_changes
INSERT INTO interlock.lifecycle_changes (lifecycle, version, source, target, attempts, arrows)
SELECT DISTINCT :name::text, :version::int, h.* FROM unnest(:source::text::text[], :target::text::text[],
  :attempts::text::int[], :arrows::text::int[]) AS h

-- name: register_phases
INSERT INTO interlock.lifecycle_phases (lifecycle, version, state, phase)
SELECT :name::text, :version::int, p.* FROM unnest(:state::text::text[], :phase::text::text[]) AS p

-- name: register_kind
INSERT INTO interlock.kinds (name, lifecycle, lifecycle_version, queue, tries, hooks, key_until, admits, check_every,
  check_batch)
SELECT :name::text, :lifecycle::text, coalesce(:version::text::int, (SELECT max(version) FROM interlock.lifecycles
  WHERE name = :lifecycle::text), 0),
  :queue::text, :tries::text::int, :hooks::text::jsonb, :key_until::text::jsonb, :admits::text::boolean,
    :every::text::float8, :batch::text::int
ON CONFLICT (name) DO UPDATE SET lifecycle = excluded.lifecycle, lifecycle_version = excluded.lifecycle_version,
  queue = excluded.queue, tries = excluded.tries,
  hooks = excluded.hooks, key_until = excluded.key_until, admits = excluded.admits, check_every = excluded.check_every,
    check_batch = excluded.check_batch,
  registered_at = clock_timestamp()
WHERE (kinds.lifecycle, kinds.lifecycle_version, kinds.queue, kinds.tries, kinds.hooks, kinds.key_until, kinds.admits,
  kinds.check_every, kinds.check_batch)
  IS DISTINCT FROM (excluded.lifecycle, excluded.lifecycle_version, excluded.queue, excluded.tries, excluded.hooks,
    excluded.key_until, excluded.admits,
    excluded.check_every, excluded.check_batch)

-- name: live_versions
-- Versions that the database must still accept: the two newest of each lifecycle (a rolling deploy runs both), those
-- registered within a day or migrated now, and those that a live job is pinned to.
SELECT l.name, l.version, l.initial FROM interlock.lifecycles l
WHERE l.version > (SELECT max(m.version) FROM interlock.lifecycles m WHERE m.name = l.name) - 2
  OR l.registered_at > clock_timestamp() - interval '1 day'
  OR EXISTS (SELECT FROM unnest(:name::text::text[], :version::text::int[]) AS k(name, version)
    WHERE k.name = l.name AND k.version = l.version)
  OR EXISTS (SELECT FROM interlock.jobs j WHERE j.lifecycle = l.name AND j.lifecycle_version = l.version
    AND j.phase IN ('pending', 'running'))
ORDER BY l.name, l.version

-- name: stranded
-- Live jobs of a lifecycle in a state that its new version lacks.
SELECT state, count(*) FROM interlock.jobs WHERE lifecycle = :name::text AND phase IN ('pending', 'running')
  AND state <> ALL(:states::text::text[]) GROUP BY state ORDER BY state

-- name: enforced_changes
SELECT lifecycle, version, source, target, attempts, arrows FROM interlock.lifecycle_changes ORDER BY 1, 2, 3, 4, 5, 6

-- name: enforced_phases
SELECT lifecycle, version, state, phase FROM interlock.lifecycle_phases ORDER BY 1, 2, 3, 4

-- name: version_of
SELECT version FROM interlock.lifecycles WHERE name = :name::text AND digest = :digest::text
