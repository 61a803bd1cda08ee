"""`python -m rldbg.debug_ray_dapo [SCRIPT [ARGS]...]`: the launcher of the ArcherCodeR debugging guide, kept.

Runs the guide's training script armed as the guide describes it (post-mortem on, `-Debug` after the experiment's name,
one epoch) and prints the guide's lines. Unlike the original it edits nothing, and proves what it armed.
"""

import sys

from rldbg.cli.application import run
from rldbg.cli.output import print_line

SCRIPT = "scripts/train/run_archer_qwen2.5_1.5b_code_single.sh"


def main(arguments: list[str]) -> int:
    print_line("🚀 Creating Ray DAPO debugging script...")
    print_line("📝 This will run the training with Ray debugging enabled")
    # The training writes to the same stdout.
    sys.stdout.flush()
    return run(["run", "--framework", "verl", *(arguments or [SCRIPT])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
