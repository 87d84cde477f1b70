"""Which table says each number: see accuracy/report/evidence.py."""

import runpy
from pathlib import Path

from accuracy.report.evidence import Said, Tables, lines

TABLE = "fp8_training/amd-epyc"
CLAIMS = runpy.run_path(str(Path(__file__).with_name("claims.py")))
HEADS = {
    ("e4m3", "dq"): "e4m3, a scale a tensor | dq",
    ("e4m3", "dk"): "| dk",
    ("e4m3", "dv"): "| dv",
    ("int8", "dq"): "int8, scales of 64 tokens, k smoothed | dq",
    ("int8", "dk"): "| dk ",
    ("int8", "dv"): "| dv ",
}


def quoted(tables: Tables) -> dict[str, list[Said]]:
    shares = {key: CLAIMS["shares"](tables.rows(TABLE), *key) for key in HEADS}
    dq, dk, dv = (shares["int8", name] for name in ("dq", "dk", "dv"))
    least = max(*shares["e4m3", "dq"].values(), *shares["e4m3", "dk"].values()) < 0.5
    of_dv = shares["e4m3", "dv"]
    return {
        "../FINDINGS.md": [
            Said("In int8 the cast of dS makes {:.0%} of dq's squared error;", (dq["ds"],)),
            Said(
                "in e4m3 k has {:.0%} of dq's error, dS {:.0%}. In int8 dv is lost by P ({:.0%}).",
                (shares["e4m3", "dq"]["k"], shares["e4m3", "dq"]["ds"], dv["p"]),
            ),
        ],
        "README.md": [
            Said(
                "dS makes {:.0%} of dq's squared error and that of P {:.0%} of dv's;", (dq["ds"], dv["p"]), holds=least
            ),
            Said("128 cases, `accuracy", holds=tables.cases(TABLE)["ok"] == 128),
            *lines({head: shares[key].values() for key, head in HEADS.items()}, ".0%"),
            Said("in int8 dS has {:.0%} of dq's and {:.0%} of dk's squared error", (dq["ds"], dk["ds"])),
            Said("q and k have half of dv's error in e4m3.", holds=0.45 < of_dv["q"] + of_dv["k"] < 0.55),
            Said("In int8 dv is lost by P, {:.0%}.", (dv["p"],)),
        ],
    }
