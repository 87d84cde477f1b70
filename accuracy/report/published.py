"""Which errors along the sequence does a published run keep? Those in few settings."""

from collections.abc import Sequence

import pandas as pd

from accuracy.report.embedded import MOST_LEGIBLE_WORLD
from accuracy.report.series import SINGLE_DEVICE, facets_of, with_labels
from accuracy.report.why import zigzag_cases
from accuracy.results.table import OK

MOST_SETTINGS = 2


def drawn(results: pd.DataFrame, positions: pd.DataFrame) -> pd.DataFrame:
    """The positions to publish: of the coarsest dtypes where chunks are legible, and zigzag's chunks."""
    held = results[results["case_id"].isin(positions["case_id"])]
    if held.empty:
        return positions[:0]
    chunks = zigzag_cases(held)
    shown = [*chunks.index[chunks["world_size"] == chunks["world_size"].max()]]
    measured = results[(results["status"] == OK) & results["tensor"].notna()]
    for facet in facets_of(with_labels(results).loc[measured.index])[:MOST_SETTINGS]:
        rows = facet.rows[facet.rows["case_id"].isin(held["case_id"])]
        size = chosen_world(rows["world_size"].unique().tolist()) if len(rows) else None
        shown += [*rows.loc[(rows["world_size"] == size) | (rows["variant"] == SINGLE_DEVICE), "case_id"]]
    return positions[positions["case_id"].isin(shown)]


def chosen_world(sizes: Sequence[int]) -> int:
    """The largest world size whose chunks can still be told apart, else the smallest that has chunks at all."""
    legible = [size for size in sizes if 1 < size <= MOST_LEGIBLE_WORLD]
    return int(max(legible) if legible else min([size for size in sizes if size > 1] or sizes))
