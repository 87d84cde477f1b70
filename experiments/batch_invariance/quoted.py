"""Which table says each number of this README: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables

TABLE, AXES = "batch_invariance/amd-epyc", ["batchmates", "order", "length", "queries", "splits"]
CELLS = {  # what the cells of a line say beside the values; of which tensor the values in braces are, in turn
    "torch_flash, bfloat16": ("| none | none | none | {} (lse) | {} |", ["queries lse", "splits out"]),
    "torch_flash, float32": (
        "| none | none | none | {} (out, dq; lse at {}) | {} |",
        ["queries out", "queries lse", "splits out"],
    ),
    "torch_math, bfloat16": ("| none | none | none | {} (lse) | {} |", ["queries lse", "splits out"]),
    "torch_math, float32": (
        "| none | none | none | {} (out, dq; lse at {}) | {} |",
        ["queries out", "queries lse", "splits out"],
    ),
    "eager, bfloat16": (
        "| {} (lse), {} (lse, dk, dv) | none | none | none | {} |",
        ["batchmates lse only", "batchmates dk", "splits out"],
    ),
    "eager, float32": ("| {} (all tensors) | none | none | {} | {} |", ["batchmates dk", "queries out", "splits out"]),
    "chunked, bfloat16": ("| none | none | none | none | {} |", ["splits out"]),
    "chunked, float32": ("| none | none | none | {} | {} |", ["queries out", "splits out"]),
}


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = pd.read_parquet(tables.reports / TABLE / "boundaries.parquet")
    cases = tables.rows(TABLE).drop_duplicates("case_id").set_index("case_id")[["kernel", "dtype"]]
    rows = rows.join(cases, on="case_id")
    at = rows.dropna(subset="value").groupby(["kernel", "dtype", "axis", "tensor"])["value"]
    values = at.agg(lambda each: sorted(each.astype(int)))
    flash = rows[(rows["kernel"] == "torch_flash") & (rows["dtype"] == "float32") & (rows["tensor"] == "out")]
    flash = flash[(flash["axis"] == "queries") & flash["value"].isin([4, 33])]
    chunks = values.xs(("chunk", "out"), level=("axis", "tensor")).map(len)
    nearer = rows[rows["tensor"] == "out"].set_index(["axis", "kernel", "dtype", "value"])["drift_nearer"]
    two = nearer["splits"].xs(("bfloat16", 2.0), level=("dtype", "value")).min()
    boundaries = flash["value"].tolist() == [4, 33] and 33 in values["torch_flash", "bfloat16", "queries", "lse"]
    return {
        "../FINDINGS.md": [Said("in a call of 4 or 33 queries than of 3 or 32;", holds=boundaries)],
        "README.md": [
            Said("8 cases of torch 2.13 on an AMD EPYC, {} runs;", (_runs(rows),), holds=len(cases) == 8 + 10),
            Said("of those between 1, 2, 4, ...:"),
            *(_line(name, *cells, values) for name, cells in CELLS.items()),
            Said("the call has 4 or 33 queries than with 3 or 32.", holds=boundaries),
            Said(
                "In float32 {:.0%} of its elements differ, by {:.7f} of their size,",
                ((flash["drift_differ"] / flash["elements"]).mean(), flash["drift_rel"].mean()),
                holds=flash["drift_nearer"].abs().max() < 3,
            ),
            Said("change bits at {} to {} of the rungs", (chunks.min(), chunks.max())),
            Said("nearer in chunks of 3 than of 4.", holds=nearer["chunk", "eager", "float32", 4.0] > 3),
            Said("8 is a boundary of eager in float32 only.", holds=_only_eager_at_8(rows)),
            Said("by more than 3 standard errors in each kernel:", holds=two > 3),
        ],
    }


def _runs(rows: pd.DataFrame) -> int:
    return int(rows.drop_duplicates(["case_id", "axis"])["runs"].sum())


def _only_eager_at_8(rows: pd.DataFrame) -> bool:
    eight = rows[(rows["axis"] == "batchmates") & (rows["value"] == 8)]
    return bool((eight["kernel"] == "eager").all() and (eight["dtype"] == "float32").all() and len(eight))


def _line(name: str, text: str, fields: list[str], values: "pd.Series[list[int]]") -> Said:
    """The line of a kernel in a dtype; `none` in a cell holds where the axis has no boundary."""
    mine = values.loc[tuple(name.split(", "))]
    numbers = []
    for field in fields:
        axis, tensor, *only = field.split()
        without = mine.get((axis, "dk"), []) if only else []
        numbers.append(", ".join(str(each) for each in mine[axis, tensor] if each not in without))
    has = {axis for axis, _ in mine.index}
    cells = [cell.strip() for cell in text.strip("| ").split("|")]
    none = all((cell == "none") == (axis not in has) for axis, cell in zip(AXES, cells, strict=True))
    return Said(f"| {name} {text}", tuple(numbers), holds=none)
