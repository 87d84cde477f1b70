"""A function of one's own under a caller's mask, bias or attention sinks, measured on one rank."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.verdict.label import BUGS
from tests.strangers import attend, inaccurate

SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 32, "progress": False}
JUDGED = {name: value for name, value in SMALL.items() if name != "progress"}
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def fine(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, bias: Tensor, fault: str = "") -> Tensor:
    """As a stranger writes it: a full mask of its own, no lse. fault: of the bias, which is transposed or has no
    gradient."""
    bias = {"": bias, "transposed": bias.mT, "detached": bias.detach()}[fault]
    return attend(q, k, v, scale=softmax_scale, bias=bias)[0]


transposed, without_gradient = (partial(fine, fault=fault) for fault in ("transposed", "detached"))


def forward_alone(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, bias: Tensor) -> Tensor:
    """The planted fault: dq and dk of a backward without the bias."""
    out = fine(q.detach(), k.detach(), v, softmax_scale=softmax_scale, bias=bias)
    plain = attend(q, k, v.detach(), scale=softmax_scale)[0]
    return out + plain - plain.detach()


def capped(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, bias: Tensor, softcap: float = 2.0
) -> Tensor:
    return attend(q, k, v, causal=causal, scale=softmax_scale, bias=bias, softcap=softcap)[0]


def alibi(batch: int, heads: int, queries: int, keys: int) -> Tensor:
    slopes = (2.0 ** -torch.arange(1.0, heads + 1)).view(heads, 1, 1)
    return -slopes * (torch.arange(queries)[:, None] - torch.arange(keys)).clamp(min=-3).abs()


def learned(*sizes: int) -> Tensor:
    return alibi(*sizes).requires_grad_()


def seen() -> Tensor:
    mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) > 0.5
    mask[:, 0] = True
    return mask


def by_head() -> Tensor:
    return torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(0))


def with_sinks(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, s_aux: Tensor, fault: str = ""
) -> Tensor:
    """fault: of the sinks, which have no gradient or stand at other heads."""
    sinks = {"": s_aux, "detached": s_aux.detach(), "other heads": s_aux.roll(1)}[fault]
    return attend(q, k, v, causal=causal, scale=softmax_scale, sinks=sinks)[0]


detached, other_heads = (partial(with_sinks, fault=fault) for fault in ("detached", "other heads"))


MEASURED: dict[str, tuple[Any, dict[str, Any], set[str], dict[Any, str]]] = {
    "a mask": (fine, {"attn_mask": seen()}, set(), {transposed: "out", forward_alone: "dk|dq"}),
    "a callable": (fine, {"attn_mask": alibi}, set(), {transposed: "out"}),
    "sinks": (with_sinks, {"sinks": 0.5}, {"dsink"}, {detached: "dsink is", other_heads: "out"}),
}
"""The function, what it is under, what more is measured, and each planted fault with the tensor that is named."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MEASURED)
def test_it_is_measured_under_a_mask_or_sinks(name: str, device: str) -> None:
    healthy, how, more, faults = MEASURED[name]
    how = {**how, "device": device}
    rows = accuracy.measure(healthy, dtype=["float64", "float16"], **how, **SMALL)
    found = rows[(rows["rank"] == -1) & (rows["status"] == "ok")].set_index(["dtype", "tensor"])["error_rel"]
    assert set(found["float64"].index) == {"out", "dq", "dk", "dv", "delta"} | more
    assert found["float64"].max() < 1e-12
    accuracy.assert_accurate(healthy, **how, **JUDGED)
    for wrong, tensor in faults.items():
        inaccurate(tensor, wrong, **how, **JUDGED)
    assert set(accuracy.drift(healthy, "single_device", **how, **SMALL)["label"]) <= {"equal", "within", ""}


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("given", [torch.ones(64, 64, dtype=torch.bool).triu(-9), by_head()])
def test_torch_s_own_kernel_has_the_mask_too(given: Tensor, mask: str) -> None:
    how: dict[str, Any] = {"attn_mask": given, "mask": mask, "dtype": "float64", "device": "cpu", **SMALL}
    rows = accuracy.measure(fine, kernel="torch_flash", **how)
    assert rows.loc[rows["tensor"].isin(["out", "dq", "dk", "dv"]), "single_device_rel"].max() < 1e-12


@pytest.mark.stress(1)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(2, 4, 64, 64), (4, 1, 64), (1, 1, 64, 1)])
def test_the_gradient_of_a_bias_is_measured_where_it_wants_one(shape: tuple[int, ...], device: str) -> None:
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    how: dict[str, Any] = {"attn_mask": bias, "device": device, "batch": 2}
    for fn, more in ((fine, {}), (capped, {"mask": "causal", "softcap": 2.0})):
        rows = accuracy.measure(fn, dtype="float64", **how, **more, **SMALL)
        found = rows[rows["tensor"] == "dbias"]
        assert found["status"].tolist() == ["ok", "ok"]
        assert found[["error_rel", "single_device_rel"]].max(axis=None) < 1e-12
        accuracy.assert_accurate(fn, **how, **more, **JUDGED)
    if shape[-1] > 1:  # else softmax takes no notice of it: its gradient is zero
        inaccurate(": dbias is", without_gradient, **how, **JUDGED)
    rows = accuracy.measure(fine, **how | {"attn_mask": bias.detach()}, **SMALL)
    assert "dbias" not in set(rows["tensor"])


@pytest.mark.filterwarnings("error")
def test_rows_that_are_no_copies_of_values_are_no_sign_of_coarse_products() -> None:
    """Where scores are capped, or a query's own key is hidden, out of `copied` is no row of v."""

    def uncapped(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, softcap: float = 0.0
    ) -> Tensor:
        return attend(q, k, v, causal=causal, scale=softmax_scale)[0]

    how = {"device": "cpu", "dtype": "float32", **JUDGED}
    hidden = seen() & ~torch.eye(64, dtype=torch.bool)
    hidden[0, 1] = True
    accuracy.assert_accurate(fine, attn_mask=hidden, **how)
    capping = {"softcap": 1.0, "attn_mask": torch.zeros(64, 64), "mask": "causal"}
    accuracy.assert_accurate(capped, **how, **capping)
    inaccurate("dq is", uncapped, mask="causal", softcap=3.0, **how)


def test_a_gradient_of_few_sinks_may_have_the_walk_of_its_sums() -> None:
    """Eager's is nearer by luck; one of other heads is not near."""
    how = JUDGED | {"seqlen": 128, "dtype": "float32", "device": "cpu", "mask": "causal", "sinks": 0.5}
    for seed in range(3):
        accuracy.assert_accurate(with_sinks, seed=seed, **how)
    inaccurate("dsink is", detached, **how)


@pytest.mark.stress(1)
@pytest.mark.parametrize(("healthy", "wrong", "how", "tensors"), [
    (fine, without_gradient, {"attn_mask": learned}, {"dbias"}),
    (fine, forward_alone, {"attn_mask": alibi}, {"dq", "dk"}), (with_sinks, detached, {"sinks": 0.5}, {"dsink"}),
])  # fmt: skip
def test_a_diagnosis_asks_under_the_mask_and_names_the_tensor_that_is_wrong(
    healthy: Any, wrong: Any, how: dict[str, Any], tensors: set[str], few_grids: None
) -> None:
    found = accuracy.diagnose({"mine": healthy, "theirs": wrong}, dtype="bfloat16", device="cpu", **how, **SMALL)
    bugs = found.verdicts[found.verdicts["label"].isin(BUGS)]
    assert {*zip(bugs["variant"], bugs["tensor"], strict=True)} == {("theirs", each) for each in tensors}
