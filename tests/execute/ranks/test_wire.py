"""Tensors cross a wire bit for bit, and no more of them than was sent."""

from multiprocessing import Pipe

import pytest
import torch

from accuracy.execute.ranks.wire import Wire


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32])
def test_a_tensor_arrives_with_its_bits_dtype_and_shape(dtype: torch.dtype) -> None:
    here, there = (Wire(end) for end in Pipe())
    x = torch.arange(-12, 12).reshape(2, 3, 4).to(dtype).transpose(0, 2)
    here.send({"x": x, "none": None, "scalar": x.sum(), "empty": x[:0]})
    received = there.recv()
    assert received["x"].dtype == dtype
    assert torch.equal(received["x"], x)
    assert received["none"] is None
    assert torch.equal(received["scalar"], x.sum())
    assert received["empty"].shape == x[:0].shape


def test_a_slice_is_sent_without_the_rest_of_its_storage() -> None:
    here, there = Pipe()
    Wire(here).send(torch.zeros(1000, 1000)[0])
    assert len(there.recv_bytes()) < 10_000


def test_a_received_tensor_can_be_written() -> None:
    here, there = (Wire(end) for end in Pipe())
    here.send(torch.zeros(3))
    assert there.recv().add_(1).sum() == 3
