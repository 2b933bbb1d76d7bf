"""Fine-tuning of language models beside PEFT and PyTorch: python -m benchmarks.finetuning --json FILE

Models of random weights in published folders (bfloat16, as such files are): 135 and 360 million parameters of the Llama
family with grouped queries, and GPT-2. A row is a step of LoRA (rank 16, all linear layers) or of all weights with
AdamW, of a batch of some texts of some tokens. Peers: transformers' model with PEFT, eager or through inductor, in
float32 or under autocast to bfloat16, and Einsmith in float32, in bfloat16, and in bfloat16 with frozen weights that
are kept in it; of all weights of GPT-2, 4 x 64 tokens, also llm.c (--llmc); and PEFT's model through torch.compile with
Einsmith's backend, its frozen weights read at each call, constant, or kept in bfloat16.

Every measurement is a process of its own; peers take turns for `--rounds` rounds, of which the shortest step counts.
Losses of the first steps must agree with eager PyTorch in float32 (1e-4; bfloat16 2e-2) before times are shown. Memory
is the highest resident set of the process, less what it has once libraries are imported, in multiples of the bytes of
float32 weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.driver import Parser, Results
from benchmarks.peers import llmc
from einsmith.base.system import memory

SIZES = {
    "135M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3},
    "360M": {"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 15,
             "num_key_value_heads": 5},
    "GPT-2": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "tiny": {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2},
}  # fmt: skip
"""Configurations of transformers' Llama and GPT-2 by name; "tiny" is for trying the script."""
WORDS = 49_152
OURS = ("einsmith fp32", "einsmith bf16", "einsmith bf16 kept", "einsmith fp32 int8")
PEERS = ("eager fp32", "eager bf16", "inductor fp32", "inductor bf16")
LLMC = "llm.c fp32"
COMPILED = ("peft fp32", "peft bf16", "peft bf16 frozen", "peft bf16 kept")
"""PEFT's model through torch.compile with Einsmith's backend, and with its option `frozen`."""
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "int8": 5e-2}
RANK = 16


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        __doc__,
        SIZES,
        batches=((1, 4), "texts of a batch"),
        lengths=((256, 1024), "tokens of a text"),
        kinds=(("lora",), "lora, full"),
        peers=((*OURS[:3], *PEERS[:2]), "peers: " + ", ".join((*OURS, *COMPILED, *PEERS))),
        threads=(2, "threads"),
        steps=(3, "timed steps of a process"),
        rounds=(2, "rounds"),
        memory_limit=(str, "limit of our steps' memory, such as 700MB"),
        llmc=(Path, "llm.c's program train_gpt2"),
        json=(Path, "file of the results"),
    )
    args = parser.read(argv, batches=1, lengths=2, threads=1, steps=1, rounds=1)
    results = Results(args.json)
    with tempfile.TemporaryDirectory() as folder:
        for model in args.names or ["135M"]:
            path = Path(folder, model)
            _call({"task": "write", "folder": str(path), "model": model})
            for kind, batch, length in product(args.kinds, args.batches, args.lengths):
                cell = {"model": model, "task": kind, "folder": str(path), "batch": batch, "length": length}
                cell |= {"threads": args.threads, "llmc": args.llmc and str(args.llmc), "limit": args.memory_limit}
                results.keep(f"{model} {kind} {batch} x {length}", _measure(args, cell))
                results.say(f"{model} {kind} {batch} x {length}: done")
    results.console.print(_table(results.cells))
    return 0


def _measure(args: Any, work: dict[str, Any]) -> dict[str, Any]:
    """Return what is measured of each peer, by name."""
    cell: dict[str, Any] = {}
    setting = (work["model"], work["task"], work["batch"], work["length"])
    has_llmc = args.llmc is not None and setting == ("GPT-2", "full", llmc.BATCH, llmc.LENGTH)
    for _ in range(args.rounds):
        for peer in (*args.peers, *([LLMC] if has_llmc else [])):
            if work["task"] == "full" and len(peer.split()) > 2:  # keeps weights that are frozen
                continue
            got = _call({"peer": peer, "steps": args.steps, **work})
            before = cell.setdefault(peer, got)
            if "seconds" in got and "seconds" in before:
                before["seconds"] = min(before["seconds"], got["seconds"])
    return cell


def _call(work: dict[str, Any]) -> dict[str, Any]:
    """Return what a process of its own says of a piece of work; its last line is JSON."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.finetuning", "--work", json.dumps(work)], capture_output=True, text=True
    )
    if run.returncode:
        return {"error": (run.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return json.loads(run.stdout.strip().splitlines()[-1])


def _table(cells: dict[str, Any]) -> Table:
    table = Table("work", "peer", "s", "times best peer", "memory", "loss off by", title="fine-tuning")
    for key, cell in cells.items():
        exact = cell.get("eager fp32", {}).get("losses")
        best = min((x["seconds"] for n, x in cell.items() if n in (*PEERS, LLMC) and "seconds" in x), default=None)
        for peer, x in cell.items():
            if "seconds" not in x:
                table.add_row(key, peer, x.get("error", "?"))
                continue
            off = None if exact is None or "losses" not in x else float(np.abs(np.subtract(x["losses"], exact)).max())
            wrong = off is not None and off > TOLERANCE[
                next(p for p in reversed(peer.split()) if p in TOLERANCE)
            ] * abs(exact[0])
            share = f"{best / x['seconds']:.2f}" if best and not wrong else "WRONG" if wrong else ""
            table.add_row(key, peer, f"{x['seconds']:.3f}", share, f"{x.get('memory', 0):.2f}", f"{off or 0:.1e}")
    return table


# ------------------------------------------------------------------------------------------------------------- workers


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Do a piece of work in this process, and return what is to be known of it."""
    if task["task"] == "write":
        return _write(Path(task["folder"]), task["model"])
    if task["peer"] == LLMC:
        return _llmc(task)
    return (_ours if task["peer"] in OURS else _theirs)(task)


