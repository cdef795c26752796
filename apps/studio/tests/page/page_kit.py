"""Helpers for the tests of the page."""

from itertools import count

numbers = count(1)
"""For names: whoever comes to a studio that many tests share is called as nobody else is."""
