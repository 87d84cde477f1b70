"""Is a captured run right? Every tensor that the model returned against float64: per layer, rank and tensor.

Each call is compared on its own inputs, so that a fault stands where it is made and not in the layers behind it. The
measure is the error over the most that rounding may make of it (`Call.rounding`): over a rank's whole tensor,
and in its worst row, a head of a token; the factor that a tensor is of its reference; and how many elements are beyond
a bound that no rounding exceeds.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from accuracy.bound.limits import CANCELLED, DRIFT, FEWEST, STANDARD_ERRORS
from accuracy.bound.policy import OF_FLOAT32, unit
from accuracy.core.dtype import FORMATS, tensor_dtype
from accuracy.core.errors import ConfigError, entry
from accuracy.core.number import count
from accuracy.core.recording import Recorded, matches, recorded
from accuracy.live.call_on_disk import Allowed, Call, load
from accuracy.live.verdict import FORWARD, GIVEN, Judgement, label_of, verdict
from accuracy.live.writing import wait
from accuracy.measurement import metrics
from accuracy.measurement.distance import Target, distance
from accuracy.results.table import ALL_RANKS
from accuracy.runtime import device as devices
from accuracy.runtime.rounding import round_to
from accuracy.verdict.label import INVALID, NOT_MEASURED

COLUMNS = (
    "step", "order", "layer", "call", "tensor", "rank", "label", "sentence", "times", "times_row", "times_gain",
    "error_rel", "beyond", "inside", "error_max", "floor_rel", "x_floor", "error_gain", "certain_gain", "nonfinite",
    "significand_bits", "reference_rms", "worst_batch", "worst_token", "worst_head", "name", "function", "dtype",
    "world_size", "shape",
)  # fmt: skip


OF_OPERANDS = 3.0
"""Unit roundoffs by which coarser products may shift a gain: dk is made of dS and q, dS of dout and v, P of q and k,
and each of the six loses half a one in the mean at most where it is cut off."""
ONE_SIDED = 0.9
"""Mean of an lse's error over its root mean square, or its gain over its relative error: of what each row is off by, or
multiplied by, and of no rounding of different numbers, whose error has either sign."""
BASE_2 = "; it is in base 2, times ln 2 it is right"
EAGER = "The model is compiled: a captured step ran it eager, as it is written, and its graphs are not judged."


@entry()
def judge(folder: str | Path, *, layers: str = "*", device: str = "auto") -> Judgement:
    """Compare a capture with float64. layers: a pattern of names; device: where the reference is computed, cpu, cuda or
    auto. Raises ConfigError for a folder that cannot be judged: no capture, a damaged file, a rank missing."""
    wait()
    path, place = Path(folder).expanduser(), devices.choose(device)
    found = recorded(path)
    chosen = [each for each in found if matches(each.first.layer, [layers])]
    if not chosen:
        names = ", ".join(dict.fromkeys(each.first.layer for each in found[:8]))
        raise ConfigError(f"layers={layers} fits no layer of {folder}; allowed: {names}")
    rows = [row for each in chosen for row in rows_of(each, place)]
    judged = replace(verdict(pd.DataFrame(rows, columns=list(COLUMNS))), folder=path)
    compiled = any(each.first.compiled for each in chosen)
    return replace(judged, sentence=f"{judged.sentence} {EAGER}") if compiled else judged


def rows_of(found: Recorded, device: str) -> Iterator[dict[str, Any]]:
    """Of one call."""
    call = load(found, device)
    facts = call.facts
    about = {name: getattr(facts, name) for name in ("step", "order", "layer", "call", "name", "function", "dtype")}
    q, k = call.tensors["q"].shape, call.tensors["k"].shape
    tokens = f"{q[0]} x {q[1]}{'' if q[1] == k[1] else f' on {k[1]}'} tokens"
    about |= {"world_size": call.size, "shape": f"{tokens}, heads {q[2]}/{k[2]} of {q[3]}"}
    if unjudged := call.unjudged:
        yield about | {"rank": ALL_RANKS, "label": NOT_MEASURED, "sentence": unjudged, "tensor": "out"}
        return
    for name in call.returned:
        numbers = numbers_of(call, name)
        more = BASE_2 if name == "lse" and _is_in_base_2(call, numbers) else ""
        for place, rank in enumerate([*(each.rank for each in found.facts), ALL_RANKS]):
            row = about | {"tensor": name, "rank": rank} | {key: values[place] for key, values in numbers.items()}
            label, sentence = label_of(row, numbers["error_rel"][:-1], partial(explained, call, name))
            given = _given(call, name) if label == INVALID else ""
            yield row | {"label": label, "sentence": given or sentence + more}


def _given(call: Call, name: str) -> str:
    """Which of a tensor's inputs came with values that are not finite; nothing where none did."""
    inputs = ("q", "k", "v") if name in FORWARD else ("q", "k", "v", "dout")
    broken = {each: int((~call.tensors[each].isfinite()).sum()) for each in inputs if each in call.tensors}
    parts = [f"{each} with {count(number, 'value')} not finite" for each, number in broken.items() if number]
    return f"{GIVEN} {', '.join(parts)}" if parts else ""


