"""Which table says each number: see accuracy/report/evidence.py."""

from accuracy.report.evidence import Said, Tables


def quoted(tables: Tables) -> dict[str, list[Said]]:
    rows = tables.rows("trained_attention/amd-epyc")
    out = rows[(rows["tensor"] == "out") & (rows["rank"] == -1)]
    step = out["inputs_options"].str.extract(r"@(\d+)")[0].astype(int)
    times = out["x_single_device"].groupby([out["variant"], step]).mean()
    grows = (times["te_p2p", 0], times["te_p2p", 300], times["ring", 0], times["ring", 300])
    passage = "from {:.1f} to {:.1f} times single device's error of out, a ring from {:.2f} to {:.2f} times."
    return {"../FINDINGS.md": [Said(passage, grows)]}
