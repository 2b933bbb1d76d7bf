"""Read the settings of language models with rotary positions from their published `config.json`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from math import ceil, floor, inf, log, pi
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from einsmith.base import files
from einsmith.base.arguments import Count, Depth, Magnitude, check_fields, show
from einsmith.base.errors import ArgumentError, DataError, EinsmithError

WITHOUT_EFFECT = frozenset((
    "_attn_implementation", "_name_or_path", "_attn_implementation_autoset", "architectures", "bos_token_id",
    "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label", "initializer_range", "is_decoder",
    "is_encoder_decoder", "keys_to_ignore_at_inference", "label2id", "output_attentions", "output_hidden_states",
    "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "torch_dtype", "transformers.js_config",
    "transformers_version", "unk_token_id", "use_cache",
))  # fmt: skip
"""Fields of a config.json that change no logits: names, types of the files, settings of training and of calls.
`pretraining_tp` splits products and changes the order of sums alone."""
ROTARY_FIELDS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset(("factor",)),
    "dynamic": frozenset(("factor", "original_max_position_embeddings")),
    "llama3": frozenset(("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")),
    "yarn": frozenset((
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    )),
}  # fmt: skip
"""Fields of each kind of rotary positions, besides its kind and `rope_theta`."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {
        "max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128
    },
}  # fmt: skip
"""Values of fields that a config.json leaves out, by `model_type`, where they differ from those of `LlamaConfig`."""
OWN_FIELDS: Mapping[str, frozenset[str]] = {
    "llama": frozenset(("attention_bias", "mlp_bias")),
    "mistral": frozenset(("sliding_window",)),
    "qwen2": frozenset(("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")),
    "qwen3": frozenset(("attention_bias", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types")),
}
"""Fields that only some values of `model_type` have."""
NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""Fields without which a config.json is refused."""


@check_fields
@dataclass(frozen=True)
class LlamaConfig:
    """Settings of a `Llama` under the names of config.json. The defaults are those of SmolLM-135M.

    Args:
        model_type: "llama", "mistral", "qwen2" or "qwen3": biases of queries, keys and values (qwen2), norms of heads
            (qwen3)
        vocab_size: number of different tokens
        hidden_size: features of a token between the layers
        intermediate_size: features within the feed-forward part
        num_hidden_layers: number of layers
        num_attention_heads: heads of the queries
        num_key_value_heads: heads of keys and values, a divisor of the former; None: as many
        head_dim: features of a head; None: hidden_size/num_attention_heads
        max_position_embeddings: tokens that the published model was trained on at most
        rms_norm_eps: number added to mean squares
        hidden_act: "silu"
        tie_word_embeddings: whether the table of tokens is the last layer's weight
        attention_bias: whether the four linear layers of the attention have biases (qwen2: always but the last)
        mlp_bias: whether those of the feed-forward part have
        sliding_window: keys that a query of a layer with windows sees, its own included
        use_sliding_window: whether layers of qwen2 and qwen3 have windows
        max_window_layers: the first layer with windows, where `layer_types` is None
        layer_types: "full_attention" or "sliding_attention" of each layer of qwen2 and qwen3
        rope_parameters: "rope_type" (default, linear, dynamic, llama3, yarn), "rope_theta" and the type's own numbers
    """

    model_type: str = "llama"
    vocab_size: Count = 49152
    hidden_size: Count = 576
    intermediate_size: Count = 1536
    num_hidden_layers: Depth = 30
    num_attention_heads: Count = 9
    num_key_value_heads: Count | None = 3
    head_dim: Count | None = None
    max_position_embeddings: Count = 2048
    rms_norm_eps: Magnitude = 1e-5
    hidden_act: str = "silu"
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Count | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    layer_types: tuple[str, ...] | None = None
    rope_parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.model_type not in OWN_FIELDS:
            raise ArgumentError(f"model_type={self.model_type!r} must be one of {', '.join(OWN_FIELDS)}")
        if self.hidden_act not in ("silu", "swish"):
            raise ArgumentError(f"hidden_act={self.hidden_act!r} is not supported; only 'silu' is")
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ArgumentError(
                    f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads="
                    f"{self.num_attention_heads}, or head_dim be set"
                )
            self._set("head_dim", self.hidden_size // self.num_attention_heads)
        if self.num_key_value_heads is None:
            self._set("num_key_value_heads", self.num_attention_heads)
        if self.num_attention_heads % self.shared_heads:
            raise ArgumentError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of num_key_value_heads="
                f"{self.num_key_value_heads}"
            )
        if self.head_width % 2:
            raise ArgumentError(f"head_dim={self.head_dim} must be even: rotary positions turn pairs of features")
        self._check_layer_types()
        self._set("rope_parameters", _rotary_fields(self))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_layer_types(self) -> None:
        types = self.layer_types
        if types is None:
            return
        if unknown := set(types) - {"full_attention", "sliding_attention"}:
            raise ArgumentError(
                f"layer_types has {min(unknown)!r}; only full_attention and sliding_attention are known"
            )
        if len(types) != self.num_hidden_layers:
            raise ArgumentError(f"layer_types has {len(types)} entries for num_hidden_layers={self.num_hidden_layers}")
        if "sliding_attention" in types and self.windows.count(0) > types.count("full_attention"):
            raise ArgumentError(
                "layer_types has sliding_attention, but sliding_window or use_sliding_window is not set"
            )

    @property
    def head_width(self) -> int:
        """Features of a head."""
        assert self.head_dim is not None
        return self.head_dim

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        assert self.num_key_value_heads is not None
        return self.num_key_value_heads

    @property
    def has_head_norms(self) -> bool:
        """True if queries and keys are normalized in each head."""
        return self.model_type == "qwen3"

    @property
    def biases(self) -> tuple[bool, bool]:
        """The biases of attention: (of queries, keys and values; of the output projection)."""
        return (True, False) if self.model_type == "qwen2" else (self.attention_bias, self.attention_bias)

    @property
    def windows(self) -> tuple[int, ...]:
        """Number of keys, its own included, that a query of each layer sees at most; 0 for all before it."""
        layers, size = self.num_hidden_layers, self.sliding_window or 0
        if self.model_type == "mistral":
            return (size,) * layers
        if not self.use_sliding_window:
            return (0,) * layers
        if self.layer_types is not None:
            return tuple(size if kind == "sliding_attention" else 0 for kind in self.layer_types)
        return tuple(size if n >= self.max_window_layers else 0 for n in range(layers))

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any], where: str = "config.json") -> LlamaConfig:
        """Return the settings that a published config.json holds.

        Args:
            mapping: the file's content
            where: name of the file, for messages

        Raises:
            ArgumentError: a field is missing, unknown, or has a value that this network does not support.
        """
        kind = mapping.get("model_type", "llama")
        if kind not in OWN_FIELDS:
            raise ArgumentError(f"{where}: model_type={show(kind)} is not supported; known: {', '.join(OWN_FIELDS)}")
        own = {f.name for f in fields(cls)} - frozenset.union(*OWN_FIELDS.values()) | OWN_FIELDS[kind]
        merged: dict[str, Any] = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "num_key_value_heads": None}
        merged |= {**DEFAULTS[kind], **mapping}
        require_fields(merged, NEEDED, where)
        rotary = _merge_rotary_fields(merged, where)
        refuse_fields(merged, where, attention_dropout=0.0)
        if kind in ("qwen2", "qwen3") and not merged.get("use_sliding_window", False):
            merged["sliding_window"] = None  # transformers writes it so, whatever it was
        if kind == "mistral" and (types := merged.pop("layer_types", None)) is not None:
            wanted = "sliding_attention" if merged["sliding_window"] else "full_attention"
            if set(types) != {wanted}:
                raise ArgumentError(f"{where}: layer_types of a mistral must all be {wanted}; use ministral's own type")
        taken = {n: v for n, v in merged.items() if n in own}
        idle = {f.name for f in fields(cls) if f.name in merged and merged[f.name] == f.default}
        refuse_others(merged, own | idle | WITHOUT_EFFECT | {"attention_dropout"}, where)
        try:
            return cls(**taken | {"model_type": kind, "rope_parameters": rotary})
        except EinsmithError as e:
            raise type(e)(f"{where}: {e}") from None


def read_config(path: str | PathLike[str]) -> tuple[dict[str, Any], str]:
    """Return (the content of a config.json, its path), by the path of the file or of its folder.

    Raises DataError for a file that is missing or no JSON object."""
    file = Path(path) / "config.json" if files.is_folder(path) else Path(path)
    try:
        content = json.loads(files.read_bytes(file))
    except OSError as e:
        raise DataError(f"{file} cannot be read ({e.strerror or e}); pass the folder of a published model") from e
    except (ValueError, RecursionError) as e:
        raise DataError(f"{file} is no JSON file ({e}); download it again") from e
    if not isinstance(content, dict):
        raise DataError(f"{file} holds no JSON object; it is not the config.json of a published model")
    return content, str(file)


def require_fields(mapping: Mapping[str, Any], needed: Collection[str], where: str) -> None:
    """Raise ArgumentError if the content of a config.json lacks one of the fields."""
    if missing := [n for n in needed if mapping.get(n) is None]:
        raise ArgumentError(f"{where} has no field {missing[0]!r}; it is not the config.json of a published model")


def refuse_fields(mapping: Mapping[str, Any], where: str, **supported: Any) -> None:
    """Raise ArgumentError if the content of a config.json has another value than the only one that is supported."""
    for name, value in supported.items():
        if mapping.get(name, value) != value:
            raise ArgumentError(
                f"{where}: {name}={show(mapping[name])} is not supported; set it to {value!r} if the model may do "
                "without it"
            )


def refuse_others(mapping: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raise ArgumentError for a field of a config.json that is not known, which might change the logits."""
    for name in mapping:
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(
                f"{where} has the unknown field {name!r}; {hint}if it does not change the logits, remove it"
            )


def _merge_rotary_fields(merged: dict[str, Any], where: str) -> dict[str, Any]:
    """Remove the fields of rotary positions, in their old and new places, and return them as one mapping."""
    outer = {n: merged.pop(n) for n in ("rope_theta", "partial_rotary_factor") if n in merged}
    scaling, parameters = merged.pop("rope_scaling", None), merged.pop("rope_parameters", None)
    rotary = scaling or parameters or {}
    if not isinstance(rotary, Mapping):
        raise ArgumentError(f"{where}: rope_parameters={show(rotary)} must be a mapping")
    return {n: v for n, v in outer.items() if v is not None} | dict(rotary)


def _rotary_fields(config: LlamaConfig) -> dict[str, Any]:
    """Return checked settings of rotary positions, with their kind and base. Raises ArgumentError."""
    rotary = dict(config.rope_parameters)
    kind = rotary.pop("rope_type", rotary.pop("type", "default"))
    rotary.pop("type", None)
    if kind not in ROTARY_FIELDS:
        raise ArgumentError(f"rope_type={show(kind)} is not supported; known: {', '.join(ROTARY_FIELDS)}")
    if rotary.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ArgumentError("partial_rotary_factor is not supported; only 1.0 is")
    theta = rotary.pop("rope_theta", None) or 10000.0
    rotary = {n: v for n, v in rotary.items() if v is not None}
    known = ROTARY_FIELDS[kind]
    if unknown := rotary.keys() - known:
        raise ArgumentError(f"rope_parameters of type {kind!r} has the unknown field {min(unknown)!r}; remove it")
    needed = known - ROTARY_FIELDS["yarn"] | known & {"factor"}
    if kind == "yarn" and "original_max_position_embeddings" in rotary:
        needed -= {"factor"}
    if missing := needed - rotary.keys():
        raise ArgumentError(f"rope_parameters of type {kind!r} has no field {min(missing)!r}")
    for name, value in ({"rope_theta": theta} | rotary).items():
        if name != "truncate" and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise ArgumentError(f"rope_parameters: {name}={show(value)} must be a positive number")
    return {"rope_type": kind, "rope_theta": theta} | rotary


def rotary_rates(config: LlamaConfig) -> tuple[np.ndarray, float, float]:
    """Return (radians by which a step turns each pair of features, factor of cosines and sines, most steps).

    Sources: Su et al. 2021, arXiv 2104.09864; scaling of llama3 as published with Llama 3.1; yarn: Peng et al. 2023,
    arXiv 2309.00071.
    """
    rotary, width = config.rope_parameters, config.head_width
    kind, theta = rotary["rope_type"], float(rotary["rope_theta"])
    rates = theta ** -(np.arange(0, width, 2) / width)
    original = rotary.get("original_max_position_embeddings", config.max_position_embeddings)
    factor = rotary.get("factor") or config.max_position_embeddings / original
    if kind == "linear":
        return rates / factor, 1.0, inf
    if kind == "dynamic":  # the base grows with the length only beyond the original one
        return rates, 1.0, config.max_position_embeddings
    if kind == "llama3":
        low, high = rotary["low_freq_factor"], rotary["high_freq_factor"]
        turns = original * rates / (2 * pi)
        share = np.clip((turns - low) / (high - low), 0.0, 1.0) if high != low else (turns > low) * 1.0
        return (1 - share) * rates / factor + share * rates, 1.0, inf
    if kind == "yarn":
        return _yarn_rates(rates, width, theta, original, factor, rotary)
    return rates, 1.0, inf


def _yarn_rates(
    rates: np.ndarray, width: int, theta: float, original: float, factor: float, rotary: Mapping[str, Any]
) -> tuple[np.ndarray, float, float]:
    def scale(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * log(factor) + 1.0

    def pair(turns: float) -> float:
        return width * log(original / (turns * 2 * pi)) / (2 * log(theta))

    low, high = pair(rotary.get("beta_fast", 32)), pair(rotary.get("beta_slow", 1))
    if rotary.get("truncate", True):
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high += 0.001 if low == high else 0  # as published, against a division by zero
    share = np.clip((np.arange(width // 2) - low) / (high - low), 0.0, 1.0)
    by, by_all = rotary.get("mscale"), rotary.get("mscale_all_dim")
    default = scale(by) / scale(by_all) if by and by_all else scale(1)
    return share * rates / factor + (1 - share) * rates, rotary.get("attention_factor", default), inf
