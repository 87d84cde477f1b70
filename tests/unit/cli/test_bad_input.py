"""A mistake gets one line (what was given, what is allowed) and exit status 2, and nothing is written."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from accuracy.cli import INTERNAL_ERROR, REPORT_IT, USAGE_ERROR, check, job, judge, reduce, report, tolerance
from tests import planting
from tests.command_line import TINY, CommandLine, assert_one_line, line_of

MAINS: dict[str, Callable[[Sequence[str]], object]] = {
    "accuracy report": report.main, "accuracy check": check.main,
    "accuracy accept": lambda words: check.main(["accept", *words]), "accuracy judge": judge.main,
    "accuracy reduce": reduce.main, "accuracy tolerance": tolerance.main,
}  # fmt: skip
MISTAKES = {  # words, and what the line must contain
    # names
    "variant=rng": ("variant 'rng' is unknown; allowed: bpt, ", "did you mean ring?"),
    "world_sizes=2": ("key 'world_sizes' is unknown", "--help"),
    "variant.ring.forward=no.such": ("no.such cannot be loaded", "No module named 'no'"),
    "--verbose": ("unrecognized arguments: --verbose; write KEY=VALUE",),
    "--config-dir=nowhere": ("config directory '", "nowhere' not found"),
    "variant=ring/../zigzag": ("names no choice of variant: no name has a /",),
    # types and ranges
    "world_size=[1,-2]": ("world_size=-2; allowed: greater than or equal to 1",),
    "threads=1000000": ("threads=1000000; allowed: 1 to 256", "only take memory"),
    "problem.documents=10+10": ("that sum to problem.seqlen=32, as 22+10, or null",),
    "name=a/b": ("name='a/b'; allowed: letters, digits, - and _",),
    "variant.ring=3": ("variant.ring lacks backward, forward, sharding; see configs/",),
    # nothing given
    "path_a=[]": ("[] holds none; give one value or a list of values",),
    "variant=callable variant.fn=[{a:1}]": ("allowed: package.module.function, FILE.py:function",),
    "observers=[null]": ("observers=[null] is no list of names",),
    "+observers.nope={}": ("'nope' is unknown; allowed: conditions, explain",),
    "variant=[]": ("configuration key 'variant' has no value; give one",),
    "kernel=null": ("must be a string or a list", "--help"),
    # a sweep's second job
    "-m variant=ring,nope": ("variant 'nope' is unknown; allowed: bpt, ",),
    # syntax
    "variant": ("'variant' cannot be read", "KEY=VALUE"),
    "variant=ring,zigzag": ("Ambiguous value", "key=[value1,value2]"),
    "+variant=zigzag": ("+variant=zigzag is a second choice of variant; write variant=zigzag",),
    "seed=${nope}": ("'nope' not found",),
    # what does not go together
    "world=processes world_size=4096 problem.seqlen=8192": ("world=processes has 64 ranks here", "not 4096"),
    "workers=2 world=processes": ("workers=2, but world=processes takes the GPUs for the ranks", "use workers=auto"),
    "+also.real.world={processes:{}}": ("allowed: {simulated: {}}, where the main grid has world=processes",),
    "problem.window=4 problem.seqlen_q=8 problem.mask=causal_top_left variant=single_device": (
        "problem.window has no problem.mask=causal_top_left",
    ),
    "variant=usp variant.usp.ulysses_ranks=3": ("3 is odd", "ring=contiguous"),
    "problem.softcap=1 kernel=torch_flash": ("kernel torch_flash has no softcap here: drop problem.softcap=",),
    "variant=callable variant.fn=tests.golden.ring.ring world_size=2 problem.mask=full problem.seqlen=33 "
    "problem.padding=end": ("has no packed documents, which keep padding apart under a full mask",),
    "variant=flash_attn_split world_size=1 kernel=eager": ("on CUDA devices: use kernel=flash_attn, not eager",),
    "variant=ring world_size=4 problem.seqlen=30": (
        "problem.seqlen=30 does not divide into 4 equal parts (contiguous sharding, world_size 4); nearest "
        "allowed: 28 or 32; or pad to 32: problem.padding=end",
    ),
    "variant=ring world_size=3 variant.ring.sharding=20+12": (
        "sharding=20+12 has 2 ranks and 32 tokens, not world_size=3 and problem.seqlen=32",
    ),
    "variant=zigzag world_size=2 variant.zigzag.sharding=20+12": ("sharding=20+12, but schedule zigzag is made for",),
    "problem.heads_kv=3": ("problem.heads_kv=3 does not divide problem.heads=2; allowed: 1, 2",),
    "variant=[llama3,ulysses] precision.merge=double": ("precision.merge changes nothing in llama3, ulysses; drop",),
    "variant=[ring,single_device] world_size=[2,4]": ("variant=single_device: single_device runs on one",),
    "kernel=[torch_flash,flash_attn] device=cpu": ("kernel=flash_attn: kernel flash_attn needs a CUDA device",),
    "kernel=flash_attn device=cpu unusable=record": ("kernel flash_attn needs a CUDA device",),
    "kernel=torch_flash precision.partial=float32": ("torch_flash cannot return float32 partials for bfloat16",),
    "problem.seqlen=1073741824": ("GiB of cpu memory", "lower problem.seqlen"),
}  # fmt: skip


@pytest.mark.stress(12)
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_told_in_one_line(accuracy: CommandLine, words: str) -> None:
    device_word = [] if "device" in words else ["device=cpu"]
    assert_one_line(accuracy(*TINY, *device_word, *words.split()), *MISTAKES[words])
    written = [path.name for path in accuracy.folder.rglob("*") if path.is_file()]
    assert written == (["multirun.yaml"] if words.startswith("-m ") else [])  # Hydra's note of a sweep


def test_a_folder_or_device_that_cannot_be_used_is_told_before_anything_is_measured(
    accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a regular file nobody can write, not even root."""
    (accuracy.folder / "plain").write_text("a file")
    (accuracy.folder / "run").mkdir()
    (accuracy.folder / "run" / "run.json").write_text("{")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for word, *told in (
        ("output_dir=plain/run", "output_dir=plain/run cannot be written (Not a directory); choose another"),
        ("output_dir=run", "run/run.json cannot be read", "choose another output_dir"),
        ("device=cuda", "device=cuda, but torch sees no CUDA device; use device=cpu"),
    ):
        assert_one_line(accuracy(*TINY, word), *told)
    assert {path.name for path in accuracy.folder.iterdir()} == {"plain", "run"}


