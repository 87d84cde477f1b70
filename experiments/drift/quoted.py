"""Which table says each number of this README: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

SINGLE = "single_device@1+flash_attn"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = pd.read_csv(tables.reports / "drift/nvidia-h200.csv.gz")
    paths = rows["path_a"] + " " + rows["path_b"]
    near = rows[paths == f"{SINGLE} single_device@1+torch_flash"].set_index("tensor").loc["out"]
    beyond = rows[rows["label"] == "beyond"]
    counts, outs = beyond["tensor"].value_counts(), beyond[beyond["tensor"] == "out"]["drift_rel"]
    others = rows[~paths.str.contains("te_p2p")]
    furthest = (others["drift_rel"] / others["drift_limit"]).max()
    batches = pd.read_csv(tables.reports / "drift/nvidia-h200-batch.csv.gz")
    out = batches[batches["tensor"] == "out"].pivot_table(index="batch", columns="path_b", values="drift_differ")
    equal = batches.groupby(["batch", "path_b"])["drift_differ"].transform("median") == 0
    dq = batches[equal & (batches["tensor"] == "dq")]["drift_differ"]
    rest = batches[equal & (batches["tensor"] != "dq")]["drift_differ"]
    held = set(beyond["tensor"]) == {"out", "dq", "dk", "dv"} and others["label"].eq("within").all()
    low = pd.read_csv(tables.reports / "drift/nvidia-h200-fp8-cache.csv.gz")
    casts = low[low["tensor"] == "out"].set_index(["path_b", "path_a"])["drift_rel"].unstack()
    cast = casts.iloc[0]
    return {
        "../FINDINGS.md": [Said("Decoding from a cache in e4m3 moves out by {:.3f} of itself.", (cast.iloc[0],))],
        "README.md": [
            Said(
                "e4m3 moves out by {:.3f} and e5m2 by {:.3f}, {:.2f} times as much,",
                (*cast, cast.iloc[1] / cast.iloc[0]),
                holds=casts.round(3).nunique().eq(1).all()
                and low["label"].eq("within").all()
                and low["nearer"].eq("b").all(),
            ),
            Said("66 pairs, forward and backward, none failed", holds=paths.nunique() == 66),
            Said("No pair has the same bits in any tensor.", holds=(rows["drift_differ"] > 0).all()),
            Said(
                "{:,} of 4,194,304 elements of out differ, by {:.6f} of it.", (near["drift_differ"], near["drift_rel"])
            ),
            Said("from each of the {} other paths, in dv from {} of them;", (counts["out"], counts["dv"]), holds=held),
            Said("out differs by {:.4f} to {:.4f}.", (outs.min(), outs.max())),
            Said("the furthest has {:.2f} of the limit.", (furthest,)),
            Said("12 pairs, elements of out", holds=len(out) * 3 == 12),
            *lines({str(batch): out.loc[batch] for batch in out.index}, ",.0f"),
            Said(
                "It holds in out, lse, dk and dv; dq differs in {} to {:,} elements",
                (dq.min(), dq.max()),
                holds=rest.eq(0).all(),
            ),
        ],
    }
