-- The statements of the SQLite store, by name: one file for each subject, and here the fragments that several files
-- use. `:name` is a parameter, `{name}` a fragment.
--
-- The names are those of the PostgreSQL store; if one statement there is several here, they share the name before the
-- dot.
-- differs: SQLite has one writer, so BEGIN IMMEDIATE replaces row locks. Lists are JSON arrays.
-- differs: `:now` is a parameter, from the clock that the store was given; durations are added to it in Python.
-- differs: INDEXED BY and CROSS JOIN fix the plans, so there is no `fixed_plans`; one writer needs no `lock_archive`;
-- differs: a file's lock has its own timeout, so there is no `commit_timeouts`.
-- differs: `now` is the store's own clock, and without a server there is no `uptime`.
-- differs: the triggers look transitions up in the registered rows, so there are no `live_versions`,
-- differs: `enforced_changes`, `enforced_phases`.
-- differs: there is no LATERAL. LATERAL … LIMIT becomes json_each over the array of a correlated subquery; its values
--   begin with a time of fixed width, so that they sort.
-- differs: the one writer numbers audit notes alone, so there are no `lock_jobs` and `lock_live`.
-- differs: LIMIT is a sum, because newer SQLite plans a statement again whenever a bare parameter is bound there.

-- fragment: job
j.id, j.kind, j.queue, j.priority, j.lifecycle, j.lifecycle_version, j.state, j.phase, j.version, j.attempt, j.tries,
  j.tries_left, j.lease_losses,
j.payload, j.tags, j.trace, j.result, j.last_error, j.due_at, j.expires_at, j.scheduled_for, j.created_at, j.updated_at,
  j.finished_at,
j.idempotency_key, j.key_freed, j.unique_key, j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.held_at,
  j.held_reason, j.redrive_of,
j.root, j.concurrency_key, j.batch, j.blocked_at, j.awaited

-- fragment: summary
-- The same without payload and result, which may be a megabyte each.
j.id, j.kind, j.queue, j.priority, j.lifecycle, j.lifecycle_version, j.state, j.phase, j.version, j.attempt, j.tries,
j.tries_left, j.lease_losses, '{}', j.tags, j.trace, NULL, j.last_error, j.due_at, j.expires_at,
j.scheduled_for, j.created_at, j.updated_at, j.finished_at, j.idempotency_key, j.key_freed, j.unique_key,
j.cancel_requested_at, j.cancel_requested_by, j.cancel_reason, j.held_at, j.held_reason, j.redrive_of, j.root,
j.concurrency_key, j.batch, j.blocked_at, j.awaited

-- fragment: execution
e.job_id, e.attempt, e.holder, e.kind, e.lease_owner, e.lease_expires_at, e.heartbeat_at, e.status, e.state, e.ended_by,
  e.error, e.external_id,
e.missing_since, e.next_check_at, e.progress, e.usage, e.result, e.leased_at, e.started_at, e.committed_at,
  e.finished_at

-- fragment: refreshed
-- Now, or one microsecond after the row's last change if that is later.
CASE WHEN updated_at < :now THEN :now
  ELSE strftime('%Y-%m-%dT%H:%M:%S', substr(updated_at, 1, 19),
    printf('+%d seconds', substr(updated_at, 21, 6) = '999999'))
    || printf('.%06dZ', (substr(updated_at, 21, 6) + 1) % 1000000) END

-- fragment: leased
e.status IN ('LEASED', 'IN_PROGRESS', 'COMMITTED') AND (e.external_id IS NULL OR e.status = 'COMMITTED')

-- fragment: handed_over
e.status IN ('LEASED', 'IN_PROGRESS') AND e.external_id IS NOT NULL

-- fragment: unowned
-- No worker owns it: `lease_expires_at` is not the end of a lease, but the time of its next check.
e.lease_owner = 'external:' || e.kind

-- fragment: cancellable
EXISTS (SELECT 1 FROM interlock_lifecycle_edges d WHERE d.lifecycle = j.lifecycle AND d.version = j.lifecycle_version
  AND d.source = j.state AND d.event = 'cancel')

-- fragment: matching
-- The filters of lists and of operations on many jobs. The function lower() converts only A to Z.
(:kind IS NULL OR j.kind = :kind) AND (:state IS NULL OR j.state = :state) AND (:phase IS NULL OR j.phase = :phase)
  AND (:queue IS NULL OR j.queue = :queue)
  AND (:since IS NULL OR coalesce(j.finished_at, j.created_at) >= :since)
  AND (:until IS NULL OR coalesce(j.finished_at, j.created_at) < :until)
  AND (:error_like IS NULL OR instr(lower(j.last_error), :error_like) > 0)
  AND (:tags IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(:tags) t
    WHERE NOT EXISTS (SELECT 1 FROM json_each(j.tags) h WHERE h.key = t.key AND h.value = t.value)))

-- fragment: ended_by_failure
-- The job failed by itself: it was not rejected or cancelled, and did not expire.
EXISTS (SELECT 1 FROM interlock_executions x
  WHERE x.job_id = j.id AND x.attempt = j.attempt AND x.ended_by NOT IN ('reject', 'cancel', 'expire'))

-- fragment: redriven
-- An audit note, which is stored together with the new job, shows that the job was redriven.
EXISTS (SELECT 1 FROM interlock_audit a
  WHERE a.job_id = j.id AND a.version = j.version AND a.n > 0 AND a.event = 'redrive')
