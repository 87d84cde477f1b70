"""Which lines does a picture hold where a run has more than an eye can follow? One-shot's, and those furthest from
it.
"""

from dataclasses import replace

import pandas as pd

from accuracy.report.number import count, geometric_mean
from accuracy.report.series import ONE_SHOT, Facet

MOST_LINES = 12


def legible(facet: Facet, most: int = MOST_LINES) -> Facet:
    """The facet with the rows of so many series: one-shot's first, then those with the greatest ratio to it."""
    if len(facet.series) <= most:
        return facet
    order = _distance(facet).sort_values(ascending=False, kind="stable")
    return replace(facet, rows=facet.rows[facet.rows["series"].isin(order.index[:most])])


def _distance(facet: Facet) -> pd.Series:
    """Of every series, the greatest over its tensors; infinite for one-shot, which all are compared with. A ratio that
    is not defined counts as none.
    """
    ratios = facet.widest.groupby(["series", "tensor"])[_column(facet)].agg(geometric_mean)
    distance = ratios.groupby("series").max().reindex(facet.series).fillna(0.0)
    if not facet.kernels_alone:
        distance[distance.index.isin(facet.rows.loc[facet.rows["variant"] == ONE_SHOT, "series"])] = float("inf")
    return distance


def _column(facet: Facet) -> str:
    return "x_floor" if facet.kernels_alone else "x_one_shot"


def left_out(facet: Facet, drawn: Facet) -> str:
    """A sentence on the lines that are not drawn; empty where all are."""
    if len(drawn.series) == len(facet.series):
        return ""
    compared = "the floor" if facet.kernels_alone else "one-shot"
    return (
        f"Drawn are {len(drawn.series)} of {count(len(facet.series), 'variant')}, those furthest from {compared}; "
        "every one is in the tables against one-shot, of growth, of cost and of all rows."
    )
