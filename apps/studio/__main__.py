"""`python -m apps.studio`."""

from .main import main

main()
