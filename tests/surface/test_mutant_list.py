"""The list of mutants keeps up with the source."""

from tests.mutant_list import MUTANTS
from tests.mutants import checked


def test_every_mutant_can_be_applied() -> None:
    assert checked(MUTANTS) == []
