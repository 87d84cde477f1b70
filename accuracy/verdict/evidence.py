"""What a table holds on one tensor of one variant: its rows, the probes', the other dtypes' and the reruns'.

In: the results table. Out: an `Evidence` for each (variant as configured, problem, dtype, world size, tensor). Rows of
a case that has non-finite values are used: the numbers of its other tensors are as good as any.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import (
    ARITHMETIC,
    PROBES,
    REFERENCE_ERROR,
    computed_in,
    effective_dtype,
    form_of,
    rounding_band,
)
from accuracy.core.fields import pairs_of
from accuracy.core.quantisation import unit_roundoff, wire_roundoff
from accuracy.results.derived import SAID_LATER
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, FAILED, OF_ALL, RERUN_COUNTS
from accuracy.verdict import inside
from accuracy.verdict.floor import Rung, rungs_of, same_kernel
from accuracy.verdict.rows import KERNEL, Rows, columns_of, combinations, typical

_INPUTS = fields.names(fields.INPUTS)
INDEPENDENT = "gaussian"
SMALL_SCORES = 1.5
TIMES_QUANTISED = 4.0
"""Of a policy's unit roundoff: its operands are rounded one by one, so that four or six independent errors of about
0.4 u add up to one u; twice that for those of results and for rank by rank, and twice for what inputs do to scales."""
_LADDER = (*KERNEL, "dtype", "world_size")
_SETTING = tuple(name for name in fields.names_but(fields.INPUTS, fields.SEED) if name not in _LADDER)
SUBJECT = (*_SETTING, *_LADDER)
"""The columns that tell subjects apart: a subject is a configured variant in one problem, kernel, dtype and world."""
PARTS = ("splits", "key_chunk")
"""Options of schedules that join partials within a rank: into how many parts keys are cut, or how long a part is."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that bears on one tensor, as rows of the results table.

    all_ranks, each_rank: the tensor's rows of ordinary inputs; probes: its rows of inputs whose answer is known; rungs:
    by dtype and ordinary inputs, the same schedule in that dtype (this one included); reruns: of a tensor with numbers,
    rows of any dtype at this world size; failures, unsupported: reasons of the cases without numbers; out_rungs: the
    rungs of out; on_one_rank: as all_ranks, of the same schedule on one rank.
    """

    key: dict[str, Any]
    tensor: str
    all_ranks: Rows
    each_rank: Rows
    probes: Rows
    rungs: dict[str, dict[str, Rung]]
    reruns: Rows
    failures: tuple[str, ...]
    unsupported: tuple[str, ...]
    out_rungs: dict[str, dict[str, Rung]]
    on_one_rank: Rows

    @property
    def dtype(self) -> str:
        """The case's dtype."""
        return str(self.key["dtype"])

    @property
    def effective(self) -> str:
        """The precision that the tensor can have in a case of that dtype."""
        return self._computed_in(self.dtype)

    @property
    def is_short(self) -> bool:
        """Whether that precision is a 16-bit format."""
        return form_of(self.effective).bytes == 2

    @cached_property
    def quantised(self) -> float:
        """Unit roundoff of what the kernel, or a wire of 8 bits, quantises; 0: nothing, or a user's function, which
        does not call the kernel."""
        if inside.is_foreign(self):
            return 0.0
        return max(unit_roundoff(*(str(self.key[name]) for name in KERNEL)), self.wired)

    @cached_property
    def wired(self) -> float:
        """What wires of 8 bits round in all: a sum is rounded anew at each hop, independently; 0: there are none."""
        return wire_roundoff(str(self.key.get("precision") or "")) * math.sqrt(1 + self.merges)

    @property
    def unit_roundoff(self) -> float:
        """Of the effective precision, or of what is quantised."""
        return max(form_of(self.effective).unit_roundoff, self.quantised)

    def effective_in(self, dtype: str) -> str:
        """The precision that the tensor can have in a case of a dtype, from a user's function no more than the function
        promises: lse as it is stored, and all tensors as float32 where it computes in float32 inside."""
        effective = self._computed_in(dtype)
        return inside.FORMAT if effective == "float64" and inside.judges(self, dtype) else effective

    def band(self, dtype: str) -> float:
        """The relative error that rounding alone stays below in a case of that dtype."""
        return rounding_band(self.tensor, self._judged_as(dtype), self.arithmetic)

    def spread_of_scores(self, options: str) -> float:
        """The standard deviation of scores on inputs with these options, of which q and k are independent of each
        other."""
        std = float(pairs_of(options).get("std", 1.0))
        return std**2 * float(self.key["softmax_scale"]) * math.sqrt(float(self.key["head_dim"]))

    def has_small_scores(self, inputs: str) -> bool:
        """Whether scores spread by little more than 1, so that rounding them to 16 bits moves no weight far: those of
        Gaussian inputs with a scale of about D^-0.5."""
        return inputs == INDEPENDENT and self.spread_of_scores("") <= SMALL_SCORES

    @property
    def in_parts(self) -> bool:
        """Whether products in a coarser arithmetic than the case's dtype decide how exact the tensor is."""
        return self.effective in ARITHMETIC

    def units(self, dtype: str) -> float:
        """How many unit roundoffs of the dtype one of the function's own products is: single device's error in that
        dtype times this is what such products make, to first order."""
        effective = effective_dtype(self.tensor, dtype)
        return form_of(self._computed_in(dtype)).unit_roundoff / form_of(effective).unit_roundoff

    @property
    def arithmetic(self) -> str:
        """What the function of a user's computes its products in; empty: its dtype."""
        return fields.arithmetic_of(self.key["options"])

    def _computed_in(self, dtype: str) -> str:
        dtype = self._judged_as(dtype)
        return computed_in(effective_dtype(self.tensor, dtype), dtype, self.arithmetic)

    def _judged_as(self, dtype: str) -> str:
        """float32 for float64, where out has the error there that the function's own products have in float32."""
        fine, own = (self.out_rungs.get(each, {}).get(INDEPENDENT) for each in (dtype, inside.FORMAT))
        if dtype != inside.FINEST or not (self.arithmetic and fine and own):
            return dtype
        return inside.FORMAT if own.level / 2 < fine.level < 2 * own.level else dtype

    def single_device_has_digits(self, dtype: str) -> bool:
        """Whether the single-device kernel is near the reference in that dtype on some inputs; else the kernel is
        broken. One that quantises is held to that on Gaussian inputs: others cost 8 bits all their digits. Where the
        partials of all inputs cancel, which leaves no digits to any kernel, the least of the condition numbers counts:
        dq of equal keys is a sum of nothing but zero."""
        rungs = self.rungs[dtype]
        if self.quantised:
            return INDEPENDENT not in rungs or rungs[INDEPENDENT].single_device <= self.quantised_band
        if min(rung.single_device for rung in rungs.values()) <= 100 * self.band(dtype):
            return True
        conditions = {
            typical(np.fmax(rows["condition_sum"], rows["condition_rounding"])): name
            for name, rows, _ in self.by_inputs
            if name in rungs
        }
        least = min(conditions, default=math.nan, key=lambda each: math.inf if math.isnan(each) else each)
        most = self.band(dtype) * least  # as the gate's portable rules have it
        return not math.isnan(least) and rungs[conditions[least]].single_device <= most

    @property
    def quantised_band(self) -> float:
        """The relative error that quantising Gaussian inputs stays below. Scores of the standard deviation s inherit s
        roundings of q and k; lse is ln(keys) + s^2 / 2 then."""
        lse = typical(self.all_ranks["lse_rms"]) - math.log(float(self.key["seqlen"])) if len(self.all_ranks) else 0.0
        return TIMES_QUANTISED * self.quantised * max(1.0, math.sqrt(max(0.0, 2 * lse) if lse == lse else 0.0))

    def counts(self, rows: Rows) -> tuple[np.ndarray, float]:
        """How many (token, head) rows each row of the table is about, and of how many elements each."""
        return extent(self.key, self.tensor, rows["rank"])

    @property
    def merges(self) -> int:
        """How many partials a row may be joined from, less one: ranks times parts of the keys within a rank."""
        size = int(self.key["world_size"])
        options = pairs_of(self.key["options"])
        parts, chunk = (int(options.get(name, 0)) for name in PARTS)
        if chunk:
            parts = math.ceil(int(self.key["seqlen"]) / size / chunk)
        return max(1, parts) * size - 1

    @cached_property
    def by_inputs(self) -> list[tuple[str, Rows, Rows]]:
        """(inputs, rows over all ranks, rows of each rank) for every ordinary distribution."""
        together, ranks = self.all_ranks.by(*_INPUTS), self.each_rank.by(*_INPUTS)
        none = Rows(self.each_rank.columns, self.each_rank.index[:0])
        return [(str(key[0]), together[key], ranks.get(key, none)) for key in sorted(together)]


