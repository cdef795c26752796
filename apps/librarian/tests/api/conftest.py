"""Two users of a branch, and somebody who is none."""

import pytest

from apps.librarian.api import api
from apps.librarian.tests.api.kit import Http, Reader
from apps.librarian.tests.kit import Branch


@pytest.fixture
def ann(branch: Branch) -> Reader:
    branch.library.add_book("Emma", "Jane Austen")
    return Reader(branch, "ann")


@pytest.fixture
def bob(branch: Branch) -> Reader:
    return Reader(branch, "bob")


@pytest.fixture
def stranger(branch: Branch) -> Http:
    """Somebody without a token."""
    return Http(api(branch.librarian, now=branch.clock.now))
