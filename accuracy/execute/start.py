"""How processes start: this one (alone, or as one of many by torchrun, by SLURM's srun or by submitit), and those that
it starts itself, which are forked from a server that has imported torch once."""

import atexit
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver, resource_tracker
from typing import Any, NamedTuple

from accuracy.core.errors import ConfigError
from accuracy.execute import leftovers

GRADIENTS = "torch.fx.experimental.symbolic_shapes"  # torch imports it with the first gradient
OF_WORKERS, OF_RANKS = ("accuracy.execute.worker", GRADIENTS), ("accuracy.execute.ranks.agent", GRADIENTS)
"""What the server imports for its processes, beside pandas, which pyarrow imports with the first rows it writes."""
NAMES = {  # rank, size, rank on this machine, processes on it
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "submitit": (
        "SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS", "SUBMITIT_LOCAL_LOCALID", "SUBMITIT_LOCAL_NTASKS",
    ),
}  # fmt: skip
"""A batch script of SLURM has no step: it is one process, whatever its job has reserved."""

only_workers_measure = False
"""Whether this process is the console command: it hands every case to another process, which may hang or end."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@contextmanager
def ends_after(seconds: float) -> Iterator[None]:
    """End this process, which says where it is, when the body takes longer, whatever it does. Such bodies do not
    nest."""
    faulthandler.dump_traceback_later(min(seconds, threading.TIMEOUT_MAX), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Launch(NamedTuple):
    """One of `size` processes that `by` started; they meet at host:port. agent: whether torchrun's store is there;
    one_host: whether all of them are on this machine."""

    by: str
    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    agent: bool = False
    one_host: bool = True


def launch(environment: Mapping[str, str]) -> Launch | None:
    """Return what the environment says, None for a process that was started alone. Raises ConfigError."""
    for by, (*names, here) in NAMES.items():
        if not all(name in environment for name in names):
            continue
        rank, size, local_rank = (_number(name, environment[name]) for name in names)
        if size == 1:
            return None
        host = environment.get("MASTER_ADDR") or _first_host(environment)
        agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        one_host = environment.get(here) == str(size) or host in LOOPBACK
        return Launch(by, rank, size, local_rank, host, _port(environment), agent, one_host)
    return None


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r} in the environment; allowed: a whole number")
    return int(text)


def _port(environment: Mapping[str, str]) -> int:
    """MASTER_PORT, or one that the job's number leads every process to."""
    if "MASTER_PORT" in environment:
        return _number("MASTER_PORT", environment["MASTER_PORT"])
    job = environment.get("SLURM_JOB_ID") or environment.get("SUBMITIT_LOCAL_JOB_ID") or ""
    return 20000 + int("0" + "".join(filter(str.isdigit, job))) % 10000


def _first_host(environment: Mapping[str, str]) -> str:
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        return "127.0.0.1"
    try:
        shown = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"scontrol cannot list the hosts {nodes} ({error}); set MASTER_ADDR") from error
    return shown.stdout.split()[0]


def preload(modules: Sequence[str]) -> None:
    """Let the server import these, unless it has started already."""
    multiprocessing.set_forkserver_preload([*modules, "pandas"])


def start_server(modules: Sequence[str]) -> None:
    """Start the server, which imports the modules while this process goes on, and the guard of its processes."""
    preload(modules)
    resource_tracker.ensure_running()  # it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is not for the server
    try:
        _start_guard()
        os.environ[leftovers.NAME] = _mark()
        forkserver.ensure_running()
    finally:
        os.environ.pop(leftovers.NAME, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def _mark_of(process: int) -> str:
    return f"{process}-{os.urandom(8).hex()}"


def _mark() -> str:
    return _mark_of(os.getpid())


_guards: dict[int, "subprocess.Popen[bytes]"] = {}


def _start_guard() -> None:
    """Once a process. Its input is a pipe whose other end no other process has."""
    process = os.getpid()
    if process not in _guards and only_workers_measure:  # whoever imports the package may use the server, too
        atexit.register(leftovers.kill, _mark())
    if process not in _guards and os.path.isdir("/proc/self"):
        words = [sys.executable, "-I", "-S", leftovers.__file__, _mark()]
        quiet = subprocess.DEVNULL
        _guards[process] = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True
        )


_runs = 0


@contextmanager
def no_process_stays() -> Iterator[None]:
    """Kill at the end what the body started, and what that started; the server stays. Of concurrent runs the last one's
    end counts."""
    global _runs
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1
        if not _runs:
            own = {each.pid or 0 for each in multiprocessing.active_children()}
            leftovers.kill(_mark(), forkserver._forkserver._forkserver_pid or 0, own)  # type: ignore[attr-defined]


@contextmanager
def starting() -> Iterator[None]:
    """Start processes in the body. Without this multiprocessing would import the main module in each of them, so that a
    script without a guard would run again, and would fix how all processes of the caller are started."""
    names: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: names.pop(name) for name in ("__spec__", "__file__") if name in names}
    names["__spec__"] = None
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        names.update(hidden)
        if before is None:
            multiprocessing.set_start_method(None, force=True)


def end_with_parent(status: int) -> None:
    """Let this process exit with the status once the process that started it is gone."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(status)

    threading.Thread(target=wait, daemon=True).start()
