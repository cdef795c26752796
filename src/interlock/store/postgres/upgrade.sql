-- What brings an older schema to this code's: the statements of each version, in order. Whoever has a new database gets `schema.sql` instead.

-- version: 2
-- Handed-over work, and how the outside fares. Until then only workers committed, each as the first holder of its execution.
ALTER TABLE interlock.kinds ADD COLUMN check_every float8;
ALTER TABLE interlock.kinds ADD COLUMN check_batch int;
ALTER TABLE interlock.kinds ADD COLUMN outside_failures int NOT NULL DEFAULT 0;
ALTER TABLE interlock.kinds ADD COLUMN outside_error text;
ALTER TABLE interlock.kinds ADD COLUMN outside_down_at timestamptz;
ALTER TABLE interlock.executions ADD COLUMN committed_holder int;
UPDATE interlock.executions SET committed_holder = 1 WHERE status = 'COMMITTED';
CREATE INDEX jobs_stopping ON interlock.jobs (kind, cancel_requested_at) WHERE cancel_requested_at IS NOT NULL AND phase = 'running';
