"""The numbers of README.md, from the published tables."""

from experiments.published import TENSORS, Tables, cells, chosen, markdown

SIZES = [2, 4, 8, 16, 32]


def blocks(tables: Tables) -> dict[str, str]:
    names = sorted(path.parent.name for path in (tables.reports / "many_ranks").glob("*/*.parquet"))
    if not names:
        return {"cases": "no case measured yet", "growth": "Nothing is measured yet.", "claims": "None is judged yet."}
    name = f"many_ranks/{names[-1]}"
    where = {"mask": "causal", "heads_kv": 8, "world": "processes"}
    worst = tables.worst_rank(name, ("variant", "tensor", "world_size"), **where)
    lines = [
        (variant if tensor == TENSORS[0] else "", tensor, *cells(worst[variant][tensor], SIZES))
        for variant in worst.index.unique("variant")
        for tensor in TENSORS
    ]
    return {
        "cases": f"{chosen(tables.rows(name), status='ok')['case_id'].nunique()} measured cases",
        "growth": markdown(("", "tensor", "W = 2", *SIZES[1:]), lines),
        "claims": tables.claims(name),
    }
