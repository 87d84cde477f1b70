"""The numbers of README.md and FINDINGS.md, from the published tables."""

from experiments.published import Tables, cells, chosen, markdown, span

TABLE, GRID = "backward_kernels/nvidia-h200", "backward_kernels/grid.csv.gz"
SPEED = "benchmark/nvidia-h200/kernels.txt"
FORMS = {"fused_by_head": "fused by head", "fused_by_tile": "fused by tile of keys", "flash_attn": "flash-attn"}
SIZES = [(batch, str(length)) for batch in (1, 16, 128) for length in (2048, 4096, 8192)]


def blocks(tables: Tables) -> dict[str, str]:
    rows = chosen(tables.rows(TABLE), status="ok", rank=-1)
    changed = chosen(rows, kernel="triton_fused_backward", tensor="dq").groupby("heads")["repeats_differ"].max()
    few, many = changed[changed.index <= 4], changed[changed.index >= 8]

    def ms(kernel: str, heads: int) -> float:
        return tables.numbers(SPEED, rf"(?ms)over batch x heads.*?^{kernel} +{heads} +([\d.]+) ")[0]

    faster = [ms("triton_fused_backward", heads) / ms("triton_split_backward", heads) for heads in (1, 64)]
    flash = [ms("flash_attn", heads) / ms("triton_split_backward", heads) for heads in (1, 64)]
    grid = tables.csv(GRID).pivot_table(index=["batch", "length"], columns="form", values="ms")
    times = grid.div(grid["split"], axis=0)
    head, tile = times["fused_by_head"], times["fused_by_tile"]
    names = {size: f"{size[0]} of {int(size[1]):,}" for size in SIZES}
    names[16, "varlen"] = "16 of many lengths, one after another"
    equal = head.drop((16, "varlen"))
    return {
        "cases": f"{chosen(rows)['case_id'].nunique()} cases, 11 runs each",
        "claims": tables.claims(TABLE),
        "changed": f"in {span(few, '.0f')} elements at 1 to 4 heads, in {span(many, '.0f')} from 8 heads on",
        "faster": f"{faster[0]:.2f} times faster than the fused kernel at 1 head, {faster[1]:.2f} at 64",
        "flash": f"with one head flash-attn is {1 / flash[0]:.2f} times faster than the split kernels, with 64 heads the split kernels are {flash[1]:.2f} times faster",
        "grid": markdown(
            ("batch and tokens", "split, ms", *FORMS.values()),
            ((name, f"{grid['split'][size]:.2f}", *cells(times.loc[size], FORMS)) for size, name in names.items()),
        ),
        "tile": f"{span(tile)}",
        "off": f"{tables.csv(GRID)['off'].max():.1e}".replace("e-0", "e-"),
        "fails": f"fails at 2,048 tokens, where the factor is {head[1, '2048']:.2f}; that over the fused kernel by tile fails at {(tile < 1).sum()} of the {len(tile)} sizes",
        "by_head": f"{span(equal[1], '.1f')} times as long at batch 1 on its grid (12 heads) and {span(equal[[16, 128]])} times at batch 16 and more",
        "unequal": f"over 16 sequences of unequal lengths {head[16, 'varlen']:.2f} times",
    }
