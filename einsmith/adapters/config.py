"""Hold the settings of an adapter, and translate them from and to PEFT's adapter_config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, Any

from einsmith.base.arguments import Count, Share, check_fields, show
from einsmith.base.errors import ArgumentError, SaveError

ALL_LINEAR = "all-linear"
"""Targets that stand for every linear layer but the one that makes the logits."""
_READ = frozenset(
    "r lora_alpha lora_dropout target_modules rank_pattern alpha_pattern use_rslora use_dora peft_type".split()
)
"""Fields of PEFT's configuration that are settings here."""
_WITHOUT_EFFECT = frozenset(
    "auto_mapping base_model_name_or_path ensure_weight_tying exclude_modules fan_in_fan_out inference_mode "
    "layers_pattern layers_to_transform megatron_core peft_version qalora_group_size revision runtime_config "
    "task_type".split()
)
"""Fields of PEFT's configuration that change no result of an adapter that is stored: the names of its tensors say which
layers it has."""
_INITIAL = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the network's own weights as they are."""


@check_fields
@dataclass(frozen=True)
class LoRAConfig:
    """The settings of an adapter of low rank.

    Attributes:
        rank: rank of the product B A that is added to a weight.
        alpha: the product is multiplied by alpha/rank.
        targets: names of layers, of which a layer's path is one or ends in one; a regular expression that matches whole
            paths; or "all-linear".
        dropout: probability with which an element of the adapter's input is zero in training.
        rank_pattern: other ranks, by regular expressions of the ends of paths.
        alpha_pattern: other alphas, likewise.
        rslora: multiply by alpha/sqrt(rank) instead (Kalajdzievski 2023, arXiv 2312.03732).
        dora: learn the norm of each row of the adapted weight, too (Liu et al. 2024, arXiv 2402.09353).

    Raises:
        ArgumentError: a value is not allowed.
    """

    rank: Count
    alpha: float
    targets: str | Sequence[str] = ALL_LINEAR
    dropout: Share = 0.0
    rank_pattern: Mapping[str, Annotated[int, 1]] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    rslora: bool = False
    dora: bool = False

    def __post_init__(self) -> None:
        if self.dropout >= 1:
            raise ArgumentError(f"dropout={self.dropout} leaves nothing of the adapter's input; it must be below 1")
        names = [self.targets] if isinstance(self.targets, str) else list(self.targets)
        if not names or not all(isinstance(n, str) and n for n in names):
            raise ArgumentError(f"targets={show(self.targets)} must be names of layers, a regular expression, or "
                                f"{ALL_LINEAR!r}")  # fmt: skip
        patterns = [*self.rank_pattern, *self.alpha_pattern]
        for text in patterns + ([self.targets] if isinstance(self.targets, str) else []):
            try:
                re.compile(text)
            except re.error as e:
                raise ArgumentError(f"{text!r} is no regular expression: {e}") from None
        for name, value in self.rank_pattern.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"rank_pattern[{name!r}]={show(value)} must be an integer of at least 1")

    @property
    def is_all_linear(self) -> bool:
        """Whether the targets are all linear layers."""
        return isinstance(self.targets, str) and self.targets.lower() == ALL_LINEAR

    def matches(self, path: str) -> bool:
        """Return whether a layer's path is among the targets, which name layers."""
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, path) is not None
        return any(path == name or path.endswith(f".{name}") for name in self.targets)

    def rank_of(self, path: str) -> int:
        """Return the rank of a layer's adapter."""
        return _by_pattern(self.rank_pattern, path, self.rank)

    def scale_of(self, path: str) -> float:
        """Return the number by which a layer's product B A is multiplied."""
        rank = self.rank_of(path)
        return _by_pattern(self.alpha_pattern, path, self.alpha) / (sqrt(rank) if self.rslora else rank)


def _by_pattern(pattern: Mapping[str, Any], path: str, default: Any) -> Any:
    """Return the value of the first regular expression that matches the end of a path, as PEFT does."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", path)), default)


def to_peft(config: LoRAConfig, targets: str | Sequence[str], is_transposed: bool, base: str | None) -> dict[str, Any]:
    """Return the entries of adapter_config.json.

    targets: the layers, for PEFT; is_transposed: whether a layer stores its weight as [inputs, outputs]; base: name or
    folder of the network that is adapted.
    """
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if float(config.alpha).is_integer() else config.alpha,
        "lora_dropout": float(config.dropout),
        "target_modules": targets if isinstance(targets, str) else sorted(targets),
        "rank_pattern": dict(config.rank_pattern),
        "alpha_pattern": dict(config.alpha_pattern),
        "use_rslora": config.rslora,
        "use_dora": config.dora,
        "bias": "none",
        "fan_in_fan_out": is_transposed,
        "init_lora_weights": True,
        "modules_to_save": None,
    }


def from_peft(entries: Mapping[str, Any], where: str) -> LoRAConfig:
    """Return the settings that adapter_config.json describes; where: the file, for messages.

    Raises SaveError for another kind of adapter, for fields that change results in ways that are not known here, and
    for values that are not allowed.
    """
    kind = entries.get("peft_type", "LORA")
    if kind != "LORA":
        raise SaveError(f"{where}: the adapter is of the kind {show(kind)}; LORA is read, with use_dora or without")
    if entries.get("init_lora_weights", True) not in _INITIAL:
        raise SaveError(
            f"{where}: init_lora_weights={show(entries['init_lora_weights'])} changes the network's own weights; "
            "convert it to plain LoRA (PEFT: save_pretrained(path_initial_model_for_weight_conversion=...))"
        )
    inert = {"bias": "none", "init_lora_weights": entries.get("init_lora_weights")}
    unknown = {
        name: value
        for name, value in entries.items()
        if name not in _READ | _WITHOUT_EFFECT and not (value == inert[name] if name in inert else _is_off(value))
    }
    if unknown:
        listed = ", ".join(f"{name}={show(value)}" for name, value in unknown.items())
        raise SaveError(f"{where}: {listed}: this changes what the adapter computes, and is not supported")
    lacking = [name for name in ("r", "lora_alpha", "target_modules") if entries.get(name) is None]
    if lacking:
        raise SaveError(f"{where} lacks {', '.join(lacking)}")
    try:
        return LoRAConfig(
            entries["r"],
            entries["lora_alpha"],
            entries["target_modules"],
            entries.get("lora_dropout") or 0.0,
            entries.get("rank_pattern") or {},
            entries.get("alpha_pattern") or {},
            bool(entries.get("use_rslora")),
            bool(entries.get("use_dora")),
        )
    except (ArgumentError, TypeError) as e:
        raise SaveError(f"{where}: {e}") from e


def _is_off(value: Any) -> bool:
    """Return whether a field's value is what PEFT writes for an option that is not used."""
    return value is None or value is False or value == {} or value == []
