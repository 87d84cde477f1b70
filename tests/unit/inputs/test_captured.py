import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

from accuracy.core import plugins
from accuracy.inputs import captured, drawing
from accuracy.measurement.provenance import code_of
from tests.measuring import case_of, measure, refused

B, S, H, HK, D = 2, 12, 4, 2, 8
ALONE = ("variant=single_device", "world_size=1", "inputs=captured")


def tensors(layer: str = "layer_0") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"q": H, "k": HK, "v": HK, "dout": H}
    return {f"{layer}.{name}": torch.randn(B, S, heads, D, generator=generator) for name, heads in shapes.items()}


def write(folder: Path, content: dict[str, torch.Tensor]) -> Path:
    save_file(content, folder / "model.safetensors")
    return folder / "model.safetensors"


def asked(path: Path, **problem: object) -> list[str]:
    given = {"batch": B, "seqlen": S, "heads": H, "heads_kv": HK, "head_dim": D, **problem}
    return [*ALONE, f"inputs.captured.path={path}", *(f"problem.{name}={value}" for name, value in given.items())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_problem_takes_the_first_sequences_and_tokens_of_what_the_file_holds(tmp_path: Path, dtype) -> None:
    held = {name: x.to(dtype) for name, x in tensors().items()}
    path = write(tmp_path, held)
    for batch, seqlen in ((B, S), (1, 5)):
        case = case_of(*asked(path, batch=batch, seqlen=seqlen))
        for name, x in drawing.draw(case.inputs, case.problem, case.seed).items():
            assert torch.equal(x, held[f"layer_0.{name}"][:batch, :seqlen].double())


def test_a_problem_that_the_file_cannot_serve_is_unsupported_before_any_work(tmp_path: Path) -> None:
    path = write(tmp_path, tensors())
    for word, message in {
        "problem.seqlen=13": "problem.seqlen=13; allowed: 1 to 12",
        "problem.batch=3": "problem.batch=3; allowed: 1 to 2",
        "problem.heads_kv=4": "problem.heads_kv=2, not 4; use that",
        "problem.seqlen_q=6": "problem.seqlen_q=null, not 6; use that",
        "seed=1": "there is no seed=1; allowed: 0",
    }.items():
        assert message in refused(*asked(path), word)


def test_a_file_that_is_no_capture_is_refused_in_one_line(tmp_path: Path) -> None:
    good, header = tensors(), b'{"layer_0.q": {"dtype": "F32", "shape": [1, 4, 1, 1], "data_offsets": [0, 16]}}'
    three = torch.zeros(B, S, 3, D)
    content: bytes | dict[str, torch.Tensor] | None
    for number, (content, message) in enumerate((
        (None, "is no file; allowed: a safetensors file, or empty"),
        (save(good)[:-100], "cannot be read as safetensors"),
        (struct.pack("<Q", len(header)) + header + b"\0" * 8, "cannot be read as safetensors"),
        ({name: x for name, x in good.items() if name != "layer_0.dout"}, "lacks layer_0.dout; allowed: layer_0"),
        (tensors("model.layers.7"), "lacks layer_0.q, layer_0.k, layer_0.v, layer_0.dout; allowed: model.layers.7"),
        (good | {"layer_0.k": three, "layer_0.v": three.clone()}, "Hk a divisor of H"),
    )):  # fmt: skip
        path = tmp_path / f"{number}.safetensors"
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else save(content))
        line = refused(*asked(path))
        assert line.startswith("inputs.captured: ")
        assert message in line


def test_values_that_are_not_finite_fail_the_case(tmp_path: Path) -> None:
    held = tensors()
    held["layer_0.v"][1, 3, 0, 2] = torch.nan
    (row,) = measure(*asked(write(tmp_path, held)), "dtype=float32").to_dict("records")
    assert row["status"] == "failed"
    assert "layer_0.v in" in row["reason"]
    assert "not finite" in row["reason"]


def test_another_content_is_another_code_also_of_the_same_path_in_the_same_process(tmp_path: Path) -> None:
    case = case_of(*asked(write(tmp_path, tensors()), seqlen=5))
    (q, *_) = drawing.draw_shard(case, 0)
    before = plugins.read_digest(case.inputs), code_of(case)
    assert (plugins.read_digest(case.inputs), code_of(case)) == before
    path = write(tmp_path, {name: x[:, :5] + 1 for name, x in tensors().items()})
    after = plugins.read_digest(case.inputs), code_of(case)
    assert not set(after) & set(before)
    assert not torch.equal(drawing.draw_shard(case, 0)[0], q)
    assert "seqlen=12; allowed: 1 to 5" in refused(*asked(path))


def test_the_shipped_file_is_small_and_says_what_it_is() -> None:
    assert captured.SHIPPED.stat().st_size <= 1.5 * 2**20
    with safe_open(captured.SHIPPED, framework="pt") as file:
        assert {"about", "text", "loss", "versions"} <= set(file.metadata())
