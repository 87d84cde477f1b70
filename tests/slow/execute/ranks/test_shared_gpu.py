import socket
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import torch.distributed as dist

import accuracy
from accuracy.core.errors import ConfigError
from accuracy.execute.dispatch import measure as measure_plans
from accuracy.execute.plan import plan
from accuracy.execute.ranks import rendezvous
from accuracy.execute.start import Launch
from accuracy.results import table
from accuracy.verdict.label import BUGS
from tests import planting
from tests.measuring import COSTS, TINY, configuration
from tests.processes import python

pytestmark = pytest.mark.xdist_group("processes")
SHARED = ("world=processes", "world.processes.share_gpu=true")
SCHEDULES = ("ring", "zigzag", "striped", "llama3", "double_ring", "ulysses", "usp", "te_all_gather")
DEVICES = [("cpu", "[1,2,3,4]"), pytest.param("cuda", "[1,2,4,8,16]", marks=pytest.mark.gpu)]


def run(folder: Path, *words: str, parts: Path | None = None) -> pd.DataFrame:
    """Measure into the folder as the command does; its rows."""
    folder.mkdir()
    asked = configuration("reference.folder=null", *words, folders=[parts] if parts else [])
    plans = plan(asked, None)
    for _ in measure_plans(asked, folder, plans, None, lambda case: None):
        pass
    return table.read_results(folder)


@pytest.mark.parametrize(("device", "sizes"), DEVICES)
def test_ranks_that_share_a_device_have_the_simulated_bits(tmp_path: Path, device: str, sizes: str) -> None:
    """Data movement is exact, and our schedules add by themselves. A GPU is shared without being told: it is one."""
    told = SHARED if device == "cpu" else SHARED[:1]
    problem = ("problem.seqlen=192", "problem.heads=16", "problem.heads_kv=16", "problem.head_dim=16")
    words = (*problem, f"variant=[{','.join(SCHEDULES)}]", f"world_size={sizes}", "dtype=[bfloat16,float32]",
             "unusable=record", f"device={device}", *told, "+also.again={world:{simulated:{}}}")  # fmt: skip
    rows = run(tmp_path / "run", *words, *(["kernel=eager"] if device == "cpu" else []))
    shared = rows["sums"].eq("ring")
    alone = torch.cuda.device_count() if device == "cuda" else 1
    assert (shared == (rows["world"].eq("processes") & rows["world_size"].gt(alone))).all()
    assert set(rows.loc[shared & rows["status"].eq(table.OK), "variant"]) == set(SCHEDULES)
    order = ["variant", "world_size", "dtype", "tensor", "rank"]
    both = [
        rows[rows["world"] == world].drop(columns=[*COSTS, "case_id", "world", "sums"]).sort_values(order)
        for world in ("processes", "simulated")
    ]
    pd.testing.assert_frame_equal(*(each.reset_index(drop=True) for each in both), check_exact=True)


