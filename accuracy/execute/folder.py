"""A run's folder while a run is in it: one run at a time, of one code and device, without what a killed run left.

Rows of another code are set aside, in `other_code/CODE/` of the folder: nothing that was measured is lost.
"""

import fcntl
import json
import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from accuracy.core.errors import ConfigError, printable
from accuracy.execute.plan import Planned
from accuracy.measurement.provenance import code_of, fingerprint
from accuracy.results import storage, table
from accuracy.variant.base import schedule_of

LOCK = ".lock"
LEFT = re.compile(r"\..+\.\d+")  # `.CASE.parquet.PID`: written in part by a process that was killed
OTHER_CODE = "other_code"
ASKED = ["code", "variant", "options"]  # of a file's rows, to see whose they are
SAID = logging.getLogger("accuracy")


@contextmanager
def opened(folder: Path, device: str) -> Iterator[None]:
    """The folder, made if need be, and kept from other runs while the body runs. Raises ConfigError where it cannot be
    written, is another run's at the moment, or holds rows of another code or device."""
    make_writable("output_dir", folder)
    with _locked(folder):
        if (folder / "run.json").exists():
            earlier = table.read_run(folder)["fingerprint"]
            now = json.loads(json.dumps(fingerprint(device), default=str))
            if changed := sorted(key for key in now if earlier.get(key) != now[key]):
                details = "; ".join(f"{key} was {earlier.get(key)}, is {now[key]}" for key in changed[:3])
                holds = f"output_dir={folder} holds rows of another setting"
                raise ConfigError(f"{holds} ({details}); choose another output_dir")
        places = (folder, *(folder / name for name in table.DATASETS))
        for path in (each for place in places for each in place.glob("*") if each.is_file()):
            if LEFT.fullmatch(path.name):
                path.unlink()
            elif path.parent != folder and path.suffix != ".parquet":
                SAID.warning("accuracy: %s is no file of a run and is not read", path)
        yield


def make_writable(where: str, folder: Path) -> None:
    """Make a folder and see that files can be made in it. Raises ConfigError; where: the knob that names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))  # more than a small case has
    except OSError as error:
        raise ConfigError(f"{where}={folder} cannot be written ({error.strerror}); choose another") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The system frees the lock when its holder ends, however that happens."""
    with open(folder / LOCK, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = printable(file.read(200)) or "unknown"
            advice = "wait for its end, or choose another output_dir"
            raise ConfigError(f"output_dir={folder} is in use by another run ({holder}); {advice}") from None
        except OSError as error:
            SAID.warning("accuracy: %s cannot be locked (%s); start no second run on it", folder, error.strerror)
        else:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        yield


def set_other_code_aside(folder: Path, plans: Sequence[Planned], files: dict[str, storage.CaseFile]) -> str:
    """Move the rows of planned cases, and of others of the same functions, that another code measured.

    Args:
        folder: of the run.
        plans: the cases of this run.
        files: of the folder, as read; those that are moved leave it.

    Returns:
        What to say of it, empty where nothing was moved.
    """
    planned = {each.case.id: each.case for each in plans}
    functions = {
        (each.case.variant.name, each.case.variant.options_text): schedule_of(each.case.variant.forward).code(each.case)
        for each in plans
    }
    again = other = 0
    for case_id, (rows, _) in list(files.items()):
        if not rows.num_rows or not {*ASKED} <= {*rows.column_names}:
            continue  # a damaged file is written anew
        (first,) = rows.slice(0, 1).select(ASKED).to_pylist()
        case, code = planned.get(case_id), str(first["code"])
        function = functions.get((first["variant"], first["options"] or ""))
        if case is not None and code != code_of(case):
            again += rows.num_rows
        elif case is None and function and not code.endswith(f"+{function}"):
            other += rows.num_rows
        else:
            continue
        for kind in table.DATASETS:  # the results first: a case without them is measured again
            path, target = folder / kind / f"{case_id}.parquet", folder / OTHER_CODE / code / kind
            if path.exists():
                target.mkdir(parents=True, exist_ok=True)
                path.replace(target / path.name)
        del files[case_id]
    found = [f"{again} rows of other code are measured again"] if again else []
    found += [f"{other} rows of other code belong to no planned case"] if other else []
    return f"{'; '.join(found)} (kept in {folder / OTHER_CODE})" if found else ""
