"""What ranks had in hand when one of them ended: a line for each event in `ranks.log` of the run folder. Events:
launch; began CASE; ranks CASE, alone CASE: what takes its time now, all ranks or the first one's reference and
comparison; ok CASE, unsupported CASE, failed CASE; ended HOW: a rank's process is gone, the case may be tried once
more; final HOW: the case may not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accuracy.core.case import Case
from accuracy.execute import leftovers
from accuracy.results import table

NAME = "ranks.log"
LOST = 3
"""Exit status of a rank that cannot go on because another one is gone, or because its device is."""
TRIES = 2
STAGES = ("began", "ranks", "alone")
NO_ANSWER = "no answer"


@dataclass
class Known:
    """statuses: of the cases that ended in this launch; tries: of each case since its last row, what was noted then;
    unanswered: cases of this launch in which a rank gave no answer."""

    statuses: dict[str, str] = field(default_factory=dict)
    tries: dict[str, list[list[tuple[str, str]]]] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)

    def reason(self, case_id: str) -> str | None:
        """Return why the case is a failed row without being tried again; None: it is to be tried."""
        ends = []
        for noted in filter(None, self.tries.get(case_id, [])):
            ended = " and ".join(dict.fromkeys(text for word, text in noted if word == "ended"))
            if not ended:
                return " and ".join(dict.fromkeys(text for _, text in noted))
            ends.append(ended)
        if len(ends) < TRIES:
            tries = len(self.tries.get(case_id, []))
            return f"its ranks ended {tries} times, and none said why" if tries > TRIES else None
        return f"{ends[0]}, twice" if len(set(ends)) == 1 else "; then ".join(ends)


def note(folder: Path, word: str, text: str = "") -> None:
    """Add a line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)  # a user's function may have removed it
        with open(folder / NAME, "a") as file:
            file.write(f"{word} {text}\n")
    except OSError as error:  # of a write, which does not say where
        raise OSError(error.errno, error.strerror, str(folder / NAME)) from error


Place = tuple[int, int]
"""The number of the file that was read, and the bytes."""


def lines(folder: Path, since: Place = (0, 0)) -> tuple[list[tuple[str, str]], Place]:
    """Return word and text of every whole line since a place, and the place behind them. A file that a user's function
    removed begins anew."""
    path = folder / NAME
    if not path.exists():
        return [], (0, 0)
    content, number = path.read_bytes(), path.stat().st_ino
    offset = since[1] if since[0] == number else 0
    complete = content[offset : content.rfind(b"\n") + 1]
    found = [line.partition(" ") for line in complete.decode(errors="replace").splitlines()]
    return [(word, text) for word, _, text in found], (number, offset + len(complete))


def read(folder: Path) -> Known:
    """Return what all lines together say."""
    known, case = Known(), ""
    for word, text in lines(folder)[0]:
        if word == "launch":
            known.statuses.clear()
            known.unanswered.clear()
        elif word == "began":
            case = text
            known.tries.setdefault(case, []).append([])
        elif word in STAGES:
            continue
        elif word not in ("ended", "final"):
            known.statuses[text] = word
            known.tries.pop(text, None)
            case = ""
        elif case:
            known.unanswered |= {case} if text.startswith(NO_ANSWER) else set()
            known.tries[case][-1].append((word, text))
    return known


def note_end(folder: Path, rank: int, code: int, raised: str = "") -> str | None:
    """Add how a rank's process ended, from its exit status (negative: a signal); the text, or None where the process
    ended because of another one. raised: the exception that ended it."""
    if code == LOST:
        return None
    how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
    text = f"rank {rank} {how}{f', {raised}' if raised else ''}"
    note(folder, "ended", text)
    return text


def no_answer(processes: Mapping[int, int], seconds: float) -> str:
    """Return which ranks gave no answer in time: those that are stopped, as the others wait for them; where none is,
    all. processes: by rank."""
    stopped = [rank for rank, process in processes.items() if leftovers.stat(process)[0] == "T"]
    ranks = ", ".join(map(str, stopped or processes))
    return f"{NO_ANSWER} from rank {ranks}{' (stopped)' if stopped else ''} within {seconds:g} s"


def hopeless(case: Case, cases: Sequence[Case], known: Known) -> str | None:
    """Return why a case of a variant that never answered is not tried: each would take the whole time limit."""
    same = {each.id for each in cases if each.variant == case.variant and each.world_size > 1}
    silent = same & known.unanswered
    if len(silent) < TRIES or any(known.statuses.get(each) == table.OK for each in same):
        return None
    return f"not tried: {len(silent)} cases of {case.variant.name} before it gave no answer, and none an answer"
