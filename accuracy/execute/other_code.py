"""Which rows of a run folder were measured by other code? They are set aside: one table has rows of one code.

In: the folder and the planned cases. Out: what was moved to `other_code/CODE/` of the folder, in a line; nothing that
was measured is lost.
"""

from collections.abc import Sequence
from pathlib import Path

from accuracy.core.case import Case
from accuracy.execute.plan import Planned
from accuracy.measurement.provenance import code_of
from accuracy.results import finished_files, table
from accuracy.variant.base import schedule_of

FOLDER = "other_code"
ASKED = ["code", "variant", "options"]


def set_aside(folder: Path, plans: Sequence[Planned], files: dict[str, finished_files.CaseFile]) -> str:
    """Move such rows, of planned cases and of others of the same functions; what to say of it, or nothing. files: the
    folder's, as read; those that are moved leave it."""
    planned = {each.case.id: each.case for each in plans}
    own = {(each.case.variant.name, each.case.variant.options_text): _own(each.case) for each in plans}
    again = other = 0
    for case_id, (rows, _) in list(files.items()):
        if not rows.num_rows or not {*ASKED} <= {*rows.column_names}:
            continue  # a damaged file is written anew
        (first,) = rows.slice(0, 1).select(ASKED).to_pylist()
        case = planned.get(case_id)
        mine = own.get((first["variant"], first["options"] or ""))
        if case is not None and first["code"] != code_of(case):
            again += rows.num_rows
        elif case is None and mine and not str(first["code"]).endswith(f"+{mine}"):
            other += rows.num_rows
        else:
            continue
        _move(folder, case_id, str(first["code"]))
        del files[case_id]
    said = [f"{again} rows of other code are measured again"] if again else []
    said += [f"{other} rows of other code belong to no planned case"] if other else []
    return f"{'; '.join(said)} (kept in {folder / FOLDER})" if said else ""


def _own(case: Case) -> str:
    """The code of the user's function, "" where the case has none."""
    return schedule_of(case.variant.forward).code(case)


def _move(folder: Path, case_id: str, code: str) -> None:
    """The results first: a case without them is measured again."""
    for kind in table.DATASETS:
        path = folder / kind / f"{case_id}.parquet"
        if path.exists():
            place = folder / FOLDER / code / kind / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
