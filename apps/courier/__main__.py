"""`python -m apps.courier`."""

from .cli import main

main()
