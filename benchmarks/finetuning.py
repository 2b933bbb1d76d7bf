"""Fine-tuning and decoding of language models beside PEFT and PyTorch: python -m benchmarks.finetuning --json FILE

Models of random weights in published folders (bfloat16, as such files are): 135 and 360 million parameters of the Llama
family with grouped queries. A row is a step of LoRA (rank 16, all linear layers) or of all weights with AdamW, of a
batch of some texts of some tokens. Peers: transformers' model with PEFT, eager or through inductor, in float32 or under
autocast to bfloat16, and Einsmith in float32, in bfloat16, and in bfloat16 with frozen weights that are kept in it.

Every measurement is a process of its own; peers take turns for `--rounds` rounds, of which the shortest step counts.
Losses of the first steps must agree with eager PyTorch in float32 (1e-4; bfloat16 2e-2) before times are shown. Memory
is the highest resident set of the process, less what it has once libraries are imported, in multiples of the bytes of
float32 weights. `--decode` measures tokens a second of one text instead, as a part of what reading the weights once
for each token takes at the memory bandwidth that is measured beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.driver import Parser, Results

SIZES = {
    "135M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3},
    "360M": {"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 15,
             "num_key_value_heads": 5},
    "tiny": {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2},
}  # fmt: skip
"""Configurations of transformers' Llama by name; "tiny" is for trying the script."""
WORDS = 49_152
OURS = ("einsmith fp32", "einsmith bf16", "einsmith bf16 kept", "einsmith fp32 int8")
PEERS = ("eager fp32", "eager bf16", "inductor fp32", "inductor bf16")
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "int8": 5e-2}
RANK = 16


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        __doc__,
        SIZES,
        batches=((1, 4), "texts of a batch"),
        lengths=((256, 1024), "tokens of a text"),
        kinds=(("lora",), "lora, full"),
        peers=((*OURS[:3], *PEERS[:2]), "peers: " + ", ".join((*OURS, *PEERS))),
        threads=(2, "threads"),
        steps=(3, "timed steps of a process"),
        rounds=(2, "rounds"),
        decode=(False, "measure decoding"),
        json=(Path, "file of the results"),
    )
    args = parser.read(argv, batches=1, lengths=2, threads=1, steps=1, rounds=1)
    results = Results(args.json)
    with tempfile.TemporaryDirectory() as folder:
        for model in args.names or ["135M"]:
            path = Path(folder, model)
            _call({"task": "write", "folder": str(path), "model": model})
            for kind, cell in _cells(args):
                key = f"{model} {kind} {json.dumps(cell)}" if cell else f"{model} {kind}"
                results.keep(key, _measure(args, {"folder": str(path), "kind": kind, "threads": args.threads, **cell}))
                print(key, json.dumps(results.cells[key]), flush=True)
    results.console.print(_table(results.cells))
    return 0


def _cells(args: Any) -> Iterator[tuple[str, dict[str, int]]]:
    if args.decode:
        yield "decode", {}
        return
    for kind in args.kinds:
        for batch in args.batches:
            for length in args.lengths:
                yield kind, {"batch": batch, "length": length}


def _measure(args: Any, work: dict[str, Any]) -> dict[str, Any]:
    """Return what is measured of each peer, by name: of decoding those that are given, in turns."""
    cell: dict[str, Any] = {}
    for _ in range(args.rounds):
        for peer in args.peers:
            got = _call({"task": work["kind"], "peer": peer, "steps": args.steps, **work})
            before = cell.setdefault(peer, got)
            if "seconds" in got and "seconds" in before:
                before["seconds"] = min(before["seconds"], got["seconds"])
                before["bandwidth"] = max(before.get("bandwidth", 0), got.get("bandwidth", 0))
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
        best = min((x["seconds"] for n, x in cell.items() if n in PEERS and "seconds" in x), default=None)
        for peer, x in cell.items():
            if "seconds" not in x:
                table.add_row(key, peer, x.get("error", "?"))
                continue
            off = None if exact is None or "losses" not in x else float(np.abs(np.subtract(x["losses"], exact)).max())
            wrong = off is not None and off > TOLERANCE[peer.split()[-1].replace("kept", "bf16")] * abs(exact[0])
            share = f"{best / x['seconds']:.2f}" if best and not wrong else "WRONG" if wrong else ""
            table.add_row(key, peer, f"{x['seconds']:.3f}", share, f"{x.get('memory', 0):.2f}", f"{off or 0:.1e}")
            if x.get("bandwidth"):
                table.add_row("", "", f"{x['bytes'] / x['seconds'] / x['bandwidth']:.2f} of the memory bandwidth")
    return table


# ------------------------------------------------------------------------------------------------------------- workers


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Do a piece of work in this process, and return what is to be known of it."""
    if task["task"] == "write":
        return _write(Path(task["folder"]), task["model"])
    run = _ours if task["peer"] in OURS else _theirs
    return (_decode if task["task"] == "decode" else run)(task)


def _write(folder: Path, model: str) -> dict[str, Any]:
    """Write a published folder of random weights, and an adapter that is not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, tie_word_embeddings=True, max_position_embeddings=2048, use_cache=False, **SIZES[model]
    )
    network = LlamaForCausalLM(config).to(torch.bfloat16)
    network.save_pretrained(folder)
    adapted = get_peft_model(network, LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear"))
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, 0.0, 1e-3)
    adapted.save_pretrained(str(folder / "adapter"))
    return {}


