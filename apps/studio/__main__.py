"""`python -m apps.studio`."""

from .cli import main

main()
