-- Upgrades of an older schema: the statements of each version, in order. A new database is created by schema.sql.

-- version: 2
-- Handed-over work and the health of external systems. In version 1 only an execution's first holder committed.
ALTER TABLE interlock_kinds ADD COLUMN check_every REAL;
ALTER TABLE interlock_kinds ADD COLUMN check_batch INTEGER;
ALTER TABLE interlock_kinds ADD COLUMN external_failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE interlock_kinds ADD COLUMN external_error TEXT;
ALTER TABLE interlock_kinds ADD COLUMN external_down_at TEXT;
ALTER TABLE interlock_executions ADD COLUMN committed_holder INTEGER;
UPDATE interlock_executions SET committed_holder = 1 WHERE status = 'COMMITTED';
CREATE INDEX interlock_jobs_stopping ON interlock_jobs (kind, cancel_requested_at) WHERE cancel_requested_at IS NOT NULL
  AND phase = 'running';
