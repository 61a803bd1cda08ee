"""The history that `rldbg doctor` knows of a package: which release gave or took a name, an argument, an attribute.

python docs/record_api_history.py PACKAGE GIT_DIR    GIT_DIR is a clone of the package's repository with its tags

Writes `src/rldbg/doctor/clues/releases/PACKAGE.txt.gz`, whose format `api_history.py` beside that folder explains. Only
facts are taken from the repository: names, and the releases that have them. Nothing of it is run or copied.

The same tags give the same lines. What came or went together with its module or its class has no line of its own, and
neither has what came or went more than once, or may be there still through `from module import *`.
"""

import gzip
import re
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from defined_names import DefinedClass, DefinedNames, arguments_and_attributes, defined_names, listed_names

HISTORIES = Path(__file__).parent.parent / "src/rldbg/doctor/clues/releases"


@dataclass(frozen=True, kw_only=True)
class Package:
    """What to read of a package. Patterns are searched in a file's path below `root`, which starts with a slash."""

    root: str
    """The folder in its repository that is imported under the name of that folder."""
    tag: str = r"v(\d+\.\d+\.\d+)"
    first: tuple[int, ...]
    """Older releases are not read: their users have moved on."""
    left_out: str = r"tests?/"
    looked_at: str = ""
    """The files that loops, launch code and plug-ins reach into; empty for all."""
    exported: str = "(?!)"
    """Files whose `__all__` the package itself exports; none, unless given."""
    only_exported: str = "(?!)"
    """Of those, the files of which nothing else is read."""
    has_attributes: bool = True

    def reads(self, path: str) -> bool:
        return bool(re.search(self.looked_at, path)) and not re.search(self.left_out, path)


PACKAGES: Mapping[str, Package] = {
    "accelerate": Package(root="src/accelerate", first=(0, 25, 0), left_out="test"),
    "peft": Package(root="src/peft", first=(0, 6, 0), has_attributes=False),
    "sglang": Package(
        root="python/sglang",
        first=(0, 3, 0),
        left_out=r"/(?:test|models|lang|multimodal_gen|eval|configs|jit_kernel)/|bench_",
        looked_at=r"/__init__|^/(?:srt/(?:(?:entrypoints|managers|model_executor|utils|model_loader|weight_sync"
        r"|distributed|layers|sampling)/)?)?[^/]*\.py",
    ),
    "transformers": Package(
        root="src/transformers",
        tag=r"v(\d+\.\d+\.0)",
        first=(4, 38, 0),
        left_out=r"/(?:convert_|image_processing_)|/(?:benchmark|onnx|sagemaker|data/datasets|commands|cli)/"
        r"|/models/.*__init__",
        looked_at=r"/__init__|/(?:utils|generation|integrations|data|models)/|/(?:trainer|training_args|modeling"
        r"|cache_utils|tokenization_|processing_|configuration_|feature_|image_utils|video_|deepspeed|pytorch_utils"
        r"|optimization|masking|activations|file_utils|safetensors|testing|hf_argparser|import_utils|debug"
        r"|core_model)\w*\.py",
        exported="/models/",
        only_exported="/models/(?!auto/)",
    ),
    "trl": Package(root="trl", tag=r"v(\d+\.\d+(?:\.\d+)?)", first=(0, 7, 0), left_out="tests/"),
    "verl": Package(root="verl", tag=r"v(\d+\.\d+(?:\.\d+)?)", first=(0, 2), left_out=r"/third_party/|tests/"),
    "vllm": Package(
        root="vllm",
        first=(0, 4, 0),
        left_out=r"tests/|/(?:model_executor/models|transformers_utils/configs|third_party|benchmarks)/"
        r"|vllm_flash_attn",
        looked_at=r"/__init__|^/[^/]*\.py|/(?:engine|entrypoints|lora|worker|executor|distributed|config|utils|inputs"
        r"|multimodal|usage|plugins|platforms|transformers_utils|model_loader)/[^/]*\.py|/v1/(?:[^/]*/)?[^/]*\.py"
        r"|/(?:openai|beam_search)/|/model_executor/(?:(?:layers|model_loader)/)?[^/]*\.py",
    ),
}
FOLLOWED = frozenset(PACKAGES) | {"deepspeed", "megatron", "tensordict"}
"""What a file imports from these can be imported from that file as well."""
_MOST_DOTS = 3
_CLASSES = re.compile(
    "(?:Trainer|Config|Args|Arguments|Params|LLM|Engine|Engine\\w*|Request|Accelerator|PeftModel\\w*|DataProto"
    "|Tokenizer\\w*|Cache|Client|Outputs?|Worker|WorkerBase|Executor|Model|Processor|Manager|Scheduler|Server|Rollout"
    "|Plugin|State|Group|Communicator|Loader|Policy|Optimizer)$"
    "|^(?:PreTrained|Auto|Generation|Process|Parallel|Transformer|GPT|Data)"
)
"""What other packages make objects of. An error about another class is rarely a matter of releases."""
_CALLED_CLASSES = re.compile(
    "(?:LLM|Engine|Client|Tokenizer|Trainer|Accelerator|Worker|WorkerBase|Executor|DataProto|Cache|Model)$"
)
"""Whose methods they call."""
_READ_CLASSES = re.compile(
    "(?:Trainer|LLM|Engine|Accelerator|DataProto|Tokenizer\\w*|Cache|Config|Args|Client|WorkerBase|Executor|Manager"
    "|PeftModel)$"
)
"""Whose attributes they read."""


