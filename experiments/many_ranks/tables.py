"""The numbers of README.md, and the board of the front page and of the site, from the published table."""

from pathlib import Path

import pandas as pd

from accuracy.report.folder import read_folder
from accuracy.results.table import ALL_RANKS, OK
from accuracy.verdict.label import BUGS
from accuracy.verdict.rows import names_of, with_names
from accuracy.verdict.verdict import verdicts
from experiments.claim import beside, over_ranks
from experiments.published import TENSORS, Tables, cells, chosen, markdown, span

TABLE = "many_ranks/nvidia-h200-x1"
SIZES = [2, 4, 8, 16, 32, 64]
BOARD = 32  # ranks that the board compares at
KEYS = ["variant", "dtype", "heads_kv", "world_size"]
PACKAGES = {
    "ring_flash_attn": "ring-flash-attn", "yunchang": "yunchang", "ringmaster": "axolotl-ringmaster",
    "transformer_engine": "transformer_engine", "torch": "torch", "ring_attention_pytorch": "ring-attention-pytorch",
}  # fmt: skip


def board(folder: Path) -> pd.DataFrame:
    """Every package and schedule on the dense problem: a row for each of KEYS, with `world`, `package`, `version`,
    the error over single device's of out, dq, dk and dv on the worst rank (mean over seeds) and of all ranks together
    (`all_out`, ...), the largest of either (`worst`, `all_ranks`), the verdict in words, and `half`, half of a 95%
    interval over seeds on the worst rank, as a share of the mean (NaN: one seed)."""
    run = read_folder(folder)
    rows = with_names(run.results, names_of(run.results))
    rows = rows[rows["mask"] == "causal"]
    measured = rows[(rows["status"] == OK) & rows["tensor"].isin(TENSORS)]
    keys = [*KEYS, "world", "tensor"]
    ranks = over_ranks(measured, "max", keys).set_index(keys)
    worst = ranks["x_single_device"].unstack("tensor")[TENSORS]
    together = measured[measured["rank"] == ALL_RANKS]
    whole = together.groupby(keys)["x_single_device"].mean().unstack("tensor")[TENSORS]
    found = worst.join(whole.add_prefix("all_")).assign(worst=worst.max(axis=1), all_ranks=whole.max(axis=1))
    found["half"] = (ranks["half"] / ranks["x_single_device"]).unstack("tensor").max(axis=1)
    found = found.reset_index().merge(_verdicts(rows).reset_index(), on=["variant", "dtype"])
    versions = run.record["provenance"]["packages"]
    found["package"] = found["variant"].map(_package)
    found["version"] = [str(versions.get(name) or "") for name in found["package"]]
    return found.sort_values(["world_size", "worst"], ascending=[False, True], ignore_index=True)


def _verdicts(rows: pd.DataFrame) -> pd.Series:
    """Return by variant and dtype a text: the tensors that are wrong, or that there is no bug."""
    judged = verdicts(rows)
    wrong = judged[judged["label"].isin(BUGS) & judged["tensor"].isin(TENSORS)]
    named = wrong.groupby(["variant", "dtype"])["tensor"].agg(lambda found: f"{', '.join(sorted({*found}))} wrong")
    return named.reindex(rows.groupby(["variant", "dtype"]).size().index, fill_value="no bug").rename("verdict")


def _package(variant: str) -> str:
    """Empty for our own schedules."""
    return next((name for start, name in PACKAGES.items() if variant.startswith(start)), "")


def _words(variant: str) -> str:
    """A variant without its package: `p2p` of transformer_engine_p2p."""
    start = next(start for start in PACKAGES if variant.startswith(start))
    return variant.removeprefix(f"{start}_").replace("_", " ")


def compared(found: pd.DataFrame) -> pd.DataFrame:
    """The packages in bfloat16 at BOARD ranks by name, the least error first: `worst` and `all` ranks, and both with
    grouped heads (`worst_grouped`, `all_grouped`)."""
    own = chosen(found, world="processes", dtype="bfloat16", world_size=BOARD).rename(columns={"all_ranks": "all"})
    dense, grouped = (chosen(own, heads_kv=heads).set_index("variant")[["worst", "all"]] for heads in (8, 2))
    joined = dense.join(grouped.add_suffix("_grouped"))
    versions = own.groupby("variant")[["package", "version"]].first().agg(" ".join, axis=1)
    versions = versions.str.replace("transformer_engine", "TransformerEngine")
    names = [f"{versions[variant]} {_words(variant)}" for variant in joined.index]
    return joined.set_axis(names).sort_values("worst")


