"""PyTorch on the card: eager, as one CUDA graph, and compiled; in float64 it is what all others are compared with."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.peer_server import PeerServer, PeerStep
from benchmarks.gpu.problems import Case
from benchmarks.gpu.serving import NotAvailable
from benchmarks.models import NetworkCase
from benchmarks.problem import Workload
from benchmarks.recurrent_steps import LR as CELL_LR
from benchmarks.recurrent_steps import Recurrent
from einsmith.bench.networks import LR as NETWORK_LR

FORMS = {
    "torch": "eager",
    "torch-graph": "the eager step as one CUDA graph",
    "compile": "torch.compile, max-autotune, with its own CUDA graphs",
}
WARM = 3
"""Steps in a stream of their own before a graph is captured."""


class TorchServer(PeerServer):
    """PyTorch."""

    _has_compiled = False

    def begin(self, fake: bool) -> None:
        """Import PyTorch. Raises ImportError; RuntimeError where it finds no card."""
        import torch

        self.fake, self.torch = fake, torch
        self.device = "cpu" if fake else "cuda"
        if not fake and not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no card")
        if fake:
            torch.set_num_threads(1)

    def build(self, case: Case, precision: str, form: str) -> dict[str, Callable[[], PeerStep]]:
        """Return functions that set up a step, by the layout of images."""
        if form not in FORMS:
            raise NotAvailable(f"PyTorch has no form {form!r}")
        if form == "torch-graph" and self.fake:
            raise NotAvailable("CUDA graphs need a card")
        self.set_precision(precision)
        problem = case.problem()
        is_image = isinstance(problem, NetworkCase) and len(problem.sample) == 3
        layouts = {"channels last": True, "channels first": False} if is_image else {"": False}
        if form == "compile":
            self._has_compiled = True
            layouts = {name: last for name, last in layouts.items() if last or not is_image}
        variants = (
            {"fused LSTM": "fused LSTM", "loop": ""} if case.model == "lstm-lm" and form != "compile" else {"": ""}
        )
        return {
            ", ".join(filter(None, (layout, variant))): partial(
                TorchStep, self, problem, precision, form, last, variants[variant]
            )
            for layout, last in layouts.items()
            for variant in variants
        }

    def set_precision(self, precision: str) -> None:
        """Let products of float32 round their operands to tf32, or not."""
        allowed = precision == "tf32"
        self.torch.backends.cuda.matmul.allow_tf32 = allowed
        self.torch.backends.cudnn.allow_tf32 = allowed
        self.torch.backends.cudnn.benchmark = True

    def reference(self, case: Case, path: str, losses: int) -> dict[str, Any]:
        """Train in float64; return the losses of the first steps. What the first one leaves is written to a file."""
        self.set_precision("fp32")
        problem = case.problem()
        step = TorchStep(self, problem, "fp64", "torch", False, "")
        found = [step.loss(step.step())]
        np.savez(path, **step.results())  # type: ignore[arg-type]
        found += [step.loss(step.step()) for _ in range(losses - 1)]
        return {"losses": found}

    def close(self) -> dict[str, Any]:
        """Free what is open, and the compiled code of it."""
        super().close()
        gc.collect()
        if self._has_compiled:
            self.torch._dynamo.reset()
            self._has_compiled = False
        if not self.fake:
            self.torch.cuda.empty_cache()
        return {}


class TorchStep:
    """A training step of forward, backward and SGD's update on the card."""

    def __init__(self, server: TorchServer, problem: Workload, precision: str, form: str, last: bool, variant: str):
        self.torch = torch = server.torch
        self.device, self.fake = server.device, server.fake
        arrays = {n: a.copy() for n, a in problem.arrays().items()}
        if precision == "fp64":
            arrays = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}
        forward: Callable[..., Any]
        if isinstance(problem, Recurrent):
            forward, parameters, named, inputs = self._recurrent(problem, arrays, variant)
        else:
            forward, parameters, named, inputs = self._network(problem, arrays, last, precision)
        self._named = named
        self._hosts = [self._pinned(x) for x in inputs]
        self.inputs = [x.to(self.device, copy=True) for x in inputs]
        if last:
            self.inputs[0] = self.inputs[0].contiguous(memory_format=torch.channels_last)
        rate = CELL_LR if isinstance(problem, Recurrent) else NETWORK_LR
        # Inductor fuses the update of a list of tensors with its own kernels.
        is_list = self.fake or precision == "fp64" or form == "compile"
        fused: dict[str, bool] = {"foreach": True} if is_list else {"fused": True}
        optimizer = torch.optim.SGD(parameters, lr=rate, **fused)
        update: Callable[[], Any] = optimizer.step
        if form == "compile":
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 32)
            forward = torch.compile(forward, mode="max-autotune")
            update = torch.compile(optimizer.step, mode="max-autotune")
        self._context: Callable[[], AbstractContextManager] = nullcontext
        if precision == "bf16":
            self._context = partial(torch.autocast, torch.device(self.device).type, dtype=torch.bfloat16)

        def step() -> Any:
            if form == "compile":
                torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad(set_to_none=True)
            with self._context():
                loss = forward(*self.inputs)
            loss.backward()
            update()
            return loss.detach()

        self._step = self._captured(step, named) if form == "torch-graph" else step

    def _network(self, problem: Any, arrays: dict[str, np.ndarray], last: bool, precision: str) -> tuple:
        from einsmith.bench import torch_steps

        peer, layout = "reference" if precision == "fp64" else "torch", torch_steps.LAYOUTS[not last]
        host = torch_steps.TorchStep(problem, arrays, peer, layout)
        module = host.module.to(self.device)

        def named() -> dict[str, Any]:
            return {n: v for n, v in module.network.state_dict().items() if v.is_floating_point()}

        return module, list(module.parameters()), named, [host.x, host.y]

    def _recurrent(self, problem: Recurrent, arrays: dict[str, np.ndarray], variant: str) -> tuple:
        from benchmarks.peers import torch_recurrent

        torch = self.torch
        with torch.device(self.device):
            cell = torch_recurrent.TorchRecurrent(problem, arrays, "torch", variant)
        cell.sparse = False  # graphs and fused updates take dense gradients alone
        for v in cell.p.values():
            v.data = v.data.to(self.device)

        def forward(x: Any, y: Any, *state: Any) -> Any:
            return cell.loss(cell.p, x, state, y)

        return forward, list(cell.p.values()), lambda: dict(cell.p), [cell.x, cell.y, *cell.state]

    def _pinned(self, x: Any) -> Any:
        return x.clone() if self.fake else x.clone().pin_memory()

    def _captured(self, step: Callable[[], Any], named: Callable[[], dict[str, Any]]) -> Any:
        """Return the step as one CUDA graph; the steps that warm it up leave no trace."""
        torch = self.torch
        before = {n: v.detach().clone() for n, v in named().items()}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        with torch.no_grad():
            for n, v in named().items():
                v.copy_(before[n])

        def replay() -> Any:
            graph.replay()
            return loss

        return replay

    def upload(self) -> None:
        """Copy the batch from pinned memory to the card once more."""
        for x, host in zip(self.inputs, self._hosts, strict=True):
            x.copy_(host, non_blocking=True)

    def step(self) -> Any:
        """Begin a step; return its loss."""
        return self._step()

    def loss(self, found: Any) -> float:
        """Return a loss when it is there."""
        return float(found)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        return {n: v.detach().cpu().numpy().copy() for n, v in self._named().items()}

    def seconds(self, count: int) -> float:
        """Return the seconds of a step among `count` by events of the card; on the processor by its clock."""
        torch = self.torch
        if self.fake:
            begun = time.perf_counter()
            for _ in range(count):
                self._step()
            return (time.perf_counter() - begun) / count
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(count):
            self._step()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / count
