"""`python -m caveat` is `caveat`."""

from .cli.main import main

if __name__ == "__main__":
    main()
