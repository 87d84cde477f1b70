"""How accurate is distributed attention? Every variant against float64, per rank and per tensor.

    import accuracy

    rows = accuracy.measure("ring", world_size=[1, 2, 4])     # or a function of your own
    accuracy.plot.growth(rows)
    accuracy.diagnose("ring").raise_if_faulty()

Nothing is imported before it is asked for: `import accuracy` needs neither torch nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accuracy.api import plot
    from accuracy.api.assert_accurate import assert_accurate
    from accuracy.api.assert_close import assert_close
    from accuracy.api.assert_merge_close import assert_merge_close
    from accuracy.api.bounds import bounds
    from accuracy.api.diagnose import Diagnosis, diagnose
    from accuracy.api.drift import attribute, drift, invariance
    from accuracy.api.from_jax import from_jax
    from accuracy.api.measure import measure
    from accuracy.api.tables import columns, compare, load, summary
    from accuracy.api.tolerance import tolerance
    from accuracy.core.errors import ConfigError
    from accuracy.live.capture import capture
    from accuracy.live.judge import judge

__version__ = "0.1.0"
__all__ = [
    "ConfigError", "Diagnosis", "assert_accurate", "assert_close", "assert_merge_close", "attribute", "bounds",
    "capture", "columns", "compare", "diagnose", "drift", "from_jax", "invariance", "judge", "load", "measure", "plot",
    "summary", "tolerance",
]  # fmt: skip
_MODULES = {
    "ConfigError": "core.errors", "Diagnosis": "api.diagnose", "assert_accurate": "api.assert_accurate",
    "assert_close": "api.assert_close", "assert_merge_close": "api.assert_merge_close", "bounds": "api.bounds",
    "columns": "api.tables", "compare": "api.tables", "diagnose": "api.diagnose", "drift": "api.drift",
    "attribute": "api.drift", "invariance": "api.drift", "load": "api.tables", "measure": "api.measure",
    "plot": "api.plot", "summary": "api.tables", "capture": "live.capture", "judge": "live.judge",
    "tolerance": "api.tolerance", "from_jax": "api.from_jax",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, imported at its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'accuracy' has no attribute {name!r}")
    module = importlib.import_module(f"accuracy.{_MODULES[name]}")
    found = module if name == "plot" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
