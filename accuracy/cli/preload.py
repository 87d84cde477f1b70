"""The server that workers and ranks are forked from, started before this process imports torch: both import at once.

Whether there will be workers is a guess here. Where it is wrong, nothing is lost but an idle process's second.
"""

import multiprocessing
import os
import signal
from collections.abc import Mapping
from glob import glob
from multiprocessing import forkserver, resource_tracker
from typing import Any


def start(config: Mapping[str, Any]) -> None:
    """Where a composed, unchecked configuration looks as if several processes were to measure."""
    alone = config.get("workers") == 1 and not config.get("case_seconds") and "processes" not in config.get("world", ())
    if alone or config.get("dry_run") or _places() == 1:
        return
    multiprocessing.set_forkserver_preload(
        ["accuracy.cli.run", "accuracy.execute.ranks.agent", "accuracy.execute.worker_process"]
    )
    resource_tracker.ensure_running()  # which lets SIGINT in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is not for the server
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _places() -> int:
    """The machine's GPUs, or the processors that torch would use, without asking it."""
    processors = 1 if os.environ.get("OMP_NUM_THREADS") == "1" else os.cpu_count() or 1
    return len(glob("/dev/nvidia[0-9]*")) or processors
