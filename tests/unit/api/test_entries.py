"""Every public entry is called on tensors of each device: on the CPU here, on a GPU by `make test-gpu`."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from accuracy.cli import listing
from accuracy.cli.run import subcommand
from accuracy.kernel.in_jax import exactly
from accuracy.kernel.in_jax import missing as in_jax_missing
from accuracy.verdict.label import BUGS
from tests import strangers as shared
from tests.processes import python
from tests.strangers import attend, attention, inaccurate, refused, unmerged, wrong
from tests.unit.api import test_from_jax as in_jax

pytestmark = pytest.mark.xdist_group("entries")
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
SMALL = {"seqlen": 64, "heads": 4, "heads_kv": 2, "head_dim": 32}


def tensors(device: str, dtype: str = "bfloat16") -> list[torch.Tensor]:
    return shared.tensors(dtype, 64, 64, batch=1, dim=32, device=device)


@cache
def measured(device: str) -> pd.DataFrame:
    """The rows that several entries read."""
    return accuracy.measure({"mine": attention}, device=device, seed=[0, 1], **SMALL)


def assert_close(device: str, folder: Path) -> None:
    q, k, v, dout = tensors(device)
    assert set(accuracy.assert_close(attention, q, k, v, dout=dout, causal=True)) == {"out", "dq", "dk", "dv"}
    accuracy.assert_close(attention(q, k, v), q, k, v, causal=True)
    hidden = torch.ones(64, 64, dtype=torch.bool, device=device).tril()
    accuracy.assert_close(attention(q, k, v), q, k, v, attn_mask=hidden)
    sink = torch.full((4,), -40.0, device=device)  # so small that it takes nothing
    none = torch.zeros(4, device=device)
    refused("dsink is wrong", attention(q, k, v), q, k, v, dout=dout, causal=True, sinks=sink, dsink=none + 1)
    refused("dv is wrong", wrong, q, k, v, dout=dout, causal=True)


def with_bias(q, k, v, *, bias):
    return attend(q, k, v, bias=bias)


def assert_close_of_other_calls(device: str, folder: Path) -> None:
    """A bias and lse with gradients, packed sequences, flex_attention's mask, tensors in 8 bits."""
    q, k, v, dout = tensors(device)
    bias, dlse = torch.randn(4, 64, 64, device=device).requires_grad_(), torch.ones(1, 4, 64, device=device)
    found = accuracy.assert_close(with_bias, q, k, v, dout=dout, attn_mask=bias, dlse=dlse)
    assert set(found) == {"out", "lse", "dq", "dk", "dv", "dbias"}
    halves = torch.cat([attention(*(x[:, part] for x in (q, k, v))) for part in (slice(40), slice(40, None))], 1)
    given = (x[0] for x in (halves, q, k, v))
    accuracy.assert_close(*given, layout="thd", cu_seqlens=[0, 40, 64], causal=True)
    mask = create_block_mask(lambda b, h, query, key: query >= key, None, None, 64, 64, device)
    accuracy.assert_close(attention(q, k, v), q, k, v, block_mask=mask)
    short = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    out = attention(*(2 * x.to(torch.bfloat16) for x in short[:2]), short[2].to(torch.bfloat16))
    scales = {"q_descale": 2.0, "k_descale": torch.full((1, 2), 2.0, device=device)}
    accuracy.assert_close(out, *short, causal=True, **scales)
    refused("out is wrong", out, *short, causal=True, **scales, v_descale=1.1)


def from_jax(device: str, folder: Path) -> None:
    if in_jax_missing(device):
        with pytest.raises(accuracy.ConfigError, match="needs"):
            accuracy.from_jax(in_jax.out_alone)(*tensors(device)[:3], softmax_scale=1.0)
        return
    q, _, _, dout = tensors(device, "float32")
    fn = accuracy.from_jax(in_jax.out_alone)
    with exactly():
        assert set(accuracy.assert_close(fn, q, q, q, dout=dout)) == {"out", "dq", "dk", "dv"}
        refused("out is wrong", accuracy.from_jax(in_jax.wrong), q, q, q)
        accuracy.assert_accurate(fn, dtype="float32", device=device, **SMALL | {"heads_kv": 4, "mask": "full"})


