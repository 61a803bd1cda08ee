"""`python -m rldbg.compare_debug_dumps ...`: the NexRL document's own call, answered by `rldbg compare`."""

import sys

if __name__ == "__main__":
    from rldbg.cli import main

    main(["compare", *sys.argv[1:]])
