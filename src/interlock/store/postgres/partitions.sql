-- The audit by month. `interlock audit partition` divides it; until then, these functions do nothing.
--
-- A partition contains the audit of the jobs that were created in one month, because ids begin with the time of
-- creation. The table that existed before becomes the partition of everything up to the end of its month. Entries that
-- no partition covers go to the default one, so that an insert never fails.

-- The least id of a job that is created in this month.
CREATE FUNCTION interlock.first_id(month date) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT rpad(lpad(to_hex((extract(epoch FROM month) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;

-- The months of a partitioned audit, without the default partition; `end_id` is the first id after the month.
CREATE VIEW interlock.audit_partitions AS
  SELECT p.name, p.bounds[1]::uuid AS first_id, p.bounds[2]::uuid AS end_id,
    to_timestamp(('x' || left(replace(p.bounds[2], '-', ''), 12))::bit(48)::bigint / 1000) AS ends_at
  FROM (
    SELECT c.relname::text AS name,
      regexp_match(pg_get_expr(c.relpartbound, c.oid), $r$FROM \('(.+)'\) TO \('(.+)'\)$r$) AS bounds
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass('interlock.audit')) p
  WHERE p.bounds IS NOT NULL;

-- Statement triggers do not pass from a table to its partitions, unlike row triggers.
CREATE FUNCTION interlock.protect_audit_partition(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TRIGGER audit_update BEFORE UPDATE ON interlock.%I FOR EACH STATEMENT
    EXECUTE FUNCTION interlock.refuse(''audit entries never change'')', name);
  EXECUTE format('CREATE TRIGGER audit_truncate BEFORE TRUNCATE ON interlock.%I FOR EACH STATEMENT
    EXECUTE FUNCTION interlock.refuse(''audit entries never change'')', name);
END $$;

-- Creates the partitions of this month and the next two, unless the default one has entries of such a month already,
-- and returns how many. It attaches a new table, because PARTITION OF would need the audit for itself. If another
-- transaction uses the default partition for a second, the next run creates them.
CREATE FUNCTION interlock.add_audit_partitions() RETURNS int LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
  present date := date_trunc('month', interlock.clock() AT TIME ZONE 'UTC');
  month date;
  first uuid;
  after uuid;
  name text;
  added int := 0;
BEGIN
  IF to_regclass('interlock.audit_default') IS NULL THEN
    RETURN 0;
  END IF;
  FOR month IN SELECT present + n * interval '1 month' FROM generate_series(0, 2) AS n LOOP
    first := interlock.first_id(month);
    after := interlock.first_id((month + interval '1 month')::date);
    name := 'audit_' || to_char(month, 'YYYY_MM');
    CONTINUE WHEN EXISTS (SELECT FROM interlock.audit_partitions p WHERE p.first_id < after AND p.end_id > first);
    LOCK TABLE ONLY interlock.audit IN SHARE UPDATE EXCLUSIVE MODE;
    LOCK TABLE interlock.audit_default IN ACCESS EXCLUSIVE MODE;
    -- Another worker may have created it before this one had the locks.
    CONTINUE WHEN EXISTS (SELECT FROM interlock.audit_partitions p WHERE p.first_id < after AND p.end_id > first);
    CONTINUE WHEN EXISTS (SELECT FROM interlock.audit_default a WHERE a.job_id >= first AND a.job_id < after);
    EXECUTE format('CREATE TABLE interlock.%I (LIKE interlock.audit INCLUDING ALL)', name);
    EXECUTE format('ALTER TABLE interlock.audit ATTACH PARTITION interlock.%I FOR VALUES FROM (%L) TO (%L)',
      name, first, after);
    PERFORM interlock.protect_audit_partition(name);
    added := added + 1;
  END LOOP;
  RETURN added;
EXCEPTION WHEN lock_not_available THEN
  RETURN 0;
END $$;

-- Divides the audit, in one transaction that locks it and reads it once. Returns false if it is divided already. Fails
-- if another transaction uses the audit for a second, because others would queue behind this one.
CREATE FUNCTION interlock.partition_audit() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
  present date := date_trunc('month', interlock.clock() AT TIME ZONE 'UTC');
  after uuid := interlock.first_id((present + interval '1 month')::date);
  old text := 'audit_to_' || to_char(present, 'YYYY_MM');
  privileges aclitem[];
  owner text;
  granted record;
  dependents text;
BEGIN
  LOCK TABLE interlock.audit IN ACCESS EXCLUSIVE MODE;
  IF to_regclass('interlock.audit_default') IS NOT NULL THEN
    RETURN false;
  END IF;
  -- Views, triggers, policies and publications would refer to the old table only.
  SELECT INTO dependents string_agg(o.name, ', ' ORDER BY o.name) FROM (
    SELECT 'view ' || r.ev_class::regclass AS name FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
      WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = 'interlock.audit'::regclass
    UNION SELECT 'trigger ' || t.tgname FROM pg_trigger t
      WHERE t.tgrelid = 'interlock.audit'::regclass AND NOT t.tgisinternal
        AND t.tgname NOT IN ('audit_delete', 'audit_update', 'audit_truncate')
    UNION SELECT 'policy ' || y.polname FROM pg_policy y WHERE y.polrelid = 'interlock.audit'::regclass
    UNION SELECT 'publication ' || b.pubname FROM pg_publication_rel l JOIN pg_publication b ON b.oid = l.prpubid
      WHERE l.prrelid = 'interlock.audit'::regclass) o;
  IF dependents IS NOT NULL THEN
    RAISE EXCEPTION 'interlock cannot partition the audit, because these belong to its table: %', dependents
      USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Drop them, and create them again afterwards.';
  END IF;
  -- Whoever calls this, the new tables belong to the owner of the old one.
  SELECT c.relacl, c.relowner::regrole::text INTO privileges, owner FROM pg_class c
    WHERE c.oid = 'interlock.audit'::regclass;
  EXECUTE 'SET LOCAL ROLE ' || owner;
  DROP TRIGGER audit_delete ON interlock.audit;
  EXECUTE format('ALTER TABLE interlock.audit RENAME CONSTRAINT audit_pkey TO %I', old || '_pkey');
  EXECUTE format('ALTER TABLE interlock.audit RENAME TO %I', old);
  EXECUTE format('CREATE TABLE interlock.audit (LIKE interlock.%I INCLUDING ALL) PARTITION BY RANGE (job_id)', old);
  CREATE TRIGGER audit_delete BEFORE DELETE ON interlock.audit FOR EACH ROW
    EXECUTE FUNCTION interlock.refuse_unarchived();
  PERFORM interlock.protect_audit_partition('audit');
  CREATE TABLE interlock.audit_default PARTITION OF interlock.audit DEFAULT;
  PERFORM interlock.protect_audit_partition('audit_default');
  EXECUTE format('WITH later AS (DELETE FROM interlock.%I WHERE job_id >= $1 RETURNING *)
    INSERT INTO interlock.audit_default SELECT * FROM later', old) USING after;
  EXECUTE format('ALTER TABLE interlock.audit ATTACH PARTITION interlock.%I FOR VALUES FROM (%L) TO (%L)',
    old, rpad('', 32, '0')::uuid, after);
  FOR granted IN SELECT * FROM aclexplode(privileges) LOOP
    EXECUTE format('GRANT %s ON interlock.audit TO %s', granted.privilege_type,
      CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END
        || CASE WHEN granted.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
  END LOOP;
  PERFORM interlock.add_audit_partitions();
  RETURN true;
END $$;

-- Whether the audit in these bounds is of deleted jobs only, and all of it was archived.
CREATE FUNCTION interlock.is_archived(first_id uuid, end_id uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT NOT EXISTS (SELECT FROM interlock.jobs j WHERE j.id >= $1 AND j.id < $2) AND NOT EXISTS (
    SELECT FROM (
      SELECT a.job_id, count(*) AS entries FROM interlock.audit a WHERE a.job_id >= $1 AND a.job_id < $2
      GROUP BY a.job_id) h
    LEFT JOIN interlock.archived r ON r.job_id = h.job_id AND r.job_id >= $1 AND r.job_id < $2
    WHERE r.entries IS DISTINCT FROM h.entries)
$$;

-- The only safe way to drop a month, because DROP TABLE fires no row triggers. Its entries are locked while they are
-- checked. Returns false if another transaction uses the audit for a second.
CREATE FUNCTION interlock.drop_audit_partition(month text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
  part record;
BEGIN
  LOCK TABLE interlock.archived IN SHARE ROW EXCLUSIVE MODE;
  SELECT p.* INTO part FROM interlock.audit_partitions p WHERE p.name = month;
  IF part.name IS NULL THEN
    RAISE EXCEPTION 'interlock refuses to drop %: it is not the partition of a month of the audit', month
      USING ERRCODE = 'check_violation';
  END IF;
  EXECUTE format('LOCK TABLE interlock.%I IN SHARE ROW EXCLUSIVE MODE', part.name);
  IF part.ends_at > interlock.clock() THEN
    RAISE EXCEPTION 'interlock refuses to drop %: its month has not ended', month USING ERRCODE = 'check_violation';
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed'
    OR interlock.is_archived(part.first_id, part.end_id) IS NOT TRUE THEN
    RAISE EXCEPTION 'interlock refuses to drop %: a job of this month is still stored, or its audit is not archived',
      month USING ERRCODE = 'check_violation';
  END IF;
  EXECUTE format('DROP TABLE interlock.%I', part.name);
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END $$;
