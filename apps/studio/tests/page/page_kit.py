"""What the tests of the page share."""

from itertools import count

numbers = count(1)
"""For names: whoever comes to a studio that many tests share is called as nobody else is."""
