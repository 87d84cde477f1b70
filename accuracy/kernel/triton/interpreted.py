"""Triton's interpreter, made to do what the hardware does: casts to 8 bits to nearest, ties to even; and numpy 2.4.

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
    """Once a process, where kernels are interpreted: before the first one runs."""
    from triton.runtime import interpreter

    cast, patch = interpreter._convert_float, interpreter._patch_lang_tensor

    def convert(given: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if source.name in FORMATS and target.name == "fp16":
            return _bits(given).view(FORMATS[source.name]).to(torch.float16).view(torch.uint16).numpy()
        if source.name != "fp32" or target.name not in FORMATS:
            return np.asarray(cast(given, source, target, rounding))
        form = FORMATS[target.name]
        largest = torch.finfo(form).max
        return _bits(given).view(torch.float32).clamp(-largest, largest).to(form).view(torch.uint8).numpy()

    def patch_for_new_numpy(tensor: Any, scope: Any) -> None:
        """Triton 3.6 takes int() of arrays of one element, which numpy 2.4 refuses (triton-lang/triton #9171)."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._convert_float, interpreter._patch_lang_tensor = convert, patch_for_new_numpy


def _bits(given: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(given))
