"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.core.path_text import pairs_of
from accuracy.report.evidence import Said, Tables, lines

TABLE, TENSORS = "fp8_ring/amd-epyc", ["out", "dq", "dk", "dv"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    pattern = r"dk \S+ to ([\d.]+), dq \S+ to ([\d.]+), dv \S+ to ([\d.]+), out \S+ to ([\d.]+)"
    largest = max(
        max(tables.claimed(TABLE, start, pattern)) for start in ("A ring adds at most 5%", "A ring adds at most 10%")
    )
    return {
        "../FINDINGS.md": [Said("A ring has at most {:.2f} times single device's error up to 64 ranks,", (largest,))],
        "README.md": [Said("at most {:.2f} times single device's error up to 64 ranks.", (largest,)), *_table(tables)],
    }


def _table(tables: Tables) -> list[Said]:
    rows = tables.whole(TABLE)
    policy = rows["kernel_options"].map(pairs_of).str["policy"]
    parts = rows["options"].str.extract(r"splits=(\d+)")[0].fillna(rows["world_size"].astype(str)).astype(int)
    means = rows.groupby([policy, "variant", parts, "tensor"])["x_single_device"].mean().unstack()

    def cells(name: str, size: int) -> list[object]:
        return [*means.loc[name, "ring", size][TENSORS], str(size), means.loc[(name, "split_kv", size), "out"]]

    heads = {2: "{} | 2", 16: "| 16", 64: "| 64"}
    table = {head.format(name): cells(name, size) for name in ("fp8_tensor",) for size, head in heads.items()}
    other = {head.format(name): cells(name, size) for name in ("sage",) for size, head in heads.items()}
    return [*lines(table, ".3f"), *lines(other, ".3f")]
