"""TVM_T: a compiler of training on TVM's base."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.driver import geometric_mean
from benchmarks.paper.experiment import (
    Cases,
    Cells,
    Curves,
    Experiment,
    Paper,
    Plan,
    Shown,
    beside,
    milliseconds,
    problem_of,
    time_of,
    times_as_fast,
)
from benchmarks.paper.losses import curves
from benchmarks.problem import Workload
from benchmarks.report import Job
from benchmarks.worker import build, find

NETWORKS = ("mlp3-b256", "lenet5-b256", "resnet18-b16", "squeezenet-b16", "lstm_lm-b256-t35")
PEERS = ("einsmith", "torch", "torchscript", "compile", "tensorflow", "xla", "jax")
CURVES = ("mlp3", "lenet5")
STEPS, QUICK_STEPS = 300, 20
"""Iterations of the curves of losses."""
STEPS_BESIDE_TVM = ("mlp3-b64", "lenet5-b64", "milstm-b16-t1", "capsulenet-b1", "squeezenet-b1")
OPERATORS = (
    "product-256-nn", "product-512-nn", "product-1024-nn", "product-64x1024x256-nn", "conv-3x3s1-64-64-56-forward",
    "capsule-s1-forward", "capsule_conv-s2",
)  # fmt: skip
CARD = "--parts models --models mlp3,lenet5,resnet18,squeezenet"
PROFILED = 5
"""Runs of each kernel whose share of a step is asked for."""


def _networks(plan: Plan) -> Sequence[str]:
    return plan.pick(NETWORKS, NETWORKS[:1])


def _jobs(names: Sequence[str], peers: Sequence[str], plan: Plan) -> list[Job]:
    return [Job(find(n), [p for p in peers if _runs(p, n)], plan.threads) for n in names]


def _runs(peer: str, name: str) -> bool:
    """Whether a peer is asked for a case: torch.compile would unroll the 35 steps of the language model's layers."""
    return not (peer == "compile" and name.startswith("lstm_lm"))


def _training(plan: Plan) -> list[Job]:
    return _jobs(_networks(plan), PEERS, plan)


def _largest(cells: Cells, peers: Mapping[str, str], paper: str) -> list[str]:
    """Return sentences of the largest ratio beside each peer, and of how often Einsmith is ahead."""
    out = []
    for name, peer in peers.items():
        known = {problem_of(k): r for k, c in cells.items() if (r := times_as_fast(c, peer)) is not None}
        if known:
            best = max(known, key=known.__getitem__)
            ahead = sum(r > 1 for r in known.values())
            out.append(
                f"Beside {name} Einsmith is ahead on {ahead} of {len(known)}, at most {known[best]:.2f} times as fast"
                f" ({best})."
            )
    return [*out, paper] if out else []


# ------------------------------------------------------------------------------------------------------------- features


WITHOUT = ("batch_norm", "dropout", "conv2d", "max_pool2d", "softmax", "layer_norm", "attention", "conv2d_transpose")
"""Operators of TVM that are asked for their gradients."""
VERSIONS = f"""
import json, tvm, torch, tvm.relax.op, einsmith
lacking = [n for n in {WITHOUT!r} if tvm.ir.Op.get("relax.nn." + n).get_attr("FPrimalGradient") is None]
print(json.dumps({{"TVM": tvm.__version__, "PyTorch": torch.__version__, "lacking": lacking}}))
"""


def _versions() -> dict[str, Any] | None:
    """Return the versions of TVM and PyTorch, and operators of TVM that have no gradient."""
    done = subprocess.run([sys.executable, "-c", VERSIONS], capture_output=True, text=True)
    return None if done.returncode else json.loads(done.stdout)


