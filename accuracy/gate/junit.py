"""The decision as JUnit XML: a test case for each variant, dtype, world size and tensor."""

import math
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from accuracy.gate.decision import Decision
from accuracy.gate.fingerprint import hard
from accuracy.gate.item import FAILED, INCOMPLETE, SKIPPED, Item
from accuracy.results.cell import KEYS


def junit(decision: Decision) -> bytes:
    """Failures are regressions and broken rules, errors what is incomplete."""
    counts = {
        "tests": len(decision.items),
        "failures": decision.count(FAILED),
        "errors": decision.count(INCOMPLETE),
        "skipped": decision.count(SKIPPED),
    }
    numbers = {name: str(value) for name, value in counts.items()}
    suites = Element("testsuites", numbers)
    suite = SubElement(suites, "testsuite", {"name": f"accuracy-check {decision.run.experiment}", **numbers})
    about = {**hard(decision.run.about), "exit": str(int(decision.exit))}
    about |= {f"note {place}": note for place, note in enumerate(decision.notes)}
    _properties(suite, about)
    for item in decision.items:
        _case(suite, item, decision.run.experiment)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)


def _case(suite: Element, item: Item, experiment: str) -> None:
    variant = item.name.partition(" ")[0] if item.key is None else str(item.key[KEYS.index("variant")])
    setting = item.name.removeprefix(variant).strip()
    case = SubElement(suite, "testcase", {"classname": f"{experiment}.{variant}", "name": setting or variant})
    _properties(case, {"label": item.label, **_fingerprint(item), **_metrics(item)})
    if item.state == SKIPPED:
        SubElement(case, "skipped", {"message": item.reason})
    elif item.state in (FAILED, INCOMPLETE):
        tag = "failure" if item.state == FAILED else "error"
        SubElement(case, tag, {"type": item.label, "message": f"{item.name}: {item.reason}"})


def _fingerprint(item: Item) -> dict[str, str]:
    return {} if item.key is None else {name: str(value) for name, value in zip(KEYS, item.key, strict=True)}


def _metrics(item: Item) -> dict[str, str]:
    numbers = {"effect": item.effect, "p": item.p, "seen": item.seen}
    if item.cell is not None and item.cell.y:
        numbers |= {
            "x_single_device": item.cell.ratio,
            "error_rel": item.cell.error,
            "worst_rank": item.cell.rank_ratio,
        }
    if item.baseline is not None and item.baseline.y:
        numbers |= {"baseline_x_single_device": item.baseline.ratio, "baseline_error_rel": item.baseline.error}
    return {name: f"{value:.6g}" for name, value in numbers.items() if math.isfinite(value)}


def _properties(parent: Element, values: dict[str, str]) -> None:
    properties = SubElement(parent, "properties")
    for name, value in values.items():
        SubElement(properties, "property", {"name": name, "value": value})
