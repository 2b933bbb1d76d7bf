"""Write and read adapters as folders in PEFT's format: adapter_config.json and adapter_model.safetensors.

A folder is written under a temporary name and renamed when it is complete. It is checked as a whole before anything of
it reaches the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from einsmith.adapters import low_rank
from einsmith.adapters.config import LoRAConfig, from_peft, to_peft
from einsmith.base import files, folders
from einsmith.base.arguments import check_arguments, show
from einsmith.base.errors import ArgumentError, DataError, SaveError
from einsmith.models import tensor_files
from einsmith.models.tensor_files import StoredTensor
from einsmith.nn import Module, init
from einsmith.nn.parameter import Stored

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
FILES = CONFIG, TENSORS
_PREFIX = "base_model.model."
"""Beginning of the names of PEFT's tensors."""
_PARTS = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
"""Parts of an adapted layer, by the ends of the tensors' names."""
_MOST_CONFIG = 1 << 24
"""Most bytes of a configuration that are read; a folder may come from anywhere."""
_SHOWN = 4
"""Most names of layers that a message lists."""


def _parts(layer: low_rank.LowRank) -> dict[str, Stored]:
    """Return the parameters of an adapted layer's adapter, by the ends of their names."""
    values = layer.lora_A.weight, layer.lora_B.weight, layer.lora_magnitude_vector
    return {name: value for name, value in zip(_PARTS, values, strict=True) if value is not None}


def write_files(model: Module, folder: Path, base: str | None) -> None:
    """Write the files of a network's adapter into a folder that exists. base: name or folder of what is adapted."""
    layers = dict(low_rank.adapted_layers(model))
    config: LoRAConfig = model.adapter
    names = {path.rpartition(".")[2] for path in layers}
    targets: Any = config.targets
    if config.is_all_linear:  # short names where they stand for the same layers
        others = {published for published in low_rank.linear_layers(model)} - set(layers)
        is_unique = not any(path.rpartition(".")[2] in names for path in others)
        targets = names if is_unique else set(layers)
    is_transposed = any(layer.is_transposed for layer in layers.values())
    entries = to_peft(config, targets, is_transposed, base)
    files.write(folder / CONFIG, json.dumps(entries, indent=2) + "\n")
    parts = [(path, name, value) for path, layer in layers.items() for name, value in _parts(layer).items()]
    tensor_files.write_tensors(
        folder / TENSORS, {f"{_PREFIX}{path}.{name}": value.numpy() for path, name, value in parts}
    )


@check_arguments
def save(model: Any, path: Any, base: str | None = None) -> None:
    """Write a network's adapter to the folder `path`, which PEFT's PeftModel.from_pretrained and `load` read.

    base: name or folder of the network without its adapter, which PEFT notes. An adapter in the folder is replaced;
    other files stay. Raises SaveError where the folder holds something else or cannot be written, ArgumentError where
    there is no adapter.
    """
    if not isinstance(model, Module) or not any(low_rank.adapted_layers(model)):
        raise ArgumentError(f"{show(model)} has no adapter; `es.adapters.lora` adds one")
    with folders.rewriting(path, is_adapter, "an adapter") as (target, work):
        write_files(model, work, base)
        folders.copy_others(target, work, FILES)


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter."""
    return files.is_file(folder / CONFIG)


def read_config(folder: Path) -> tuple[LoRAConfig, dict[str, Any]]:
    """Return the settings of the adapter in a folder, and all entries of its configuration. Raises SaveError."""
    if why := files.why_not_folder(folder):
        raise SaveError(f"{folder} {why}; pass the folder of an adapter, with {CONFIG} and {TENSORS}")
    try:
        entries = json.loads(files.read_bytes(folder / CONFIG, _MOST_CONFIG))
    except OSError as e:
        raise SaveError(f"{folder} holds no adapter: {CONFIG} cannot be read: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:
        raise SaveError(f"{folder / CONFIG} is damaged: {e}") from e
    if not isinstance(entries, dict):
        raise SaveError(f"{folder / CONFIG} is damaged: it holds {show(entries)}")
    return from_peft(entries, str(folder / CONFIG)), entries


@check_arguments
def load(model: Any, path: Any) -> Any:
    """Give a network the adapter that a folder holds, as `save` or PEFT wrote it; return the network.

    Everything but the adapter is frozen. Nothing changes where an error is raised. Raises SaveError where the folder is
    damaged, holds another kind of adapter, or one for another network; ArgumentError where there is an adapter already.
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"model={show(model)} is not a network; pass an es.nn.Module")
    low_rank.refuse_adapted(model)
    folder = Path(path)
    config, entries = read_config(folder)
    try:
        layers = _by_layer(model, tensor_files.read_header(folder / TENSORS), folder)
        _check(model, config, entries, layers, folder)
        with init.undrawn():
            low_rank.attach(model, config, list(layers))
        for path, layer in low_rank.adapted_layers(model):
            for name, value in _parts(layer).items():
                layers[path][name].read_into(value)
    except DataError as e:
        raise SaveError(str(e)) from e
    return model


