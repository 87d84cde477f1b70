"""Which rounding places make two paths differ? Places are switched from path a's to path b's, in every combination.

A place is what both paths have and set otherwise: the schedule (with its sharding and ranks), the kernel, a knob of
either, a place of the precision policy, forward and backward apart. What only one of the paths has goes with its
schedule or kernel. The value of a set of switched places is the squared distance that is left to path b; a place's
share is its mean marginal fall over all orders (Shapley 1953), exact for up to MOST places. The shortest set of
switches after which no bit differs is run once more to prove it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields, replace
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from accuracy.core.case import Case, Other
from accuracy.core.dtype import Precision
from accuracy.core.errors import one_line
from accuracy.core.number import shapley
from accuracy.measurement.observe import Answer, Observation
from accuracy.measurement.targets import Named, Targets
from accuracy.paths.drift import TENSORS, differing
from accuracy.paths.other_path import run
from accuracy.results.table import Row
from accuracy.variant.base import schedule_of

MOST = 8
FORWARD = ("out", "lse")
OTHER_SHAPES = True
WAYS = ("forward", "backward")
Places = frozenset[str]


@dataclass(frozen=True)
class Side:
    """A path in its parts. settings: by place, what it sets: `options.splits`, `kernel.key_chunk`, `forward.merge`."""

    path: Other
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, path: Other) -> "Side":
        """Of a path with all knobs."""
        options = {f"options.{key}": value for key, value in path.variant.options}
        knobs = {f"kernel.{key}": value for key, value in path.kernel.options}
        policy = {f"{way}.{place}": getattr(each, place) for way, each, place in _policy_places(path)}
        return cls(path, options | knobs | policy)

    def text(self, place: str) -> str:
        """Return what the path has at a place, in a word."""
        names = {"schedule": f"{self.path.variant.name}@{self.path.world_size}", "kernel": self.path.kernel.name}
        return str(names[place] if place in names else self.settings[place])


def answer(observation: Observation, options: None) -> Answer:
    """Return the rows of `places/`."""
    return Answer(tables={"places": rows(observation.case, observation.targets)})


def rows(case: Case, targets: Targets) -> list[Row]:
    """Of each tensor in which the case and the path that it is compared with differ: a row for each place."""
    about = {"case_id": case.id}
    if case.against is None:
        return [{**about, "reason": "no path_b to switch to; give one"}]
    if any(path.variant.forward.name == "callable" for path in (case, case.against)):
        return [{**about, "reason": "a function has no places that could be switched"}]
    switches = Switches(case, targets)
    if len(switches.places) > MOST:
        names = ", ".join(switches.places)
        return [{**about, "reason": f"{len(switches.places)} places differ, more than {MOST}: {names}; set some alike"}]
    try:
        return [{**about, **row} for row in switches.rows()]
    except Exception as error:  # a combination that the parts cannot do
        return [{**about, "reason": f"with {', '.join(switches.at) or 'nothing'} switched: {one_line(error)}"[:500]}]


class Switches:
    """Hybrids of two paths, each run once."""

    def __init__(self, case: Case, targets: Targets) -> None:
        if case.against is None:
            raise ValueError("the case is compared with no other path")
        self.case, self.targets = replace(case, observers=(), against=None), targets
        own = {field.name: getattr(case, field.name) for field in fields(Other)}
        self.a, self.b = Side.of(Other(**own)), Side.of(case.against)
        self.places = sorted(self._places())
        self.at: Places = frozenset()
        self.found: dict[Places, Named] = {}

    def rows(self) -> Iterator[Row]:
        """Of each tensor that differs, a row for each place; one without a place where there is none to switch."""
        goal = run(replace(self.case, **vars(self.b.path)), self.targets.given.tensors)
        for name in TENSORS:
            start = self.hybrid(frozenset())
            if name not in goal or name not in start or not differing(start[name], goal[name]).any():
                continue
            yield from self._of_tensor(name, goal[name])

    def _of_tensor(self, name: str, goal: Tensor) -> Iterator[Row]:
        places = [each for each in self.places if not (name in FORWARD and each.startswith("backward."))]
        sets = [frozenset(each) for size in range(len(places) + 1) for each in combinations(places, size)]
        hybrids = ((each, self.hybrid(each)[name].double() - goal.double()) for each in sets)
        left = {each: float(off.square().sum().nan_to_num(nan=torch.inf)) for each, off in hybrids}
        shares = shapley(left, tuple(places))
        whole_square, most = left[frozenset()], left[frozenset(places)]
        shortest = next((each for each in sets if not differing(self.hybrid(each)[name], goal).any()), None)
        verified = False
        if shortest is not None:
            again = run(self.case_of(shortest), self.targets.given.tensors)
            verified = not differing(again[name], goal).any()
        norm = float(self.targets.reference[name].square().sum())
        about = {
            "tensor": name, "drift_rel": (whole_square / norm) ** 0.5, "left": most / whole_square,
            "shortest": None if shortest is None else ", ".join(sorted(shortest)), "verified": verified,
            "sets": len(sets),
        }  # fmt: skip
        for place in places:
            alone = whole_square - left[frozenset([place])]
            row = {"place": place, "share": shares[place] / whole_square, "alone": alone / whole_square}
            yield {**about, **row, "of_a": self.a.text(place), "of_b": self.b.text(place)}
        if not places:
            yield about

    def hybrid(self, places: Places) -> Named:
        """Return the tensors of the path with these places as path b has them."""
        if places not in self.found:
            self.at = places
            self.found[places] = run(self.case_of(places), self.targets.given.tensors)
        return self.found[places]

    def case_of(self, places: Places) -> Case:
        """Return the case with these places as path b has them, all others as path a."""
        outer = self.b if "schedule" in places else self.a
        inner = self.b if "kernel" in places else self.a

        def setting(place: str, own: Side) -> Any:
            shared = place in self.a.settings and place in self.b.settings
            return (self.b if place in places else self.a if shared else own).settings[place]

        variant = outer.path.variant
        options = tuple((key, setting(f"options.{key}", outer)) for key, _ in variant.options)
        knobs = tuple((key, setting(f"kernel.{key}", inner)) for key, _ in inner.path.kernel.options)
        policies: dict[str, Any] = {
            f"{way}_precision": replace(each, **{
                place: setting(f"{way}.{place}", outer) for own, _, place in _policy_places(outer.path) if own == way
            })
            for way, each in zip(WAYS, (outer.path.forward_precision, outer.path.backward_precision), strict=True)
        }  # fmt: skip
        path = replace(
            outer.path, variant=replace(variant, options=options), kernel=replace(inner.path.kernel, options=knobs),
            precision_text="", **policies,
        )  # fmt: skip
        return replace(self.case, **vars(path))

    def _places(self) -> Iterator[str]:
        a, b = self.a, self.b
        if _schedules(a.path) != _schedules(b.path) or a.path.world_size != b.path.world_size:
            yield "schedule"
        other_kernel = a.path.kernel.source != b.path.kernel.source
        if other_kernel:
            yield "kernel"
        for place in a.settings.keys() & b.settings.keys():
            if a.settings[place] != b.settings[place] and not (place.startswith("kernel.") and other_kernel):
                yield place


def _schedules(path: Other) -> tuple[object, ...]:
    """Return the sharding and what the schedules do, but for their policies, their knobs, and what they state."""
    schedules = [schedule_of(part) for part in (path.variant.forward, path.variant.backward)]
    plain = [(type(each), astuple(replace(each, precision=Precision(), features=()))) for each in schedules]
    return path.variant.sharding, *plain


def _policy_places(path: Other) -> Iterator[tuple[str, Precision, str]]:
    variant = path.variant
    ways = (
        ("forward", path.forward_precision, schedule_of(variant.forward).forward_places),
        ("backward", path.backward_precision, schedule_of(variant.backward).backward_places),
    )
    return chain.from_iterable(((way, each, place) for place in places) for way, each, places in ways)
