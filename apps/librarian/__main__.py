"""`python -m apps.librarian`."""

from .main import main

main()
