"""Read published language models: a folder with config.json and safetensors files becomes a network with weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from einsmith.base.arguments import Count, check_arguments, show
from einsmith.base.errors import ArgumentError, EinsmithError
from einsmith.models.llama import Llama
from einsmith.models.llama_config import (
    OWN_FIELDS,
    WITHOUT_EFFECT,
    LlamaConfig,
    read_config,
    refuse_fields,
    refuse_others,
    require_fields,
)
from einsmith.models.tensor_files import StoredTensor, find_tensors, load_tensors
from einsmith.models.transformer import GPT, rename_published
from einsmith.nn import Module, init
from einsmith.nn.frozen import keep_unset

GPT_FIELDS = {
    "vocab_size": "vocabulary", "n_embd": "width", "n_layer": "layers", "n_head": "heads", "n_positions": "positions",
    "n_inner": "inner", "layer_norm_epsilon": "eps",
}  # fmt: skip
"""Fields of GPT-2's config.json, and the arguments of `GPT` that they become."""
GPT_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
GPT_ACTIVATIONS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
"""Values of `activation_function`, and the argument `approximate` of GELU."""
GPT_WITHOUT_EFFECT = frozenset((
    "n_ctx", "reorder_and_upcast_attn", "task_specific_params", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "model_type",
))  # fmt: skip
"""Fields of GPT-2's config.json that change no logits: of other heads and of the order of float16 operations."""


def gpt_arguments(mapping: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the arguments of `GPT` for the content of a config.json of GPT-2. Raises ArgumentError."""
    require_fields(mapping, ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions"), where)
    refuse_fields(
        mapping, where, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False,
        tie_word_embeddings=True,
    )  # fmt: skip
    drops = {mapping.get(n, 0.1) for n in GPT_DROPOUTS}
    if len(drops) > 1:
        raise ArgumentError(f"{where}: {', '.join(GPT_DROPOUTS)} differ; only one dropout for all is supported")
    act = mapping.get("activation_function", "gelu_new")
    if act not in GPT_ACTIVATIONS:
        raise ArgumentError(
            f"{where}: activation_function={show(act)} is not supported; known: {', '.join(GPT_ACTIVATIONS)}"
        )
    checked = {"scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention", "tie_word_embeddings"}
    known = {*GPT_FIELDS, *GPT_DROPOUTS, "activation_function", *checked}
    refuse_others(mapping, known | WITHOUT_EFFECT | GPT_WITHOUT_EFFECT, where)
    arguments = {ours: mapping[n] for n, ours in GPT_FIELDS.items() if n in mapping}
    return arguments | {"dropout": drops.pop(), "approximate": GPT_ACTIVATIONS[act]}


def _make_gpt(mapping: Mapping[str, Any], where: str, dtype: Any) -> GPT:
    arguments = gpt_arguments(mapping, where)
    try:
        model = GPT(**arguments, dtype=dtype)
    except EinsmithError as e:
        raise type(e)(f"{where}: {e}") from None
    model.spec = {"name": "gpt_small", "arguments": {**arguments, "dtype": str(dtype)}}
    return model


def llama(config: Any = None, *, dtype: Any = "float32") -> Llama:
    """Return a new Llama with random weights, or Mistral, Qwen2 or Qwen3.

    config: a LlamaConfig, the content of a config.json, or the path of the file or its folder; by default the sizes of
    SmolLM-135M. Raises ArgumentError, DataError."""
    if isinstance(config, (str, PathLike)):
        config = LlamaConfig.from_json(*read_config(config))
    model = Llama(config, dtype=dtype)
    model.spec = {"name": "llama", "arguments": {"config": asdict(model.config), "dtype": str(dtype)}}
    return model


def _make_llama(mapping: Mapping[str, Any], where: str, dtype: Any) -> Llama:
    return llama(LlamaConfig.from_json(mapping, where), dtype=dtype)


def _rename_gpt(tensors: Mapping[str, StoredTensor], model: Module) -> Mapping[str, StoredTensor]:
    return rename_published(tensors, "transformer.", GPT.ASIDE)


def _rename_llama(tensors: Mapping[str, StoredTensor], model: Module) -> Mapping[str, StoredTensor]:
    aside = r".*rotary_emb\.inv_freq" + ("|lm_head.weight" if model.lm_head is None else "")
    whole = any(n.startswith("model.") for n in tensors)
    return {n if whole else f"model.{n}": t for n, t in tensors.items() if not re.fullmatch(aside, n)}


_Make = Callable[[Mapping[str, Any], str, Any], Module]
_Rename = Callable[[Mapping[str, StoredTensor], Module], Mapping[str, StoredTensor]]
FAMILIES: Mapping[str, tuple[_Make, _Rename]] = {
    "gpt2": (_make_gpt, _rename_gpt),
    **dict.fromkeys(OWN_FIELDS, (_make_llama, _rename_llama)),
}
"""By `model_type`: functions that make the network, and that give its file's tensors the network's names."""


def _family(mapping: Mapping[str, Any], where: str) -> tuple[_Make, _Rename]:
    kind = mapping.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ArgumentError(f"{where}: model_type={show(kind)} is not supported; known: {', '.join(FAMILIES)}")
    return FAMILIES[kind]


@check_arguments
def from_folder(
    path: str | PathLike, dtype: Any = "float32", *, keep: str | None = None, group: Count | None = None
) -> Module:
    """Return the language model of a published folder, with its weights, in evaluation mode.

    The folder holds config.json, and model.safetensors or model.safetensors.index.json with the files that it lists.
    Weights of bfloat16 and float16 are widened. Tensors are read piece by piece into the memory of the network, so that
    memory stays near the size of the weights.

    Args:
        path: the folder
        dtype: "float32" or "float64"
        keep: "bf16" or "int8" freezes the weights and keeps them in fewer bits (`einsmith.nn.freeze`)
        group: as in `einsmith.nn.freeze`

    Raises:
        DataError: a file is missing, damaged or cut short.
        ArgumentError: config.json has fields or values that are not supported.
        UnknownNameError, ShapeError: tensors are missing, superfluous or of other shapes than config.json says.
    """
    folder = Path(path)
    mapping, where = read_config(folder)
    make, name_tensors = _family(mapping, where)
    tensors = find_tensors(folder)
    with init.undrawn():
        model = make(mapping, where, dtype)
    if keep is not None:
        keep_unset(model, keep, group)
    load_tensors(model, name_tensors(tensors, model), folder)
    return model.eval()
