"""What is the least of a failing capture that still fails? A few tokens, heads and dims, and a script that shows it.

With a function, it is run again on ever smaller parts, each against its own reference, until nothing can be left out
(1-minimal in batch, heads, tokens and dims). Without one, only rows that the capture proves by itself are kept. What
differs from run to run cannot be run again: a function that is right this time is an error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from accuracy.core.errors import ConfigError
from accuracy.core.recording import choose
from accuracy.live import script
from accuracy.live.call_on_disk import Call, load
from accuracy.live.judge import judge, numbers_of, rows_of
from accuracy.live.script import Rerun
from accuracy.live.verdict import label_of, verdict
from accuracy.runtime import arithmetic
from accuracy.runtime import device as devices
from accuracy.verdict.label import PRECISION_FLOOR, ROUNDING

AXES = ("batch", "heads_kv", "heads", "tokens", "dims")


@dataclass(frozen=True)
class Candidate:
    """What is kept of each axis, ascending. heads: of those that share the kept key heads."""

    batch: tuple[int, ...]
    heads_kv: tuple[int, ...]
    heads: tuple[int, ...]
    tokens: tuple[int, ...]
    dims: tuple[int, ...]

    @classmethod
    def whole(cls, call: Call) -> "Candidate":
        """All of it."""
        (batch, length, heads, dims), heads_kv = call.tensors["q"].shape, call.tensors["k"].shape[2]
        return cls(*(tuple(range(size)) for size in (batch, heads_kv, heads, length, dims)))

    @property
    def size(self) -> str:
        """In words."""
        return f"{len(self.batch)} x {len(self.tokens)} tokens, {len(self.heads)} heads of {len(self.dims)}"

    def with_axis(self, axis: str, kept: Sequence[int], share: int) -> "Candidate":
        """Only these of an axis; share: query heads of a key head. Without a key head, its query heads go."""
        changed = replace(self, **{axis: tuple(kept)})
        if axis == "heads_kv":
            changed = replace(changed, heads=tuple(head for head in self.heads if head // share in kept))
        return changed

    def inputs(self, call: Call) -> Call:
        """q, k, v, dout and the mask of the kept part, without anything that the model returned."""
        kept = dict.fromkeys(("q", "dout"), (self.batch, self.tokens, self.heads, self.dims))
        kept |= dict.fromkeys(("k", "v"), (self.batch, self.tokens, self.heads_kv, self.dims))
        kept["mask"] = self.batch, self.heads, self.tokens, self.tokens
        tensors = {name: _cut(x, kept[name]) for name, x in call.tensors.items() if name in kept}
        shapes = {name: tuple(x.shape) for name, x in tensors.items()}
        facts = replace(call.facts, shapes=shapes, documents=self._documents(call.facts.documents), ranks=(0,), rank=0)
        return Call(facts, tensors)

    def _documents(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Lengths of the documents, without those of which nothing is kept."""
        if not lengths:
            return ()
        ends = torch.tensor(lengths).cumsum(0)
        mine = torch.searchsorted(ends, torch.tensor(self.tokens), right=True)
        return tuple(int(count) for count in torch.bincount(mine, minlength=len(lengths)) if count)


def _cut(x: Tensor, every: Sequence[Sequence[int]]) -> Tensor:
    """The kept part of each dimension; one of size 1 stands for all."""
    for dim, kept in enumerate(every):
        if len(kept) < x.shape[dim]:
            x = x.index_select(dim, torch.tensor(kept, device=x.device))
    return x.contiguous()


@dataclass(frozen=True)
class Reduced:
    """path: of the script; sentence: what was left of what; tensor and label: of the fault."""

    path: Path
    sentence: str
    tensor: str
    label: str
    kept: Candidate | None = None


def reduce(
    folder: str | Path, *, layer: str | None = None, tensor: str | None = None, fn: str | None = None,
    layout: str = "bshd", to: str | Path | None = None, device: str = "auto",
) -> Reduced:  # fmt: skip
    """Shrink a call of a capture that `judge` finds wrong, and write FOLDER/reduced.py with its data, or `to`.

    layer: LAYER or LAYER@STEP, None: the first that is wrong; tensor: None for the first that is; fn: what to run
    again, as `package.module:function` called fn(q, k, v, *, causal, softmax_scale, ...) in `layout`. Raises
    ConfigError where nothing is wrong.
    """
    path = Path(folder).expanduser()
    row = _first(path, layer, tensor, device)
    call = load(choose(path, str(row["name"])), devices.choose(device))
    if call.facts.sinks:
        raise ConfigError(f"{call.facts.name} has sinks, which the script of a reduction lacks; judge it instead")
    target = Path(to) if to is not None else path / "reduced.py"
    return _of_slices(call, row, target) if fn is None else _of_function(call, row, Rerun(fn, layout), target)


