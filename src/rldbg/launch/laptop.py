"""`rldbg run --laptop`: the user's own command on a machine without an accelerator.

The framework's launch profile lists the options and variables that this takes (`laptop`, `laptop_environment`,
`laptop_model`); they are changes like any other, shown by --dry-run, and `--set` wins over them. Here is the rest: a
small model of the same architecture, and a server of ours that generates.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rldbg.core import UsageError
from rldbg.launch.command_line import is_interpreter, understand
from rldbg.launch.laptop_server import laptop_server
from rldbg.launch.profile import profiles
from rldbg.launch.recognition import Command
from rldbg.launch.request import Request
from rldbg.launch.settings import LaunchProfile

MODEL = "laptop-model"
"""Below the run folder: the small model, where the user names none."""
_TOKENIZER = ("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "chat_template*")
# Sizes by the names that configurations of language models use.
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def refuse_laptop(profile: LaunchProfile) -> None:
    """Raises an error for a framework that does not support --laptop yet."""
    if not profile.laptop:
        able = ", ".join(name for name, each in profiles().items() if each.laptop)
        raise UsageError(f"--laptop cannot run {profile.name} yet", f"it can run: {able}")


def in_one_process(argv: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """A command without the launcher that starts several processes of it (torchrun, accelerate launch), and that."""
    words = tuple(argv)
    starting = [peeled for peeled in understand(words).launchers if peeled.launcher.starts == "python"]
    if not starting:
        return words, ""
    head, inner = starting[-1].head, starting[-1].inner[1:]
    # `-m` is an option of the launcher, and of the interpreter.
    own = head[:-1] if head[-1] in ("-m", "--module") else head
    start = 0 if is_interpreter(words[0]) else len(words) - len(inner) - len(own)
    interpreter = words[0] if is_interpreter(words[0]) else _interpreter_of(head[0])
    return (*words[:start], interpreter, *inner), " ".join(words[start : len(words) - len(inner)])


def _interpreter_of(program: str) -> str:
    """The Python that a script on PATH names in its first line."""
    found = shutil.which(program)
    first = Path(found).read_bytes().partition(b"\n")[0].decode("utf-8", "replace") if found else ""
    named = first.removeprefix("#!").strip()
    return named if first.startswith("#!") and is_interpreter(named) else "python"


def laptop_model(request: Request, run_folder: Path) -> Path:
    """The model that the command is given."""
    return Path(request.model).absolute() if request.model else run_folder / MODEL


@contextmanager
def laptop(commands: Sequence[Command], request: Request, run_folder: Path) -> Iterator[tuple[tuple[str, str], ...]]:
    """Makes the model and runs the server for as long as the block; yields the variables that name it."""
    model = laptop_model(request, run_folder)
    if not request.model:
        make_small_model(_source(commands), model)
    if not any(command.profile.laptop_server for command in commands):
        yield ()
        return
    with laptop_server(model, run_folder) as address:
        yield (("RLDBG_LAPTOP_SERVER", address),)


def make_small_model(source: Path, folder: Path) -> None:
    """Random weights, the architecture and tokenizer of the source, two layers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(str(source), local_files_only=True)
    for name, size in _SMALL.items():
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(size, getattr(config, name)))
    kinds = getattr(config, "layer_types", None)
    if kinds:
        config.layer_types = kinds[: config.num_hidden_layers]
    AutoModelForCausalLM.from_config(config).save_pretrained(str(folder))
    for pattern in _TOKENIZER:
        for file in source.glob(pattern):
            shutil.copy(file, folder)


def _source(commands: Sequence[Command]) -> Path:
    """The folder of the model that the command names."""
    for command in commands:
        for key in command.profile.laptop_model:
            named = command.options.get(key, "")
            if named and (Path(named) / "config.json").is_file():
                return Path(named)
            if named:
                raise UsageError(f"the model {named} is not a folder on this machine", "give one with --model FOLDER")
    raise UsageError("the command does not name its model", "give one with --model FOLDER")
