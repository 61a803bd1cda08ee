"""The extras of the package: each dependency is used, and `all` has them all."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {"PyYAML": "yaml", "hydra-core": "hydra", "protobuf": "google.protobuf"}
USED_WITHOUT_AN_IMPORT = {
    "py-spy": "called as a program, for the stacks of processes without an agent",
    "aiohttp": "fsspec uses it for recordings at http:// and https:// addresses",
    "s3fs": "fsspec uses it for recordings at s3:// addresses",
    "httptools": "uvicorn uses it where it is installed",
    "uvloop": "uvicorn uses it where it is installed",
}


def names(requirements):
    return [re.match(r"[A-Za-z0-9_-]+", text)[0] for text in requirements]


def is_imported(name, source):
    module = re.escape(IMPORTED_AS.get(name, name))
    return re.search(rf"^\s*(import|from) {module}\b|import_module\(.{module}\b", source, re.MULTILINE)


def test_every_dependency_is_used_by_the_package():
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    extras = PROJECT["optional-dependencies"]
    required = PROJECT["dependencies"] + [
        text for name in extras if name not in ("all", "dev") for text in extras[name]
    ]
    unused = [name for name in names(required) if name not in USED_WITHOUT_AN_IMPORT and not is_imported(name, source)]
    assert unused == []


def test_all_has_every_extra():
    extras = PROJECT["optional-dependencies"]
    assert set(re.findall(r"\w+", extras["all"][0].split("[")[1])) == set(extras) - {"all", "dev"}


def test_nothing_has_an_upper_bound():
    """Users live beside the pins of vLLM and SGLang; the tested set is in constraints.txt."""
    capped = [text for text in PROJECT["dependencies"] if re.search(r"==|<|~=", text.split(";")[0])]
    assert capped == []
