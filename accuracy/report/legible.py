"""Which lines does a chart show where a run has too many to read? Single device's, and of the others those that
differ most from it.
"""

from dataclasses import replace

from accuracy.core.number import count, geometric_mean, plain
from accuracy.report.series import SINGLE_DEVICE, Facet

MOST_LINES = 12


def legible(facet: Facet, most: int = MOST_LINES) -> Facet:
    """The facet with the rows of so many series. Of series that the tables write alike in every tensor, the one
    of the shortest name, which is the one that changes the least."""
    if len(facet.series) <= most:
        return facet
    column = "x_floor" if facet.kernels_alone else "x_single_device"
    compared = set() if facet.kernels_alone else _single_device(facet)
    plainest = sorted(facet.series, key=lambda label: (label not in compared, len(label)))
    ratios = facet.widest.groupby(["series", "tensor"])[column].agg(geometric_mean).unstack().reindex(plainest)
    different = ratios[~ratios.map(plain).duplicated()]
    furthest = different.max(axis="columns").fillna(0.0).sort_values(ascending=False, kind="stable").index
    kept = sorted(furthest, key=lambda label: label not in compared)[:most]
    return replace(facet, rows=facet.rows[facet.rows["series"].isin(kept)])


def _single_device(facet: Facet) -> set[str]:
    """What all others are compared with."""
    return set(facet.rows.loc[facet.rows["variant"] == SINGLE_DEVICE, "series"])


def left_out(facet: Facet, drawn: Facet) -> str:
    """A sentence on the lines that are not drawn; empty where all are."""
    if len(drawn.series) == len(facet.series):
        return ""
    compared = "the floor" if facet.kernels_alone else "single device"
    return (
        f"Drawn are {len(drawn.series)} of {count(len(facet.series), 'variant')}: of those with the same three digits "
        f"in every tensor the plainest, and of these the furthest from {compared}. Every one is in the tables against "
        "single device, of growth, of cost and of all rows."
    )
