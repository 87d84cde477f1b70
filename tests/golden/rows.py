"""Eight small experiments on a CPU, and a digest of the numbers in each: equal before and after a change of the code.

    python -m tests.golden.rows FOLDER            # measure, print a digest of each experiment, keep FOLDER/NAME.csv
    python -m tests.golden.rows FOLDER OTHER      # and name the rows in which OTHER's tables differ

Digests are of one machine: a CPU of another kind computes other last digits. What says how long a case took, which code
measured it, and why it has no numbers is left out.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
SMALL = ("problem.seqlen=96", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=16")
SCHEDULES = (
    "single_device,ring,zigzag,striped,llama3,llama3_ring,llama3_zigzag,ulysses,usp,bpt,bpt_ring,split_kv,te_p2p,"
    "te_all_gather,te_a2a"
)
LEFT_OUT = ("case_id", "experiment", "code", "reason", "seconds", "peak_bytes", "device")  # fmt: skip
PLANTED = ",".join(f"tests.golden.ring.{name}" for name in ("wrong_scale", "doubled_gradient", "dropped_block"))
EXPERIMENTS: dict[str, dict[str, tuple[str, ...]]] = {  # by name, the words of each run by its folder
    "schedules": {"": (f"variant=[{SCHEDULES}]", "dtype=[bfloat16,float16,float32,float64]", "world_size=[1,2,4,8]",
                       "inputs=[gaussian,peaked]", "unusable=record", *SMALL)},
    "package": {"": ("variant=[torch_context_parallel_allgather,transformer_engine_p2p]", "dtype=[bfloat16,float32]",
                     "world_size=[1,2]", "unusable=record", *SMALL)},
    "function": {"": ("variant=callable", "variant.fn=tests.golden.ring.ring", "dtype=[bfloat16,float32]",
                      "world_size=[1,2,3]", *SMALL)},
    "eight_bits": {"": ("variant=[single_device,ring]", "kernel=quantised", "dtype=[bfloat16,float8_e4m3]",
                        "world_size=[1,4]", "unusable=record", *SMALL)},
    "paths": {"": ("path_a=[ring@4,te_p2p@4]", "path_b=[single_device,split_kv]", "dtype=[bfloat16,float32]", *SMALL)},
    "diagnose": {
        "healthy": ("experiment=diagnose", "variant=ring"),
        "planted": ("experiment=diagnose", "variant=callable", f"variant.fn=[{PLANTED}]", "world_size=[1,2]",
                    "also=null", "dtype=[float64,float32]", "reruns.explain=true", *SMALL, "problem.seqlen=40"),
    },
    "captured": {"run": ("inputs=captured", "variant=[ring,single_device]", "world_size=[1,2]")},
    "gate": {"": ("experiment=regression", "seed=[0,1]", *SMALL, "unusable=record")},
}  # fmt: skip


def run(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)
    if done.returncode not in (0, 3, 5):
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def measure(name: str, folder: Path) -> None:
    """Run an experiment's commands on the CPU, in one process; `captured` on what a small model captured and judged."""
    own: tuple[str, ...] = ()
    if name == "captured":
        run("-c", f"from tests.golden.model import capture; capture({str(folder / 'capture')!r})")
        own = (f"inputs.captured.path={folder / 'capture'}",)
    for place, words in EXPERIMENTS[name].items():
        how = (f"output_dir={folder / place}", "report=false", "device=cpu", "workers=1")
        run("-m", "accuracy", *words, *own, *how)


def table(folder: Path) -> pd.DataFrame:
    """The rows of all runs below a folder, in an order of their own, without what is left out."""
    files = sorted(folder.rglob("results/*.parquet"))
    rows = pd.concat([pd.read_parquet(path) for path in files], ignore_index=True)
    judged = folder / "capture" / "judgement.csv"
    if judged.exists():
        rows = pd.concat([rows, pd.read_csv(judged)], ignore_index=True)
    rows = rows[sorted(set(rows.columns) - {*LEFT_OUT})].astype(object).map(_text)
    rows["inputs_options"] = rows["inputs_options"].str.replace(str(folder), "", regex=False)
    return rows.sort_values(list(rows.columns), ignore_index=True)


def _text(value: object) -> str:
    if value is None or value != value:
        return ""
    return float(value).hex() if isinstance(value, float) and not value.is_integer() else str(value).removesuffix(".0")


def digest(rows: pd.DataFrame) -> str:
    """Of the columns that hold something: a column that is empty may be absent."""
    kept = rows[[name for name in rows if (rows[name] != "").any()]]
    return hashlib.sha256(kept.to_csv(index=False).encode()).hexdigest()[:16]


def main(folder: str, other: str = "") -> None:
    here = Path(folder)
    for name in EXPERIMENTS:
        place = here / name
        place.mkdir(parents=True, exist_ok=True)
        measure(name, place)
        rows = table(place)
        rows.to_csv(here / f"{name}.csv", index=False)
        print(f"{name} {len(rows)} {digest(rows)}", flush=True)
        if other:
            print(difference(rows, pd.read_csv(Path(other) / f"{name}.csv", dtype=str).fillna("")), flush=True)


def difference(rows: pd.DataFrame, before: pd.DataFrame) -> str:
    """Which rows two tables do not share; columns that hold something in one alone are named, and left aside."""
    shared = [name for name in before if name in rows]
    alone = [name for each in (before, rows) for name in each if name not in shared and (each[name] != "").any()]
    left = pd.concat([before[shared], rows[shared]]).drop_duplicates(keep=False)
    key = [name for name in ("variant", "dtype", "world_size", "inputs", "seed", "mask", "seqlen", "tensor", "rank")
           if name in shared]  # fmt: skip
    said = f"  of {len(before)} and {len(rows)} rows {len(left)} differ; columns of one table: {alone}"
    return f"{said}\n{left[key].head(6).to_string(index=False)}"


if __name__ == "__main__":
    main(*sys.argv[1:])
