"""Run the tests that three published packages ship, with and without a fault planted in a copy of the package.

`python -m experiments.packages.their_tests FOLDER TABLE.csv [PROJECT ...]`: FOLDER has a folder for each project, with
its test files at their repository's paths and none of its other files. Ranks that want a GPU each share the first one
(`accuracy.world.shared_gpu`). The projects' rows of the table are replaced.
"""

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

ZERO, NEXT, KEYS = "gradients of zero", "dk and dv of the next rank", "keys and values one token off"
NO_OUT, SCALED = "out of zero", "out times 1.01"
ALL, MOST, SOME = ("", ZERO, NEXT, NO_OUT, SCALED, KEYS), ("", ZERO, NEXT, NO_OUT), ("", ZERO, NO_OUT, SCALED, KEYS)
README = "--causal --attn_impl fa --use_bwd --sp_ulysses_degree 2 --ring_impl_type "  # yunchang's, for 4 ranks
PLAIN = "--compare-regular-attn"  # without it the other side of the comparison is the package's function, too
RINGS = ("ring_*", "zigzag_ring_*", "stripe_*", "ring_*_varlen", "zigzag_ring_*_varlen", "llama3_*_varlen")
FILES = [f"test/test_{ring.replace('*', 'flash_attn')}_func.py" for ring in RINGS]
TESTS: dict[str, tuple[str, int, list[tuple[str, str, tuple[str, ...]]]]] = {
    # package, ranks that torchrun starts (0: the test starts its own 8); then test, arguments, faults
    "ring-flash-attn 0.1.8": ("ring_flash_attn", 2, [
        *((file, "", MOST) for file in FILES),
        ("test/test_llama3_prepare_cu_seqlens.py", "", ("",)), ("test/test_triton_kernels.py", "", ("",)),
    ]),
    "yunchang 0.6.4": ("yunchang", 4, [
        ("test/test_hybrid_attn.py", README + "basic", ALL), ("test/test_hybrid_attn.py", README + "zigzag", ALL),
        ("test/test_hybrid_qkvpacked_attn.py", "", ("",)), ("test/test_ulysses_attn.py", "", ("", ZERO)),
    ]),
    "ring-attention-pytorch 0.5.20": ("ring_attention_pytorch", 0, [
        ("assert.py", "--causal", ("", ZERO, NO_OUT)), ("assert.py", f"--causal {PLAIN}", ("", ZERO, SCALED)),
        ("assert_attn.py", "--causal", ("", ZERO)), ("assert_attn.py", f"--causal {PLAIN}", SOME),
        ("assert_flash.py", "--causal", SOME), ("assert_tree_attn.py", "", ("",)), ("assert_zig_zag.py", "", ("",)),
    ]),
}  # fmt: skip
COLUMNS = ["project", "test", "arguments", "ranks", "machine", "planted", "exit", "said"]
PLANT = "\nfrom experiments.packages.their_tests import plant\nplant(__name__, {!r})\n"


def plant(package: str, fault: str) -> None:
    """Put a fault into every autograd function of an imported package. The last line of its copy calls this."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(f"{package}.")]
    for each in {each for module in modules for each in vars(module).values() if isinstance(each, type)}:
        if issubclass(each, Function) and each.__module__.startswith(package):
            each.forward = staticmethod(partial(_forward, each.forward, fault))
            each.backward = staticmethod(partial(_backward, each.backward, fault))


def _forward(own: Any, fault: str, ctx: Any, *given: Any) -> Any:
    if not all(isinstance(x, Tensor) for x in given[:3]):  # no attention: an exchange of tensors
        return own(ctx, *given)
    if fault == KEYS:
        given = (given[0], *(x.roll(1, -3) for x in given[1:3]), *given[3:])
    result, factor = own(ctx, *given), {NO_OUT: 0.0, SCALED: 1.01}.get(fault, 1.0)
    return (result[0] * factor, *result[1:]) if isinstance(result, tuple) else result * factor


def _backward(own: Any, fault: str, ctx: Any, *given: Any) -> Any:
    found = own(ctx, *given)
    grads = list(found) if isinstance(found, tuple) else [found]
    of = [n for n, x in enumerate(grads) if isinstance(x, Tensor)]
    if fault == ZERO:
        grads = [torch.zeros_like(x) if isinstance(x, Tensor) else x for x in grads]
    for n in of[1:3] if fault == NEXT else ():
        parts = [torch.zeros_like(grads[n]) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grads[n].contiguous())
        grads[n] = parts[(dist.get_rank() + 1) % len(parts)]
    return tuple(grads)


def one_rank(package: str, test: str, *arguments: str) -> None:
    """Be one rank of a test as it is, but for this: its "nccl" is the shared GPU's group, its "cuda:1" is "cuda:0", and
    ring-flash-attn's adapter for transformers, which no test calls, is empty."""
    from accuracy.package.ring_flash_attn import NO_ADAPTERS
    from accuracy.world import shared_gpu

    adapters = types.ModuleType(f"{package}.adapters")
    vars(adapters).update(dict.fromkeys(NO_ADAPTERS))
    sys.modules[adapters.__name__] = adapters
    importlib.import_module(package)
    start, device = dist.init_process_group, torch.device

    class OnTheFirst(type):
        def __call__(cls, *given: Any) -> torch.device:
            return device("cuda:0") if str(given[0]).startswith("cuda") else device(*given)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, device)

    dist.init_process_group = lambda *given, **named: start(shared_gpu.NAME)
    torch.device = OnTheFirst("device", (), {})  # type: ignore[misc]
    sys.argv, sys.path[:0] = [test, *arguments], [str(Path(test).parent)]
    runpy.run_path(test, run_name="__main__")


