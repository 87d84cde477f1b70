"""What do the parts and the machine add to a checked configuration? Knobs' defaults, the device, workers, a backend."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accuracy.config.find import complete_part, complete_variant
from accuracy.config.read import AUTO_WORKERS, PROCESSORS, Configuration, read
from accuracy.core import plugins
from accuracy.core.errors import ConfigError
from accuracy.runtime import device as devices
from accuracy.runtime.arguments import takes

ENOUGH_FOR_A_GPU, MOST_ON_A_GPU = 4, 10
"""On an H200 with 16 processors world_size_growth, of 6 references, took 19.9 s by 3, 20.4 by 4, 18.5 by 6, 19.9 by 8,
20.3 by 10; diagnose of ring, of many, 14.2 s by 6, 11.5 by 10, 12.7 by 14."""


def read_settled(config: Mapping[str, Any], folders: Sequence[Path] = ()) -> Configuration:
    """Check a composed configuration and settle it. Raises ConfigError."""
    return settled(read(config, folders))


def settled(configuration: Configuration) -> Configuration:
    """As this machine runs it: every `auto` resolved, knobs of parts checked by their own code. Raises ConfigError."""
    device = devices.choose(configuration.device)
    variants = tuple(map(complete_variant, configuration.variants))
    paths = [
        replace(
            path, variant=complete_variant(path.variant), kernel=path.kernel and complete_part("kernel", path.kernel)
        )
        for path in (*configuration.paths_a, *configuration.paths_b)
    ]
    for variant in (*variants, *(each.variant for each in paths)):
        name, given = str(dict(variant.options).get("fn", "")), configuration.given
        if name and "problem.mask" not in given and not takes(plugins.load_function(name).function, "causal"):
            raise ConfigError(
                f"{variant.name} has no parameter causal or is_causal; say which mask it computes: mask=full or"
                " mask=causal (on the command line problem.mask=full)"
            )
    return replace(
        configuration,
        variants=variants,
        kernels=tuple(complete_part("kernel", part) for part in configuration.kernels),
        inputs=tuple(complete_part("inputs", part) for part in configuration.inputs),
        paths_a=tuple(paths[: len(configuration.paths_a)]),
        paths_b=tuple(paths[len(configuration.paths_a) :]),
        device=device,
        backend=_backend(configuration, device),
        workers=_workers(configuration, device),
        also=tuple(map(settled, configuration.also)),
    )


def _backend(configuration: Configuration, device: str) -> str:
    """Return what carries tensors between real ranks: gloo on CPUs and nccl on GPUs. Ranks that share a GPU
    have another one (`accuracy.world.shared_gpu`)."""
    if configuration.world != "processes":
        return ""
    word, fitting = configuration.backend, "nccl" if device == "cuda" else "gloo"
    if word not in ("auto", fitting):
        raise ConfigError(f"world.processes.backend={word} carries no tensors of device={device}; use {fitting}")
    if not getattr(dist, f"is_{fitting}_available")():
        raise ConfigError(f"world=processes needs {fitting}, which this torch was built without; use world=simulated")
    return fitting


def _workers(configuration: Configuration, device: str) -> int:
    """Return how many processes measure side by side, at most: where a simulated world lives in one process, `auto` is
    one for each GPU, or as many as share out the threads that torch would use by itself (`OMP_NUM_THREADS`).
    `processors` is that on a GPU too, where small cases take time from Python and not from the GPU (`side_by_side`)."""
    if configuration.world == "processes":
        return 1
    gpus = len(devices.alike()) if device == "cuda" else None
    if configuration.workers == AUTO_WORKERS or (configuration.workers == PROCESSORS and gpus is None):
        return gpus or max(1, torch.get_num_threads() // configuration.threads)
    if configuration.workers == PROCESSORS:
        return side_by_side(gpus or 0, configuration)
    if gpus is not None and configuration.workers > gpus:
        raise ConfigError(
            f"workers={configuration.workers}, but each needs a GPU and {gpus} of one model are here;"
            " use workers=auto, or workers=processors to measure small cases side by side on each"
        )
    return configuration.workers


def side_by_side(gpus: int, configuration: Configuration) -> int:
    """Return how many processes `workers=processors` puts on so many GPUs: one for each reference, within bounds. More
    would compute a reference again, and take turns on the GPU."""
    grids = (configuration, *configuration.also)
    axes = ([each.problems, each.inputs, each.seeds, each.dtypes] for each in grids)
    wanted = max(ENOUGH_FOR_A_GPU * gpus, sum(math.prod(map(len, each)) for each in axes))
    return max(1, min(wanted, MOST_ON_A_GPU * gpus, os.cpu_count() or 1))
