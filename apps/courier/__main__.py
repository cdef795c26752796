"""`python -m apps.courier`."""

from .main import main

main()
