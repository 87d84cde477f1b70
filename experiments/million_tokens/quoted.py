"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

TABLE, SHORTER, LONGER = "million_tokens/nvidia-h200", "regression/nvidia-h200", "million_tokens/nvidia-h200-4194304"
COLUMNS, TENSORS = ["out", "dq", "dk", "dv", "lse"], ["out", "dq", "dk", "dv"]


def quoted(tables: Tables) -> dict[str, list[Said]]:
    below = tables.claimed(TABLE, "Every ring stays below 1.3", r"largest: ([\d.]+)")[0] < 1.3
    rows, cases, held = tables.whole(TABLE), tables.cases(TABLE), tables.held(TABLE)
    means = (
        rows.groupby(["variant", "world_size", "tensor"])[["x_single_device", "x_floor", "error_rel"]].mean().unstack()
    )
    times = means["x_single_device"][COLUMNS]
    single = means.loc[("single_device", 1)]
    floors, (more,) = single["x_floor"], tables.claimed(TABLE, "256 ranks are not 5%", r"largest: ([\d.]+)")
    table = {
        f"{name}, {size}{' ranks' if (name, size) == ('ring', 64) else ''}": times.loc[(name, size)]
        for name in ("ring", "zigzag", "llama3_ring")
        for size in (64, 256)
    }
    (grows,) = tables.claimed(TABLE, "lse of ring and zigzag", r"then ([\d.]+) to")
    relative = rows[rows["tensor"] == "lse"]["error_rel"].max()
    return {
        "../FINDINGS.md": [
            Said("Rings over a million tokens are as accurate as over 8,192.", holds=below),
            Said("call's out have {:.1f} rounding floors, of a ring's of 256 ranks {:.1f}:", _last(tables).loc["out"]),
        ],
        "README.md": [
            Said(
                "{} cases measured, {} unsupported (single device has one rank), none failed, a minute and a half",
                (cases["ok"], cases["unsupported"]),
                holds=not cases["failed"] and 75 < tables.seconds(TABLE) < 105,
            ),
            *lines(table),
            Said("accurate as over 8,192, and 256 ranks as 64 (dq {:.1%} more).", (more - 1,)),
            Said("has {:.2f} (out) to {:.2f} (dq) floors,", (floors[TENSORS].min(), floors["dq"])),
            Said("as many as at 8,192 tokens ({:.2f} and {:.2f}):", _shorter(tables)[:2]),
            Said("four of five claims hold.", holds=(sum(held), len(held)) == (4, 5)),
            Said("{:.1f} floors ({:.1e}), where", (floors["lse"], single["error_rel"]["lse"])),
            Said("8,192 tokens have {:.1f}.", _shorter(tables)[2:]),
            Said("the ring's error grows by {:.2f} as predicted.", (grows,)),
            Said("lse stays below 2.1e-7 and changes", holds=relative < 2.1e-7),
            *_longer(tables, floors, means.loc[("ring", 256)]["x_floor"]),
        ],
    }


def _longer(tables: Tables, million: pd.Series, ring_of_million: pd.Series) -> list[Said]:
    """What four million tokens say, beside single device's floors and the ring's of a million."""
    whole = _both(tables).xs(-1, level="rank").loc[COLUMNS]
    ring, alone = whole["x_floor"], whole["alone"]
    outward = whole.loc["out", ["single_device_outward", "error_outward"]]
    table = {
        "ring, 256 ranks, over single device": whole["x_single_device"],
        "floors of the ring": ring,
        "floors of single device": alone,
    }
    return [
        *lines(table),
        Said("lse too ({:.1f} floors, {:.1f} there).", (ring["lse"], ring_of_million["lse"])),
        Said("out has {:.2f} floors ({:.2f} at a million),", (alone["out"], million["out"])),
        Said("lse {:.1f} ({:.1f}), more than", (alone["lse"], million["lse"])),
        Said("out has {:.1f} floors and the ring's {:.1f}, lse {:.1f} and {:.1f}.", (*_last(tables).stack(),)),
        Said("reference {:.1e}, the ring's {:.1e});", tuple(outward)),
        Said("The reference took {} minutes with {} checkpoints, {} s apart at most, {} GB each at the largest;",
             ("6.3", 33, 16, "4.2"), source="the times and sizes of the checkpoint's files, every 5 s"),
        Said("the whole case nine minutes,", holds=500 < tables.seconds(LONGER) < 560),
        Said("forward and backward {:.0f} s.", (whole["seconds"].iloc[0],)),
    ]  # fmt: skip


def _both(tables: Tables) -> pd.DataFrame:
    rows = tables.rows(LONGER)
    return rows.assign(alone=rows["x_floor"] / rows["x_single_device"]).set_index(["tensor", "rank"])


def _last(tables: Tables) -> pd.DataFrame:
    """Floors of single device and of the ring on the last rank's tokens."""
    return _both(tables).xs(255, level="rank").loc[["out", "lse"], ["alone", "x_floor"]]


def _shorter(tables: Tables) -> tuple[float, ...]:
    """Floors of out, dq and lse of single device at 8,192 tokens."""
    rows = tables.whole(SHORTER)
    rows = rows[(rows["variant"] == "single_device") & (rows["dtype"] == "bfloat16")]
    return tuple(rows.groupby("tensor")["x_floor"].mean()[["out", "dq", "lse"]])