def said(text: str) -> str:
    """Return the last error; without one, what the test says of itself and its largest difference of each tensor."""
    errors = re.findall(r"^(?:.*\s)?((?!ChildFailed)\w+(?:Error|Exception)(?:: .*)?)$", text, re.MULTILINE)
    largest: dict[str, float] = {}
    name = ""
    for line in text.splitlines():
        number = re.search(r"\bmax ([^,]+),", line)
        if number and "diff" in name:
            largest[name.split()[0]] = max(largest.get(name.split()[0], 0.0), float(number[1]))
        name = name if number else line
    differences = [f"{tensor} {most:.2g}" for tensor, most in largest.items()]
    return errors[-1] if errors else "; ".join([*re.findall("✅ .*", text), *differences])


def run(folder: Path, copy: Path, project: str, test: str, arguments: str, fault: str) -> tuple[object, ...]:
    """Copy the package, plant the fault, run the test; return its row."""
    package, ranks, _ = TESTS[project]
    original = importlib.util.find_spec(package).submodule_search_locations[0]  # type: ignore[union-attr,index]
    shutil.copytree(original, copy / package)
    with open(copy / package / "__init__.py", "a") as file:
        file.write(PLANT.format(fault) if fault else "")
    limit = 60 if torch.cuda.is_available() else 240
    words = f"timeout -k 5 {limit} {sys.executable}"
    if ranks:
        words += f" -m torch.distributed.run --standalone --nproc-per-node {ranks} -m {__spec__.name} --rank {package}"
    command = [*words.split(), str(folder / project.split()[0] / test), *arguments.split()]
    path = os.pathsep.join([str(copy), str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    ranks = ranks or (1 if test == "assert_flash.py" else 8)
    row = (project, test, arguments, ranks, machine, fault, done.returncode, said(done.stdout + done.stderr))
    sys.stdout.write(" | ".join(map(str, row)) + "\n")  # at once: other threads print, too
    sys.stdout.flush()
    return row


def main(folder: str, table: str, *projects: str) -> None:
    """Run the tests of the projects, of all where none is named, and write their rows."""
    rows: list[tuple[object, ...]] = []
    for project in projects or TESTS:
        jobs = [(project, test, words, fault) for test, words, faults in TESTS[project][2] for fault in faults]
        workers = (os.cpu_count() or 4) // 2 if TESTS[project][1] else 1  # tests that start their ranks share a port
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as pool:
            each = [pool.submit(run, Path(folder).resolve(), Path(scratch, str(n)), *job) for n, job in enumerate(jobs)]
            rows += [one.result() for one in each]
    new = pd.DataFrame(rows, columns=COLUMNS)
    old = pd.read_csv(table, keep_default_na=False) if Path(table).exists() else new[:0]
    new = pd.concat([old[~old["project"].isin(new["project"])], new])
    new.sort_values("project", kind="stable").to_csv(table, index=False)


if __name__ == "__main__":
    one_rank(*sys.argv[2:]) if sys.argv[1] == "--rank" else main(*sys.argv[1:])
