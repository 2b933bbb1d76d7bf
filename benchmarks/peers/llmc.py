"""Steps of llm.c's `train_gpt2` (github.com/karpathy/llm.c, built by `make train_gpt2`) on a published folder of GPT-2.

The program's setting is fixed: batches of 4 x 64 tokens, float32, AdamW. It reads its weights and tokens from files in
its working directory, and prints the loss and the time of every step.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

BATCH, LENGTH = 4, 64
CHECKPOINT, TOKENS = (20240326, 3), (20240520, 1)
"""Magic numbers and versions of the files."""
_STEP = re.compile(r"step \d+: train loss ([\d.]+) \(took ([\d.]+) ms\)")
_LAYER = (
    ("ln_1.weight", False), ("ln_1.bias", False), ("attn.c_attn.weight", True), ("attn.c_attn.bias", False),
    ("attn.c_proj.weight", True), ("attn.c_proj.bias", False), ("ln_2.weight", False), ("ln_2.bias", False),
    ("mlp.c_fc.weight", True), ("mlp.c_fc.bias", False), ("mlp.c_proj.weight", True), ("mlp.c_proj.bias", False),
)  # fmt: skip
"""A layer's tensors in the order of the checkpoint, and whether it has them transposed."""


def run(program: Path, folder: Path, tokens: np.ndarray, heads: int, steps: int, threads: int) -> dict[str, Any]:
    """Return losses and the least seconds of some steps after the first, on one batch of tokens [4 * 64 + 1]."""
    with tempfile.TemporaryDirectory() as place:
        _write(Path(place), folder, tokens, heads)
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        process = subprocess.Popen(
            ["stdbuf", "-oL", str(program.resolve())], cwd=place, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        losses, seconds = [], []
        for line in process.stdout:
            if match := _STEP.search(line):
                losses.append(float(match[1]))
                seconds.append(float(match[2]) / 1e3)
            if len(losses) > steps:
                break
        process.kill()
        process.wait()
    if len(losses) <= steps:
        raise ValueError(f"{program} ended after {len(losses)} steps")
    return {"losses": losses, "seconds": min(seconds[1:]), "first": seconds[0]}


def _write(place: Path, folder: Path, tokens: np.ndarray, heads: int) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {name.removeprefix("transformer."): file.get_tensor(name).float().numpy() for name in file.keys()}
    words, channels = tensors["wte.weight"].shape
    layers = 1 + max(int(n.split(".")[1]) for n in tensors if n.startswith("h."))
    limit = len(tensors["wpe.weight"])
    head = np.zeros(256, np.int32)
    head[:8] = *CHECKPOINT, limit, words, layers, heads, channels, words
    with open(place / "gpt2_124M.bin", "wb") as out:
        out.write(head.tobytes())
        for name in ("wte.weight", "wpe.weight"):
            out.write(tensors[name].tobytes())
        for name, transposed in _LAYER:
            for n in range(layers):
                a = tensors[f"h.{n}.{name}"]
                out.write(np.ascontiguousarray(a.T if transposed else a).tobytes())
        for name in ("ln_f.weight", "ln_f.bias"):
            out.write(tensors[name].tobytes())
    data = place / "dev" / "data" / "tinyshakespeare"
    data.mkdir(parents=True)
    head = np.zeros(256, np.int32)
    head[:3] = *TOKENS, tokens.size
    for part in ("train", "val"):
        content = head.tobytes() + tokens.astype(np.uint16).tobytes()
        (data / f"tiny_shakespeare_{part}.bin").write_bytes(content)
