import pytest

from accuracy import cli as command
from accuracy.results import table
from tests import planting, processes
from tests.command_line import SHORT, CommandLine

OUT_OF_MEMORY = "raise torch.OutOfMemoryError('CUDA out of memory')"
ON_RANK_1 = "if rank.world.rank == 1: {}"
RAISES = "forward", ON_RANK_1.format("raise ValueError('planted')")
BROKEN = {  # which way, what it does in the end, and the reason in the row
    "raises": (*RAISES, "rank 1: ValueError: planted"),
    "hungry": ("forward", ON_RANK_1.format(OUT_OF_MEMORY), "rank 1: OutOfMemoryError: CUDA out of"),
    "gives_nan": ("backward", "dq[0, 0, 0, :2] = torch.nan", "4 non-finite values in dq"),  # two on each rank
    "upcasts": (
        "backward", "dv = dv.double() if rank.world.rank == 1 else dv",
        "WrongResult: dv came as float64, expected float32",
    ),
    "misshapes": ("backward", "dk = dk[:, :1]", "WrongResult: dk came as (1, 1, 2, 8), expected (1, 16, 2, 8)"),
    "waits_for_ever": (
        "backward", "rank.world.rank == 0 and await rank.world.exchange((dq,), 1, 1)", "Deadlock: rank 0 waits for",
    ),
    "writes_to_its_inputs": ("forward", "q.mul_(2)", "rank 0: RuntimeError: the variant wrote to its inputs"),
}  # fmt: skip


def test_a_failing_variant_is_a_row_with_its_reason_and_the_run_goes_on(accuracy: CommandLine) -> None:
    for name, (way, statement, _) in BROKEN.items():
        planting.last(accuracy.folder / "parts", name, way, statement)
    words = (*SHORT, f"variant=[{','.join([*BROKEN, 'zigzag'])}]", "output_dir=run")
    answer = accuracy("--config-dir=parts", *words)
    assert answer.status == 0
    assert f"1 measured, 0 unsupported, {len(BROKEN)} failed" in answer.out
    results = table.read_results(accuracy.folder / "run")
    assert set(results[results["status"] == table.OK]["variant"]) == {"zigzag"}
    for name, (*_, reason) in BROKEN.items():
        (found,) = results.loc[results["variant"] == name, "reason"].unique()
        assert found.startswith(reason)
    assert results[results["variant"] == "gives_nan"]["nonfinite"].max() == 4  # its numbers are kept


def test_when_nothing_could_be_measured_the_status_says_so_every_time(accuracy: CommandLine) -> None:
    """Also when unsupported cases were found done: they are no measurement. (36 tokens: zigzag does not support four
    ranks.)"""
    parts = planting.last(accuracy.folder / "parts", "raises", *RAISES)
    code = (parts / "variant" / "raises.py").read_text()
    planting.variant(parts, "mirrored", code.replace("Planted()", "Planted(shardings=('zigzag',))"), "zigzag")
    words = (*SHORT, "variant=[raises,mirrored]", "world_size=[2,4]", "problem.seqlen=36", "output_dir=run")
    for found in ("", ", 1 found done"):
        answer = accuracy("--config-dir=parts", *words)
        assert answer.status == command.NOTHING_MEASURED
        assert f"0 measured, {0 if found else 1} unsupported, 3 failed{found}" in answer.out


@pytest.mark.stress(1)
@pytest.mark.parametrize("world", ["simulated", "processes"])
def test_a_full_disk_is_one_line_and_what_was_measured_stays(accuracy: CommandLine, world: str) -> None:
    """No file may be longer than 8,000 bytes: run.json is shorter, a case's is not."""
    words = (*SHORT, "output_dir=run")
    assert accuracy(*words, "seed=[0,1]").status == 0
    limit = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000));"
    code = f"{limit} runpy.run_module('accuracy', run_name='__main__', alter_sys=True)"
    done = processes.python("-c", code, *words, f"world={world}", "seed=[0,1,2]", folder=accuracy.folder)
    told = [line for line in done.stderr.splitlines() if line.startswith("accuracy: ")]
    assert (done.returncode, len(told)) == (2, 1), done.stderr
    assert "(File too large)" in told[0]
    assert "Traceback" not in done.stderr
    assert "3 found done" not in accuracy(*words, "seed=[0,1,2]").out
    assert set(table.read_results(accuracy.folder / "run")["seed"]) == {0, 1, 2}
