"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

import pandas as pd

from accuracy.core.path_text import pairs_of
from accuracy.report.evidence import Said, Tables, lines

CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
TABLE, TENSORS = "fp8_ring/amd-epyc", ["out", "dq", "dk", "dv"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    pattern = r"dk \S+ to ([\d.]+), dq \S+ to ([\d.]+), dv \S+ to ([\d.]+), out \S+ to ([\d.]+)"
    largest = max(
        max(tables.claimed(TABLE, start, pattern)) for start in ("A ring adds at most 5%", "A ring adds at most 10%")
    )
    return {
        "../FINDINGS.md": [Said("A ring has at most {:.2f} times single device's error up to 256 ranks,", (largest,))],
        "README.md": [Said("at most {:.2f} times single device's error up to 256 ranks.", (largest,)), *_table(tables)],
    }


def _table(tables: Tables) -> list[Said]:
    everything = tables.whole(TABLE)
    plain = CLAIMS["as_published"](everything)
    rows = everything[plain]
    policy = rows["kernel_options"].map(pairs_of).str["policy"]
    parts = rows["options"].str.extract(r"splits=(\d+)")[0].fillna(rows["world_size"].astype(str)).astype(int)
    means = rows.groupby([policy, "variant", parts, "tensor"])["x_single_device"].mean().unstack()

    def cells(name: str, size: int) -> list[object]:
        return [*means.loc[name, "ring", size][TENSORS], str(size), means.loc[(name, "split_kv", size), "out"]]

    heads = {2: "{} | 2", 16: "| 16", 64: "| 64", 256: "| 256"}
    table = {head.format(name): cells(name, size) for name in ("fp8_tensor",) for size, head in heads.items()}
    other = {head.format(name): cells(name, size) for name in ("sage",) for size, head in heads.items()}
    return [*lines(table, ".3f"), *lines(other, ".3f"), *_wires(everything[~plain & (everything["variant"] == "ring")])]


def _wires(rows: pd.DataFrame) -> list[Said]:
    """What travels in 8 bits, all ranks together: of gradients dk and dv, of keys and values all four."""
    policy = rows["kernel_options"].map(pairs_of).str["policy"]
    means = rows.groupby([policy, "precision", "world_size", "tensor"])["x_single_device"].mean().unstack()[TENSORS]

    def cells(name: str, size: int) -> list[float]:
        gradients, keys = (
            [means.loc[name, f"{wire}=float8_{form}", size] for form in ("e4m3", "e5m2")]
            for wire in ("gradient_wire", "wire")
        )
        return [each[x] for each in gradients for x in ("dk", "dv")] + [each[x] for each in keys for x in ("out", "dq")]

    names = [(name, size) for name in ("fp8_tensor", "sage") for size in (4, 16, 64, 256)]
    return lines({f"{name} | {size}": cells(name, size) for name, size in names}, ".2f")
