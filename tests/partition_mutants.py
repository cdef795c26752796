"""The mutants of the partitioned audit."""

from tests.mutant import Mutant

_SQL = "src/interlock/store/postgres/partitions.sql"
_MONTHS = ("tests/contract/test_archived_months.py",)

PARTITION_MUTANTS = [
    Mutant(
        "postgres dropped stored job",
        "A month with a job that is still stored is not dropped",
        _SQL,
        "CREATE FUNCTION interlock.is_archived(",
        "WHERE j.id >= $1 AND j.id < $2",
        "WHERE false",
        _MONTHS,
    ),
    Mutant(
        "postgres dropped entry",
        "A month is dropped only after every entry of it was archived",
        _SQL,
        "CREATE FUNCTION interlock.is_archived(",
        "IS DISTINCT FROM h.entries",
        "< 0",
        _MONTHS,
    ),
    Mutant(
        "postgres drop without a check",
        "The function that drops a month refuses if it is not archived",
        _SQL,
        "CREATE FUNCTION interlock.drop_audit_partition(",
        "interlock.is_archived(part.first_id, part.end_id) IS NOT TRUE",
        "false",
        _MONTHS,
    ),
    Mutant(
        "postgres unprotected partition",
        "An entry in a partition never changes",
        _SQL,
        "CREATE FUNCTION interlock.partition_audit(",
        "PERFORM interlock.protect_audit_partition('audit_default');",
        "",
        ("tests/contract/test_audit_partitions.py",),
    ),
]