class Symbol(NamedTuple):
    kind: Literal["module", "name", "class", "argument", "attribute"]
    owner: str
    """The module; of an argument or attribute the class, without its module, or `Class.method`."""
    name: str = ""

    def within(self) -> "Symbol":
        """What this symbol comes and goes with."""
        if self.kind == "module":
            return Symbol("module", self.owner.rpartition(".")[0])
        return Symbol("module" if self.kind == "name" else "class", self.owner)

    def __str__(self) -> str:
        letter = "t" if self.kind == "attribute" else self.kind[0]
        return f"{letter} {self.owner}:{self.name}" if self.name else f"{letter} {self.owner}"


@dataclass
class Release:
    """What one release has."""

    symbols: set[Symbol] = field(default_factory=set)
    modules_of: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Of a name, the modules that define it."""


class Clone:
    """The files of a package in each release, as git keeps them. A file that did not change is read once."""

    def __init__(self, folder: str, package: Package) -> None:
        self._folder = folder
        self._package = package
        self._read: dict[tuple[str, str], DefinedNames] = {}

    def releases(self) -> list[tuple[str, str]]:
        """Number and tag of each, the oldest first."""
        tags = self._git("tag").decode().split()
        found = [(match[1], tag) for tag in tags if (match := re.fullmatch(self._package.tag, tag))]
        return sorted(
            (release for release in found if _as_numbers(release[0]) >= self._package.first),
            key=lambda release: _as_numbers(release[0]),
        )

    def files(self, tag: str) -> Iterator[tuple[str, DefinedNames | None]]:
        """The path of each Python file below the root, and what it defines; None for one that is not to be read."""
        rows = [
            row.split("\t")
            for row in self._git("ls-tree", "-r", f"refs/tags/{tag}", "--", self._package.root).decode().splitlines()
        ]
        files = [(path.removeprefix(self._package.root), row.split()[2]) for row, path in rows if path.endswith(".py")]
        wanted = {(path, blob) for path, blob in files if self._package.reads(path)}
        unread = sorted(file for file in wanted if file not in self._read)
        for (path, blob), text in zip(unread, self._texts([blob for _, blob in unread]), strict=True):
            self._read[path, blob] = self._defined(f"{tag}:{path}", text)
        for path, blob in files:
            yield path, self._read.get((path, blob))

    def _defined(self, path: str, text: str) -> DefinedNames:
        if re.search(self._package.only_exported, path):
            return listed_names(text)
        try:
            return defined_names(text, is_package=path.endswith("/__init__.py"), packages=FOLLOWED)
        except SyntaxError as error:
            raise SystemExit(f"{path}: {error}; leave the file out, or take a newer Python") from error

    def _texts(self, blobs: Sequence[str]) -> Iterator[str]:
        answer = self._git("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in blobs))
        at = 0
        for _ in blobs:
            start = answer.index(b"\n", at) + 1
            end = start + int(answer[at:start].split()[2])
            yield answer[start:end].decode("utf-8", "replace")
            at = end + 1

    def _git(self, *arguments: str, stdin: str = "") -> bytes:
        command = ["git", "-C", self._folder, *arguments]
        return subprocess.run(command, input=stdin.encode(), stdout=subprocess.PIPE, check=True).stdout


def main(name: str, folder: str) -> None:
    package = PACKAGES[name]
    clone = Clone(folder, package)
    tags = clone.releases()
    if not tags:
        raise SystemExit(f"{folder} has no release tags of {name}: git fetch --tags")
    warnings.simplefilter("ignore", SyntaxWarning)  # of the code that is read
    numbers = [number for number, _ in tags]
    releases = [_release(package, clone.files(tag)) for _, tag in tags]
    lines = sorted(history(package, numbers, releases))
    file = HISTORIES / f"{name}.txt.gz"
    table = "".join(f"{line}\n" for line in lines).encode()
    # zlib of another version packs the same lines differently.
    if not file.exists() or gzip.decompress(file.read_bytes()) != table:
        file.write_bytes(gzip.compress(table, 9, mtime=0))
    sys.stdout.write(f"{name} {numbers[0]} to {numbers[-1]}: {len(numbers)} releases, {len(lines)} lines\n")


def history(package: Package, numbers: Sequence[str], releases: Sequence[Release]) -> Iterator[str]:
    """A line for each symbol that came or went once between the first and the last of the releases."""
    had_at: defaultdict[Symbol, list[int]] = defaultdict(list)
    for position, release in enumerate(releases):
        for symbol in release.symbols:
            had_at[symbol].append(position)
    last = len(releases) - 1
    for symbol, at in had_at.items():
        if at[-1] - at[0] + 1 != len(at):
            continue
        owner_at = had_at.get(symbol.within(), [0, last])
        all_of_another = had_at.get(symbol._replace(name="*"), ())
        since = numbers[at[0]] if at[0] not in (0, owner_at[0]) and at[0] - 1 not in all_of_another else ""
        until = numbers[at[-1] + 1] if at[-1] not in (last, owner_at[-1]) and at[-1] + 1 not in all_of_another else ""
        place = _new_place(symbol, releases[at[-1] + 1]) if until else ""
        if (since or until) and _is_told(symbol, package, has_moved=bool(place)):
            yield f"{symbol} {since or '-'} {until or '-'} {place or '-'}"


def _new_place(symbol: Symbol, following: Release) -> str:
    """The one module that defines a name after its own lost it."""
    others = following.modules_of.get(symbol.name, set()) - {symbol.owner}
    return next(iter(others)) if symbol.kind == "name" and len(others) == 1 else ""


def _is_told(symbol: Symbol, package: Package, *, has_moved: bool) -> bool:
    """Whether another package's code may ask for it. Private symbols are the package's own."""
    kind, owner, name = symbol
    class_name, _, method = owner.partition(".")
    if "dummy_" in owner or name.startswith(("_", "*")) or re.search(r"(^|\.)_[a-z]", owner):
        return False
    match kind:
        case "class":
            return False
        case "module":
            return owner.count(".") <= _MOST_DOTS
        case "name":
            return owner.count(".") <= (_MOST_DOTS if has_moved else _MOST_DOTS - 1)
        case "argument":
            is_called = method == "__init__" or _CALLED_CLASSES.search(class_name)
            return bool(is_called and _CLASSES.search(class_name))
        case "attribute":
            return package.has_attributes and bool(_READ_CLASSES.search(owner))


def _release(package: Package, files: Iterator[tuple[str, DefinedNames | None]]) -> Release:
    release = Release()
    classes: defaultdict[str, list[DefinedClass]] = defaultdict(list)
    top = package.root.rpartition("/")[2]
    for path, found in files:
        module = f"{top}{path.removesuffix('.py').removesuffix('/__init__')}".replace("/", ".")
        release.symbols.add(Symbol("module", module))
        if found is None:
            continue
        release.symbols |= {Symbol("name", module, name) for name in found.importable}
        for name in found.own:
            release.modules_of[name].add(module)
        for name, defined in found.classes.items():
            classes[name].append(defined)
        if re.search(package.exported, path):
            release.symbols |= {Symbol("name", top, name) for name in found.listed}
            for name in found.listed:
                release.modules_of[name].add(top)
    for name, ones in classes.items():
        if not name.startswith("_"):
            for defined in ones:
                release.symbols.update(_class_symbols(name, defined, classes))
    return release


def _class_symbols(name: str, defined: DefinedClass, classes: Mapping[str, Sequence[DefinedClass]]) -> Iterator[Symbol]:
    arguments, attributes = arguments_and_attributes(defined, classes)
    calls = {method: given for method, given in defined.methods.items() if not method.startswith("_")}
    if arguments is not None:
        calls["__init__"] = arguments
    yield Symbol("class", name)
    for method, given in calls.items():
        yield Symbol("class", f"{name}.{method}")
        for argument in given:
            yield Symbol("argument", f"{name}.{method}", argument)
    for attribute in attributes:
        if not attribute.startswith("_"):
            yield Symbol("attribute", name, attribute)


def _as_numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in PACKAGES:
        raise SystemExit(f"usage: python docs/record_api_history.py PACKAGE GIT_DIR; PACKAGE: {', '.join(PACKAGES)}")
    main(sys.argv[1], sys.argv[2])
