"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables

RULES = "tolerances/rules.csv"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rules = pd.read_csv(tables.reports / RULES).set_index("rule")
    caught, failed = rules["caught"], rules["healthy failed"]
    alone = rules[rules["looks at"] == "out"]["caught"].str.extract(r"^(\d+)")[0].astype(int)
    bounds = pd.read_csv(tables.reports / "tolerances/bounds.csv")
    return {
        "../FINDINGS.md": [
            Said(
                "torch.testing's defaults catch {} planted faults and fail {} healthy results;",
                (caught["torch.testing defaults"], failed["torch.testing defaults"]),
            ),
            Said("flash-attention's rule {} and {};", (caught["flash-attention 2x"], failed["flash-attention 2x"])),
            Said("tests of the output alone at most {} of 103.", (alone.max(),)),
            Said("catches {} and fails {}.", (caught["accuracy.assert_close"], failed["accuracy.assert_close"])),
            Said(
                "Of {:.0f} million errors of healthy kernels none is beyond",
                (bounds["elements"].sum() / 1e6,),
                holds=bounds["beyond_certain"].sum() == 0,
            ),
        ]
    }
