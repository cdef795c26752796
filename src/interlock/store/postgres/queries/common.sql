-- The statements of the PostgreSQL store, by name: one file for each subject, and here the fragments that several files
-- use. `:name` is a parameter, `{name}` a fragment.
--
-- Batches are array literals in text parameters, one array per column: every driver can send them, and no plan depends
-- on their length. A statement locks rows in the order of (job_id, attempt), or skips locked rows. Conditions are
-- written as comparisons of rows, which the planner cannot use for an index: otherwise they would look selective, and
-- the plan would not use the primary key.

-- fragment: job
j.id::text, j.kind, j.queue, j.priority, j.lifecycle, j.lifecycle_version, j.state, j.phase, j.version, j.attempt,
  j.tries, j.tries_left, j.lease_losses,
j.payload::text, j.tags::text, j.trace::text, j.result::text, j.last_error, j.due_at, j.expires_at, j.scheduled_for,
  j.created_at, j.updated_at, j.finished_at,
j.idempotency_key, j.key_freed, j.unique_key, j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.held_at,
  j.held_reason, j.redrive_of::text,
j.root::text, j.concurrency_key, j.batch::text, j.blocked_at, j.awaited

-- fragment: summary
-- The same without payload and result, which may be a megabyte each.
j.id::text, j.kind, j.queue, j.priority, j.lifecycle, j.lifecycle_version, j.state, j.phase, j.version, j.attempt,
  j.tries,
j.tries_left, j.lease_losses, '{}'::text, j.tags::text, j.trace::text, NULL::text, j.last_error, j.due_at, j.expires_at,
j.scheduled_for, j.created_at, j.updated_at, j.finished_at, j.idempotency_key, j.key_freed, j.unique_key,
j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.held_at, j.held_reason, j.redrive_of::text,
  j.root::text, j.concurrency_key, j.batch::text, j.blocked_at, j.awaited

-- fragment: execution
e.job_id::text, e.attempt, e.holder, e.kind, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.status, e.state,
  e.ended_by, e.error, e.external_id,
e.missing_since, e.next_check_at, e.progress::text, e.usage::text, e.result::text, e.leased_at, e.started_at,
  e.committed_at, e.finished_at

-- fragment: refreshed
greatest(c.now, j.updated_at + interval '1 microsecond')

-- fragment: notify
-- Sent to listeners when this transaction commits, once per transaction.
pg_notify('interlock.jobs', '')

-- fragment: leased
e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (e.external_id IS NULL OR e.status = 'COMMITTED')

-- fragment: handed_over
e.status IN ('LEASED', 'IN_PROGRESS') AND e.external_id IS NOT NULL

-- fragment: unowned
-- No worker owns it: `lease_expires_at` is not the end of a lease, but the time of its next check.
e.lease_owner = 'external:' || e.kind

-- fragment: cancellable
EXISTS (SELECT 1 FROM interlock.lifecycle_edges d WHERE d.lifecycle = j.lifecycle AND d.version = j.lifecycle_version
  AND d.source = j.state AND d.event = 'cancel')

-- fragment: matching
-- The filters of lists and of operations on many jobs. The collation "C" compares bytes, and lower() then converts only
-- A to Z, as on SQLite.
(:kind::text IS NULL OR j.kind = :kind::text) AND (:state::text IS NULL OR j.state = :state::text)
  AND (:phase::text IS NULL OR j.phase = :phase::text) AND (:queue::text IS NULL OR j.queue = :queue::text)
  AND (:tags::text IS NULL OR j.tags @> :tags::text::jsonb)
  AND (:since::text IS NULL OR coalesce(j.finished_at, j.created_at) >= :since::text::timestamptz)
  AND (:until::text IS NULL OR coalesce(j.finished_at, j.created_at) < :until::text::timestamptz)
  AND (:error_like::text IS NULL
    OR strpos(lower(j.last_error COLLATE "C"), :error_like::text COLLATE "C") > 0)

-- fragment: ended_by_failure
-- The job failed by itself: it was not rejected or cancelled, and did not expire.
EXISTS (SELECT 1 FROM interlock.executions x
  WHERE x.job_id = j.id AND x.attempt = j.attempt AND x.ended_by NOT IN ('reject', 'cancel', 'expire'))

-- fragment: redriven
-- An audit note, which is stored together with the new job, shows that the job was redriven.
EXISTS (SELECT 1 FROM interlock.audit a
  WHERE a.job_id = j.id AND a.version = j.version AND a.n > 0 AND a.event = 'redrive')
