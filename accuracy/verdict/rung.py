"""A schedule's error in one dtype on one distribution, over all ranks and the seeds that its dtypes share."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core.quantisation import unit_roundoff
from accuracy.verdict.floor import share_struck
from accuracy.verdict.rows import KERNEL


@dataclass(frozen=True)
class Rung:
    """A schedule's error over all ranks in one dtype on one distribution: geometric means over the ladder's seeds.

    level: relative error; single_device: that of the kernel run once, or of the floor where that is larger; bits: the
    most that a value needs; outward: the share of the error that points away from zero, or towards it (below 0);
    struck: the share of elements that have the error, at most.
    """

    level: float
    single_device: float
    bits: float
    outward: float = 0.0
    struck: float = 1.0


def rungs_of(rows: pd.DataFrame, family: list[str]) -> dict[tuple[Any, ...], dict[tuple[str, ...], Rung]]:
    """For each schedule and tensor: rungs by (dtype, inputs, kernel, its options), over the seeds that all dtypes have.

    A mean over other seeds than the next dtype's is no step of a ladder: one draw may be far worse conditioned. A dtype
    that shares no seed with the others has those that it has.
    """
    drawn = [*family, "inputs", "seed"]
    dtypes = rows.groupby(drawn, sort=False)["dtype"].transform("nunique")
    shared = dtypes == dtypes.groupby([rows[name] for name in drawn[:-1]], sort=False).transform("max")
    lonely = ~shared.groupby([rows[name] for name in (*drawn[:-1], "dtype")], sort=False).transform("any")
    rows = rows[shared | lonely]
    logs = rows.assign(
        _level=np.log(rows["error_rel"].clip(lower=5e-324)),
        _single_device=np.log(rows[["single_device_rel", "floor_rel"]].max(axis=1).clip(lower=5e-324)),
        _bits=rows["significand_bits"], _outward=rows["error_outward"] / rows["error_rms"], _struck=share_struck(rows),
    )  # fmt: skip
    how = {"_level": "mean", "_single_device": "mean", "_bits": "max", "_outward": "mean", "_struck": "mean"}
    means = logs.groupby([*family, "dtype", "inputs", *KERNEL], sort=False).agg(how)
    found: dict[tuple[Any, ...], dict[tuple[str, ...], Rung]] = {}
    for key, level, single_device, *others in means.itertuples():
        rung = Rung(float(np.exp(level)), float(np.exp(single_device)), *map(float, others))
        found.setdefault(key[: len(family)], {})[key[len(family) :]] = rung
    return found


def same_kernel(rungs: dict[tuple[str, ...], Rung], key: dict[str, Any]) -> dict[str, dict[str, Rung]]:
    """The rungs of the subject's kernel by dtype and inputs. Where it lacks a dtype, another kernel's stand in, but for
    one that quantises, whose errors are the same in every dtype."""
    subject = tuple(key[name] for name in KERNEL)
    chosen: dict[str, dict[str, Rung]] = {}
    for own in (False, True):  # the subject's own kernel comes last and stays
        for (dtype, inputs, *kernel), rung in rungs.items():
            if (tuple(kernel) == subject) == own and (own or not unit_roundoff(*map(str, kernel))):
                chosen.setdefault(dtype, {})[inputs] = rung
    return chosen
