"""The numbers of README.md, from its published table."""

from experiments.attribution.claims import Attribution, attributions
from experiments.published import TENSORS, Tables, chosen, markdown, span

WIDE = "out_accumulator", "lse", "merge", "dq_accumulator", "dkv_accumulator", "gradient_wire"
BLOCKS = "partial", "gradient_partial"


def blocks(tables: Tables) -> dict[str, str]:
    rows = tables.rows("attribution/nvidia-h200")
    found = {(each.variant, each.tensor): each for each in attributions(rows)}
    rings = [found["ring", tensor] for tensor in TENSORS]
    one_seed = [each for _, seed in rows.groupby("seed") for each in attributions(seed) if each.variant == "ring"]
    excess = {name: [_of_blocks(each) for each in one_seed if each.tensor == name] for name in TENSORS}
    lines = []
    for each in rings:
        own, *_ = places = ["partial" if each.tensor == "out" else BLOCKS[1], "probability_dtype", "final rounding"]
        shares = [f"{each.shares[place]:.0%}" for place in places]
        if own != "partial" and each.shares["partial"] > 5e-4:
            shares[0] += f" (+ {each.shares['partial']:.1%} of the forward)"
        wide = abs(sum(each.shares.get(place, 0.0) for place in WIDE))
        lines.append((each.tensor, *shares, f"{wide:.3%}", span(excess[each.tensor], ".0%")))
    head = ("ring", "block partial or block gradients", "kernel's P, dS", "final rounding", "everything in float32")
    lse = found["ring", "lse"].shares
    cases, times = chosen(rows, status="ok")["case_id"].nunique(), span(each.x_single_device for each in rings)
    return {
        "share": f"{min(map(_of_blocks, rings)):.0%}",
        "setting": f"{cases} cases; a ring's error is {times} times single device's",
        "shares": markdown((*head, "of the excess: blocks, by seed"), lines),
        "lse": f"its float32 sum contributes {lse['lse']:.0%}, the merge {lse['merge']:.1%}, the final rounding"
        f" {lse['final rounding']:.0%}",
    }


def _of_blocks(found: Attribution) -> float:
    """The share of blocks' results in a tensor's excess."""
    return sum(found.excess.get(place, 0.0) for place in BLOCKS)