def extent(setting: Mapping[str, Any], tensor: str, ranks: np.ndarray) -> tuple[np.ndarray, float]:
    """How many (token, head) rows a tensor has on each of the ranks, and of how many elements each."""
    if tensor in OF_ALL:
        return np.full(len(ranks), float(setting["heads"])), 1.0  # of a bias's shape the table knows no more
    names = ("seqlen", "heads_kv") if tensor in ("dk", "dv") else ("seqlen_q", "heads")
    rows = math.prod(float(setting[name]) for name in ("batch", *names))
    share = np.where(ranks == ALL_RANKS, 1, int(setting["world_size"]))
    return rows / share, 1.0 if tensor in ("lse", "delta") else float(setting["head_dim"])


def gather(results: pd.DataFrame) -> list[Evidence]:
    """Every tensor of every subject of the table, in the table's order; a subject without numbers has them too."""
    table = results.assign(**{name: results[name].fillna("") for name in SAID_LATER})  # groups lose what is null
    table = table.assign(subject=combinations(table, SUBJECT), setting=combinations(table, _SETTING))
    lse = table[(table["tensor"] == "lse") & (table["rank"] == ALL_RANKS)].drop_duplicates("case_id")
    lse_rms = table["case_id"].map(lse.set_index("case_id")["reference_rms"])  # of each row's case; NaN: there is none
    columns = columns_of(table) | {"lse_rms": lse_rms.to_numpy("float64")}
    none = Rows(columns, np.empty(0, int))
    numbers = table["tensor"].notna() & table["error_rel"].notna()
    probing, everywhere = table["inputs"].isin(list(PROBES)), table["rank"] == ALL_RANKS
    complete = table[list(SUBJECT)].notna().all(axis=1)
    shared = table[[*_SETTING, "world_size"]].notna().all(axis=1)
    # Probes whose inputs ignore the seed, and cases that two grids have, tell nothing new: another seed with the same
    # reference and the same errors, to the last bit, is no other draw.
    draw = ["reference_rms", "error_rms", "error_max", "error_bias"]
    new = numbers & ~table.duplicated(["subject", *_INPUTS, "tensor", "rank", *draw])
    ordinary = new & ~probing
    family, own = ["setting", "world_size", "tensor"], ["subject", "tensor"]

    def groups(chosen: pd.Series, names: list[str]) -> defaultdict[Any, Rows]:
        positions = np.flatnonzero(chosen)
        found = table[names].iloc[positions].groupby(names, sort=False).indices
        return defaultdict(lambda: none, {key: Rows(columns, positions[rows]) for key, rows in found.items()})

    together, ranks = (groups(ordinary & side & complete, own) for side in (everywhere, ~everywhere))
    probes = groups(new & probing & complete, own)
    bare = groups(table["tensor"].isna() & complete, ["subject"])
    reruns = groups(numbers & table[list(RERUN_COUNTS)].notna().any(axis=1) & shared, family)
    rungs = rungs_of(table[ordinary & everywhere & shared], family)
    firsts = table.drop_duplicates("subject")
    subjects = {key: row for row, key in enumerate(firsts[list(SUBJECT)].itertuples(index=False, name=None))}
    found = []
    for (key, subject), setting in zip(subjects.items(), firsts["setting"].tolist(), strict=True):
        named = dict(zip(SUBJECT, key, strict=True))
        failed = bare[subject]["status"] == FAILED
        schedule = (setting, named["world_size"])
        on_one_rank = subjects.get(tuple((named | {"world_size": 1}).values()))
        of_schedule = {tensor: same_kernel(rungs.get((*schedule, tensor), {}), named) for tensor in ALL_TENSORS}
        found += [
            Evidence(
                key=named, tensor=tensor, all_ranks=together[subject, tensor], each_rank=ranks[subject, tensor],
                probes=probes[subject, tensor], rungs=of_schedule[tensor],
                reruns=reruns[(*schedule, tensor)] if together[subject, tensor] or probes[subject, tensor] else none,
                failures=_reasons(bare[subject].where(failed)), unsupported=_reasons(bare[subject].where(~failed)),
                out_rungs=of_schedule["out"], on_one_rank=together[on_one_rank, tensor],
            )
            for tensor in ALL_TENSORS
            if tensor not in OF_ALL or len(together[subject, tensor])  # a problem without sinks has no dsink
        ]  # fmt: skip
    return found


def _reasons(rows: Rows) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason for reason in rows["reason"] if pd.notna(reason)))


def times_single_device(rows: Rows | pd.DataFrame) -> Any:
    """Each row's error over single device's, or over the floor where single device happens to be better than that."""
    least = np.maximum(np.maximum(rows["single_device_rel"], rows["floor_rel"]), REFERENCE_ERROR)
    return rows["error_rel"] / least
