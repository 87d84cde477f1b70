"""The numbers of README.md, from the published table."""

import pandas as pd

from experiments.published import Tables, chosen, markdown

DIAGNOSE = "accuracy.diagnose"


def blocks(tables: Tables) -> dict[str, str]:
    rows = tables.csv("held_out/cpu.csv").fillna("")
    faults, healthy = rows[rows["faulty"]], rows[~rows["faulty"]]
    rules, said = list(dict.fromkeys(rows["rule"])), chosen(rows, rule=DIAGNOSE)
    each = rows.assign(said=rows["plain"].map({True: "plain", False: ""}).where(rows["plain"] | ~rows["hard"], "hard"))
    by_rule = each.pivot(index=["faulty", "function"], columns="rule", values="said")

    def count(of: pd.DataFrame) -> str:
        return f"{(of['plain'] | of['hard']).sum()} of {len(of)}"

    def of_plain(of: pd.DataFrame, rule: str) -> str:
        return "" if rule == DIAGNOSE else f"{chosen(of, rule=rule)['plain'].sum()} of {of['function'].nunique()}"

    scores = [
        (rule, *(count(chosen(faults, rule=rule, known=known)) for known in (True, False)), of_plain(faults, rule),
         count(chosen(healthy, rule=rule)), of_plain(healthy, rule))
        for rule in rules
    ]  # fmt: skip
    names = dict.fromkeys(zip(rows["faulty"], rows["function"], rows["report"], rows["known"], strict=True))
    words = {
        True: {"plain": "caught", "hard": "hard only", "": "missed"},
        False: {"plain": "accused", "hard": "hard only", "": ""},
    }
    lines = {
        faulty: [
            (function, report, *(("seen" if known else "new",) if faulty else ()),
             *(words[faulty][by_rule.loc[(faulty, function), rule]] for rule in rules))
            for of, function, report, known in names if of == faulty
        ]
        for faulty in (True, False)
    }  # fmt: skip
    missed = [f"{one.function}: {one.said}" for one in said[said["faulty"] & ~said["plain"]].itertuples()]
    accused = [f"{one.function}: {one.said}" for one in said[~said["faulty"] & said["plain"]].itertuples()]
    return {
        "scores": markdown(
            ("rule", "seen faults caught", "new ones", "all on plain inputs", "healthy accused", "on plain inputs"),
            scores,
        ),
        "faults": markdown(("fault", "report", "", *rules), lines[True]),
        "healthy": markdown(("healthy function", "from", *rules), lines[False]),
        "diagnose": f"catches {count(chosen(said, faulty=True))} faults and accuses {count(chosen(said, faulty=False))} healthy functions",
        "missed": "; ".join(missed) or "none",
        "accused": "; ".join(accused) or "none",
        "sentences": "\n".join(
            f"- {one.function}: {one.said.partition(' Not tried')[0]}" for one in said[said["faulty"]].itertuples()
        ),
    }
