"""The numbers of README.md, from the published tables."""

from accuracy.results.claim import judge
from experiments.published import TENSORS, Tables, cells, chosen, markdown

SIZES = [2, 4, 8, 16, 32]


def blocks(tables: Tables) -> dict[str, str]:
    found = tables.of("many_ranks")
    if not found:
        return {"cases": "no case measured yet", "growth": "Nothing is measured yet.", "claims": "None is judged yet."}
    rows = found[-1]
    name = next(path for path in sorted((tables.reports / "many_ranks").glob("*")) if path.is_dir()).name
    where = {"mask": "causal", "heads_kv": 8, "world": "processes"}
    worst = tables.worst_rank(f"many_ranks/{name}", ("variant", "tensor", "world_size"), **where)
    lines = [
        (variant if tensor == TENSORS[0] else "", tensor, *cells(worst[variant][tensor], SIZES))
        for variant in worst.index.unique("variant")
        for tensor in TENSORS
    ]
    return {
        "cases": f"{chosen(rows, status='ok')['case_id'].nunique()} measured cases",
        "growth": markdown(("", "tensor", "W = 2", *SIZES[1:]), lines),
        "claims": "\n".join(f"- {each.line}" for each in judge("many_ranks", rows) if each.holds is not None),
    }