def _show_features(cells: Cells) -> Sequence[Shown]:
    (cell,) = cells.values()
    special = f"operators; no gradients of {', '.join(cell['lacking'])}" if cell["lacking"] else "yes"
    rows = (
        ("static graphs", "no", "yes", "yes", "yes: `docs/architecture.md`", "yes: Relax", "torch.compile"),
        ("optimized graphs", "yes", "yes", "yes", "yes: `docs/architecture.md`", "yes", "Inductor's"),
        ("automatic gradients", "yes", "yes", "yes", "yes: `docs/gradients.md`", "relax.transform.Gradient", "yes"),
        ("vendors' libraries", "yes", "yes", "yes", "none, by design", "by pattern, where it is built so", "yes"),
        ("generated code", "no", "yes", "yes", "yes: `docs/architecture.md`", "yes", "Inductor's"),
        ("training", "yes", "no", "yes", "yes: `docs/training.md`", "relax.training", "yes"),
        ("dropout and batch norm in training", "yes", "no", "yes", "yes: `docs/aten.md`", special, "yes"),
        (
            "several kinds of devices",
            "no",
            "yes",
            "yes",
            "x86; ARM emulated, cards: `docs/platforms.md`, `docs/gpu.md`",
            "yes",
            "yes",
        ),
    )
    today = ("Einsmith", f"TVM {cell['TVM']}", f"PyTorch {cell['PyTorch']}")
    columns = ("", *(f"{n} (the paper)" for n in ("PyTorch", "TVM", "TVM_T")), *today)
    return [Shown(columns, rows, text=columns)]


# --------------------------------------------------------------------------------------------------------------- losses


def _curves(plan: Plan) -> Cases:
    for name in CURVES:
        yield f"losses/{name}", partial(curves, name, plan.threads, QUICK_STEPS if plan.quick else STEPS)


def _show_curves(cells: Cells) -> Sequence[Shown]:
    rows, series, remarks = [], dict[str, tuple[Sequence[float], Sequence[float]]](), []
    for key, c in cells.items():
        name = key.rpartition("/")[2]
        for peer, label in (("einsmith", "Einsmith"), ("torch", "PyTorch")):
            series[f"{name}, {label}"] = c["iterations"], c[peer]
        ends = [f"{c[p][0]:.4f} to {c['last'][p]:.4f}" for p in ("einsmith", "torch")]
        rows.append([name, c["data"], str(c["steps"]), *ends, f"{c['largest']:.1e}"])
        falls = "falls" if c["last"]["einsmith"] < c["einsmith"][0] else "does not fall"
        remarks.append(
            f"{name}: the loss {falls} over {c['steps']} iterations, as PyTorch's does up to the difference."
        )
    columns = ("", "data", "iterations", "Einsmith's loss", "PyTorch's loss", "largest relative difference")
    return [Shown(columns, rows, remarks, Curves(series, "iteration", "loss"), text=("data",))]


# ------------------------------------------------------------------------------------------------------- training steps


def _show_training(cells: Cells) -> Sequence[Shown]:
    shown = beside(cells, {"PyTorch": ["torch"], "TensorFlow": ["tensorflow"]})
    most = _largest(
        cells, {"PyTorch": "torch", "TensorFlow": "tensorflow"}, "The paper's largest ratio on a CPU: 11.5."
    )
    return [shown._replace(remarks=[*shown.remarks, *most])]


def _show_compilers(cells: Cells) -> Sequence[Shown]:
    peers = {"TorchScript": "torchscript", "XLA": "xla", "torch.compile": "compile", "JAX": "jax"}
    shown = beside(cells, {name: [peer] for name, peer in peers.items()})
    most = _largest(cells, peers, "The paper's largest ratio on a CPU, beside XLA and TorchScript: 6.7.")
    return [shown._replace(remarks=[*shown.remarks, *most])]


# --------------------------------------------------------------------------------------------------- parts of the steps


def _with_gradients(plan: Plan) -> list[Job]:
    gradients = [f"{n}-gradients" for n in _networks(plan)]
    return [*_training(plan), *_jobs(gradients, ("einsmith", "torch"), plan)]


def _profiles(plan: Plan) -> Cases:
    for name in _networks(plan):
        yield f"profile/{name}", partial(_profile, find(name), plan.threads)


def _profile(problem: Workload, threads: int) -> dict[str, float]:
    """Return the seconds of a step, and of the kernels of its parts one by one."""
    step = build(problem, problem.arrays(), threads, "einsmith")
    step.step()
    profile = step.trainer.profile(*step.batch, repeats=PROFILED)
    return {"step": profile.step_seconds} | {part: profile.part(part) for part in ("forward", "backward", "update")}


