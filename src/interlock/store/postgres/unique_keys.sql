-- Unique keys that stay taken after their job has ended, on PostgreSQL. Jobs without `unique_for` have no row here.

-- Until when a job keeps its unique key, if it has not failed. The row of a job that failed, was deleted or was never
-- stored means nothing, and the next job may take it. An active job keeps its row: it limits how far its due time
-- moves.
CREATE TABLE interlock.unique_windows (
  kind       text NOT NULL,
  unique_key text NOT NULL,
  job_id     uuid NOT NULL,
  until      timestamptz NOT NULL,
  PRIMARY KEY (kind, unique_key)
);
CREATE INDEX unique_windows_until ON interlock.unique_windows (until);

-- Whether a new job may have this key. A job with a window takes the key's row. It waits for a transaction that has
-- just taken the row, and looks again afterwards: every statement of this function has a snapshot of its own. An
-- enqueue takes the rows in the order of the keys, before it inserts jobs. A redrive takes over the window of the job
-- that it repeats, and no other window stops it.
CREATE FUNCTION interlock.take_unique_key(job uuid, repeated uuid, of_kind text, key text, seconds float8,
  at timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  taken boolean;
BEGIN
  IF repeated IS NOT NULL THEN
    UPDATE interlock.unique_windows w SET job_id = job
      WHERE w.kind = of_kind AND w.unique_key = key AND w.job_id = repeated;
    RETURN true;
  ELSIF EXISTS (SELECT FROM interlock.unique_windows w JOIN interlock.jobs j ON j.id = w.job_id AND j.phase <> 'failed'
    WHERE w.kind = of_kind AND w.unique_key = key AND w.until > at) THEN
    RETURN false;
  ELSIF seconds IS NULL THEN
    RETURN true;
  END IF;
  LOOP
    -- An active job keeps the key and its row, also after the end of its window.
    IF EXISTS (SELECT FROM interlock.jobs j WHERE j.kind = of_kind AND j.unique_key = key AND j.unique_key IS NOT NULL
      AND j.phase IN ('pending', 'running')) THEN
      RETURN false;
    END IF;
    INSERT INTO interlock.unique_windows (kind, unique_key, job_id, until)
      VALUES (of_kind, key, job, at + seconds * interval '1 second') ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN true;
    END IF;
    PERFORM FROM interlock.unique_windows w WHERE w.kind = of_kind AND w.unique_key = key FOR UPDATE;
    taken := FOUND;
    IF EXISTS (SELECT FROM interlock.unique_windows w JOIN interlock.jobs j ON j.id = w.job_id AND j.phase <> 'failed'
      WHERE w.kind = of_kind AND w.unique_key = key AND w.until > at) THEN
      RETURN false;
    END IF;
    IF taken AND NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.kind = of_kind AND j.unique_key = key
      AND j.unique_key IS NOT NULL AND j.phase IN ('pending', 'running')) THEN
      UPDATE interlock.unique_windows w SET job_id = job, until = at + seconds * interval '1 second'
        WHERE w.kind = of_kind AND w.unique_key = key;
      RETURN true;
    END IF;
  END LOOP;
END $$;

-- A job whose whole life lies between the look at its window and the insert of another job is found only here. The
-- error is that of a transaction that lost a race: it can be retried.
CREATE FUNCTION interlock.check_unique_window(job interlock.jobs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM interlock.unique_windows w JOIN interlock.jobs j ON j.id = w.job_id AND j.phase <> 'failed'
    WHERE w.kind = job.kind AND w.unique_key = job.unique_key AND w.until > job.created_at AND w.job_id <> job.id) THEN
    RAISE EXCEPTION 'interlock refuses this INSERT on jobs: the unique key is taken until a later time'
      USING ERRCODE = 'serialization_failure';
  END IF;
END $$;
