-- Unique keys that stay taken after their job has ended, on SQLite. Jobs without `unique_for` have no row here.

-- Until when a job keeps its unique key, if it has not failed. The row of a job that failed or was deleted means
-- nothing, and the next job may take it. An active job keeps its row: it limits how far its due time moves.
CREATE TABLE interlock_unique_windows (
  kind       TEXT NOT NULL,
  unique_key TEXT NOT NULL,
  job_id     TEXT NOT NULL CHECK (length(job_id) = 36),
  until      TEXT NOT NULL CHECK (until GLOB '????-??-??T??:??:??.??????Z'),
  PRIMARY KEY (kind, unique_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX interlock_unique_windows_until ON interlock_unique_windows (until);

CREATE TRIGGER interlock_jobs_window BEFORE INSERT ON interlock_jobs
  WHEN NEW.unique_key IS NOT NULL AND NEW.redrive_of IS NULL AND EXISTS (
    SELECT 1 FROM interlock_unique_windows w CROSS JOIN interlock_jobs j ON j.id = w.job_id AND j.phase <> 'failed'
    WHERE w.kind = NEW.kind AND w.unique_key = NEW.unique_key AND w.until > NEW.created_at)
BEGIN
  SELECT RAISE(ABORT, 'interlock refuses this INSERT on jobs: the unique key is taken until a later time');
END;
