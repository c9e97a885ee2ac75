"""`python -m caveat` is `caveat`."""

from .cli import main

if __name__ == "__main__":
    main()
