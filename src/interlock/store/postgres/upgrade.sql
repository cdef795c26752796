-- Upgrades of an older schema: the statements of each version, in order. A new database is created by schema.sql.

-- version: 2
-- Handed-over work and the health of external systems. In version 1 only an execution's first holder committed.
ALTER TABLE interlock.kinds ADD COLUMN check_every float8;
ALTER TABLE interlock.kinds ADD COLUMN check_batch int;
ALTER TABLE interlock.kinds ADD COLUMN external_failures int NOT NULL DEFAULT 0;
ALTER TABLE interlock.kinds ADD COLUMN external_error text;
ALTER TABLE interlock.kinds ADD COLUMN external_down_at timestamptz;
ALTER TABLE interlock.executions ADD COLUMN committed_holder int;
UPDATE interlock.executions SET committed_holder = 1 WHERE status = 'COMMITTED';
CREATE INDEX jobs_stopping ON interlock.jobs (kind, cancel_requested_at) WHERE cancel_requested_at IS NOT NULL
  AND phase = 'running';
