"""A fused reference that is killed goes on from its checkpoint, with the bits it would have had."""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy.reference import float64
from accuracy.reference.checkpoint import Checkpoint
from accuracy.reference.float64 import Reference
from tests.reference.exact import problem

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from accuracy.reference import fused

TENSORS = problem(seed=1, heads=2, heads_kv=2, length=300, dim=16)
MASKS: list[dict[str, Any]] = [{"causal": True}, {"causal": False}, {"causal": True, "window": 70}]


class Killed(BaseException):
    """As a signal: nothing catches it."""


def scores(group: fused.Group, rows: slice, keys: slice) -> torch.Tensor:
    """What a row does not see: -inf."""
    key = torch.arange(keys.start, keys.stop)
    first, last = (x[rows, None] for x in (group.intervals.first, group.intervals.last))
    products = group.query[:, rows] @ group.key[:, keys].mT
    return products.masked_fill((key < first) | (key >= last), -torch.inf)


def forward(part: fused.Planes, group: fused.Group, rows: slice) -> None:
    """In torch, in place of the kernel, which the interpreter takes long for; padded rows see nothing."""
    part.bits[:, rows] = torch.logsumexp(scores(group, rows, slice(0, group.intervals.keys)) * math.log(2), 2)
    part.bits[:, rows] = (part.bits[:, rows] / math.log(2)).nan_to_num(neginf=0.0)
    part.out[:, rows] = (
        torch.exp2(scores(group, rows, slice(0, group.intervals.keys)) - part.bits[:, rows, None]) @ group.value
    )
    part.lse[:, rows] = part.bits[:, rows] * math.log(2)
    part.delta[:, rows] = (part.out[:, rows] * group.gradient[:, rows]).sum(2)


def weights_and_slopes(part: fused.Planes, group: fused.Group, rows: slice, keys: slice) -> list[torch.Tensor]:
    weights = torch.exp2(scores(group, rows, keys) - part.bits[:, rows, None])
    slopes = group.gradient[:, rows] @ group.value[:, keys].mT - part.delta[:, rows, None]
    return [weights, weights * slopes]


class Work:
    """Counts the bands and squares of a computation, and ends it before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done, self.last = 0, 10**9
        monkeypatch.setattr(fused, "HELD", 128**2)  # squares of 128 rows and keys, of one head at a time
        monkeypatch.setattr(fused, "BAND_SCORES", 1)  # bands of 128 rows
        monkeypatch.setattr(fused, "forward", self.counting(forward))
        monkeypatch.setattr(fused, "_weights_and_slopes", weights_and_slopes)
        monkeypatch.setattr(fused, "_add_square", self.counting(fused._add_square))

    def counting(self, function: Callable[..., None]) -> Callable[..., None]:
        def counted(*given: Any) -> None:
            if self.done == self.last:
                raise Killed
            self.done += 1
            function(*given)

        return counted

    def run(self, folder: Path, mask: dict[str, Any], last: int = 10**9, key: str = "mine", seconds: float = 0.0):
        """The reference and its launches, from what is in the folder on; None where it was ended before the last."""
        self.done, self.last = 0, last
        checkpoint = Checkpoint(folder, key, seconds)
        try:
            return fused.attention(*TENSORS, scale=0.2, **mask, checkpoint=checkpoint), self.done
        except Killed:
            checkpoint._settled()
            checkpoint._lock and checkpoint._lock.close()
            return None


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def same(a: Reference, b: Reference) -> bool:
    return all(torch.equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(Reference))


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_killed_anywhere_it_goes_on_with_equal_bits_and_repeats_one_part_at_most(
    work: Work, mask: dict[str, Any], tmp_path: Path
) -> None:
    """Killed again and again, each time three launches further: a part is a band, or a column of at most 3 squares."""
    whole, launches = work.run(tmp_path / "whole", mask)
    expected = float64.attention(*TENSORS, scale=0.2, **mask)
    assert all(torch.allclose(getattr(whole, name), getattr(expected, name), rtol=1e-9) for name in ("out", "dq", "dk"))
    found, spent, kills = None, 0, 0
    while found is None:
        found = work.run(tmp_path / "killed", mask, last=3)
        spent += work.done
        kills += found is None
    assert kills > 1
    assert same(found[0], whole)
    assert spent <= launches + 2 * kills


def test_nothing_is_written_sooner_than_asked(work: Work, tmp_path: Path) -> None:
    assert work.run(tmp_path / "one", MASKS[0], seconds=3600.0) is not None
    assert not (tmp_path / "one").exists()


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swapped(path: Path) -> None:
    path.write_bytes(path.with_name("done-2.npz").read_bytes())


@pytest.mark.parametrize(("harm", "said"), [
    (damaged, "BadZipFile"), (swapped, "does not go on where the file before it ends"), (Path.unlink, "No such file"),
])  # fmt: skip
def test_what_is_damaged_is_not_used_and_said(
    work: Work, tmp_path: Path, harm: Callable[[Path], None], said: str
) -> None:
    whole, launches = work.run(tmp_path / "whole", MASKS[0])
    assert work.run(tmp_path / "one", MASKS[0], last=5) is None
    harm(tmp_path / "one" / "done-1.npz")
    with pytest.warns(UserWarning, match=f"computed anew.*{said}"):
        found, spent = work.run(tmp_path / "one", MASKS[0])
    assert spent == launches
    assert same(found, whole)


def test_another_computation_s_checkpoint_is_not_used_and_said(work: Work, tmp_path: Path) -> None:
    assert work.run(tmp_path / "one", MASKS[1], last=5, key="other") is None
    with pytest.warns(UserWarning, match=r"is of another computation \(other, not mine\)"):
        found, _ = work.run(tmp_path / "one", MASKS[0])
    assert same(found, work.run(tmp_path / "whole", MASKS[0])[0])


def test_a_checkpoint_that_is_read_is_not_another_process_s(work: Work, tmp_path: Path) -> None:
    assert work.run(tmp_path / "one", MASKS[0], last=5) is None
    other = Checkpoint(tmp_path / "one", "mine", 0.0)
    assert other._locked()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").glob("*.npz")}
    _, launches = work.run(tmp_path / "one", MASKS[0])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "one").glob("*.npz")} == files
    other.done()
    assert not (tmp_path / "one").exists()
    assert work.run(tmp_path / "one", MASKS[0])[1] == launches


def test_a_folder_that_cannot_be_written_costs_no_reference(work: Work, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="no reference checkpoint in") as said:
        assert work.run(tmp_path / "file" / "one", MASKS[0]) is not None
    assert sum("no reference checkpoint" in str(each.message) for each in said) == 1  # others may warn of theirs
