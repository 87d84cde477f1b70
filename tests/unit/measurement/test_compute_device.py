"""Small cases of a GPU are compared on the processor; that this changes no number a GPU shows (`make test-gpu`)."""

from dataclasses import replace

from accuracy.core.case import Case
from accuracy.measurement.compute_device import compute_device
from tests import measuring
from tests.measuring import TINY


def case_of(*words: str) -> Case:
    return measuring.case_of(*TINY, "variant=ring", "world_size=2", "device=cpu", *words)


def test_what_is_large_or_compared_with_other_paths_stays_on_the_gpu() -> None:
    small = replace(case_of("kernel=eager"), device="cuda")
    assert compute_device(small) == "cpu"
    middle = replace(small, problem=replace(small.problem, batch=1, seqlen=528, heads=8, heads_kv=2, head_dim=32))
    assert [compute_device(middle, alone=alone) for alone in (False, True)] == ["cpu", "cuda"]
    large, decoding = replace(small.problem, seqlen=65536), replace(small.problem, seqlen=131072, seqlen_q=1)
    away = [replace(small, problem=problem) for problem in (large, decoding)]
    away.append(replace(case_of("kernel=eager", "reruns.batchmates=4"), device="cuda"))
    assert {compute_device(each) for each in away} == {"cuda"}
