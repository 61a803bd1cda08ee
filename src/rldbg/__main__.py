"""`python -m rldbg` is `rldbg`."""

from rldbg.cli import main

main()