def numbers_of(call: Call, name: str) -> dict[str, np.ndarray]:
    """Each an array (W + 1,), the last of all ranks together."""
    stored = str(call.tensors[name].dtype).removeprefix("torch.")
    exact = call.exact(name)
    given = _seen(call, name, call.tensors[name].double(), exact)
    x, reference = (call.shards(each) for each in (given, exact))
    reference = reference.nan_to_num(neginf=0.0)
    target = Target(reference)
    apart = distance(x, target, ulp_dtype=stored)
    held_to = tensor_dtype(name, call.dtype)
    floor = distance(round_to(reference, getattr(torch, held_to)).double(), target).sums
    columns = metrics.metric_columns(apart.sums, floor, floor, floor, apart.ulp)  # type: ignore[arg-type]
    bits = metrics.significand_bits(x, stored)
    kept = ("error_rel", "error_max", "floor_rel", "x_floor", "error_gain", "nonfinite", "reference_rms")
    rows = metrics.appended(np.full(len(x), reference[0].numel() / reference.shape[-1]))
    certain = np.abs(columns["error_gain"]) - STANDARD_ERRORS * columns["error_gain_se"]
    certain = np.where((rows >= FEWEST) & (name != "lse"), np.nan_to_num(certain.clip(0)), 0.0)
    constant = np.abs(columns["error_mean"]) >= ONE_SIDED * columns["error_rms"]
    constant |= np.abs(columns["error_gain"]) >= ONE_SIDED * columns["error_rel"]
    return {
        **{key: columns[key] for key in kept},
        "certain_gain": certain,
        "struck": np.where((name == "lse") & (rows >= FEWEST) & constant, 0.0, 1.0),
        **_times(call, name, given, certain),
        **_places(call, apart.sums, x.shape),
        "significand_bits": metrics.appended(bits, bits.max(keepdims=True)),
    }


def _seen(call: Call, name: str, x: Tensor, exact: Tensor) -> Tensor:
    """Rows that see no key have no right answer: whatever is there is taken for it."""
    blind = call.reference.lse.transpose(1, 2).isneginf()
    if name in ("dk", "dv") or not blind.any():
        return x
    blind = blind if name == "lse" else blind[..., None]
    return torch.where(blind, exact.nan_to_num(neginf=0.0), x)


def _times(call: Call, name: str, x: Tensor, gain: np.ndarray) -> dict[str, np.ndarray]:
    """The error over the most that rounding makes of it: of each rank, in its worst row, and of all; its elements that
    no rounding makes; and the certain part of its gain over what rounding may shift that by. What is beyond rounding to
    float64 is held to float32, as a function that computes in it inside promises no more; what is beyond rounding to
    float32, to coarser products where out shows them; what is beyond that is looked at a second time, as
    `accuracy.live.uncounted` has it."""
    found = _over(call, name, x, gain, call.rounding(), call.dtype)
    inside = ""
    if not _rounds(found):
        inside = "float32" if call.dtype == "float64" else call.products
        found = _over(call, name, x, gain, call.rounding(inside), inside) if inside else found
    word = inside or call.dtype
    if not _rounds(found) and x.isfinite().all():
        looks = _second_looks(call, name, word, found)
        seconds = (_over(other, name, x, gain, allowed, word) for other, allowed in looks)
        found = next(filter(_rounds, seconds), found)
    return found | {"inside": np.full(len(gain), inside)}


