"""What a table holds on one tensor of one variant: its rows, the probes', the other dtypes' and the reruns'.

In: the results table. Out: an `Evidence` for each (variant as configured, problem, dtype, world size, tensor). Rows
that stand under a non-finite case are kept: the numbers of its other tensors are as good as any.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import FORMATS, effective_dtype, rounding_band
from accuracy.core.path_text import pairs_of
from accuracy.core.probes import PROBES, REFERENCE_ERROR
from accuracy.core.quantisation import unit_roundoff, wire_roundoff
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, FAILED, RERUN_COUNTS
from accuracy.verdict import inside
from accuracy.verdict.floor import share_struck
from accuracy.verdict.rows import Rows, columns_of, combinations, typical

_INPUTS = fields.names(fields.INPUTS)
INDEPENDENT = "gaussian"
TIMES_QUANTISED = 4.0
"""Of a policy's unit roundoff: its operands are rounded one by one, so that four or six independent errors of about
0.4 u add up to one u; twice that for those of results and for rank by rank, and twice for what inputs do to scales."""
KERNEL = fields.names(fields.KERNEL)
_LADDER = (*KERNEL, "dtype", "world_size")
_SETTING = tuple(name for name in fields.names_but(fields.INPUTS, fields.SEED, fields.STACK) if name not in _LADDER)
SUBJECT = (*_SETTING, *_LADDER)
"""What is judged as one: the variant as configured and the problem, whatever columns they have, kernel, dtype, size."""
PARTS = ("splits", "key_chunk")
"""Knobs of schedules that join partials within a rank: into how many parts keys are cut, or how long a part is."""


@dataclass(frozen=True)
class Rung:
    """A schedule's error over all ranks in one dtype on one distribution: geometric means over the ladder's seeds.

    single_device: of the kernel run once, or of the floor where that is larger; bits: the most that a value needs;
    outward: the share of the error that points away from zero, or towards it (below 0); struck: of the elements that
    have the error, at most.
    """

    level: float
    single_device: float
    bits: float
    outward: float = 0.0
    struck: float = 1.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that bears on one tensor, as rows of the results table.

    whole, ranks: this tensor's rows of ordinary inputs, over all ranks and of each rank; probes: rows over all ranks
    and of each rank under probe inputs; rungs: by dtype and ordinary inputs, the same schedule in that dtype (this one
    included); reruns: rows of any dtype at this world size; failures: reasons of failed
    cases that have no numbers; out_rungs: the rungs of out;
    alone: as whole, of the same on one rank.
    """

    key: dict[str, Any]
    tensor: str
    whole: Rows
    ranks: Rows
    probes: Rows
    rungs: dict[str, dict[str, Rung]]
    reruns: Rows
    failures: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    out_rungs: dict[str, dict[str, Rung]] = field(default_factory=dict)
    alone: Rows | None = None

    @property
    def dtype(self) -> str:
        """The case's."""
        return str(self.key["dtype"])

    @property
    def effective(self) -> str:
        """The precision that the tensor can have in it."""
        return effective_dtype(self.tensor, self.dtype)

    @cached_property
    def quantised(self) -> float:
        """Unit roundoff of what the kernel, or a wire of 8 bits, quantises; 0: nothing, also of a function of
        another's, which does not call the kernel."""
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
        return max(FORMATS[self.effective].unit_roundoff, self.quantised)

    def effective_in(self, dtype: str) -> str:
        """The precision that the tensor can have in a case of a dtype, from a function of a user's no more than the
        function promises: lse as it is stored, and all tensors as float32 where it computes in float32 inside."""
        usual = effective_dtype(self.tensor, dtype)
        return inside.FORMAT if usual == "float64" and inside.judges(self, dtype) else usual

    def single_device_has_digits(self, dtype: str) -> bool:
        """Whether the single-device kernel is near the reference in that dtype on some inputs; else the kernel is
        broken. One that quantises is held to that on Gaussian inputs: others cost 8 bits all their digits."""
        rungs = self.rungs[dtype]
        if self.quantised:
            return INDEPENDENT not in rungs or rungs[INDEPENDENT].single_device <= self.quantised_band
        least = min(rung.single_device for rung in rungs.values())
        return least <= 100 * rounding_band(self.tensor, dtype)

    @property
    def quantised_band(self) -> float:
        """The relative error that quantising Gaussian inputs stays below. Scores of the standard deviation s inherit s
        roundings of q and k; lse is ln(keys) + s^2 / 2 then."""
        lse = typical(self.whole["lse_rms"]) - math.log(float(self.key["seqlen"])) if len(self.whole) else 0.0
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
        whole, ranks = self.whole.by(*_INPUTS), self.ranks.by(*_INPUTS)
        return [(str(key[0]), whole[key], ranks.get(key, self.ranks.none)) for key in sorted(whole)]


