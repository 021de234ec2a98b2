"""`python -m shadowspec` is the `shadowspec` command."""

from shadowspec.cli import main

if __name__ == "__main__":
    main()
