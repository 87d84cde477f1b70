"""Which table says each number of this README: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables

LINES = {"zigzag": "six pairs", "te_p2p": "six pairs", "llama3": "three pairs", "ulysses": "one pair"}


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = pd.read_csv(tables.reports / "resume_elsewhere/nvidia-h200.csv.gz")
    rows["over"] = rows["drift_rel"] / rows["drift_expected"]
    names = [rows[path].str.split("@").str[0] for path in ("path_a", "path_b")]
    alike = rows[names[0] == names[1]].assign(name=names[0]).set_index(["name", "tensor"])
    equal = rows[rows["label"] == "equal"]
    gathered = {*equal["tensor"]} == {"out", "lse", "dq"} and len(equal) == 9
    far = rows["drift_rel"] / rows["drift_limit"]
    return {
        "README.md": [
            Said("78 pairs, none failed", holds=rows.groupby(["path_a", "path_b"]).ngroups == 78),
            *(_line(name, pairs, alike.loc[name]["over"]) for name, pairs in LINES.items()),
            Said(
                "(the furthest has {:.2f} of the limit, in dk)",
                (far.max(),),
                holds=rows.loc[far.idxmax(), "tensor"] == "dk" and not rows["label"].eq("beyond").any(),
            ),
            Said(
                "No other tensor of any pair is equal.", holds=gathered and equal["path_a"].str.contains("llama3").all()
            ),
        ]
    }


def _line(name: str, pairs: str, over: pd.Series) -> Said:
    cells, numbers = [], []
    for tensor in ("out", "dk", "dv"):
        low, high = over[[tensor]].min(), over[[tensor]].max()
        zero, one = high == 0, low == high
        cells.append("0" if zero else "{:.2f}" if one else "{:.2f} to {:.2f}")
        numbers += [] if zero else [low] if one else [low, high]
    return Said(f"| {name}, {pairs} | {' | '.join(cells)} |", tuple(numbers))
