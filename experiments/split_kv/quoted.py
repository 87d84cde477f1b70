"""Which table says each number: see accuracy/report/evidence.py."""

import pandas as pd

from accuracy.report.evidence import Said, Tables, lines

TABLE, SPEED = "split_kv/nvidia-h200", "benchmark/nvidia-h200/split_kv.txt"


def quoted(tables: Tables) -> dict[str, list[Said]]:
    largest = tables.claimed(TABLE, "With partials in 16 bits", r"384: ([\d.]+)")
    rows, cases, held = tables.whole(TABLE), tables.cases(TABLE), tables.held(TABLE)
    rows = rows[(rows["tensor"] == "out") & (rows["dtype"] == "bfloat16") & (rows["variant"] != "single_device")]
    rows = rows.assign(parts=pd.to_numeric(rows["options"].str.extract(r"splits=(\d+)")[0])).dropna(subset="parts")
    means = rows.groupby(["variant", "kernel", "parts"])["x_single_device"].mean().unstack()
    unsplit, eight, faster = tables.text(
        SPEED,
        r"1 query, 4096 keys, 32/32.*\n.*num_splits=1 +([\d.]+) us(?:.*\n)+?.*num_splits=8 +([\d.]+) us +([\d.]+)",
    )
    return {
        "../FINDINGS.md": [Said("at most {:.2f} times single device's error with these,", largest)],
        "README.md": [
            Said("({:,} cases, none failed, [table]", (cases["ok"],), holds=cases["failed"] == 0),
            *lines(
                {
                    "partials in 16 bits (flash_attn)": means.loc["split_kv", "flash_attn"],
                    "partials in float32 (eager)": means.loc["split_kv", "eager"],
                    "flash-attn's own splitting": means.loc["flash_attn_split", "flash_attn"],
                }
            ),
            Said("All five claims hold:", holds=sum(held) == len(held) == 5),
            Said("which is why one part is {:.2f}.)", (means.loc["flash_attn_split", "flash_attn"][1],)),
            Said(
                "flash-attn unsplit {:.0f} us, its own splitting in 8 parts {:.0f} us ({:.1f} times;",
                (unsplit, eight, faster),
            ),
            Said("the issue reports 77 and 24 us)", source="https://github.com/Dao-AILab/flash-attention/issues/1029"),
        ],
    }