def _tokens(task: dict[str, Any]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, WORDS, (task["batch"], task["length"]))


def _resident(peak: bool = True) -> int:
    """Return the bytes of the highest, or the present, resident set of this process."""
    field = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) << 10 for x in lines if x.startswith(field))


def _timed(step: Any, task: dict[str, Any], before: int, weights: int) -> dict[str, Any]:
    start = time.perf_counter()
    losses = [float(step())]
    first = time.perf_counter() - start
    seconds = []
    for _ in range(task["steps"]):
        start = time.perf_counter()
        losses.append(float(step()))
        seconds.append(time.perf_counter() - start)
    memory = (_resident() - before) / weights
    return {"losses": losses, "seconds": min(seconds), "first": first, "memory": memory}


def _ours(task: dict[str, Any]) -> dict[str, Any]:
    import einsmith as es

    before = _resident(peak=False)
    _, precision, *keep = task["peer"].split()
    model, weights = _own_model(task["folder"], {"kept": "bf16", "int8": "int8"}.get(*keep) if keep else None)
    if task["kind"] == "lora":
        es.adapters.load(model, Path(task["folder"], "adapter"))
    tokens = _tokens(task)
    target = np.concatenate([tokens[:, 1:], np.full((len(tokens), 1), -100)], 1)

    def loss(logits: Any, target: Any) -> Any:
        return es.functional.cross_entropy(logits.reshape((-1, WORDS)), target.reshape(-1))

    settings = {"precision": precision, "threads": task["threads"]}
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
    from transformers import LlamaForCausalLM

    torch.set_num_threads(task["threads"])
    before = _resident(peak=False)
    how, precision = task["peer"].split()
    model: Any = LlamaForCausalLM.from_pretrained(task["folder"], dtype=torch.float32).train()
    weights = 4 * sum(p.numel() for p in model.parameters())
    if task["kind"] == "lora":
        model = PeftModel.from_pretrained(model, str(Path(task["folder"], "adapter")), is_trainable=True)
    rule = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    call = model if how == "eager" else torch.compile(model, backend=how)
    tokens = torch.from_numpy(_tokens(task))

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext():
            loss = call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        rule.step()
        rule.zero_grad()
        return loss.item()

    return _timed(step, task, before, weights)


def _decode(task: dict[str, Any]) -> dict[str, Any]:
    """Measure the tokens a second of one text, and the bandwidth of reading memory with as many threads."""
    ids = np.random.default_rng(0).integers(0, WORDS, (1, 32))
    if task["peer"] in OURS:
        import einsmith as es
        from einsmith.models.generation import Decoder

        es.set_threads(task["threads"])
        _, precision, *keep = task["peer"].split()
        kept = {"kept": "bf16", "int8": "int8"}.get(*keep) if keep else None
        model, weights = _own_model(task["folder"], kept)
        decoder = Decoder(model, capacity=256)
        following = int(decoder.read(ids)[0].argmax())
        seconds = []
        for _ in range(task["steps"] * 16):
            start = time.perf_counter()
            following = int(decoder.read(np.array([[following]]))[0].argmax())
            seconds.append(time.perf_counter() - start)
        nbytes = weights * {None: 4, "bf16": 2, "int8": 1}[kept] // 4
    else:
        import torch
        from transformers import LlamaForCausalLM

        torch.set_num_threads(task["threads"])
        dtype = torch.float32 if task["peer"].endswith("fp32") else torch.bfloat16
        network: Any = LlamaForCausalLM.from_pretrained(task["folder"], dtype=dtype).eval()
        nbytes = sum(p.numel() for p in network.parameters()) * (4 if dtype is torch.float32 else 2)
        seconds, rounds = [], task["steps"] * 16
        with torch.no_grad():
            out = network(torch.from_numpy(ids), use_cache=True)
            for _ in range(rounds):
                start = time.perf_counter()
                token = out.logits[:, -1:].argmax(-1)
                out = network(token, past_key_values=out.past_key_values, use_cache=True)
                seconds.append(time.perf_counter() - start)
    return {"seconds": float(np.median(seconds)), "bytes": nbytes, "bandwidth": _bandwidth(task["threads"])}


def _bandwidth(threads: int) -> float:
    """Return the bytes a second at which a sum reads an array that no cache holds, on a number of threads."""
    import einsmith as es

    es.set_threads(threads)
    x = np.ones(1 << 27, np.float32)
    total = es.jit(lambda x: x.sum())
    best = np.inf
    for _ in range(8):
        start = time.perf_counter()
        total(x)
        best = min(best, time.perf_counter() - start)
    return x.nbytes / best


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--work":
        print(json.dumps(work(json.loads(sys.argv[2]))))
        sys.exit(0)
    sys.exit(main())
