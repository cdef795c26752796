-- What brings an older schema to this code's: the statements of each version, in order. Whoever has a new database gets `schema.sql` instead.

-- version: 2
-- Handed-over work, and how the outside fares. Until then only workers committed, each as the first holder of its execution.
ALTER TABLE interlock_kinds ADD COLUMN check_every REAL;
ALTER TABLE interlock_kinds ADD COLUMN check_batch INTEGER;
ALTER TABLE interlock_kinds ADD COLUMN outside_failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE interlock_kinds ADD COLUMN outside_error TEXT;
ALTER TABLE interlock_kinds ADD COLUMN outside_down_at TEXT;
ALTER TABLE interlock_executions ADD COLUMN committed_holder INTEGER;
UPDATE interlock_executions SET committed_holder = 1 WHERE status = 'COMMITTED';
CREATE INDEX interlock_jobs_stopping ON interlock_jobs (kind, cancel_requested_at) WHERE cancel_requested_at IS NOT NULL AND phase = 'running';
