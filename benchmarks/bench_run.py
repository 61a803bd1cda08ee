"""What `rldbg run` costs at the start, and how long a dry run takes.

The same command is started by itself and by `rldbg run`; what counts is the time until its program's first line.
The dry runs are of the scripts in tests/launch_scripts. Limits: 1 s of start-up, 2 s of dry run.

    python benchmarks/bench_run.py [REPEATS] [--quick]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RLDBG = [sys.executable, "-m", "rldbg"]
SCRIPTS = Path(__file__).parents[1] / "tests" / "launch_scripts"
TRAIN = "import sys, time; open(sys.argv[1], 'w').write(str(time.time()))\n"
SCRIPT = '#!/bin/bash\nset -e\nARGS=(--output_dir out)\npython train.py "$1" "${ARGS[@]}"\n'
START_LIMIT_S, DRY_LIMIT_S = 1.0, 2.0
DRY = ("verl_array_tee.sh", "slime_job.sh", "rlinf_cmd.sh", "nested.sh", "two_stages.sh")


def environment():
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RLDBG", "RAY_"))}
    return clean | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def until_first_line(folder, words):
    """Seconds from the start of a command until its program runs, until all of it has ended, and of processor time."""
    stamp = folder / "stamp"
    stamp.unlink(missing_ok=True)
    began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*words, str(stamp)], cwd=folder, env=environment(), capture_output=True, check=True)
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(stamp.read_text()) - began, ended - began, processor


def dry_run(script):
    began = time.perf_counter()
    done = subprocess.run(
        [*RLDBG, "run", "--dry-run", "--json", str(script)], env=environment(), capture_output=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repeats", nargs="?", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        (folder / "train.sh").write_text(SCRIPT)
        for label, words in (("python train.py", ["python", "train.py"]), ("bash train.sh", ["bash", "train.sh"])):
            plain = [until_first_line(folder, words) for _ in range(repeats)]
            armed = [until_first_line(folder, [*RLDBG, "run", "--", *words]) for _ in range(repeats)]
            for what, place in (("first line", 0), ("whole command", 1), ("processor", 2)):
                one, other = (statistics.median(pair[place] for pair in runs) for runs in (plain, armed))
                cost = other - one
                print(
                    f"{label:16} {what:14} alone {one:6.3f} s   under rldbg run {other:6.3f} s   "
                    f"overhead {cost:6.3f} s   limit {START_LIMIT_S:.0f} s: {cost / START_LIMIT_S:5.2f} of it"
                )
    for script in DRY:
        spent = statistics.median(dry_run(SCRIPTS / script) for _ in range(repeats))
        print(f"dry run of {script:24} {spent:6.3f} s   limit {DRY_LIMIT_S:.0f} s: {spent / DRY_LIMIT_S:5.2f} of it")


if __name__ == "__main__":
    main()
