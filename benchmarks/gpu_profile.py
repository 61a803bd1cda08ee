"""Phases on a GPU: which kernels a torch profile of the trainer's step functions shows under which phase.

Needs torch and transformers only, and runs from a source checkout:

    PYTHONPATH=src python benchmarks/gpu_profile.py [--quick]

The steps run in a process that is armed as `rldbg profile` arms it (start-up hook, plan file) and are profiled in steps
3 and 4. Each kernel is followed back to its launch, and the launch to the innermost phase around it. What must hold:
kernels launched by autograd's own thread lie in `backward`, those inside an optimizer's step in `optimizer`, and nearly
all GPU time in some phase. Prints one JSON object; exit code 1 when something does not hold, 3 when there is no
CUDA device: then --quick still runs the steps once on the CPU, armed.
"""

import argparse
import gzip
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
STARTUP = SOURCE / "rldbg" / "agent" / "startup"
LAUNCHES = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
SIZES = {"vocabulary": 151936, "hidden": 896, "layers": 24, "samples": 16, "micro": 4, "prompt": 256}
SIZES |= {"response": 512, "steps": 8}
QUICK = {"vocabulary": 64, "hidden": 128, "layers": 1, "samples": 4, "micro": 2, "prompt": 8, "response": 8, "steps": 6}


def child(arguments):
    """The steps themselves, in an armed process."""
    import torch
    from gpu_steps import Timer, build, samples, step

    import rldbg
    from rldbg.trainer.settings import AlgorithmSettings, OptimizerSettings
    from rldbg.trainer.shards import prepare
    from rldbg.trainer.steps import make_optimizer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(arguments, device)
    algorithm = AlgorithmSettings(entropy_coeff=0.001)
    optimizer = make_optimizer(model.parameters(), OptimizerSettings())
    batch = prepare(samples(arguments), algorithm, max_length=arguments.response)
    seconds = []
    for number in range(1, arguments.steps + 1):
        rldbg.step(number)
        started = time.perf_counter()
        step(arguments, model, optimizer, batch, algorithm, Timer(device))
        seconds.append(time.perf_counter() - started)
    rldbg.step(arguments.steps + 1)
    pushed = torch.cuda.nvtx.range_push("phase") if device.type == "cuda" else None
    print(json.dumps({"seconds": seconds, "nvtx": pushed}))


def run_child(arguments, folder, tool):
    """Runs the steps armed for a tool, or not armed at all; their times and the files that were written."""
    from rldbg.core import Environment
    from rldbg.profiling import ProfileRequest, make_plan

    environment = dict(os.environ) | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{Path(__file__).parent}"}
    if tool:
        folder.mkdir(parents=True)
        request = ProfileRequest(workers="*", steps="3:5", tool=tool)
        plan = make_plan(request, folder=folder / "out", run=folder, environment=Environment({}))
        Path(plan.folder).mkdir()
        Path(plan.state_folder).mkdir()
        (folder / "plan.json").write_text(plan.to_text(), encoding="utf-8")
        environment |= {"RLDBG_RUN": str(folder), "RLDBG_PROFILING": str(folder / "plan.json")}
        environment["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{environment['PYTHONPATH']}"
    words = [word for name in SIZES for word in (f"--{name}", str(getattr(arguments, name)))]
    done = subprocess.run(
        [sys.executable, __file__, "--child", *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1]), sorted((folder / "out").glob("*")) if tool else []


def attribute(path):
    """GPU time and launches by phase, and the two groups of kernels whose phase is known otherwise."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    phases = sorted(
        (event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("phase:")),
        key=lambda event: event["ts"],
    )
    optimizer = [event for event in events if event.get("name", "").startswith("Optimizer.step#")]
    main_thread = phases[0]["tid"] if phases else None
    by_phase, known = defaultdict(lambda: [0, 0.0]), defaultdict(lambda: defaultdict(int))
    for event in events:
        if event.get("cat") not in WORK:
            continue
        launch = launches.get(event.get("args", {}).get("correlation"))
        phase = innermost(phases, launch["ts"]) if launch else "no launch seen"
        by_phase[phase][0] += 1
        by_phase[phase][1] += event["dur"]
        if launch is None:
            continue
        if launch["tid"] != main_thread:
            known["autograd thread"][phase] += 1
        if any(each["ts"] <= launch["ts"] <= each["ts"] + each["dur"] for each in optimizer):
            known["optimizer step"][phase] += 1
    on_gpu = sum(event.get("cat") == "gpu_user_annotation" for event in events)
    return by_phase, {name: dict(counts) for name, counts in known.items()}, on_gpu


def has_gpu():
    import torch

    return torch.cuda.is_available()


def innermost(phases, when):
    around = [event for event in phases if event["ts"] <= when <= event["ts"] + event["dur"]]
    return around[-1]["name"].removeprefix("phase:") if around else "outside"


def main():
    parser = argparse.ArgumentParser()
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs")
    parser.add_argument("--child", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    if arguments.child:
        child(arguments)
        return 0
    if not has_gpu():
        if arguments.quick:
            with tempfile.TemporaryDirectory() as scratch:
                run_child(arguments, Path(scratch) / "phases", "phases")
        print("there is no CUDA device here", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as scratch:
        bare, _ = run_child(arguments, Path(scratch), "")
        traced, _ = run_child(arguments, Path(scratch) / "phases", "phases")
        profiled, files = run_child(arguments, Path(scratch) / "torch", "torch")
        by_phase, known, on_gpu = attribute(files[0])
        _, snapshots = run_child(arguments, Path(scratch) / "memory", "memory")
        blocks = [pickle.loads(path.read_bytes()) for path in snapshots if path.suffix == ".pickle"]
    total = sum(microseconds for _, microseconds in by_phase.values())
    inside = sum(spent for name, (_, spent) in by_phase.items() if name not in ("outside", "no launch seen"))
    settled = {"bare": bare, "traced": traced}
    step_s = {name: statistics.median(result["seconds"][2:]) for name, result in settled.items()}
    held = {
        "autograd's kernels in backward": set(known.get("autograd thread", {})) == {"backward"},
        "the optimizer's kernels in optimizer": set(known.get("optimizer step", {})) == {"optimizer"},
        # At the smallest sizes what lies between the phases is a larger share.
        "GPU time in phases >= 95 %": bool(total) and (arguments.quick or inside / total >= 0.95),
        "ranges on the GPU's own track": on_gpu > 0,
        "NVTX ranges can be pushed": profiled["nvtx"] is not None,
        "CUDA memory snapshot": bool(blocks) and bool(blocks[0]["segments"]),
    }
    print(
        json.dumps(
            {
                "gpu_time_ms": {name: round(spent / 1e3, 2) for name, (_, spent) in sorted(by_phase.items())},
                "kernels": {name: count for name, (count, _) in sorted(by_phase.items())},
                "known": known,
                "share_in_phases": round(inside / total, 4) if total else None,
                "gpu_annotations": on_gpu,
                "step_s": {name: round(value, 4) for name, value in step_s.items()},
                "phase_tracing_ratio": round(step_s["traced"] / step_s["bare"], 4),
                "held": held,
            },
            indent=1,
        )
    )
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