def _write(folder: Path, model: str) -> dict[str, Any]:
    """Write a published folder of random weights, and an adapter that is not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    torch.manual_seed(0)
    config: Any
    if "n_embd" in SIZES[model]:
        dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        config = GPT2Config.from_dict({"vocab_size": WORDS, "use_cache": False, **dropouts, **SIZES[model]})
    else:
        common = {"vocab_size": WORDS, "tie_word_embeddings": True, "max_position_embeddings": 2048, "use_cache": False}
        config = LlamaConfig.from_dict({**common, **SIZES[model]})
    network = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    network.save_pretrained(folder)
    adapted = get_peft_model(network, LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear"))
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, 0.0, 1e-3)
    adapted.save_pretrained(str(folder / "adapter"))
    return {}


def _tokens(task: dict[str, Any]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, WORDS, (task["batch"], task["length"]))


def _timed(step: Any, task: dict[str, Any], before: int, weights: int) -> dict[str, Any]:
    start = time.perf_counter()
    losses = [float(step())]
    first = time.perf_counter() - start
    seconds = []
    for _ in range(task["steps"]):
        start = time.perf_counter()
        losses.append(float(step()))
        seconds.append(time.perf_counter() - start)
    held = (memory.peak_bytes() - before) / weights
    return {"losses": losses, "seconds": min(seconds), "first": first, "memory": held}


def _ours(task: dict[str, Any]) -> dict[str, Any]:
    import einsmith as es

    before = memory.resident_bytes()
    _, precision, *keep = task["peer"].split()
    model, weights = _own_model(task["folder"], {"kept": "bf16", "int8": "int8"}.get(*keep) if keep else None)
    if task["task"] == "lora":
        es.adapters.load(model, Path(task["folder"], "adapter"))
    tokens = _tokens(task)
    target = np.concatenate([tokens[:, 1:], np.full((len(tokens), 1), -100)], 1)

    def loss(logits: Any, target: Any) -> Any:
        return es.functional.cross_entropy(logits.reshape((-1, WORDS)), target.reshape(-1))

    settings = {"precision": precision, "threads": task["threads"], "memory_limit": task["limit"]}
    step = es.TrainStep(model, loss, es.optim.AdamW(lr=1e-4, weight_decay=0.01), **settings)
    return _timed(lambda: step(tokens, target), task, before, weights)


def _own_model(folder: str, keep: str | None) -> tuple[Any, int]:
    """Return a model from a folder, its frozen weights kept in fewer bits, and the bytes of its weights in float32."""
    import einsmith as es

    model = es.models.from_folder(folder, keep=keep)
    return model, 4 * sum(int(np.prod(x.shape)) for x in {id(x): x for _, x in model._persistent_state()}.values())


def _theirs(task: dict[str, Any]) -> dict[str, Any]:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(task["threads"])
    before = memory.resident_bytes()
    how, precision, *keep = task["peer"].split()
    model: Any = AutoModelForCausalLM.from_pretrained(task["folder"], dtype=torch.float32).train()
    weights = 4 * sum(p.numel() for p in model.parameters())
    if task["task"] == "lora":
        model = PeftModel.from_pretrained(model, str(Path(task["folder"], "adapter")), is_trainable=True)
    rule = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    call = model if how == "eager" else _compiled(model, how, keep)
    tokens = torch.from_numpy(_tokens(task))

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext():
            loss = call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        rule.step()
        rule.zero_grad()
        return loss.item()

    return _timed(step, task, before, weights)


def _llmc(task: dict[str, Any]) -> dict[str, Any]:
    """Run llm.c on tokens of its own. Its targets differ from transformers' (a text's last token is followed by the
    next one's first), so its first loss is compared here. Raises ValueError where the losses differ."""
    from einsmith import functional

    tokens = np.random.default_rng(0).integers(0, WORDS, llmc.BATCH * llmc.LENGTH + 1)
    heads = SIZES[task["model"]]["n_head"]
    got = llmc.run(Path(task["llmc"]), Path(task["folder"]), tokens, heads, task["steps"], task["threads"])
    model, _ = _own_model(task["folder"], None)
    logits = model.predict(tokens[:-1].reshape(llmc.BATCH, llmc.LENGTH)).reshape(-1, WORDS)
    want, first = float(functional.cross_entropy(logits, tokens[1:])), got.pop("losses")[0]
    if abs(want - first) > TOLERANCE["fp32"] * want:
        raise ValueError(f"its first loss is {first}, not {want}")
    return got


def _compiled(model: Any, how: str, keep: list[str]) -> Any:
    """Return a model compiled by inductor, or by Einsmith (`COMPILED`)."""
    import torch

    if how != "peft":
        return torch.compile(model, backend=how)
    import einsmith.frontends.torch  # noqa: F401 - registers the backend

    options = {"frozen": "bf16" if keep == ["kept"] else True} if keep else {}
    return torch.compile(model, backend="einsmith", options=options)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--work":
        print(json.dumps(work(json.loads(sys.argv[2]))))
        sys.exit(0)
    sys.exit(main())
