"""Runs the command line: `python -m apps.librarian`."""

from .cli import main

main()
