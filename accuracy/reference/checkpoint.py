"""How far a long reference has come, kept on disk, so that a kill costs no more than what was computed since.

Each writing adds a file of what was finished since the one before, and one of what is still being added to, which takes
the place of its predecessor. Files are replaced whole, carry a checksum, and name the computation they belong to and
the places between which they lie: a chain of them that is damaged, broken or another computation's is not used, and a
warning says so. Nothing is forced to the disk: this is for a killed process; what a lost machine leaves is a damaged
file.
"""

import fcntl
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

SECONDS = 10.0
"""Between two writings at least."""

Pieces = dict[str, Tensor]
"""Parts of the results, by a name that says which."""


@dataclass(frozen=True, order=True)
class Place:
    """How far a computation has come: how many groups of heads are done; of the next one the rows whose forward and the
    keys whose backward is."""

    group: int = 0
    rows: int = 0
    keys: int = 0


START = Place()


@dataclass
class Checkpoint:
    """folder: of this computation alone; key: names all that it depends on; seconds: between two writings at least."""

    folder: Path
    key: str
    seconds: float = SECONDS
    clock: Callable[[], float] = time.monotonic
    written: Place = START
    count: int = 0
    since: float | None = None
    _lock: IO[bytes] | None = None
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _writing: Future[None] | None = None
    _memory: Tensor | None = None

    def read(self) -> Iterator[Pieces]:
        """What is on disk, file after file; `written` is how far that is. Another process' is not read."""
        self.since = self.clock()
        count = max((int(path.stem.split("-")[1]) for path in self.folder.glob("open-*.npz")), default=0)
        if not count or not self._locked():
            return
        reached = START
        for number in range(1, count + 1):
            begin, reached_now, pieces = self._load(self.folder / f"done-{number}.npz")
            if begin != reached:
                raise ValueError(f"done-{number}.npz does not go on where the file before it ends")
            reached = reached_now
            yield pieces
        begin, end, pieces = self._load(self.folder / f"open-{count}.npz")
        if (begin, end) != (reached, reached):
            raise ValueError(f"open-{count}.npz is not of the place that done-{count}.npz ends at")
        yield pieces
        self.written, self.count = reached, count

    def refuse(self, error: Exception) -> None:
        """Say that what is on disk is not used, and begin anew."""
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"reference computed anew, its checkpoint {self.folder} is not used: {reason}", stacklevel=2)
        self.written, self.count = START, 0
        for path in self.folder.glob("*.npz"):
            path.unlink(missing_ok=True)

    def due(self) -> bool:
        """Whether it is time to write; the clock starts with the first question."""
        if self.since is None:
            self.since = self.clock()
        return self.clock() - self.since >= self.seconds

    def write(self, place: Place, finished: Pieces, unfinished: Pieces) -> None:
        """Write both in a thread of their own, after what is being written; `finished`: since the place written last.
        Where another process writes here, or the disk is full, nothing."""
        if not self._settled() or not self._locked():
            self.seconds = float("inf")
            return
        copied = {name: x.to("cpu", copy=True).numpy() for name, x in finished.items()}
        self.count += 1
        self._writing = self._writer.submit(
            self._save, self.count, self.written, place, copied, self._copies(unfinished)
        )
        self.written, self.since = place, self.clock()

    def _copies(self, pieces: Pieces) -> dict[str, Any]:
        """What is written anew each time, in one memory, for a GPU pinned: what it held before has been written."""
        sizes = [x.numel() for x in pieces.values()]
        if self._memory is None or self._memory.numel() < sum(sizes):
            pinned = any(x.is_cuda for x in pieces.values())
            self._memory = torch.empty(sum(sizes), dtype=torch.float64, pin_memory=pinned)
        parts = self._memory[: sum(sizes)].split(sizes) if sizes else ()
        return {
            name: part.view(x.shape).copy_(x).numpy() for part, (name, x) in zip(parts, pieces.items(), strict=True)
        }

    def done(self) -> None:
        """The computation is over: nothing is left on disk."""
        self._settled()
        self._writer.shutdown()
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.close()
            self._lock = None

    def _settled(self) -> bool:
        """Wait for what is being written; whether that went well."""
        if self._writing is None:
            return True
        try:
            self._writing.result()
        except OSError as error:
            warnings.warn(f"no reference checkpoint in {self.folder}: {error}", stacklevel=3)
            return False
        return True

    def _locked(self) -> bool:
        """Whether this process is the one that uses the folder."""
        if self._lock is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = open(self.folder / "lock", "wb")  # noqa: SIM115 (held until the process ends)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if not isinstance(error, BlockingIOError):  # that of a process that computes the same
                    warnings.warn(f"no reference checkpoint in {self.folder}: {error}", stacklevel=3)
                self._lock = None
                return False
        return True

    def _save(
        self, number: int, begin: Place, end: Place, finished: dict[str, Any], unfinished: dict[str, Any]
    ) -> None:
        self._replace(self.folder / f"done-{number}.npz", begin, end, finished)
        self._replace(self.folder / f"open-{number}.npz", end, end, unfinished)
        (self.folder / f"open-{number - 1}.npz").unlink(missing_ok=True)

    def _replace(self, path: Path, begin: Place, end: Place, arrays: dict[str, Any]) -> None:
        hidden = path.with_name(f".{path.name}")
        with open(hidden, "wb") as handle:
            about: dict[str, Any] = {"key": np.array(self.key), "places": np.array([astuple(begin), astuple(end)])}
            np.savez(handle, **about, **arrays)  # every member has a CRC, which reading checks
        os.replace(hidden, path)

    def _load(self, path: Path) -> tuple[Place, Place, Pieces]:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        if (key := str(arrays.pop("key"))) != self.key:
            raise ValueError(f"{path.name} is of another computation ({key}, not {self.key})")
        begin, end = (Place(*map(int, place)) for place in arrays.pop("places"))
        return begin, end, {name: torch.from_numpy(x) for name, x in arrays.items()}
