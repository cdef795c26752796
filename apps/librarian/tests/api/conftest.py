"""Fixtures: two users of the API, and a client without a token."""

import pytest

from apps.librarian.api import make_api
from apps.librarian.tests.api.http_client import ApiUser, HttpClient
from apps.librarian.tests.librarian_kit import LibrarianKit


@pytest.fixture
def ann(kit: LibrarianKit) -> ApiUser:
    kit.service.add_book("Emma", "Jane Austen")
    return ApiUser(kit, "ann")


@pytest.fixture
def bob(kit: LibrarianKit) -> ApiUser:
    return ApiUser(kit, "bob")


@pytest.fixture
def anonymous(kit: LibrarianKit) -> HttpClient:
    """A client without a token."""
    return HttpClient(make_api(kit.librarian, now=kit.clock.now))
