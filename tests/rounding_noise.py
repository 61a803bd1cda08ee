"""Another CPU's rounding, simulated: matrix products differ in their last bits, by a pattern that follows the shape.

A pytest plugin: `PYTHONPATH=tests pytest -p rounding_noise tests/unit`. Equal shapes still give equal bits, as they do
on any one CPU; the same row in another batch does not. A test that passes without it and fails with it depends on the
rounding of the machine it was written on.
"""

import functools
import os

ULPS = int(os.environ.get("ROUNDING_NOISE_ULPS", "4"))


@functools.lru_cache(maxsize=4096)
def _factors(shape):
    import torch

    count = torch.Size(shape).numel()
    seed = functools.reduce(lambda found, size: found * 31 + size, shape, 7)
    with torch.inference_mode(False):
        hashed = (torch.arange(count) * 2654435761 + seed * 40503) >> 7
        steps = hashed % (2 * ULPS + 1) - ULPS
        return (1 + steps.double() * torch.finfo(torch.float32).eps).float().reshape(shape)


def _noisy(function):
    import torch

    @functools.wraps(function)
    def call(*arguments, **options):
        result = function(*arguments, **options)
        if result.dtype != torch.float32 or result.device.type != "cpu":
            return result
        return result * _factors(tuple(result.shape))

    return call


def install():
    import torch

    for owner, name in (
        (torch.nn.functional, "linear"),
        (torch.nn.functional, "scaled_dot_product_attention"),
        (torch, "matmul"),
        (torch, "bmm"),
    ):
        setattr(owner, name, _noisy(getattr(owner, name)))


def pytest_configure():
    install()
