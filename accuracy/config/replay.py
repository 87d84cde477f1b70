"""Inputs that a live model was given say themselves which problem they are: shapes, mask, scale and dtype of a capture.

In: a composed configuration with inputs.captured.path=FOLDER, and the words that its user gave. Out: the same with what
the capture's header says in place of what nobody gave.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from accuracy.core.errors import ConfigError
from accuracy.core.recording import Recorded, choose, is_capture, recorded

SHIPPED = "layer_0"  # the default, a layer of the shipped file


def settle(config: Mapping[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """words: keys as a command line has them, `problem.seqlen` or `problem.seqlen=512`. Raises ConfigError."""
    node = config.get("inputs")
    captured = node.get("captured") if isinstance(node, Mapping) else None
    path = captured.get("path") if isinstance(captured, Mapping) else None
    if node is None or captured is None or not isinstance(path, str) or not is_capture(Path(path).expanduser()):
        return dict(config)
    folder = Path(path).expanduser()
    layer = captured.get("layer", SHIPPED)
    if not isinstance(layer, str):
        raise ConfigError(f"inputs.captured.layer={layer}: layers of a capture have shapes of their own; give one")
    found = chosen(folder, layer)
    given = {word.partition("=")[0].lstrip("+") for word in words}
    settings = {key: value for key, value in found.problem.items() if f"problem.{key}" not in given}
    whole = {} if "problem" in given else {"problem": {**config["problem"], **settings}}
    dtype = {} if "dtype" in given else {"dtype": found.first.dtype}
    inputs = {**node, "captured": {**captured, "layer": found.first.name}}
    return {**config, **whole, **dtype, "inputs": inputs}


def chosen(folder: Path, layer: str) -> Recorded:
    """The call that a layer's name names; of a folder in which nobody chose one, the first. Raises ConfigError."""
    found = recorded(folder)
    unnamed = layer == SHIPPED and not any(one.first.layer == SHIPPED for one in found)
    return found[0] if unnamed else choose(folder, layer)
