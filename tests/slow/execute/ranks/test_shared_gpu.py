import socket
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.distributed as dist

import accuracy
from accuracy.core.errors import ConfigError
from accuracy.execute.plan import plan
from accuracy.execute.ranks import rendezvous
from accuracy.execute.start import Launch
from accuracy.results import table
from accuracy.verdict.label import BUGS
from tests import planting
from tests.measuring import TINY, comparable, configuration, run
from tests.processes import launched
from tests.slow.execute.ranks.gathering import gathering, wrong_at_8

pytestmark = pytest.mark.xdist_group("processes")
SHARED = ("world=processes", "world.processes.share_gpu=true")
SCHEDULES = ("ring", "zigzag", "striped", "llama3", "double_ring", "ulysses", "usp", "te_all_gather")
DEVICES = [("cpu", "[1,4]"), pytest.param("cuda", "[1,2,4,8,16]", marks=pytest.mark.gpu)]


@pytest.mark.parametrize(("device", "sizes"), DEVICES)
def test_ranks_that_share_a_device_have_the_simulated_bits(tmp_path: Path, device: str, sizes: str) -> None:
    """Data movement is exact, and our schedules add by themselves. A GPU is shared without being told: it is one; a
    shard there is large enough to stay in its memory."""
    own = (*SHARED, "kernel=eager", "dtype=bfloat16") if device == "cpu" else (*SHARED[:1], "dtype=[bfloat16,float32]")
    length, dim = (192, 16) if device == "cpu" else (2048, 64)
    problem = (f"problem.seqlen={length}", "problem.heads=16", "problem.heads_kv=16", f"problem.head_dim={dim}")
    words = (*problem, f"variant=[{','.join(SCHEDULES)}]", f"world_size={sizes}", "unusable=record",
             f"device={device}", "+also.again={world:{simulated:{}}}")  # fmt: skip
    rows = run(tmp_path / "run", (*words, *own))
    shared = rows["sums"].eq("ring")
    alone = torch.cuda.device_count() if device == "cuda" else 1
    assert (shared == (rows["world"].eq("processes") & rows["world_size"].gt(alone))).all()
    assert set(rows.loc[shared & rows["status"].eq(table.OK), "variant"]) == set(SCHEDULES)
    pd.testing.assert_frame_equal(*(comparable(rows, world) for world in ("processes", "simulated")), check_exact=True)


STARTED_ANEW = "further cases have a new process"
PACKAGES = {path.stem for path in Path("configs/variant").glob("*.yaml") if path.stem.startswith(
    ("ring_", "ringmaster_", "yunchang_", "transformer_engine_", "torch_"))}  # fmt: skip
LEFT = {"transformer_engine_a2a_p2p"}
"""Packages that need more ranks."""
OF_THEIR_OWN = {
    "dtype:float32,kernel:{eager:{}}": ("ring_attention_pytorch_ring", "ring_attention_pytorch_striped"),
    "kernel:{flex_attention:{}}": ("torch_flex_context_parallel_balanced", "torch_flex_context_parallel_contiguous"),
}
WITHOUT_A_FIXED_ORDER = {(name, "dq") for name in PACKAGES if name.startswith("ringmaster_")}
"""ringmaster gives flash-attn no `deterministic`: dq has other bits in some calls."""