def assert_merge_close(device: str, folder: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    outs, lses = (torch.randn(shape, generator=generator).to(device) for shape in ((3, 1, 8, 2, 16), (3, 1, 2, 8)))
    merged = (lses.softmax(0).transpose(-1, -2)[..., None] * outs).sum(0)
    assert accuracy.assert_merge_close((merged, lses.logsumexp(0)), outs, lses)["out"] <= 1
    unmerged("partials have equal weights", outs.mean(0), outs, lses)


def bounds(device: str, folder: Path) -> None:
    q, k, v, dout = tensors(device, "float32")
    found = accuracy.bounds(q, k, v, dout, causal=True)
    assert {each.certain.device.type for each in found.values()} == {device}
    assert all((each.likely(1e-6) <= each.certain).all() for each in found.values())


def measure(device: str, folder: Path) -> None:
    rows = accuracy.measure(["ring", "single_device"], world_size=[1, 2], device=device, **SMALL)
    assert (rows["status"] == "ok").any()
    assert measured(device)["status"].isin(["ok", "unsupported"]).all()


def diagnose(device: str, folder: Path) -> None:
    how = {"dtype": "bfloat16", "device": device, "seqlen": 64, "heads": 2, "heads_kv": 1, "head_dim": 32}
    found = accuracy.diagnose({"mine": attention, "theirs": wrong}, **how)
    bugs = set(found.verdicts.loc[found.verdicts["label"].isin(BUGS), "variant"])
    assert (found.is_bug, bugs) == (True, {"theirs"})
    assert str(found) == found.sentence
    assert ">BUG</b> theirs" in found._repr_html_()
    assert isinstance(accuracy.diagnose(measured(device)), accuracy.Diagnosis)
    with pytest.raises(accuracy.ConfigError):
        accuracy.diagnose([], **how)


def assert_accurate(device: str, folder: Path) -> None:
    accuracy.assert_accurate(attention, device=device, **SMALL)
    inaccurate("times", wrong, device=device, **SMALL)


def tolerance(device: str, folder: Path) -> None:
    how = {"kernel": "eager", "seeds": 2, "device": device}
    assert set(accuracy.tolerance((1, 64, 2, 32), "bfloat16", **how)["tensor"]) == {"out", "lse", "dq", "dk", "dv"}


def paths(device: str, folder: Path) -> None:
    rows = accuracy.drift(attention, "single_device", device=device, **SMALL)
    assert set(rows["label"]) <= {"equal", "within", ""}
    rows = accuracy.drift("eager", wrong, device=device, **SMALL)
    out = rows[(rows["rank"] == -1) & (rows["tensor"] == "out")].iloc[0]
    assert (out["label"], out["nearer"], out["path_b"].split("+")[0]) == ("beyond", "a", "wrong@1")
    rows = accuracy.attribute("ring/partial:accumulate@2", "ring@2", device=device, **SMALL)
    assert "forward.partial" in set(rows["place"])
    assert len(accuracy.invariance(attention, batchmates=2, device=device, **SMALL))


class Layer(torch.nn.Module):
    """Attention as a model calls it, (B, H, S, D)."""

    def forward(self, q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def captured(device: str, folder: Path) -> Path:
    q, k, v, dout = (x[:, :, :2].transpose(1, 2).requires_grad_() for x in tensors(device))
    model = Layer()
    with accuracy.capture(model, folder / "captured"):
        model(q, k, v).backward(dout)
    accuracy.capture.wait()
    return folder / "captured"


def capture_and_judge(device: str, folder: Path) -> None:
    assert accuracy.judge(captured(device, folder), device=device).label == "rounding"


def compare_load_columns(device: str, folder: Path) -> None:
    accuracy.measure({"mine": attention}, device=device, seed=[0, 1], output_dir=folder / "run", **SMALL)
    assert set(accuracy.compare(accuracy.load(folder / "run"), measured(device))["label"]) == {"identical"}
    assert "meaning" in accuracy.columns()
    summary = accuracy.summary(measured(device))
    assert summary.index.names == ["dtype", "variant", "world_size"]
    assert list(summary) == ["out", "dq", "dk", "dv", "delta"]
    assert summary.equals(accuracy.summary(folder / "run"))


def plot(device: str, folder: Path) -> None:
    rows = measured(device)
    for draw in (accuracy.plot.growth, accuracy.plot.by_rank):
        draw(rows).figure.savefig(folder / "figure.png")


WORDS = ("problem.seqlen=64", "problem.heads=2", "problem.heads_kv=1", "problem.head_dim=32")


def run(*words: str, status: int = 0) -> None:
    assert subcommand(words) == status, words


def command_accuracy(device: str, folder: Path) -> None:
    words = "variant=[ring,single_device]", "world_size=[1,2]", "seed=[0,1]", f"device={device}", *WORDS
    done = python("-m", "accuracy", *words, "output_dir=run", folder=folder)  # as a process, which starts workers
    assert (done.returncode, "0 failed" in done.stdout) == (0, True), done.stdout + done.stderr
    run("report", "run")
    run("check", "run", "--part")
    run("accept", "run", "--to", "baseline")
    run("check", "run", "--baseline", "baseline")


def command_judge_and_reduce(device: str, folder: Path) -> None:
    run("judge", str(captured(device, folder)), f"--device={device}")
    q, k, v, dout = tensors(device)
    with accuracy.capture(None, folder / "wrong", functions=[f"{shared.__name__}:wrong"]):
        shared.wrong(q.requires_grad_(), k.requires_grad_(), v.requires_grad_()).backward(dout)
    accuracy.capture.wait()
    run("judge", "wrong", f"--device={device}", status=5)
    run("reduce", "wrong", "--to=least.py", f"--device={device}")
    assert python("least.py", folder=folder).returncode == 1  # a file that stands alone


def command_tolerance(device: str, folder: Path) -> None:
    run("tolerance", "q_shape=1,64,2,32", "dtype=bfloat16", "kernel=eager", "seeds=2", f"device={device}")


ENTRIES: dict[str, Callable[[str, Path], None]] = {
    "assert_close": assert_close, "assert_merge_close": assert_merge_close, "bounds": bounds, "measure": measure,
    "diagnose, Diagnosis, ConfigError": diagnose, "assert_accurate": assert_accurate, "tolerance": tolerance,
    "drift, attribute, invariance": paths, "capture, judge": capture_and_judge,
    "compare, load, summary, columns": compare_load_columns, "plot": plot, "from_jax": from_jax,
}  # fmt: skip
COMMANDS = {"report check accept": command_accuracy, "judge reduce": command_judge_and_reduce,
            "tolerance": command_tolerance}  # fmt: skip
ELSEWHERE = (diagnose, assert_accurate, command_accuracy, command_judge_and_reduce)
"""Entries that other tests call on a CPU: here they run on a CPU under --stress alone."""
CALLS = [
    pytest.param(entry, "cpu", marks=pytest.mark.stress if entry in ELSEWHERE else ())
    for entry in (*ENTRIES.values(), assert_close_of_other_calls, *COMMANDS.values())
]
CALLS += [pytest.param(*each.values[:1], "cuda", marks=pytest.mark.gpu) for each in CALLS]


@pytest.mark.parametrize(("entry", "device"), CALLS, ids=lambda each: getattr(each, "__name__", each))
def test_every_entry_and_command_works_on_every_device(
    entry: Callable[[str, Path], None], device: str, tmp_path: Path, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On a GPU a diagnosis goes through all of its grids."""
    if device == "cpu":
        request.getfixturevalue("few_grids")
    monkeypatch.chdir(tmp_path)
    entry(device, tmp_path)


@pytest.mark.parametrize("device", DEVICES)
def test_the_fixture_works_on_every_device(device: str, accuracy_gate: Callable[..., pd.DataFrame]) -> None:
    rows = accuracy_gate(attention, seeds=range(2), device=device, **SMALL)
    assert set(rows["seed"]) == {0, 1}


def test_no_public_name_and_no_command_is_left_out() -> None:
    assert {name for each in ENTRIES for name in each.split(", ")} == {*accuracy.__all__}
    assert {name for each in COMMANDS for name in each.split()} == {*listing.COMMANDS}
