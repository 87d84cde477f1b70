"""Which table says each number of this README: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables

SPLITS = "https://github.com/Dao-AILab/flash-attention/blob/v2.8.3/csrc/flash_attn/flash_api.cpp"
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
        "../FINDINGS.md": [
            Said("in a call of 4 or 33 queries than of 3 or 32;", holds=boundaries),
            Said("cut the keys where batch x heads x queries / 64 is below 211,", source=SPLITS),
        ],
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
            *_on_a_gpu(tables),
            *_second_run(tables),
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


def _on_a_gpu(tables: Tables) -> list[Said]:
    rows = pd.read_csv(tables.reports / "batch_invariance/nvidia-h200.csv.gz").dropna(subset="value")
    rows["path"] = rows["path"].str.removeprefix("single_device@1+")
    found = {(path, axis, tensor): sorted(each["value"].astype(int)) for (path, axis, tensor), each in
             rows.groupby(["path", "axis", "tensor"])}  # fmt: skip

    def at(path: str, axis: str, tensor: str) -> list[int]:
        return found.get((path, axis, tensor), [])

    cut = ("flash_attn", "torch_flash")
    mates = [at(path, "batchmates", tensor) for path in cut for tensor in ("out", "lse", "dk", "dv")]
    behind = [at(path, "length", tensor) for path in cut for tensor in ("out", "lse", "dq")]
    cudnn = [at("torch_cudnn", "queries", tensor) for tensor in ("out", "lse", "dq")]
    first = rows[(rows["path"] == "flash_attn") & (rows["axis"] == "batchmates")].set_index(["value", "tensor"])
    share, far = first.loc[(1, "out"), "differ"] / first.loc[(1, "out"), "elements"], first.loc[(1, "out"), "drift_rel"]
    more = rows[(rows["axis"] == "batchmates") & (rows["value"] > 1)]
    apart = 1 - first.loc[(1, "out"), "error_rel"] / first.loc[(1, "out"), "drift_error_rel"]
    sides = (first.loc[(1, "out"), "nearer"], first.loc[(1, "lse"), "nearer"]) == ("value", "before")
    line = "| {} | {} (all tensors), {}, {}, {}, {} (dq) | none | {}, {} (out, lse, dq) | none |"
    alike = all(each == [1] for each in mates) and all(each == [1, 65] for each in behind)
    order = at("torch_cudnn", "order", "dq")
    none = not any(path == "triton_carry" and axis != "splits" for path, axis, _ in found)
    return [
        *(
            Said(line.replace("{}", path, 1), (*at(path, "batchmates", "dq"), *at(path, "length", "out")), holds=alike)
            for path in cut
        ),
        Said(
            "| torch_cudnn | none | {}, {} (dq) | none | {} (out, lse, dq) |",
            (*order, *at("torch_cudnn", "queries", "out")),
            holds=cudnn == [[2]] * 3,
        ),
        Said("| triton_carry | none | none | none | none |", holds=none),
        *_flash_attn_4(pd.read_csv(tables.reports / "batch_invariance/nvidia-h200.csv.gz")),
        Said("changes a quarter of the elements of out", holds=round(share, 2) == 0.25),
        Said("kernel, by {:.4f} of it.", (far,)),
        Said("both by more than 3 standard errors, and the difference is {:.1%} of the error.", (apart,), holds=sides),
        Said(
            "More batch-mates change {} to {} elements of dq:", (int(more["differ"].min()), int(more["differ"].max()))
        ),
        Said("for triton_carry and, but for 3 elements of dq, for torch_cudnn,"),
    ]


def _second_run(tables: Tables) -> list[Said]:
    rows = pd.read_csv(tables.reports / "batch_invariance/nvidia-h200.csv.gz")
    flex = rows[rows["path"] == "single_device@1+flex_attention"]
    tried = flex.drop_duplicates("axis").set_index("axis")["last"]
    at = flex.dropna(subset="value").set_index(["axis", "tensor"])
    alone = pd.read_csv(tables.reports / "batch_invariance/nvidia-h200-one-head.csv.gz")
    found = alone.groupby("tensor")["value"].agg(list)
    share = alone.iloc[0]["differ"] / alone.iloc[0]["elements"]
    moved = [("batchmates", "dq"), ("batchmates", "dk"), ("length", "out"), ("length", "lse"), ("length", "dq")]
    four = list(found["out"])
    same = all(found[name] == four for name in ("out", "lse", "dk", "dv")) and found["dq"] == [*four, 9]
    cells = "{:.0f} (dq, dk), none more to {} | none to {} | {:.0f} (out, lse, dq), none more to {} | none to {} |"
    first, second, third = (at.loc[each] for each in moved[:3])
    last = alone.iloc[-1]
    return [
        Said(
            f"| flex_attention | {cells}",
            (first["value"], tried["batchmates"], tried["order"], third["value"], tried["length"], tried["queries"]),
            holds=set(at.index) == set(moved),
        ),
        Said(
            "| flash_attn, one head | {:.0f}, {:.0f}, {:.0f}, {:.0f} (all tensors), {:.0f} (dq) |",
            (*four, last["value"]),
            holds=same,
        ),
        Said(
            "have no boundary between 8 and 16 batch-mates; dq differs in {} elements at {:.0f}.",
            (int(last["differ"]), last["value"]),
            holds=same and last["last"] == 16,
        ),
        Said("One batch-mate changes {:.0%} of out's elements.", (share,)),
        Said(
            "changes {:.0f} elements of dq and {:.0f} of dk (of {:,.0f}),",
            (first["differ"], second["differ"], first["elements"]),
        ),
        Said("and one token behind the sequence {:.0f} of out;", (third["differ"],)),
        Said("float64 finds neither side nearer at any", holds=at["nearer"].eq("neither").all()),
    ]


def _flash_attn_4(rows: pd.DataFrame) -> list[Said]:
    mine = rows[rows["path"].str.endswith("flash_attn_4")].set_index("axis")
    last = mine["last"].astype(int)
    runs, none = int(mine["runs"].sum()), len(mine) == 4 and bool(mine["value"].isna().all())
    to = (last["batchmates"], last["order"], last["length"], last["queries"])
    head = "| | batch-mates, to {} | place in the batch, to {} | tokens behind, to {} |"
    head += " queries of the last one's call, to {} |"
    return [
        Said(head, to),
        Said("| flash_attn_4 | none | none | none | none |", holds=none),
        Said("in {} runs no bit of out, lse, dq, dk and dv changes,", (runs,), holds=none),
    ]
