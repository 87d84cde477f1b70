"""Which values may a field hold? Kinds for the annotations of dataclasses, checked by `accuracy.config.checks`."""

import math
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt

Whole = Annotated[int, Ge(1), Lt(2**63)]
FromZero = Annotated[int, Ge(0), Lt(2**63)]
Finite = Annotated[float, Gt(-math.inf), Lt(math.inf)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
Share = Annotated[float, Gt(0), Lt(1)]


class OneOf:
    """The words that a field may hold: `Annotated[str, OneOf("causal", "full")]`."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.literal_schema(list(self.allowed))
