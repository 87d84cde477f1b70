"""The numbers of README.md, ISSUES.md and FINDINGS.md, from the published tables."""

from experiments.published import Tables, cells, chosen, markdown, span

TABLE, SPEED = "split_kv/nvidia-h200", "benchmark/nvidia-h200/split_kv.txt"
FORMS = {
    ("split_kv", "flash_attn"): "partials in 16 bits (flash_attn)",
    ("split_kv", "eager"): "partials in float32 (eager)",
    ("flash_attn_split", "flash_attn"): "flash-attn's own splitting",
}
PARTS = [1, 2, 4, 8, 16, 32, 64, 128]


def blocks(tables: Tables) -> dict[str, str]:
    rows = chosen(tables.rows(TABLE), tensor="out", rank=-1, status="ok", dtype="bfloat16")
    parts = rows["options"].str.extract(r"splits=(\d+)")[0].astype(float)
    means = rows.groupby(["variant", "kernel", parts.rename("parts")])["x_single_device"].mean()
    rounded, kept, own = (means[form] for form in FORMS)

    def us(way: str) -> float:
        return tables.numbers(SPEED, rf"(?ms)^1 query, 4096 keys, 32/32 heads.*?^  {way} +([\d.]+) us")[0]

    unsplit, dense, eight = (
        us(way) for way in ("flash-attn varlen, as in #1029", "flash-attn dense, its own choice", r"\S+ num_splits=8")
    )
    return {
        "cases": f"{chosen(tables.rows(TABLE), status='ok')['case_id'].nunique()} cases",
        "out": markdown(("parts", *PARTS), ((name, *cells(means[form], PARTS)) for form, name in FORMS.items())),
        "rounded": f"{span(rounded.drop(1))} times single device's error of out",
        "kept": span(kept.drop(1)),
        "own": span(own),
        "speed": f"{unsplit:.0f} us unsplit in the varlen path and {dense:.0f} us in the dense one, which splits by itself",
        "parts": f"in 8 parts {eight:.0f} us, {unsplit / eight:.1f} times faster",
    }
