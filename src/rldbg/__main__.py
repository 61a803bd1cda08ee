"""`python -m rldbg` runs the command line."""

from rldbg.cli import main

if __name__ == "__main__":
    main()