@pytest.mark.gpu
def test_packages_have_the_digits_that_they_have_over_nccl(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of two ranks no sum has another order. None is told to have changed torch, and costs its ranks a new start. Over
    gloo each collective is compared (`tests/contract/world`)."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    words = ["problem.seqlen=512", "problem.heads=4", "problem.heads_kv=4", "problem.head_dim=32", "device=cuda"]
    words += [f"variant=[{','.join(sorted(PACKAGES))}]", "world_size=2", "dtype=bfloat16", "unusable=record"]
    for own, names in OF_THEIR_OWN.items():
        named = ",".join(f"{name}:${{variant.{name}}}" for name in names)
        words += [f"+also.{names[0]}={{variant:{{{named}}},{own}}}"]
    words += ["kernel.auto.candidates=[flash_attn,flex_attention,eager]", SHARED[0]]
    shared, apart = (
        comparable(run(tmp_path / said, (*words, f"world.processes.share_gpu={said}"))) for said in ("true", "false")
    )
    assert STARTED_ANEW not in capfd.readouterr().err
    assert shared.loc[shared["status"] == table.FAILED, "reason"].tolist() == []
    assert set(shared.loc[shared["status"] == table.OK, "variant"]) == PACKAGES - LEFT
    other = shared[((shared != apart) & (shared.notna() | apart.notna())).any(axis=1)]
    assert {*zip(other["variant"], other["tensor"], strict=True)} <= WITHOUT_A_FIXED_ORDER


FAULTS = {
    "raises": ("raise ValueError('planted')", "rank 1: ValueError: planted (raises.py:10, in forward)"),
    "is_killed": ("os.kill(os.getpid(), 9)", "rank 1 was killed by signal 9, twice"),
    "is_stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "no answer from rank 1 (stopped) within 6 s"),
    "hangs": ("time.sleep(600)", "no answer from rank"),
    "segfaults": ("__import__('ctypes').string_at(0)", "rank 1 was killed by signal 11, twice"),
    "reads_beyond": ("q.flatten()[torch.full((1,), 1 << 30, device=q.device)].tolist()", "rank 1"),  # a GPU's context
    "changes_what_it_sends": (
        "await changed(rank, q)", "rank 1: RuntimeError: rank 1 wrote to a tensor on its way, before it waited",
    ),
}  # fmt: skip
CHANGED = """
async def changed(rank, q):
    group = rank.world.group
    sent = torch.distributed.isend(q, group=group, group_dst=0)
    q += 1
    sent.wait()
"""


@pytest.mark.gpu
def test_a_rank_that_fails_on_a_shared_device_costs_its_case_alone(tmp_path: Path) -> None:
    """Over the CPU's processes faults end as over gloo (`test_agent`)."""
    for name, (statement, _) in FAULTS.items():
        planting.first(tmp_path / "mine", name, f"if rank.world.rank == 1: {statement}")
    file = tmp_path / "mine" / "variant" / "changes_what_it_sends.py"
    file.write_text(file.read_text() + CHANGED)
    words = (f"variant=[ring,{','.join(FAULTS)},zigzag]", "world_size=3", "world.processes.timeout_seconds=6")
    rows = run(tmp_path / "run", (*TINY, *words, "device=cuda", "kernel=eager", *SHARED), folders=[tmp_path / "mine"])
    reasons = rows.drop_duplicates("case_id").set_index("variant")["reason"]
    assert not [name for name, (_, reason) in FAULTS.items() if not reasons[name].startswith(reason)], reasons.to_dict()
    assert set(rows.loc[rows["status"] == table.OK, "variant"]) == {"ring", "zigzag"}


def test_ranks_share_where_there_are_more_than_gpus_unless_told() -> None:
    """A case of ranks that share is another case: its sums have an order."""

    def orders(*words: str, with_own_gpu: int = 2) -> dict[int, str]:
        asked = configuration(*TINY, "kernel=eager", "variant=ring", "world_size=[1,2,4]", "device=cpu", *words)
        plans = plan(asked, None, None, with_own_gpu)
        assert len({each.case.id for each in plans}) == 3
        return {each.case.world_size: each.case.sums for each in plans}

    real, apart = "world=processes", dict.fromkeys((1, 2, 4), "")
    assert orders(real) == {1: "", 2: "", 4: "ring"}
    assert orders(real, with_own_gpu=4) == orders("world=simulated") == apart
    assert orders(real, "world.processes.share_gpu=false") == apart
    assert orders(*SHARED, with_own_gpu=4) == {1: "", 2: "ring", 4: "ring"}


def test_launched_processes_find_out_which_of_them_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four have GPU b; on another machine it is another GPU, and a scheduler may show each process one."""
    host = socket.gethostname()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="a"))

    def found(*others: str, must: bool = False) -> int:
        store = dist.HashStore()
        monkeypatch.setattr(rendezvous, "_store", lambda launch: store)
        for rank, text in enumerate(others, 1):
            store.set(f"gpu/{rank}", text)
        return rendezvous.with_own_gpu(Launch(0, 1 + len(others), 0, "here", 1), must)

    assert found(f"{host} b", f"{host} b", f"{host} c") == 2
    assert found(f"{host} b", "other b", "other a", must=True) == 4
    with pytest.raises(ConfigError, match=f"ranks 1 and 2 on {host} share a GPU; .* drop world.processes.share_gpu"):
        found(f"{host} b", f"{host} b", must=True)
    with pytest.raises(ConfigError, match="rank 1 on other has no GPU"):
        found("other ")


CALLER = """
import os, torch, accuracy
from tests.slow.execute.ranks.gathering import gathering

torch.set_num_threads(1)
rows = accuracy.measure({"mine": gathering}, world_size=[1, 2, 4], device="cuda", seqlen=64, heads=4, heads_kv=2,
                        head_dim=16)
if os.environ["RANK"] == "3":
    print(rows.groupby("world_size")["sums"].unique().map(list).to_dict(), sorted(set(rows["status"])))
"""


@pytest.mark.gpu
def test_a_caller_s_processes_share_the_machine_s_one_gpu_without_being_told(tmp_path: Path) -> None:
    """Launched as by torchrun."""
    if torch.cuda.device_count() > 1:
        pytest.skip("has a GPU for more than one rank")
    (tmp_path / "script.py").write_text(CALLER)
    *_, last = launched(4, "script.py", folder=tmp_path)
    assert last.returncode == 0, last.stderr
    assert last.stdout.strip() == f"{{1: [''], 2: ['ring'], 4: ['ring']}} {[table.OK, table.UNSUPPORTED]}"


ON_A_GPU = {"device": "cuda", "seqlen": 128, "heads": 4, "heads_kv": 2, "head_dim": 32, "mask": "causal"}


@pytest.mark.gpu
def test_a_fault_that_only_eight_ranks_show_is_found_on_one_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    found = accuracy.diagnose({"mine": wrong_at_8}, world_size=8, device="cuda")
    assert (found.is_bug, found.label in BUGS) == (True, True), found.sentence
    assert STARTED_ANEW not in capfd.readouterr().err  # nor does any case start ranks anew


@pytest.mark.gpu
def test_a_diagnosis_has_one_to_four_ranks_on_one_gpu_and_calls_a_healthy_function_no_bug() -> None:
    found = accuracy.diagnose({"mine": wrong_at_8}, **ON_A_GPU)
    assert {1, 2, 3, 4} == {*found.results.loc[found.results["status"] == table.OK, "world_size"]}
    assert not found.is_bug, found.sentence
    rows = accuracy.measure({"mine": gathering}, world_size=16, **ON_A_GPU)
    assert set(rows.loc[rows["rank"] == 15, "tensor"]) == {"out", "delta", "dq", "dk", "dv"}
    assert set(rows.loc[rows["rank"] == 15, "status"]) == {table.OK}
