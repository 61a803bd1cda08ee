"""What `rldbg run --record` costs a step of TRL's GRPOTrainer: half of the steps with hooks and all kinds.

One training in one process, its functions hooked and not, step by step in turn; a recorded step also waits until its
files are written, which a real training does not. Two models: a toy of 0.1 M parameters, whose steps take a fraction of
a second, and one of 62 M parameters with steps of seconds. Prints wall-clock and processor seconds of both sorts of
steps and the ratio of neighbours. The limit is a step without hooks, 0 %; the goal is at most 2 % for the larger model.

    python benchmarks/bench_framework_recording.py [--python PYTHON] [--quick] [--size realistic]

`--python` has TRL, by default that of `make test-frameworks`; without TRL nothing is measured, which is said.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path

OF_TESTS = Path(__file__).parents[1] / ".venvs" / "trl" / "bin" / "python"
STEPS = {"toy": 44, "realistic": 20}
SIZES = {
    "toy": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512},
    "realistic": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "vocab_size": 8192},
}
BATCH = {
    "toy": {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8},
    "realistic": {"per_device_train_batch_size": 16, "num_generations": 8, "max_completion_length": 48},
}
WARM_STEPS = 4


def train(size: str, steps: int, folder: Path) -> list[tuple[bool, float, float]]:
    """Runs in the environment of TRL: (recorded, wall seconds, processor seconds) of each step."""
    import time

    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from transformers.trainer_callback import CallbackHandler
    from trl import GRPOConfig, GRPOTrainer

    from rldbg.frameworks.recorded import process_hooks

    torch.manual_seed(0)
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "pad_token_id": 0, "bos_token_id": 1}
    model = LlamaForCausalLM(LlamaConfig(**SIZES[size], **heads, eos_token_id=None))
    words = {f"w{number}": number for number in range(SIZES[size]["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", bos_token="w1", eos_token="w3")
    hooks = process_hooks()
    assert hooks is not None
    switches = [
        (owner, name, wrapped)
        for owner in (*GRPOTrainer.__mro__, CallbackHandler)
        for name, wrapped in list(vars(owner).items())
        if isfunction(wrapped) and wrapped.__code__.co_qualname.startswith("ProcessHooks.")
    ]
    assert switches, "nothing is hooked"
    measured: list[tuple[bool, float, float]] = []

    class InTurn(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
            # Recorded, plain, plain, recorded: what slows down or speeds up over the steps favours neither.
            self.recorded = state.global_step % 4 in (0, 3)
            for owner, name, wrapped in switches:
                setattr(owner, name, wrapped if self.recorded else wrapped.__wrapped__)
            self.began = time.perf_counter(), time.process_time()

        def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
            if self.recorded:
                hooks.recorded.recorder().flush()
            took = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
            measured.append((self.recorded, *took))

    prompts = [{"prompt": " ".join(f"w{(7 * row + place) % 400 + 4}" for place in range(16))} for row in range(64)]
    trainer = GRPOTrainer(
        model=model,
        processing_class=fast,
        reward_funcs=[lambda completions, **_: [float(len(set(text.split()))) for text in completions]],
        args=GRPOConfig(
            output_dir=str(folder), max_steps=steps, learning_rate=1e-4, report_to=[], use_cpu=True, bf16=False,
            logging_strategy="no", save_strategy="no", gradient_checkpointing=False, disable_tqdm=True, **BATCH[size],
        ),
        train_dataset=Dataset.from_list(prompts),
        callbacks=[InTurn()],
    )  # fmt: skip
    trainer.train()
    return measured


def summary(measured: list[tuple[bool, float, float]]) -> dict[str, float]:
    """Each recorded step beside its plain neighbour; the median of all pairs."""
    import statistics

    warm = measured[WARM_STEPS:]
    pairs = [tuple(sorted(pair, reverse=True)) for pair in zip(warm[::2], warm[1::2], strict=False)]
    found: dict[str, float] = {}
    for place, name in ((1, "wall"), (2, "processor")):
        ratios = [one[place] / other[place] for one, other in pairs]
        found[f"recorded_{name}_s"] = round(statistics.median(one[place] for one, _ in pairs), 4)
        found[f"plain_{name}_s"] = round(statistics.median(other[place] for _, other in pairs), 4)
        found[f"{name}_overhead_percent"] = round(100 * (statistics.median(ratios) - 1), 2)
    return found | {"pairs": len(pairs), "limit_percent": 0.0, "goal_percent": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=str(OF_TESTS) if OF_TESTS.is_file() else sys.executable)
    parser.add_argument("--size", choices=sorted(SIZES))
    parser.add_argument("--quick", action="store_true", help="the toy only, few steps")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        steps = WARM_STEPS + 4 if given.quick else STEPS[given.size]
        print(json.dumps(summary(train(given.size, steps, given.inside / "out"))))
        return
    if subprocess.run([given.python, "-c", "import trl"], capture_output=True, check=False).returncode:
        print(json.dumps({"not_measured": f"{given.python} has no trl: see --python", "goal_percent": 2.0}))
        return
    for size in (given.size,) if given.size else ("toy",) if given.quick else ("toy", "realistic"):
        with tempfile.TemporaryDirectory() as folder:
            inside = [sys.argv[0], "--inside", folder, "--size", size, *(["--quick"] if given.quick else [])]
            # The plug-in door: hooks are installed by RLDBG_RECORD_DIR when this module is loaded, before TRL is.
            start = (
                "from rldbg.frameworks.plugin import register; register(); import runpy, sys; sys.argv = sys.argv[1:]; "
            )
            start += "runpy.run_path(sys.argv[0], run_name='__main__')"
            source = str(Path(find_spec("rldbg").submodule_search_locations[0]).parent)  # type: ignore[union-attr, index]
            environment = os.environ | {"RLDBG_RECORD_DIR": f"{folder}/recording", "HF_HUB_OFFLINE": "1"}
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
            done = subprocess.run(
                [given.python, "-c", start, *inside], env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(done.stderr)
            print(json.dumps({"size": size} | json.loads(done.stdout.splitlines()[-1])))


if __name__ == "__main__":
    main()