STARTED_ANEW = "further cases have a new process"
PACKAGES = (
    "ring_flash_attn_ring", "ring_flash_attn_zigzag", "ring_flash_attn_llama3", "yunchang_zigzag", "ringmaster_zigzag",
    "transformer_engine_p2p", "transformer_engine_all_gather", "transformer_engine_a2a",
    "torch_context_parallel_alltoall", "torch_flex_context_parallel_balanced",
)  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_packages_have_the_digits_that_they_have_over_gloo_and_nccl(
    tmp_path: Path, device: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two ranks no sum has another order. None is told to have changed torch, and costs its ranks a new start."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    words = ["problem.seqlen=512", "problem.heads=4", "problem.heads_kv=4", "problem.head_dim=32", f"device={device}"]
    words += [f"variant=[{','.join(PACKAGES)}]", "world_size=2", "dtype=bfloat16", "unusable=record", SHARED[0]]
    words += ["kernel=eager"] if device == "cpu" else ["kernel=[flash_attn,flex_attention]"]
    shared, apart = (
        run(tmp_path / said, *words, f"world.processes.share_gpu={said}").drop(columns=[*COSTS, "case_id", "sums"])
        for said in ("true", "false")
    )
    assert STARTED_ANEW not in capfd.readouterr().err
    order = ["variant", "kernel", "tensor", "rank"]
    assert (shared["status"] == table.OK).any()
    assert shared.loc[shared["status"] == table.FAILED, "reason"].tolist() == []
    pd.testing.assert_frame_equal(
        *(each.sort_values(order, ignore_index=True) for each in (shared, apart)), check_exact=True
    )


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_rank_that_fails_on_a_shared_device_costs_its_case_alone(tmp_path: Path, device: str) -> None:
    for name, (statement, _) in FAULTS.items():
        planting.first(tmp_path / "mine", name, f"if rank.world.rank == 1: {statement}")
    file = tmp_path / "mine" / "variant" / "changes_what_it_sends.py"
    file.write_text(file.read_text() + CHANGED)
    words = (f"variant=[ring,{','.join(FAULTS)},zigzag]", "world_size=3", "world.processes.timeout_seconds=6")
    words += (f"device={device}", "kernel=eager", *SHARED)
    rows = run(tmp_path / "run", *TINY, *words, parts=tmp_path / "mine")
    reasons = rows.drop_duplicates("case_id").set_index("variant")["reason"]
    assert not [name for name, (_, reason) in FAULTS.items() if not reasons[name].startswith(reason)], reasons.to_dict()
    assert set(rows.loc[rows["status"] == table.OK, "variant"]) == {"ring", "zigzag"}


class Gathered(torch.autograd.Function):
    """All ranks' tokens; backward, the library adds."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, parts = group, [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        parts = [x.contiguous() for x in gradient.chunk(dist.get_world_size(ctx.group), 1)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=ctx.group)
        return mine, None


def gathering(q, k, v, *, causal=True, softmax_scale=None, group=None, late=0):
    """Keys and values of all ranks; late: by how many tokens too early the mask lets a query see."""
    first = dist.get_rank(group) * q.shape[1]
    keys, values = Gathered.apply(k, group), Gathered.apply(v, group)
    rows = torch.arange(q.shape[1], device=q.device)[:, None] + first + late
    mask = (rows >= torch.arange(keys.shape[1], device=q.device)) | (not causal)
    tensors = (x.transpose(1, 2) for x in (q, keys, values))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*tensors, attn_mask=mask, scale=softmax_scale, enable_gqa=True).transpose(1, 2)


def test_ranks_share_where_there_are_more_than_gpus_unless_told() -> None:
    """A case of ranks that share is another case: its sums have an order."""

    def orders(*words: str, with_own_gpu: int = 2) -> dict[int, str]:
        asked = configuration(*TINY, "kernel=eager", "variant=ring", "world_size=[1,2,4]", "device=cpu", *words)
        plans = plan(asked, None, None, with_own_gpu)
        assert len({each.case.id for each in plans}) == 3
        return {each.case.world_size: each.case.sums for each in plans}

    real, apart = "world=processes", {1: "", 2: "", 4: ""}
    assert orders(real) == {1: "", 2: "", 4: "ring"}
    assert orders(real, with_own_gpu=4) == orders("world=simulated") == apart
    assert orders(real, "world.processes.share_gpu=false") == apart
    assert orders(*SHARED, with_own_gpu=4) == {1: "", 2: "ring", 4: "ring"}
    assert orders(real, "world.processes.sums=tree", with_own_gpu=4) == {1: "", 2: "tree", 4: "tree"}


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
        return rendezvous.with_own_gpu(Launch("srun", 0, 1 + len(others), 0, "here", 1), must)

    assert found(f"{host} b", f"{host} b", f"{host} c") == 2
    assert found(f"{host} b", "other b", "other a", must=True) == 4
    with pytest.raises(ConfigError, match=f"ranks 1 and 2 on {host} share a GPU; .* drop world.processes.share_gpu"):
        found(f"{host} b", f"{host} b", must=True)
    with pytest.raises(ConfigError, match="rank 1 on other has no GPU"):
        found("other ")


CALLER = """
import os, sys, torch, torch.distributed as dist
import accuracy
import accuracy.world.shared_gpu
from mine import gathering

torch.set_num_threads(1)
if sys.argv[1] == "cpu":
    dist.init_process_group("shared_gpu")
rows = accuracy.measure({"mine": gathering}, world_size=[1, 2, 4], device=sys.argv[1], seqlen=64, heads=4, heads_kv=2,
                        head_dim=16)
if os.environ["RANK"] == "3":
    print(rows.groupby("world_size")["sums"].unique().map(list).to_dict(), sorted(set(rows["status"])))
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_caller_s_processes_share_a_device(tmp_path: Path, device: str) -> None:
    """Under torchrun, whose processes share the machine's one GPU without being told."""
    if torch.cuda.device_count() > 1:
        pytest.skip("has a GPU for more than one rank")
    (tmp_path / "mine.py").write_text(Path(__file__).read_text())
    (tmp_path / "script.py").write_text(CALLER)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "script.py", device)
    done = python(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{{1: [''], 2: ['ring'], 4: ['ring']}} {[table.OK, table.UNSUPPORTED]}"


def wrong_at_8(q, k, v, *, causal=True, softmax_scale=None, group=None):
    """Right at every other number of ranks."""
    late = int(dist.get_world_size(group) == 8 and dist.get_rank(group) == 5)
    return gathering(q, k, v, causal=causal, softmax_scale=softmax_scale, group=group, late=late)


def test_a_library_s_sums_are_added_in_the_order_that_the_table_names(tmp_path: Path) -> None:
    """bfloat16 rounds each addition: of 4 ranks no two orders give the same dk; what moves alone has the same bits."""
    (tmp_path / "mine.py").write_text(Path(__file__).read_text())
    words = [*TINY, "kernel=eager", "world_size=4", "dtype=bfloat16", *SHARED]
    words += ["variant=callable", f"variant.callable.fn={tmp_path}/mine.py:gathering"]
    found = [run(tmp_path / order, *words, f"world.processes.sums={order}") for order in ("ring", "tree", "rank_order")]
    rows = pd.concat(found)
    assert set(rows["status"]) <= {table.OK, table.UNSUPPORTED}
    assert rows.groupby("sums")["case_id"].nunique().to_dict() == {"ring": 1, "tree": 1, "rank_order": 1}
    whole = rows[rows["rank"] == table.ALL_RANKS].groupby("tensor")["error_rel"].nunique()
    assert (whole["out"], whole["dq"], whole["dk"], whole["dv"]) == (1, 1, 3, 3)


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