def extent(setting: Mapping[str, Any], tensor: str, ranks: np.ndarray) -> tuple[np.ndarray, float]:
    """How many (token, head) rows a tensor has on each of the ranks, and of how many elements each."""
    keys = tensor in ("dk", "dv")
    tokens, heads = (setting[name] for name in (("seqlen", "heads_kv") if keys else ("seqlen_q", "heads")))
    whole = float(setting["batch"]) * float(tokens) * float(heads)
    share = np.where(ranks == ALL_RANKS, 1, int(setting["world_size"]))
    return whole / share, 1.0 if tensor in ("lse", "delta") else float(setting["head_dim"])


def gather(results: pd.DataFrame) -> list[Evidence]:
    """Every tensor of every subject of the table, in the table's order; a subject without numbers has them too."""
    table = results.assign(against=results["against"].fillna(""))  # older tables have none, groups lose what is null
    table = table.assign(subject=combinations(table, SUBJECT), setting=combinations(table, _SETTING))
    columns = columns_of(table) | {"lse_rms": _lse_rms(table)}
    bare = table["tensor"].isna()
    numbers = ~bare & table["error_rel"].notna()
    probing, everywhere = table["inputs"].isin(list(PROBES)), table["rank"] == ALL_RANKS
    new = numbers & ~_drawn_before(table)
    ordinary = new & everywhere & ~probing
    rerun = numbers & table[list(RERUN_COUNTS)].notna().any(axis=1)
    said = table[list(SUBJECT)].notna().all(axis=1)
    family, own = ["setting", "world_size", "tensor"], ["subject", "tensor"]

    def groups(chosen: pd.Series, names: list[str]) -> dict[Any, Rows]:
        places = np.flatnonzero(chosen)
        found = table[names].iloc[places].groupby(names, sort=False).indices
        return {key: Rows(columns, places[mine]) for key, mine in found.items()}

    wholes, ranks = groups(ordinary & said, own), groups(new & ~everywhere & ~probing & said, own)
    probes, bares = groups(new & probing & said, own), groups(bare & said, ["subject"])
    shared = table[[*_SETTING, "world_size"]].notna().all(axis=1)
    reruns, rungs = groups(rerun & shared, family), _rungs(table[ordinary & shared], family)
    none = Rows(columns, np.empty(0, int))
    firsts = table.drop_duplicates("subject")
    keys = firsts[list(SUBJECT)].itertuples(index=False, name=None)
    subjects = {key: place for place, key in enumerate(keys)}
    found = []
    for (key, subject), setting in zip(subjects.items(), firsts["setting"].tolist(), strict=True):
        named = dict(zip(SUBJECT, key, strict=True))
        without = bares.get(subject, none)
        failed = without["status"] == FAILED
        failures, unsupported = _reasons(without.where(failed)), _reasons(without.where(~failed))
        alone, schedule = subjects.get(tuple((named | {"world_size": 1}).values())), (setting, named["world_size"])
        out_rungs = _same_kernel(rungs.get((*schedule, "out"), {}), named)
        for tensor in ALL_TENSORS:
            if tensor == "dsink" and (subject, tensor) not in wholes:  # a problem without sinks
                continue
            found.append(
                Evidence(
                    key=named,
                    tensor=tensor,
                    whole=wholes.get((subject, tensor), none),
                    ranks=ranks.get((subject, tensor), none),
                    probes=probes.get((subject, tensor), none),
                    rungs=_same_kernel(rungs.get((*schedule, tensor), {}), named),
                    reruns=reruns.get((*schedule, tensor), none),
                    failures=failures,
                    unsupported=unsupported,
                    alone=wholes.get((alone, tensor), none),
                    out_rungs=out_rungs,
                )
            )
    return found