def _share(whole: float | None, without: float | None) -> float | None:
    """Return the part of a step that it takes beyond what it takes without its update (percent)."""
    return None if whole is None or without is None else 100 * (1 - without / whole)


def _show_update(cells: Cells) -> Sequence[Shown]:
    rows, shares = [], dict[str, list[float]]()
    for key, profile in cells.items():
        name = key.removeprefix("profile/")
        if name == key:
            continue
        own = 100 * profile["update"] / sum(profile[part] for part in ("forward", "backward", "update"))
        shares.setdefault("in kernels of its own", []).append(own)
        row = [name, f"{own:.1f} %"]
        for peer, label in (("einsmith", "by the difference"), ("torch", "in PyTorch")):
            whole, without = (_time_of(cells, n, peer) for n in (name, f"{name}-gradients"))
            share = _share(whole, without)
            row += [milliseconds(whole), milliseconds(without), "" if share is None else f"{share:.1f} %"]
            if share is not None:
                shares.setdefault(label, []).append(share)
        rows.append(row)
    means = ", ".join(f"{sum(v) / len(v):.1f} % {label}" for label, v in shares.items())
    columns = (
        "", "update's own kernels", "Einsmith, ms", "without update, ms", "difference", "PyTorch, ms",
        "without update, ms", "difference",
    )  # fmt: skip
    remarks = [
        f"Mean share of the update: {means}; the paper: 18.2 %.",
        "An update within the kernel of its gradient has no time of its own. The difference is that of a step and of"
        " its loss and gradients alone, which are stored where a step stores the weights: it is below zero where this"
        " costs more than the update.",
    ]
    return [Shown(columns, rows, remarks)]


def _time_of(cells: Cells, name: str, peer: str) -> float | None:
    """Return the median time of a peer in the cell of a name, whatever the threads; None where there is none."""
    found = next((c for k, c in cells.items() if problem_of(k) == name), None)
    return None if found is None else time_of(found, peer)


def _with_losses(plan: Plan) -> list[Job]:
    losses = [f"{n}-loss" for n in _networks(plan)]
    return [*_training(plan), *_jobs(losses, ("einsmith", "torch", "tensorflow"), plan)]


def _show_parts(cells: Cells) -> Sequence[Shown]:
    peers = {"PyTorch": "torch", "TensorFlow": "tensorflow"}
    forward = {k.replace("-loss", ""): c for k, c in cells.items() if "-loss" in k}
    backward: dict[str, Any] = {}
    for key, cell in forward.items():
        if key in cells:
            rest: dict[str, dict[str, Any]] = {}
            for peer in ("einsmith", *peers.values()):
                whole, part = time_of(cells[key], peer), time_of(cell, peer)
                rest[peer] = {"status": "not timed"} if whole is None or part is None else {"median": whole - part}
            backward[key] = {"peers": rest}
    shown = []
    for title, of, paper in (
        ("forward: the loss alone, in training mode", forward, "The paper's largest ratio, forward on a CPU: 10.1."),
        (
            "backward and update: a step less its forward", backward,
            "The paper: ahead but on SqueezeNet, by less than forward.",
        ),
    ):  # fmt: skip
        times = beside(of, {name: [peer] for name, peer in peers.items()}, title=title)
        shown.append(times._replace(remarks=[*times.remarks, *_largest(of, peers, paper)]))
    return [times for times in shown if times.rows]


# ----------------------------------------------------------------------------------------------------------- beside TVM


def _beside_tvm(names: Sequence[str], plan: Plan) -> list[Job]:
    peers = plan.pick(("einsmith", "tvm", "tvm-tuned", "torch"), ("einsmith", "tvm", "torch"))
    return [Job(find(n), peers, plan.threads) for n in plan.pick(names, names[:1])]


def _tuning(cell: Mapping[str, Any]) -> str:
    """Return what tuning of TVM took."""
    row = cell["peers"].get("tvm-tuned", {})
    return f"{row['tuning_seconds']:.0f} ({row['trials']}, {row['tasks']})" if "tuning_seconds" in row else ""


def _message(cell: Mapping[str, Any]) -> str:
    """Return why TVM has no time."""
    told = {r.get("message", "") for p, r in cell["peers"].items() if p.startswith("tvm") and "median" not in r}
    return "; ".join(sorted(filter(None, told)))[:200]


