"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables
from accuracy.verdict.attribution import attributions

WIDE = "out_accumulator", "lse", "merge", "dq_accumulator", "dkv_accumulator", "gradient_wire"
FORWARD = {"dq": " (+ {:.1%} of the forward)", "dk": " (+ {:.1%})"}  # the share of out's partials in gradients
TABLE = "attribution/nvidia-h200"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    share = tables.claimed(TABLE, "At least 80%", r"tensors: (\d+)%")
    return {
        "../../README.md": [Said("{:.0f}% of a ring's additional squared error is the rounding", share)],
        "../FINDINGS.md": [
            Said("{:.0f}% of a ring's additional squared error is the rounding", share),
            Said(
                "merge, lse, accumulators and transfers contribute less than 1%.",
                holds=tables.claimed(TABLE, "No place that rounds", r"most: ([\d.]+)%")[0] < 1,
            ),
        ],
        "README.md": [
            Said("At least 80% of the excess is that rounding;", holds=share[0] >= 80),
            Said("accumulators and transfers contribute less than 1%. Keep", holds=all(tables.held(TABLE))),
            Said("184 cases, [table]", holds=tables.cases(TABLE)["ok"] == 184),
            *_table(tables),
        ],
    }


def _table(tables: Tables) -> list[Said]:
    found = {(each.variant, each.tensor): each for each in attributions(tables.rows(TABLE))}
    said, worst, apart = [], [], 0.0
    for tensor in ("out", "dq", "dk", "dv"):
        ring, zigzag = found["ring", tensor], found["zigzag", tensor]
        places = ["partial" if tensor == "out" else "gradient_partial", "probability_dtype", "final rounding"]
        own, kernel, final = (ring.shares[place] for place in places)
        wide = abs(sum(ring.shares.get(place, 0.0) for place in WIDE))
        excess = sum(ring.excess.get(place, 0.0) for place in ("partial", "gradient_partial"))
        forward = [ring.shares["partial"]] if tensor in FORWARD else []
        text = f"| {tensor} | {{:.0%}}{FORWARD.get(tensor, '')} | {{:.0%}} | {{:.0%}} | {{:.3%}} | {{:.0%}} |"
        said.append(Said(text, (own, *forward, kernel, final, wide, excess)))
        worst.append(ring.x_single_device)
        apart = max(apart, *(abs(ring.shares[place] - zigzag.shares[place]) for place in places))
    of_lse = found["ring", "lse"].shares
    return [
        *said,
        Said("(a ring's error is {:.2f} to {:.2f} times single device's)", (min(worst), max(worst))),
        Said("The shares of zigzag are the same to {:.0f} points.", (apart * 100,)),
        Said(
            "its float32 sum contributes {:.0%}, the merge {:.1%}, the final rounding {:.0%}.)",
            (of_lse["lse"], of_lse["merge"], of_lse["final rounding"]),
        ),
    ]