def _first(folder: Path, layer: str | None, tensor: str | None, device: str) -> dict[str, Any]:
    """The row of the judgement that is to be shrunk."""
    if layer is None:
        rows = judge(folder, device=device).rows
    else:
        rows = pd.DataFrame(list(rows_of(choose(folder, layer), devices.choose(device))))
    if tensor is not None:
        rows = rows[rows["tensor"] == tensor]
        if rows.empty:
            raise ConfigError(f"tensor={tensor} was not captured of {layer or folder}")
    found = verdict(rows)
    if found.first is None:
        raise ConfigError(f"nothing to reduce: {found.sentence}")
    return {str(key): value for key, value in found.first.items()}


def _of_slices(call: Call, row: dict[str, Any], path: Path) -> Reduced:
    tensor = row["tensor"]
    batch, head, tokens = script.few_rows(call, tensor, row)
    data = script.sliced(call, tensor, batch, head, tokens)
    rows, shown = call.exact(tensor)[batch, tokens, head], ", ".join(map(str, tokens[:8]))
    most = call.rounding().whole(tensor, lambda x: x[batch, tokens, head][None])
    limit = _limit(row, float(most / rows.norm()))
    where = f"{tensor} of {call.facts.name}, batch {batch}, head {head}, tokens {shown}{', ...' * (len(tokens) > 8)}"
    what = f"{where}: {row['label'].replace('_', ' ')}, as captured"
    script.write(path, what, call, tensor, data, limit, None)
    few = f"{len(tokens)} of {call.exact(tensor).shape[1]} rows, proven by the capture itself"
    return Reduced(path, f"{what}: {few}; {path} shows it", tensor, row["label"])


def _of_function(call: Call, row: dict[str, Any], run: Rerun, path: Path) -> Reduced:
    tensor, wanted = row["tensor"], row["label"]
    run.arguments(call)
    whole = Candidate.whole(call)

    def label(candidate: Candidate) -> str:
        try:
            with arithmetic.random_state_restored():
                torch.manual_seed(0)
                found = run.results(candidate.inputs(call))
            return _row(found, tensor)["label"]
        except Exception:  # a size that the function refuses does not show the fault
            return ""

    given = label(whole)
    if given in ("", ROUNDING):
        does = "merely rounds" if given else f"does not run, or returns no {tensor}, on"
        raise ConfigError(
            f"fn={run.name} {does} what was captured of {call.facts.name}: another function, or a race, which is left"
            " out; without --fn the capture's own rows are kept"
        )
    smaller = shrink(call, whole, row, lambda candidate: label(candidate) == given)
    part = run.results(smaller.inputs(call))
    most = part.rounding().whole(tensor, lambda x: x[None])
    limit = _limit(_row(part, tensor), float(most / part.exact(tensor).norm()))
    what = f"{tensor} of {run.name}: {given.replace('_', ' ')}, on {smaller.size} of {call.facts.name}"
    script.write(path, what, part, tensor, script.data_of(part), limit, run)
    changed = "" if given == wanted else f" (captured: {wanted.replace('_', ' ')})"
    return Reduced(path, f"{what}{changed}, of {whole.size}; {path} shows it", tensor, given, smaller)


def shrink(call: Call, candidate: Candidate, row: dict[str, Any], shows: Callable[[Candidate], bool]) -> Candidate:
    """1-minimal in every axis: no element of any can be left out. row: the worst place, which is tried first."""
    share = call.tensors["q"].shape[2] // call.tensors["k"].shape[2]
    head = int(row["worst_head"])
    guess = {"batch": int(row["worst_batch"]), "heads_kv": head if row["tensor"] in ("dk", "dv") else head // share}
    crossed = call.tensors["q"].shape[1] != call.tensors["k"].shape[1]
    wide = call.tensors["q"].shape[3] != call.tensors["v"].shape[3]
    before = None
    while candidate != before:
        before = candidate
        for axis in AXES:
            if (axis == "tokens" and crossed) or (axis == "dims" and wide) or (
                axis == "heads" and len(candidate.heads_kv) > 1
            ):  # fmt: skip
                continue
            base, items = candidate, list(getattr(candidate, axis))

            def fails(some: list[int], base: Candidate = base, axis: str = axis) -> bool:
                return shows(base.with_axis(axis, some, share))

            first = [guess[axis]] if axis in guess else []
            quick = first and len(items) > 1 and fails(first)
            candidate = base.with_axis(axis, first if quick else script.smallest(items, fails), share)
    return candidate


def _row(call: Call, tensor: str) -> dict[str, Any]:
    """Return the numbers of a tensor over all ranks and the label that `judge` gives them."""
    if tensor not in call.returned:
        return {"label": ""}
    numbers = numbers_of(call, tensor)
    row = {key: values[-1] for key, values in numbers.items()} | {"tensor": tensor, "dtype": call.facts.dtype}
    return row | {"label": label_of(row, numbers["error_rel"][:-1])[0]}


def _limit(row: Mapping[str, Any], rounding: float) -> float:
    """The relative error of a script; of an lse in 16 bits, which a kernel has in float32, that of 64 roundings; of a
    factor, what it is at least."""
    if (row["label"], row["tensor"]) == (PRECISION_FLOOR, "lse"):
        return min(rounding, 2.0**-18)
    return min(rounding, row["certain_gain"]) if row["times_gain"] > 1 else rounding