def _show_tvm(cells: Cells) -> Sequence[Shown]:
    peers = {"TVM": ["tvm"], "TVM tuned": ["tvm-tuned"], "PyTorch": ["torch"]}
    shown = beside(cells, peers, more={"tuning, s (trials, tasks)": _tuning, "TVM lacks": _message})
    seconds = [
        r["tuning_seconds"] for c in cells.values() if "tuning_seconds" in (r := c["peers"].get("tvm-tuned", {}))
    ]
    first = [r["first_seconds"] for c in cells.values() if "first_seconds" in (r := c["peers"].get("einsmith", {}))]
    remarks = list(shown.remarks)
    if seconds:
        mean = geometric_mean(seconds)
        remarks.append(
            f"Tuning TVM took {sum(seconds):.0f} s in all, geometric mean {mean:.0f} s. Its trials are shared by all"
            " tasks of a step: the more of them there are, the fewer has each."
        )
    if first:
        remarks.append(f"Einsmith's first calls, which compile, took {sum(first):.1f} s in all, without tuning.")
    return [shown._replace(remarks=remarks, text=("TVM lacks",))]


PAPER = Paper(
    "tvm-training",
    "TVM_T",
    "J. Zeng, M. Kou, X. Zheng, H. Yao, F. Sun: TVM_T: TVM-based high-performance neural network compiler supporting"
    " training (in Chinese). Scientia Sinica Informationis 53, 2023, 2458-2471.",
    {
        "the loss and the backward pass in one graph with the forward pass": "`docs/training.md`",
        "weights updated by the same compiled program, in place": "`docs/architecture.md`",
        "dropout and batch norm in two modes, new masks and statistics at each step": "`docs/aten.md`",
        "tuning of a training step's kernels": "`docs/tuning.md`",
    },
    [
        Experiment(
            "Table 1", "what compilers of training support",
            "TVM alone does not train, PyTorch alone generates no code; TVM_T does both.", _show_features,
            cases=lambda plan: [("features", _versions)],
        ),
        Experiment(
            "Figure 5", "losses of MLP-3 and LeNet-5 on MNIST, batch 256, SGD",
            "both losses fall with the iterations.", _show_curves, cases=_curves,
        ),
        Experiment(
            "Figure 6a", "training on a CPU beside PyTorch and TensorFlow",
            "faster than both on each network, at most 11.5 times (figure 6b, on a card: 4.88 times). Its summary has"
            " 4.88 as the most beside PyTorch and 11.5 as the most beside TensorFlow.", _show_training, jobs=_training,
            card=CARD,
        ),
        Experiment(
            "Figure 7a", "training on a CPU beside compilers",
            "faster than XLA and TorchScript on each network, at most 6.7 times (figure 7b, on a card: 5.25 times).",
            _show_compilers, jobs=_training, card=CARD,
            remark="PyTorch deprecates TorchScript for torch.compile, which stands beside it. torch.compile is not"
            " asked for the language model, whose 35 steps of two layers it unrolls.",
        ),
        Experiment(
            "Figure 8", "the update's share of a training step",
            "18.2 % on the CPU in the mean, 33 % on the card, more for small networks. Its weights are updated by"
            " another program, on the host.", _show_update, jobs=_with_gradients, cases=_profiles,
        ),
        Experiment(
            "Figure 9", "forward and backward apart",
            "forward faster than TensorFlow and PyTorch on all networks, at most 10.1 times (on the card 9); backward"
            " faster but on SqueezeNet, by less. Backward is a whole step less its forward there and here.",
            _show_parts, jobs=_with_losses, card=CARD,
        ),
        Experiment(
            "Training beside TVM", "training steps beside TVM of today, by default and tuned",
            "TVM_T tunes its training steps by Ansor; no figure is beside TVM, which did not train.", _show_tvm,
            jobs=partial(_beside_tvm, STEPS_BESIDE_TVM),
        ),
        Experiment(
            "Operators beside TVM", "products, convolutions and a capsule convolution with its gradients",
            "no figure of operators.", _show_tvm, jobs=partial(_beside_tvm, OPERATORS),
        ),
    ],
)  # fmt: skip
