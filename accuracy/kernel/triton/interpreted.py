"""Triton's interpreter, made to cast to 8 bits as the hardware does: to nearest, ties to even.

Its own cast (3.6) rounds ties up, loses a carry into the exponent and cuts subnormal numbers off. The way back, to
float16, which all of them are numbers of, is right there, and quicker here.
"""

from functools import cache
from typing import Any

import numpy as np
import torch

FORMATS = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


@cache
def mend() -> None:
    """Once a process, where kernels are interpreted."""
    from triton.runtime import interpreter

    original = interpreter._convert_float

    def convert(given: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if source.name in FORMATS and target.name == "fp16":
            return _bits(given).view(FORMATS[source.name]).to(torch.float16).view(torch.uint16).numpy()
        if source.name != "fp32" or target.name not in FORMATS:
            return np.asarray(original(given, source, target, rounding))
        form = FORMATS[target.name]
        largest = torch.finfo(form).max
        return _bits(given).view(torch.float32).clamp(-largest, largest).to(form).view(torch.uint8).numpy()

    interpreter._convert_float = convert


def _bits(given: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(given))
