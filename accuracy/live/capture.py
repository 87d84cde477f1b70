"""`with accuracy.capture(model, folder, layers="*.3", every=100): train_step()`: save what attention does in a step.

In a step that is not captured nothing is hooked. In one that is, every name that is bound to a function of
`accuracy.live.functions` is bound to a wrapper; the files are written beside the step.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from accuracy.core.errors import ConfigError, entry, one_line
from accuracy.core.recording import Facts, matches
from accuracy.core.sharding import SHARDINGS
from accuracy.live.call import Record, Shard, facts_of, local, output, shard_of
from accuracy.live.functions import Function
from accuracy.live.hooking import hooked, layer_of, own
from accuracy.live.writing import wait, write
from accuracy.runtime.layout import CAPTURED, fits

_steps: dict[Path, int] = {}  # entered so far
WRAPPERS = r"_orig_mod\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\."


class capture:  # reads as torch.no_grad does
    """Save q, k, v, dout, mask and what the model itself returned (out, lse, dq, dk, dv) of its attention.

    model: whose modules' names are the layers' names; None: calls are call.0, call.1, ... of the step.
    folder: for the files, one for each layer, step, call and rank (`accuracy.core.recording`).
    layers: patterns of names, matched against a layer and the modules around it.
    every: one entry of this context in so many is captured, the first one too. An entry is a step.
    functions: attention functions of your own, as `package.module:function`, beside those that are known: torch's
    scaled_dot_product_attention and flex_attention, flash_attn's, ring_flash_attn's, TransformerEngine's
    context-parallel one, and what Hugging Face's registry holds. Of DTensors each rank's own part is saved.
    layout: of their tensors, bshd, bhsd, sbhd or thd.
    sharding: contiguous, zigzag or striped where a call has one rank's part of a sequence and neither it nor torch's
    context_parallel says so; group: of those ranks, a torch.distributed group, all ranks if None.

    Under autograd checkpointing a recomputation is not captured twice. A compiled model runs as it is written in a
    captured step, without its graphs, which are compiled once, in the first other step. Raises ConfigError for a
    folder that holds this rank's files of another run, and for unknown functions, layouts and shardings.
    """

    @entry()
    def __init__(
        self, model: nn.Module | None, folder: str | Path, layers: str | Sequence[str] = "*", every: int = 1, *,
        functions: Sequence[str | Callable[..., Any]] = (), layout: str = "bshd", sharding: str | None = None,
        group: Any = None,
    ) -> None:  # fmt: skip
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(f"every={every!r}; allowed: a whole number from 1")
        for name, given, allowed in (("layout", layout, CAPTURED), ("sharding", sharding, (None, *SHARDINGS))):
            if given not in allowed:
                raise ConfigError(f"{name}={given!r}; allowed: {', '.join(map(str, allowed))}")
        self._own = [own(function, layout) for function in functions]
        self.model, self.folder, self.every = model, Path(folder).expanduser().resolve(), every
        self.layers = [layers] if isinstance(layers, str) else [*layers]
        self.sharding, self.group = sharding, group

    def __enter__(self) -> "capture":
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        if self.folder not in _steps or not self.folder.is_dir():  # or somebody has removed it to begin anew
            _steps.pop(self.folder, None)
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.glob(f"*.rank{self.rank}.safetensors")):
                raise ConfigError(f"{self.folder} holds a capture already; choose another folder, or empty this one")
        self.step = _steps[self.folder] = _steps.get(self.folder, -1) + 1
        self.active = self.step % self.every == 0
        if self.active:
            self._records: list[Record] = []
            self._orders, self._calls = 0, dict[str, int]()
            self._again: dict[str, list[Record]] = {}
            self._passed: dict[str, str] = {}
            modules = [*self.model.named_modules()] if self.model is not None else []
            self._compiled = any(each._compiled_call_impl or hasattr(each, "_orig_mod") for _, each in modules)
            self._names = {id(module): re.sub(WRAPPERS, "", name) for name, module in modules}
            self._hooks = ExitStack()
            self._hooks.enter_context(hooked(self._own, self.model, self._call))
        return self

    def __exit__(self, *raised: object) -> None:
        if not self.active:
            return
        self._hooks.close()
        for record in self._records:
            record.close()
        if raised[0] is None:
            self._say_what_is_missing()

    @staticmethod
    def wait() -> None:
        """Until the files of all captures of this process are on disk; at its end that is done by itself."""
        wait()

    def _call(
        self, function: Function, original: Callable[..., Any], parameters: Sequence[str], args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
        layer = layer_of(self._names, arguments)
        try:
            given = {name: arguments[name] for name in function.tensors}
            held = {name: local(x) for name, x in arguments.items()}
            for name, x in given.items():
                if not isinstance(x, Tensor) or not (fits(x, function.layout) or name in ("qkv", "kv")):
                    raise TypeError(f"{name} is no tensor of layout {function.layout}")
            shard = shard_of(given[function.tensors[0]], function.layout, original)
            record, tensors = self._record(function, layer, held, shard)
        except Exception as error:
            self._passed.setdefault(function.path, one_line(error))
            return original(*args, **kwargs)
        if record is None:
            return original(*args, **kwargs)
        if torch.is_grad_enabled():
            given = {name: x.view_as(x) for name, x in given.items()}
            aliased = {**dict(zip(parameters, args, strict=False)), **kwargs, **given}
            rest = args[len(parameters) :]
            args = (*(aliased[name] for name in parameters[: len(args)]), *rest)
            kwargs = {name: aliased[name] for name in kwargs}
        result = original(*args, **kwargs)
        try:
            out, lse, canonical = output(function, result, tensors["q"], record.facts)
        except TypeError as error:
            self._passed.setdefault(function.path, str(error))
            return result
        again = self._again.setdefault(record.facts.layer, [])  # called without gradients: checkpointing may call again
        if record not in again:
            record.returned(canonical, lse)
            self._records.append(record)
        record.watch(function, given, out)
        if bool(record.expected) == (record in again):
            (again.remove if record in again else again.append)(record)
        return result

    def _record(
        self, function: Function, layer: str, arguments: dict[str, Any], shard: Shard | None
    ) -> tuple[Record | None, dict[str, Tensor]]:
        """A record for the call, or None where it is not asked for, or is made again by checkpointing."""
        given = {name: arguments[name] for name in function.tensors}
        if torch._C._current_graph_task_id() != -1:  # within backward
            waiting = self._again.get(layer)
            if not layer or not waiting:
                return None, {}
            return waiting[0], facts_of(function, arguments, given)[1]
        layer = layer or f"call.{self._orders}"
        self._orders += 1
        if not matches(layer, self.layers):
            return None, {}
        facts, tensors = facts_of(function, arguments, given)
        call = self._calls[layer] = self._calls.get(layer, -1) + 1
        facts = replace(facts, layer=layer, step=self.step, call=call, order=self._orders - 1,
                        compiled=self._compiled)  # fmt: skip
        record = Record(self._placed(facts, function, arguments, shard), tensors, partial(write, self.folder))
        return record, tensors

    def _placed(self, facts: Facts, function: Function, arguments: dict[str, Any], shard: Shard | None) -> Facts:
        """With its rank, and the ranks that have the rest of its sequence."""
        sharding = shard.sharding if shard else function.sharding or self.sharding
        facts = replace(facts, rank=self.rank, ranks=(self.rank,))
        if not sharding or not dist.is_initialized():
            return replace(facts, begin=None)
        group = arguments.get(function.group) if function.sharding else self.group
        try:
            ranks = shard.ranks if shard else tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        except (TypeError, ValueError, KeyError):
            return replace(facts, note="its group of ranks is not understood")
        known = function.by_document or facts.begin is not None
        note = "documents, or a mask, of a sharded sequence are not understood"
        odd = len(ranks) > 1 and (facts.mask or (facts.documents and not known))
        if function.by_document:
            whole = tuple(length * len(ranks) for length in facts.documents)
            facts = replace(facts, documents=whole, by_document=len(ranks) > 1)
        return replace(facts, ranks=ranks, sharding=sharding, note=note if odd else facts.note)

    def _say_what_is_missing(self) -> None:
        for path, why in self._passed.items():
            warnings.warn(f"accuracy.capture: a call of {path} is not captured: {why}", stacklevel=3)
        if not self._records and not self._passed:
            what = f"of layers {', '.join(self.layers)} " if self._orders else ""
            text = f"no call {what}was captured; name what computes attention: functions=['package.module:function']"
            warnings.warn(f"accuracy.capture: {text}", stacklevel=3)