def test_a_fault_of_ours_has_a_status_and_a_file_of_its_own(
    accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> int:
        raise ValueError("a bug")

    monkeypatch.setattr(tempfile, "tempdir", str(accuracy.folder))
    monkeypatch.setattr(job, "measure", broken)
    answer = accuracy(*TINY)
    assert answer.status == INTERNAL_ERROR
    (file,) = accuracy.folder.glob("accuracy-*.txt")
    assert answer.err == f"accuracy: internal error (ValueError: a bug); {REPORT_IT} and attach {file}\n"
    assert "in broken" in file.read_text()


WRONG = [["--nope"], ["--rows", "-5"], ["--processes=0", "--to"], ["\x1b[31m", "a", "--x"]]
PLACES = ["", "nowhere", "/dev/null", "/dev/null/x", "\x1b[31m", "a\nb", "x" * 300, "x\x00y", "q_shape=9e9", "[", "="]
OPTIONS = {"accuracy judge": "--to", "accuracy reduce": "--to", "accuracy accept": "--to", "accuracy check": "--out"}


@pytest.mark.parametrize("name", MAINS)
def test_wrong_words_of_any_command_and_a_place_that_is_none_are_told_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [["run", OPTIONS[name], text] for text in ("", " ", "a\x1b[31m") if name in OPTIONS]
    for words in (*WRONG, *folders, *([place] for place in PLACES)):
        try:
            status = MAINS[name](words)
        except SystemExit as stopped:
            status = stopped.code
        assert status == USAGE_ERROR, words
        line = line_of(capsys, name)
        assert words not in WRONG or line.endswith(f"({name} --help says what is allowed)\n")
    assert list(tmp_path.iterdir()) == []


BROKEN = {  # code or yaml: what is told
    "def draw(": "SyntaxError",
    "import nothing_of_that_name": "No module named 'nothing_of_that_name'",
    "raise ValueError('two\\nlines')": "ValueError: two lines",
    "x = 1": "lacks draw; see accuracy/inputs/distributions.py",
    "forward: [ring\n": "mine.yaml",
}
NAMELESS = "mine.yaml: its first line must be '# @package inputs.mine'"


def test_broken_code_or_yaml_of_a_users_part_is_told(accuracy: CommandLine) -> None:
    """A YAML copied from another's would measure under that name."""
    for number, (text, told) in enumerate(BROKEN.items()):
        code, config = ("", text) if "yaml" in told else (text, "{}\n")
        planting.part(accuracy.folder / f"parts{number}", "inputs", "mine", code, config)
        assert_one_line(accuracy(f"--config-dir=parts{number}", *TINY, "inputs=mine"), "mine.", told)
    for package in ("# @package inputs.gaussian\n", ""):
        (accuracy.folder / "parts0/inputs/mine.yaml").write_text(f"{package}std: 1.0\n")
        assert_one_line(accuracy("--config-dir=parts0", *TINY, "inputs=[gaussian,mine]"), NAMELESS)
