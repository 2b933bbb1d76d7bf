"""Adapt networks by matrices of low rank (LoRA, DoRA), and read and write the adapters in PEFT's format."""

from einsmith.adapters.config import LoRAConfig
from einsmith.adapters.low_rank import lora, merge, remove, unmerge
from einsmith.adapters.peft_folder import load, save

__all__ = ["LoRAConfig", "load", "lora", "merge", "remove", "save", "unmerge"]
