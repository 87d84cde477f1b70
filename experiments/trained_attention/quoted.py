"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables, lines

TABLE = "trained_attention/amd-epyc"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = tables.whole(TABLE)
    step = rows["inputs_options"].str.extract(r"@(\d+)")[0].astype(int)
    times = rows.groupby([rows["tensor"], "variant", step])["x_single_device"].mean()
    out = times["out"]
    te, ring = ((out[name, 0], out[name, 300]) for name in ("te_p2p", "ring"))
    passage = "from {:.1f} to {:.1f} times single device's error of out, a ring from {:.2f} to {:.2f} times."
    printed = [(tensor, name) for tensor in ("out", "dq") for name in ("ring", "te_p2p")]
    printed += [("dk", "te_p2p"), ("dv", "te_p2p")]
    return {
        "../FINDINGS.md": [Said(passage, (*te, *ring))],
        "README.md": [
            Said("p2p has {:.1f} times single device's error of out at step 0, and {:.1f} times at step 300;", te),
            Said("ring {:.2f} times at step 0 and {:.2f} times at step 300.", ring),
            *lines({", ".join(each): times[each] for each in printed}),
        ],
    }
