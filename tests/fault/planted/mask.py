"""A mask off by one, or a feature of it that one direction ignores."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.kernel.base import Kernel
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors
from tests.fault.planted.base import EVERYTHING, GRADIENTS, Fault, given, on_kernel


def one_ahead(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """Causal rows see the next key too."""
    call = kernel.forward if len(tensors) == 3 else kernel.backward
    return call(*tensors, **how | ({"causal": False, "window": (None, 1)} if how["causal"] else {}))


def changed_visibility(**settings: Any) -> Any:
    """A ring's rank that takes the mask for another; a window is one wider where it is given as 1."""

    def change(rank: Rank, *tensors: Tensor) -> tuple[Any, ...]:
        new = dict(settings)
        if "window" in new:
            new["window"] = (rank.visibility.window or 0) + new["window"]
        return replace(rank, visibility=replace(rank.visibility, **new)), *tensors

    return change


def both(settings: dict[str, Any]) -> Any:
    """In both directions."""
    change = changed_visibility(**settings)
    return given("forward", change, given("backward", change))


def uncapped(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """The backward without the cap's slope: that of scores that were never capped, for the lse of capped ones."""
    _, q, k, *_ = tensors
    dq, dk, dv = kernel.backward(*tensors, **how)
    share = q.shape[2] // k.shape[2]
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double().repeat_interleave(share, 2)) * how["scale"]
    slope = 1 - torch.tanh(scores / how["softcap"]).square().mean()
    return dq / slope.to(dq.dtype), dk / slope.to(dk.dtype), dv


def last_key(rank: Rank, source: int, length: int) -> list[Block]:
    """The last key of every full block is dropped."""
    found = rank.blocks_between(source, length)
    return [b if b.causal else Block(b.query, slice(b.key.start, b.key.stop - 1), causal=False) for b in found]


MASK = ("mask",)
WINDOW, DOCUMENTS = ("problem.window=20",), ("problem.documents=30+50+64",)
PARTS = {
    "mask_one_ahead": Fault(on_kernel(forward=one_ahead, backward=one_ahead), EVERYTHING, causes=MASK),
    "mask_one_ahead_forward": Fault(on_kernel(forward=one_ahead), EVERYTHING, causes=MASK),
    "mask_last_key": Fault(Ring(blocks=last_key), EVERYTHING, causes=(*MASK, "blocks")),
    "mask_last_key_backward": Fault(Ring(blocks=last_key), GRADIENTS, "backward", causes=(*MASK, "blocks")),
    "mask_window_wider": Fault(both({"window": 1}), EVERYTHING, where=WINDOW, causes=MASK),
    "mask_window_narrower": Fault(both({"window": -1}), EVERYTHING, where=WINDOW, causes=MASK),
    "mask_documents_ignored": Fault(both({"documents": ()}), EVERYTHING, where=DOCUMENTS, causes=MASK),
    "mask_documents_ignored_backward": Fault(
        given("backward", changed_visibility(documents=())), GRADIENTS, where=DOCUMENTS, causes=MASK
    ),
    "mask_softcap_slope": Fault(on_kernel(backward=uncapped), "dq dk", where=("problem.softcap=1.5",)),
}