def _drawn_before(table: pd.DataFrame) -> pd.Series:
    """Rows that tell nothing new: probes whose inputs ignore the seed, and cases that two grids have. Another seed with
    the same reference and the same errors, to the last bit, is no other draw."""
    draw = ["reference_rms", "error_rms", "error_max", "error_bias"]
    return table.duplicated(["subject", *_INPUTS, "tensor", "rank", *draw])


def _lse_rms(table: pd.DataFrame) -> np.ndarray:
    """Of each row's case, the root mean square of lse; NaN where there is none."""
    lse = table[(table["tensor"] == "lse") & (table["rank"] == ALL_RANKS)].drop_duplicates("case_id")
    return table["case_id"].map(lse.set_index("case_id")["reference_rms"]).to_numpy("float64")


def _reasons(rows: Rows) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason for reason in rows["reason"] if pd.notna(reason)))


def _rungs(rows: pd.DataFrame, family: list[str]) -> dict[tuple[Any, ...], dict[tuple[str, ...], Rung]]:
    """For each schedule and tensor: rungs by (dtype, inputs, kernel, its options), over the seeds that all dtypes have.

    A mean over other seeds than the next dtype's is no step of a ladder: one draw may be far worse conditioned.
    """
    drawn = [*family, "inputs", "seed"]
    dtypes = rows.groupby(drawn, sort=False)["dtype"].transform("nunique")
    shared = dtypes == dtypes.groupby([rows[name] for name in drawn[:-1]], sort=False).transform("max")
    alone = ~shared.groupby([rows[name] for name in (*drawn[:-1], "dtype")], sort=False).transform("any")
    rows = rows[shared | alone]  # a dtype that shares no seed with the others has those that it has
    least = rows[["single_device_rel", "floor_rel"]].max(axis=1)
    logs = rows.assign(
        _level=_log(rows["error_rel"]), _single_device=_log(least), _bits=rows["significand_bits"],
        _outward=rows["error_outward"] / rows["error_rms"], _struck=share_struck(rows),
    )  # fmt: skip
    place = ["dtype", "inputs", *KERNEL]
    means = logs.groupby([*family, *place], sort=False).agg(
        {"_level": "mean", "_single_device": "mean", "_bits": "max", "_outward": "mean", "_struck": "mean"}
    )
    found: dict[tuple[Any, ...], dict[tuple[str, ...], Rung]] = {}
    for key, level, single_device, *others in means.itertuples():
        whole: tuple[Any, ...] = tuple(key)
        rung = Rung(float(np.exp(level)), float(np.exp(single_device)), *map(float, others))
        found.setdefault(whole[: len(family)], {})[whole[len(family) :]] = rung
    return found


def _same_kernel(rungs: dict[tuple[str, ...], Rung], key: dict[str, Any]) -> dict[str, dict[str, Rung]]:
    """By dtype and inputs, the rungs of the subject's kernel; where it lacks the dtype, another's stand in, but for one
    that quantises, whose errors are the same in every dtype."""
    mine = tuple(key[name] for name in KERNEL)
    chosen: dict[str, dict[str, Rung]] = {}
    for own in (False, True):  # the subject's own kernel comes last and stays
        for (dtype, inputs, *kernel), rung in rungs.items():
            if (tuple(kernel) == mine) == own and (own or not unit_roundoff(*map(str, kernel))):
                chosen.setdefault(dtype, {})[inputs] = rung
    return chosen


def _log(values: pd.Series) -> pd.Series:
    return np.log(values.clip(lower=5e-324))


def times_single_device(rows: Rows | pd.DataFrame) -> Any:
    """Each row's error over single device's, or over the floor where single device happens to be better than that."""
    least = np.maximum(np.maximum(rows["single_device_rel"], rows["floor_rel"]), REFERENCE_ERROR)
    return rows["error_rel"] / least
