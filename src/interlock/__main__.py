"""`python -m interlock` is the command `interlock`."""

from .cli import main

if __name__ == "__main__":
    main()
