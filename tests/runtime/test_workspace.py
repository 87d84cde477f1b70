"""Memory that is kept between cases: as asked for, taken once, and never under two uses."""

import pytest
import torch

from accuracy.runtime import workspace as module
from accuracy.runtime.workspace import Workspace


@pytest.mark.parametrize(
    "x",
    [torch.empty(2, 3, 4), torch.empty(2, 3, 4).transpose(1, 2), torch.empty(1, 1, 5), torch.empty(4, 6)[:, ::2]],
    ids=("whole", "transposed", "one", "with_gaps"),
)
def test_it_has_the_shape_and_layout_of_a_fresh_tensor(x: torch.Tensor) -> None:
    found, fresh = Workspace().like(x, "a"), torch.empty_like(x, dtype=torch.float64)
    assert (found.shape, found.stride(), found.dtype) == (fresh.shape, fresh.stride(), fresh.dtype)


def test_memory_is_taken_once_for_a_use_and_never_shared_between_two() -> None:
    workspace = Workspace()
    large, small = torch.empty(4, 5), torch.empty(2, 5)
    first, other = workspace.like(large, "a"), workspace.like(large, "b")
    assert workspace.like(small, "a").data_ptr() == workspace.like(large, "a").data_ptr() == first.data_ptr()
    assert other.data_ptr() != first.data_ptr()


def test_what_is_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_ELEMENTS", 19)
    workspace = Workspace()
    assert workspace.like(torch.empty(4, 5), "a").data_ptr() != workspace.like(torch.empty(4, 5), "b").data_ptr()
    assert not workspace._kept


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_tensors_of_ranks_are_stacked_without_a_change(dtype: torch.dtype) -> None:
    """Views with gaps too, over what was there before."""
    workspace = Workspace()
    workspace.like(torch.empty(100), "a").fill_(float("nan"))
    ranks = [torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)[:, ::2] for seed in range(3)]
    found = workspace.stacked(ranks, "a")
    assert found.is_contiguous()
    assert torch.equal(found, torch.stack(ranks).double())
