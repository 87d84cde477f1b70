"""How far apart are the results of one sequence at different world sizes? python -m experiments.dynamic_cp.distance.

Megatron's dynamic context parallelism gives each batch a world size of its own, by its lengths. In: a problem, a
variant. Out: for each pair of world sizes the relative Frobenius norm of the difference, beside single device's error;
world size 1 is single device, so that the first column is the table's diff_rel.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from accuracy.config import compose
from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.execute.settle import read_settled
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.runtime.sharding import cut, join
from accuracy.simulate.program import simulate

VARIANTS = "variant=[zigzag,llama3,ulysses]"
SIZES = (1, 2, 4, 8)
WORDS = ("dtype=bfloat16", "problem.seqlen=2048", "problem.heads=8", "problem.heads_kv=8", "problem.head_dim=64")
NAMES = ("out", "dq", "dk", "dv")


def wholes(pipeline: Pipeline, case: Case) -> dict[str, Tensor]:
    """Each tensor of the whole sequence, float64."""
    shards = [cut(x, case.variant.sharding, case.world_size) for x in pipeline.targets(case).inputs.tensors]
    results = simulate(case, list(zip(*shards, strict=True))).results
    stacked = (torch.stack(same).double() for same in zip(*results, strict=True))
    tensors = dict(zip(("out", "lse", "dq", "dk", "dv"), stacked, strict=True))
    return {name: join(tensors[name], case.variant.sharding) for name in NAMES}


def rows(*words: str) -> Iterator[dict[str, Any]]:
    """One a variant, tensor and pair of world sizes."""
    given = compose.compose(VARIANTS, f"world_size={list(SIZES)}".replace(" ", ""), *WORDS, *words)
    planned = [each for each in plan(read_settled(given, ()), None) if each.unsupported is None]
    pipeline = Pipeline("dynamic_cp", Cache(None, 0.0))
    for variant, cases in itertools.groupby(
        sorted((each.case for each in planned), key=lambda case: (case.variant.name, case.world_size)),
        key=lambda case: case.variant.name,
    ):
        found = {case.world_size: (case, wholes(pipeline, case)) for case in cases}
        for (size, (case, one)), (other, (_, two)) in itertools.combinations(found.items(), 2):
            targets = pipeline.targets(case)
            for name in NAMES:
                reference, single = targets.reference[name], targets.single_device(case)[name].double()
                distance, error = (one[name] - two[name]).norm(), (single - reference).norm()
                yield {
                    "variant": variant, "tensor": name, "sizes": f"{size}, {other}",
                    "distance_rel": float(distance / reference.norm()), "over_single_device": float(distance / error),
                }  # fmt: skip


def main() -> None:
    """Words of the command line go to the configuration; a last one that is a folder gets distance.csv."""
    folders = [word for word in sys.argv[1:] if Path(word).is_dir()]
    table = pd.DataFrame(rows(*(word for word in sys.argv[1:] if word not in folders)))
    print(table.pivot(index=["variant", "tensor"], columns="sizes", values="over_single_device").round(2).to_string())
    for folder in folders:
        table.to_csv(Path(folder) / "distance.csv", index=False)


if __name__ == "__main__":
    main()
