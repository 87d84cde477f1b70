"""What a healthy schedule may round beyond its kernel, each bound on both sides."""

import pandas as pd

from accuracy.core.paths import PACKAGE
from accuracy.verdict.floor import LEVEL
from accuracy.verdict.rule.excess import BY_AUTOGRAD
from accuracy.verdict.verdict import verdicts
from tests.fault import measure
from tests.verdict.synthetic import row


def label(tensor: str, dtype: str, size: int, floors: float, **more: float | str) -> str:
    """Of one seed whose error is so many floors."""
    floor = LEVEL * {"bfloat16": 2.0**-8, "float32": 2.0**-24}[dtype]
    changes = {"error_rel": floors * floor, "error_rms": floors * floor, "error_max": 4 * floors * floor, **more}
    rows = [row(tensor, dtype, size, rank, 0, **changes) for rank in (-1, *range(size))]
    if "lse_size" in more:
        rows = [{name: value for name, value in each.items() if name != "lse_size"} for each in rows]
        rows.append(row("lse", dtype, size, -1, 0, reference_rms=more["lse_size"]))
    found = verdicts(pd.DataFrame(rows))
    return str(found.loc[found["tensor"] == tensor, "label"].iloc[0])


def test_weights_inherit_the_rounding_of_scores_that_single_device_escapes() -> None:
    """A window of one key: single device's dv is exact but for its own rounding, another order of the 16 products of a
    score makes sqrt(18) |lse| = 8.5 roundings."""
    sizes = {"single_device_rel": LEVEL * 2.0**-24, "lse_size": 2.0}
    assert label("dv", "float32", 1, 9.9, **sizes) == "rounding"
    assert label("dv", "float32", 1, 18.0, **sizes) == "logic"  # there is no other dtype
    assert label("dv", "float32", 1, 9.9, **sizes | {"lse_size": 0.1}) == "logic"


def test_dq_and_dk_inherit_the_rounding_of_a_joined_out_and_dv_does_not() -> None:
    """Single device at 5 floors: one rounding more is 1.02 times that, out's doubled is 1.41 times."""
    sizes = {"single_device_rel": 5 * LEVEL * 2.0**-8}
    assert [label(name, "bfloat16", 2, 5 * 1.4, **sizes) for name in ("dq", "dk", "dv")] == [
        "rounding", "rounding", "excess_rounding",
    ]  # fmt: skip
    assert label("dq", "bfloat16", 2, 5 * 1.8, **sizes) == "excess_rounding"


def test_a_healthy_ring_of_wide_heads_is_not_accused() -> None:
    wide = ("also=null", "dtype=bfloat16", "problem.head_dim=128", "problem.seqlen=384", "world_size=2")
    found = measure.results(["striped"], *wide, "seed=[0,1,2,3]")
    assert found.loc[found["tensor"] == "dq", "x_single_device"].max() > 1.35
    assert set(verdicts(found)["label"]) == {"rounding"}


def test_kernels_with_autograds_backward_round_terms_and_others_sums() -> None:
    """Terms at 2 floors and single device at 1: sqrt(1 + 2^2) = 2.2."""
    sizes = {"single_device_rel": LEVEL * 2.0**-8, "condition_rounding": 2.0}
    assert label("dv", "bfloat16", 2, 2.1, kernel="torch_math", **sizes) == "rounding"
    assert label("dv", "bfloat16", 2, 2.9, kernel="torch_math", **sizes) == "excess_rounding"
    assert label("dv", "bfloat16", 2, 2.1, kernel="eager", **sizes) == "excess_rounding"


def test_the_kernels_with_autograds_backward_are_known() -> None:
    files = sorted((PACKAGE / "kernel").glob("*.py"))
    assert tuple(path.stem for path in files if "return gradients_by_autograd(" in path.read_text()) == BY_AUTOGRAD
