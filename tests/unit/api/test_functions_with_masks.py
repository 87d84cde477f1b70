"""A function of one's own under a caller's mask or bias, measured on one rank."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.verdict.label import BUGS

SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 32}
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor, in_backward: bool = True) -> Tensor:
    """As a stranger writes it: a full mask of its own, no lse."""
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (x.repeat_interleave(q.shape[2] // k.shape[2], 2).to(wide) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), keys) * scale
    under = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    weights, plain = under.softmax(-1), scores.softmax(-1)
    weights = weights if in_backward else weights.detach() + plain - plain.detach()
    return torch.einsum("bhqk,bkhd->bqhd", weights, values).to(q.dtype)


def fine(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, bias: Tensor) -> Tensor:
    return attend(q, k, v, softmax_scale, bias)


def transposed(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, bias: Tensor) -> Tensor:
    return attend(q, k, v, softmax_scale, bias.mT)


def forward_alone(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, bias: Tensor) -> Tensor:
    """The planted fault: a backward without the bias."""
    return attend(q, k, v, softmax_scale, bias, in_backward=False)


class OverHeads(torch.autograd.Function):
    """A bias for all heads, whose gradient is that of the first head alone, where it is to be summed over them."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, heads: int) -> Tensor:
        return bias.expand(-1, heads, -1, -1).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].sum((0, 2, 3), keepdim=True)[:, :1].expand(1, 1, *gradients[0].shape[2:]), None


def over_other_axes(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, bias: Tensor) -> Tensor:
    """The planted fault: the gradient of a bias, summed over the wrong axes."""
    return attend(q, k, v, softmax_scale, OverHeads.apply(bias, q.shape[2]))


def detached(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, bias: Tensor) -> Tensor:
    """The planted fault: a bias without a gradient."""
    return attend(q, k, v, softmax_scale, bias.detach())


def capped(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, bias: Tensor, softcap: float = 2.0
) -> Tensor:
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (x.repeat_interleave(q.shape[2] // k.shape[2], 2).to(wide) for x in (k, v))
    scores = softcap * torch.tanh(torch.einsum("bqhd,bkhd->bhqk", q.to(wide), keys) * softmax_scale / softcap)
    weights = (scores + bias).masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, values).to(q.dtype)


def without(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    return q


def alibi(batch: int, heads: int, queries: int, keys: int) -> Tensor:
    slopes = (2.0 ** -torch.arange(1.0, heads + 1)).view(heads, 1, 1)
    return -slopes * (torch.arange(queries)[:, None] - torch.arange(keys)).clamp(min=-3).abs()


def seen() -> Tensor:
    mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) > 0.5
    mask[:, 0] = True
    return mask


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask", [seen(), torch.randn(4, 64, 64), alibi], ids=["seen", "bias", "callable"])
def test_it_is_measured_under_the_mask(mask: Tensor | Callable[..., Tensor], device: str) -> None:
    how: dict[str, Any] = {"attn_mask": mask, "device": device, **SMALL}
    rows = accuracy.measure(fine, dtype=["float64", "float16"], progress=False, **how)
    found = rows[(rows["rank"] == -1) & (rows["status"] == "ok")].set_index(["dtype", "tensor"])["error_rel"]
    assert set(found["float64"].index) == {"out", "dq", "dk", "dv", "delta"}
    assert found["float64"].max() < 1e-12
    accuracy.assert_accurate(fine, **how)
    for wrong, tensor in ((transposed, "out"), (forward_alone, "dk|dq")):
        with pytest.raises(AssertionError, match=tensor):
            accuracy.assert_accurate(wrong, **how)
    labels = accuracy.drift(fine, "single_device", progress=False, **how)["label"]
    assert set(labels) <= {"equal", "within", ""}


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("given", [torch.ones(64, 64, dtype=torch.bool).triu(-9), torch.randn(4, 64, 64)])
def test_torch_s_own_kernel_has_the_mask_too(given: Tensor, mask: str) -> None:
    how: dict[str, Any] = {"attn_mask": given, "mask": mask, "dtype": "float64", "device": "cpu", **SMALL}
    rows = accuracy.measure(fine, kernel="torch_flash", progress=False, **how)
    assert rows.loc[rows["tensor"].isin(["out", "dq", "dk", "dv"]), "single_device_rel"].max() < 1e-12


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(2, 4, 64, 64), (64, 64), (4, 1, 64), (1, 1, 64, 1)])
def test_the_gradient_of_a_bias_is_measured_where_it_wants_one(shape: tuple[int, ...], device: str) -> None:
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    how: dict[str, Any] = {"attn_mask": bias, "device": device, "batch": 2, **SMALL}
    for fn, more in ((fine, {}), (capped, {"mask": "causal", "softcap": 2.0})):
        rows = accuracy.measure(fn, dtype="float64", progress=False, **how, **more)
        found = rows[rows["tensor"] == "dbias"]
        assert found["status"].tolist() == ["ok", "ok"]
        assert found[["error_rel", "single_device_rel"]].max(axis=None) < 1e-12
        accuracy.assert_accurate(fn, **how, **more)
    if shape[-1] > 1:  # else softmax takes no notice of it: its gradient is zero
        for wrong in (detached, *([over_other_axes] if len(shape) == 2 else [])):
            with pytest.raises(AssertionError, match=": dbias is"):
                accuracy.assert_accurate(wrong, **how)