def _front(packages: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the board's lines for the front page; one line has all below 1.5 times single device."""
    same = packages[packages["worst"] < 1.5]
    names = "; ".join(
        f"{package} {', '.join(each.removeprefix(f'{package} ') for each in group.index)}"
        for package, group in same.groupby(same.index.str.split().str[:2].str.join(" "))
    )
    together = (names, *(span(same[column]) for column in same))
    return [together, *_lines(packages[packages["worst"] >= 1.5])]


def _lines(packages: pd.DataFrame) -> list[tuple[str, ...]]:
    return [(str(name), *cells(row.dropna(), packages.columns)) for name, row in packages.iterrows()]


HEAD = ("", f"worst of {BOARD} ranks", "all ranks", "grouped heads, worst", "all ranks")


def blocks(tables: Tables) -> dict[str, str]:
    rows, found = tables.rows(TABLE), board(tables.reports / TABLE)
    status = rows.drop_duplicates("case_id")["status"].value_counts()
    return {
        "cases": f"{status[OK]} cases measured, {status.get('failed', 0)} failed, {status.get('unsupported', 0)} unsupported",
        "board": markdown(HEAD, _lines(compared(found))),
        "front": markdown(HEAD, _front(compared(found))),
        "halves": f"at most {found['half'].max():.0%} of the mean",
        "growth": markdown(("", "tensor", "W = 2", *SIZES[1:]), list(_growth(found))),
        "documents": _documents(tables),
        "digits": _digits(rows),
        "p2p": _p2p(found),
        "claims": tables.claims(TABLE),
    }


def _growth(found: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the table's lines: of each variant the tensors whose error grows with the ranks, else their largest."""
    dense = chosen(found, heads_kv=8, dtype="bfloat16")
    lines = []
    for variant, group in dense.groupby("variant"):
        numbers = group.set_index("world_size")
        shown = {tensor: tensor for tensor in TENSORS if numbers[tensor].max() > 1.5}
        shown = shown or {"worst": "largest of all, which does not grow"}
        names = [variant, *[""] * (len(shown) - 1)]
        lines += [
            (name, words, *cells(numbers[column], SIZES))
            for name, (column, words) in zip(names, shown.items(), strict=True)
        ]
    return lines


def _digits(rows: pd.DataFrame) -> str:
    """Return a text: in how many rows, each of one rank and tensor, ring-flash-attn's error differs from our ring's."""
    dense = chosen(rows, status=OK, tensor=TENSORS, heads_kv=8, mask="causal", dtype="bfloat16")
    both = beside(dense.assign(world="", sums=""), {"ring_flash_attn_ring": "ring", "ring_flash_attn_zigzag": "zigzag"})
    apart = (both["ratio"] - 1).abs()
    return (
        f"have errors that differ from ours in {(apart > 0).sum()} of {len(apart)} rows, by at most {apart.max():.3%}"
    )


def _p2p(found: pd.DataFrame) -> str:
    """Return a text: the error of out of TransformerEngine's ring at 32 and 64 ranks."""
    ring = chosen(found, variant="transformer_engine_p2p", dtype="bfloat16", heads_kv=8)
    out = ring.set_index("world_size")["out"]
    return f"out has {out[32]:.1f} times single device's error at 32 ranks and {out[64]:.1f} times at 64"


def _documents(tables: Tables) -> str:
    """Return a text: with packed documents, each package's error on the worst rank and tensor at BOARD ranks."""
    where = {"world_size": BOARD, "mask": "causal,documents=4096+2048+2048"}
    worst = tables.worst_rank(TABLE, ("variant", "tensor"), **where).groupby("variant").max()
    return ", ".join(f"{variant} {number:.2f}" for variant, number in worst.items())