def _by_layer(model: Module, tensors: Mapping[str, StoredTensor], folder: Path) -> dict[str, dict[str, StoredTensor]]:
    """Return the tensors of each layer, by the ends of their names, in the order of the network's layers."""
    layers: dict[str, dict[str, StoredTensor]] = {}
    unknown = []
    for name, tensor in tensors.items():
        part = next((p for p in _PARTS if name.endswith(f".{p}")), None)
        if part is None or not name.startswith(_PREFIX):
            unknown.append(name)
        else:
            layers.setdefault(name[len(_PREFIX) : -len(part) - 1], {})[part] = tensor
    if unknown:
        raise SaveError(f"{folder / TENSORS} has tensors that are no part of LoRA: {_list(unknown)}")
    if not layers:
        raise SaveError(f"{folder / TENSORS} has no tensors")
    linear = low_rank.linear_layers(model)
    prefix = getattr(model, "published_prefix", "")
    if not any(path in linear for path in layers):  # of a network without its head
        layers = {prefix + path: parts for path, parts in layers.items()}
    missing = [path for path in layers if path not in linear]
    if missing:
        raise SaveError(
            f"{folder} is an adapter for another network: {type(model).__name__} has no linear layers "
            f"{_list(missing)}; it has {_list(list(linear))}"
        )
    return {path: layers[path] for path in linear if path in layers}


def _check(
    model: Module,
    config: LoRAConfig,
    entries: Mapping[str, Any],
    layers: Mapping[str, Mapping[str, StoredTensor]],
    folder: Path,
) -> None:
    """Check that an adapter's tensors fit its settings and the network. Raises SaveError."""
    linear = low_rank.linear_layers(model)
    names = _PARTS if config.dora else _PARTS[:2]
    faults = []
    for path, parts in layers.items():
        _, _, layer = linear[path]
        outputs, inputs = low_rank.row_shape(layer)
        rank = config.rank_of(path)
        shapes = dict(zip(_PARTS, ((rank, inputs), (outputs, rank), (outputs,)), strict=True))
        if lacking := [n for n in names if n not in parts]:
            faults.append(f"{path} lacks {', '.join(lacking)}")
        if extra := [n for n in parts if n not in names]:
            faults.append(f"{path} has {', '.join(extra)}, but use_dora is false")
        faults += [
            f"{path}.{n} has {list(a.shape)}, needs {list(shapes[n])}"
            for n, a in parts.items()
            if n in names and a.shape != shapes[n]
        ]
        faults += [f"{path}.{n} is {a.kind}" for n, a in parts.items() if a.kind not in tensor_files.TYPES]
    if faults:
        raise SaveError(f"{folder} does not fit {type(model).__name__} or its own {CONFIG}: {_list(faults, '; ')}")
    if entries.get("exclude_modules") or entries.get("layers_to_transform") is not None or config.is_all_linear:
        return
    lacking = [path for path in linear if config.matches(path) and path not in layers]
    if lacking:
        raise SaveError(
            f"{folder} is an adapter for another network: its target_modules name layers of "
            f"{type(model).__name__} that it has no tensors for: {_list(lacking)}"
        )


def _list(names: list[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return between.join(names[:_SHOWN]) + more
