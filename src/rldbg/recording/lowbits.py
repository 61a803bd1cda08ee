"""bfloat16 and float8, which numpy does not have, decoded exactly into float32."""

from functools import cache

import numpy as np

# name: (exponent bits, mantissa bits, exponent bias, has infinities, negative zero means NaN)
_FLOAT8 = {
    "float8_e4m3fn": (4, 3, 7, False, False),
    "float8_e5m2": (5, 2, 15, True, False),
    "float8_e4m3fnuz": (4, 3, 8, False, True),
    "float8_e5m2fnuz": (5, 2, 16, False, True),
}


def decode(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The values behind the raw bits, as float32."""
    if dtype == "bfloat16":
        # Said in full: numpy 1 makes an int64 of one uint32 that is shifted.
        return np.asarray(np.left_shift(bits.astype(np.uint32), 16, dtype=np.uint32)).view(np.float32)
    table: np.ndarray = _float8_values(dtype)
    values: np.ndarray = np.asarray(table[bits])
    return values


@cache
def _float8_values(dtype: str) -> np.ndarray:
    """All 256 values of a float8 type. e8m0fnu, the scale of blocks, is a power of two without sign or zero."""
    if dtype == "float8_e8m0fnu":
        powers = 2.0 ** (np.arange(256) - 127.0)
        powers[0xFF] = np.nan
        return powers.astype(np.float32)
    exponent_bits, mantissa_bits, bias, has_infinities, negative_zero_is_nan = _FLOAT8[dtype]
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias)) * sign
    top = exponent == (1 << exponent_bits) - 1
    if negative_zero_is_nan:
        values[0x80] = np.nan
    elif has_infinities:
        values[top & (mantissa == 0)] *= np.inf
        values[top & (mantissa != 0)] = np.nan
    else:
        values[top & (mantissa == (1 << mantissa_bits) - 1)] = np.nan
    return values.astype(np.float32)
