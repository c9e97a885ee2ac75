"""Run the command line with `python -m caveat`."""

from .cli.main import main

if __name__ == "__main__":
    main()