def _is_in_base_2(call: Call, found: dict[str, np.ndarray]) -> bool:
    """Return whether lse is wrong as the model gave it, and right when multiplied by ln 2. found: numbers of it."""
    if _rounds(found):
        return False
    x = _seen(call, "lse", call.tensors["lse"].double() * math.log(2), call.exact("lse"))
    return _rounds(_times(call, "lse", x, np.zeros(call.size + 1)))


def _second_looks(
    call: Call, name: str, dtype: str, found: dict[str, np.ndarray]
) -> Iterator[tuple[Call, Allowed]]:  # fmt: skip
    """Yield calls with other references, and limits: of dq and dk through a maximum; of lse, of q and k that are
    rounded."""
    if name in ("dq", "dk") and found["times_gain"].max() <= 1:  # no error of rows makes a factor
        yield call, call.rounding(dtype, maximum=True)
    if name == "lse" and (dtype in OF_FLOAT32 or FORMATS[dtype].bytes == 2):
        for other in call.with_rounded_operands(dtype):
            yield other, other.rounding(dtype)


def _rounds(found: dict[str, np.ndarray]) -> bool:
    return max(found[each].max() for each in ("times", "times_row", "times_gain")) <= 1 and not found["beyond"].any()


def _over(
    call: Call, name: str, x: Tensor, gain: np.ndarray, allowed: Allowed, dtype: str
) -> dict[str, np.ndarray]:  # fmt: skip
    exact = call.shards(call.exact(name)).nan_to_num(neginf=0.0)
    error = metrics.error_of(call.shards(x), exact)
    each, most = error.flatten(1).norm(dim=1), allowed.whole(name, call.shards)
    most = torch.cat([most, allowed.whole(name, lambda x: x[None])])
    whole = torch.cat([each, each.norm()[None]]) / most
    relative = most / torch.cat([exact.flatten(1).norm(dim=1), exact.norm()[None]])
    rows = error.norm(dim=-1) if error.dim() == 5 else error.abs()
    worst = (rows / call.shards(allowed.rows(name))).nan_to_num(nan=0.0).flatten(1).amax(1)
    beyond = (error.abs() > call.shards(allowed.certain[name])).flatten(1).sum(1)
    found = {"times": whole.nan_to_num(nan=0.0), "times_row": torch.cat([worst, worst.amax(0)[None]])}
    found["beyond"] = torch.cat([beyond, beyond.sum(0)[None]])
    units = OF_OPERANDS if dtype in OF_FLOAT32 else DRIFT[FORMATS[dtype].bytes]
    drift = (relative / CANCELLED).clamp(min=units * unit(dtype))
    found["times_gain"] = torch.from_numpy(gain) / drift.where(relative < 1, torch.inf).cpu()
    return {key: x.cpu().numpy() for key, x in found.items()}


def explained(call: Call, name: str, dtype: str) -> bool:
    """Whether rounding to a coarser dtype could make every element of a tensor."""
    exact = call.exact(name)
    error = (_seen(call, name, call.tensors[name].double(), exact) - exact.nan_to_num(neginf=0.0)).abs()
    return not bool((error > call.rounding(dtype).certain[name]).any())


def _places(call: Call, sums: metrics.Sums, shape: torch.Size) -> dict[str, np.ndarray]:
    """Batch, global token and head of each rank's largest error, and of the worst rank's; shape: (W, B, S/W, ...)."""
    ranks = np.append(np.arange(shape[0]), sums.largest.argmax())
    index = np.unravel_index(sums.worst.astype(int)[ranks], shape[1:])
    tokens = call.shards(torch.arange(shape[0] * shape[2])[None])[:, 0].numpy()
    return {"worst_batch": index[0], "worst_token": tokens[ranks, index[1]], "worst_head": index[2]}