@pytest.mark.filterwarnings("error")
def test_rows_that_are_no_copies_of_values_are_no_sign_of_coarse_products() -> None:
    """Where scores are capped, or a query's own key is hidden, out of `copied` is no row of v."""

    def uncapped(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, softcap: float = 0.0
    ) -> Tensor:
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
        return attend(q, k, v, softmax_scale, seen if causal else seen | True)

    how = {"device": "cpu", "dtype": "float32", **SMALL}
    hidden = seen() & ~torch.eye(64, dtype=torch.bool)
    hidden[0, 1] = True
    accuracy.assert_accurate(fine, attn_mask=hidden, **how)
    capping = {"softcap": 1.0, "attn_mask": torch.zeros(64, 64), "mask": "causal"}
    accuracy.assert_accurate(capped, **how, **capping)
    with pytest.raises(AssertionError, match="dq is"):
        accuracy.assert_accurate(uncapped, mask="causal", softcap=3.0, **how)


def test_a_bias_that_wants_no_gradient_has_none() -> None:
    rows = accuracy.measure(fine, attn_mask=torch.randn(64, 64), device="cpu", progress=False, **SMALL)
    assert "dbias" not in set(rows["tensor"])


def test_a_diagnosis_knows_a_bias_without_a_gradient(few_grids: None) -> None:
    def learned(*sizes: int) -> Tensor:
        return alibi(*sizes).requires_grad_()

    how = {"dtype": "bfloat16", "device": "cpu", "progress": False, "attn_mask": learned, **SMALL}
    found = accuracy.diagnose({"mine": fine, "theirs": detached}, **how)
    wrong = found.verdicts[found.verdicts["label"].isin(BUGS)]
    assert {*zip(wrong["variant"], wrong["tensor"], strict=True)} == {("theirs", "dbias")}


def test_a_diagnosis_asks_under_the_mask(few_grids: None) -> None:
    how = {"dtype": "bfloat16", "device": "cpu", "progress": False, "attn_mask": alibi, **SMALL}
    found = accuracy.diagnose({"mine": fine, "theirs": forward_alone}, **how)
    wrong = found.verdicts[found.verdicts["label"].isin(BUGS)]
    assert {*zip(wrong["variant"], wrong["tensor"], strict=True)} == {("theirs", "dq"), ("theirs", "dk")}


@pytest.mark.parametrize(
    ("fn", "how", "said"),
    [
        (fine, {"attn_mask": 3}, "a int"), (fine, {"attn_mask": torch.ones(64, 60)}, r"\(64, 60\)"),
        (fine, {"attn_mask": torch.ones(64, 64).long()}, "int64"), (fine, {"attn_mask": lambda x: x}, "raised"),
        (fine, {"attn_mask": torch.zeros(64, 64, dtype=torch.bool)}, "hides all keys"),
        (fine, {"attn_mask": torch.ones(64, 64, dtype=torch.bool).triu(1).roll(1, 0), "mask": "causal"}, "hides all"),
        (fine, {"attn_mask": torch.full((64, 64), torch.nan)}, "nan"), (without, {"attn_mask": alibi}, "attn_mask"),
        ("ring", {"attn_mask": alibi}, "attn_mask"),
        (fine, {"attn_mask": torch.ones(64, 64).requires_grad_(), "kernel": "torch_flash"}, "kernel=eager"),
        (fine, {"mask": "full"}, "without attn_mask"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(fn: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(accuracy.ConfigError, match=said) as error:
        accuracy.measure(fn, device="cpu", progress=False, **{**SMALL, **how})
    assert "\n" not in str(error.value)
