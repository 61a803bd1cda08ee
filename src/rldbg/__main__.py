"""`python -m rldbg` runs the command line."""

from rldbg.cli import main

# Processes that are started by `spawn` import this module again and must not run the command a second time.
if __name__ == "__main__":
    main()
