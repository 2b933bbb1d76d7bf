"""NeoFlow: a compiler of training on graphics cards, with dynamic mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks import models
from benchmarks.driver import geometric_mean
from benchmarks.paper import neoflow_cases as own
from benchmarks.paper.experiment import Cases, Cells, Experiment, Paper, Plan, Shown, beside, time_of, times_as_fast
from benchmarks.problem import Workload
from benchmarks.recurrent_steps import CELLS
from benchmarks.report import Job
from benchmarks.worker import PEERS, find

IMAGES = ("capsulenet", "capsulenet_conv", "shufflenet_v1")
COMMON = ("resnet50", "mobilenet_v1")
STEPS = 28
"""Of recurrent networks."""
GRAPHS = ("torch", "jax", "tensorflow", "xla")
TRAINED: Mapping[int, Sequence[str]] = {
    1: ("torch", "tensorflow", "xla"), 16: (*GRAPHS, "compile"), 64: ("torch",),
}  # fmt: skip
"""Peers of the novel networks' training steps by batch size: a process for each and its compilation take longer than
the steps."""
INFERRED: Mapping[int, Sequence[str]] = {
    1: ("torch", "compile", "tensorflow", "xla", "onnxruntime"), 16: ("torch", "xla"),
}  # fmt: skip
"""The same of outputs in evaluation."""
TUNED = ("lenet5-b1-inference",)
"""Networks that TVM tunes."""
KERNELS = ("product-512-nn", "conv-3x3s1-64-64-56-forward", "capsule-s1-forward")
TVM = ("tvm", "tvm-tuned")
CAPSULES, FEW_CAPSULES = (("capsule_conv-s1", "capsule_composed-s1"), ("capsule_conv-s2", "capsule_composed-s2"))
QUICK = f"lltm-b1-t{STEPS}"
EAGER, COMPILED, BEST = ["torch"], ["compile"], [*GRAPHS, "compile", "onnxruntime"]


def _job(name: str, peers: Sequence[str], plan: Plan) -> Job:
    """Return a job by its problem's name, of Einsmith and of those peers that there are."""
    problem: Workload = models.named(name) or find(name)
    return Job(problem, ["einsmith", *(p for p in dict.fromkeys(peers) if p in PEERS)], plan.threads)


# ----------------------------------------------------------------------------------------------------------- operators


def _capsules(plan: Plan) -> Sequence[Job]:
    peers = plan.pick((*GRAPHS, "compile"), ("torch",))
    return [_job(n, peers, plan) for n in plan.pick(CAPSULES, FEW_CAPSULES)]


def _capsule_launches(plan: Plan) -> Cases:
    return own.launches(plan, plan.pick(CAPSULES, FEW_CAPSULES))


def _show_capsules(cells: Cells) -> Sequence[Shown]:
    timed = {k: c for k, c in cells.items() if "peers" in c}
    shown = [beside(timed, {"PyTorch": EAGER, "TensorFlow": ["tensorflow"], "the best": BEST})]
    ours = next((time_of(c, "einsmith") for k, c in timed.items() if k.startswith("capsule_conv")), None)
    theirs = next((time_of(c, "torch") for k, c in timed.items() if k.startswith("capsule_composed")), None)
    if ours is not None and theirs is not None:
        text = f"The formula in Einsmith is {theirs / ours:.2f} times as fast as eight convolutions in PyTorch."
        shown = [shown[0]._replace(remarks=[*shown[0].remarks, text])]
    return [*shown, own.show_launches({k: c for k, c in cells.items() if "peers" not in c})]


# ------------------------------------------------------------------------------------------------------------ training


def _novel(plan: Plan) -> list[Job]:
    if plan.quick:
        return [_job(QUICK, ("torch", "tensorflow", "xla"), plan)]
    cells = [(f"{c}-b{b}-t{STEPS}", peers) for c in CELLS for b, peers in TRAINED.items()]
    images = [(f"{n}-b{b}", peers) for b, peers in TRAINED.items() for n in IMAGES]
    return [_job(name, peers, plan) for name, peers in (*cells, *images)]


def _training(plan: Plan) -> Sequence[Job]:
    common = ["resnet50-b1", "resnet50-b16", "mobilenet_v1-b16"]
    return [*_novel(plan), *(_job(n, ("torch",), plan) for n in plan.pick(common, ()))]


def _compiled_training(plan: Plan) -> Sequence[Job]:
    return [job for job in _novel(plan) if "tensorflow" in job.peers]


def _is_common(key: str) -> bool:
    return key.partition("-")[0] in COMMON


def _by_batch(cells: Cells) -> list[str]:
    """Return the geometric means of the ratios to PyTorch by batch size."""
    means = []
    for batch in TRAINED:
        ratios = [times_as_fast(c, "torch") for k, c in cells.items() if f"-b{batch}-" in k]
        mean = geometric_mean([r for r in ratios if r is not None])
        means += [] if mean is None else [f"{mean:.2f} at batch {batch}"]
    return [f"To PyTorch by batch size: {', '.join(means)}."] if len(means) > 1 else []


def _show_training(cells: Cells) -> Sequence[Shown]:
    novel = {k: c for k, c in cells.items() if not _is_common(k)}
    common = {k: c for k, c in cells.items() if _is_common(k)}
    peers = {"PyTorch": EAGER, "torch.compile": COMPILED}
    seven = beside(novel, peers, title="the seven novel networks")
    out = [seven._replace(remarks=[*seven.remarks, *_by_batch(novel)])]
    if common:
        shown = beside(common, {"PyTorch": EAGER}, title="common networks")
        first = next((times_as_fast(c, "torch") for k, c in common.items() if k.startswith("resnet50-b1-")), None)
        more = (
            [] if first is None else [f"ResNet-50 at batch 1, times as fast as PyTorch: {first:.2f}; the paper: 1.61."]
        )
        out.append(shown._replace(remarks=[*shown.remarks, *more]))
    return out


def _show_compilers(cells: Cells) -> Sequence[Shown]:
    peers = {"TensorFlow": ["tensorflow"], "XLA": ["xla"], "the best": BEST}
    return [beside(cells, peers)]


# ----------------------------------------------------------------------------------------------------------- inference


def _inference_job(name: str, plan: Plan) -> Job:
    """Return the job of an output in evaluation with the peers of all figures that show it."""
    if plan.quick:
        return _job(name, ("torch", "tensorflow", "xla", "onnxruntime", *TVM[:1]), plan)
    batch = int(name.split("-b")[1].partition("-")[0])
    tvm = TVM if name in TUNED else TVM[: int(batch == 1)]
    return _job(name, (*INFERRED[batch], *tvm), plan)


def _inferred(plan: Plan) -> list[str]:
    names = [f"{n}-b{b}-inference" for n in IMAGES for b in INFERRED]
    names += [f"{c}-b{b}-t{STEPS}-inference" for c in CELLS for b in INFERRED]
    return list(plan.pick(names, [f"{QUICK}-inference"]))


def _inference(plan: Plan) -> Sequence[Job]:
    return [_inference_job(n, plan) for n in _inferred(plan)]


def _show_inference(cells: Cells) -> Sequence[Shown]:
    peers = {
        "PyTorch": EAGER, "compile": COMPILED, "TensorFlow": ["tensorflow"], "XLA": ["xla"],
        "onnxruntime": ["onnxruntime"], "the best": BEST,
    }  # fmt: skip
    out = []
    for batch in INFERRED:
        of = {k: c for k, c in cells.items() if f"-b{batch}-" in k}
        if of:
            out.append(beside(of, peers, title=f"batch {batch}"))
    return out


def _bert(plan: Plan) -> Sequence[Job]:
    inference = _job("bert_base-b1-inference", plan.pick(("torch", "compile", "onnxruntime"), ("torch",)), plan)
    return [inference, *(_job(n, ("torch",), plan) for n in plan.pick(("bert_base-b1",), ()))]


def _show_bert(cells: Cells) -> Sequence[Shown]:
    return [beside(cells, {"PyTorch": EAGER, "torch.compile": COMPILED, "onnxruntime": ["onnxruntime"]})]


def _autotvm(plan: Plan) -> Sequence[Job]:
    kernels = [_job(n, ("torch", *plan.pick(TVM, TVM[:1])), plan) for n in plan.pick(KERNELS, KERNELS[:1])]
    names = [n for n in (*_inferred(plan), *TUNED) if "-b1-" in n]
    return [*kernels, *(_inference_job(n, plan) for n in plan.pick(list(dict.fromkeys(names)), names[:1]))]


def _show_autotvm(cells: Cells) -> Sequence[Shown]:
    return [beside(cells, {"TVM": TVM[:1], "TVM, tuned": TVM[1:]})]


def _nothing(cells: Cells) -> Sequence[Shown]:
    return ()


PAPER = Paper(
    "neoflow",
    "NeoFlow",
    "S. Zheng, R. Chen, Y. Jin, A. Wei, B. Wu, X. Li, S. Yan, Y. Liang: NeoFlow: A Flexible Framework for Enabling"
    " Efficient Compilation for High Performance DNN Training. IEEE Transactions on Parallel and Distributed Systems"
    " 33(11), 2022, 3220-3232.",
    {
        "operators as expressions": "`docs/formulas.md`",
        "differentiation of expressions": "`docs/gradients.md`",
        "fusion by reward, layouts, swapped operands, parallel fusion": "`docs/architecture.md`",
        "a search over configurations, static mode": "`docs/tuning.md`",
        "dynamic mode: training begins at once and is tuned while it goes on": "`docs/training.md`",
    },
    [
        Experiment(
            "Figure 2", "a capsule convolution as one expression and as eight convolutions",
            "composed of eight 2D convolutions it is inefficient in PyTorch and TensorFlow, by many launches and low"
            " utilization; NeoFlow computes it in one kernel.", _show_capsules, _capsules, _capsule_launches,
            "A CPU launches no kernels: an operation costs PyTorch its dispatch, and each of eight small convolutions"
            " may use all cores. Forward with all gradients; each peer in its fastest formulation.",
        ),
        Experiment(
            "Table 1", "settings", "the versions of the libraries, on a Tesla V100.", own.show_settings,
            cases=own.settings,
        ),
        Experiment(
            "Figure 9", "training beside PyTorch, batches 1 to 64",
            "3.16 times as fast as PyTorch in the geometric mean, 1.92 with CuDNN; ResNet-50 1.61 times at batch 1, and"
            " not faster at larger ones, whose transposed convolutions NeoFlow has no implicit GEMM for.",
            _show_training, _training, remark="The row with CuDNN has no counterpart on a CPU, where PyTorch always"
            " calls oneDNN; torch.compile stands beside eager PyTorch instead, at batch 16. Batches of capsule networks"
            " and ShuffleNet are 1, 16 and 64; recurrent networks take 28 steps.",
            card="--parts models --models milstm,capsulenet,resnet50 --batches 1,16,64",
        ),
        Experiment(
            "Figure 10", "training beside TensorFlow with and without XLA",
            "2.43 times as fast as TensorFlow with XLA on average.", _show_compilers, _compiled_training,
            remark="The best is the fastest of PyTorch and TensorFlow with and without XLA, at batch 16 also of JAX and"
            " torch.compile.",
        ),
        Experiment(
            "Figure 11a", "inference at batch 1 and 16",
            "6.72 times as fast as PyTorch with CuDNN, and 4.96 times as fast as TensorFlow with XLA, in the geometric"
            " mean, by the LLVM back end.", _show_inference, _inference,
            remark="A call takes its input as the library holds arrays, and ends when the output is there; outputs are"
            " verified against PyTorch in float64. At batch 16 PyTorch and XLA alone are measured.",
        ),
        Experiment(
            "Figure 11b", "BERT's encoder, inference and training, batch 1",
            "times comparable to PyTorch's.", _show_bert, _bert,
        ),
        Experiment(
            "Figure 11c", "inference beside TVM",
            "1.08 times as fast as AutoTVM in the geometric mean.", _show_autotvm, _autotvm,
            remark="Today's TVM has MetaSchedule in the place of AutoTVM: TVM is measured with its schedules without a"
            " search, and tuned by it.",
        ),
        Experiment(
            "Figure 11d", "tensor cores in FP16",
            "2.31 times as fast as PyTorch in the geometric mean on tensor cores.", _nothing,
            remark="A CPU has no tensor cores. Products in bfloat16 by a CPU's tile registers are another thing, and"
            " stand in `docs/precision.md`.",
            card="--parts models --models capsulenet,milstm,resnet50 --batches 1,16 --precisions bf16",
        ),
        Experiment(
            "Figure 12", "MI-LSTM at batch 64 in dynamic mode",
            "training begins after 3.96 minutes at 27.791 ms a step, after 19.11 minutes takes 5.35 ms (PyTorch: 5.49),"
            " has done more steps than PyTorch after 41 minutes, and 2.22 times as many after ten hours.",
            own.show_dynamic, cases=own.dynamic,
            remark=f"Each side trains for {own.SECONDS:.0f} s, one after the other, for a search beside another process"
            " would be free.",
        ),
        Experiment(
            "Figure 13a", "layouts of a convolution, 1x1, 14x14x1024",
            "NCHW is slower than PyTorch at every batch size above 1; in CHWN, which NeoFlow chooses, it is 1.25 times"
            " as fast as PyTorch.", own.show_layouts, cases=own.layouts_of,
            remark="On a CPU the images of such a convolution are packed into panels, in vectors along the image or the"
            " channels, so no order of their axes is needed to vectorize it. The kernel alone, on one thread.",
        ),
        Experiment(
            "Figure 13b", "swapped operands of products with few columns",
            "20.19 % faster on average over four products.", own.show_products, cases=own.products,
            remark="The shapes are ours, as the paper's text names none. One thread; `as is` has vectors along N.",
        ),
        Experiment(
            "Figure 13c", "parallel fusion of eight convolutions",
            "9.66 times as fast as without fusion.", own.show_fusion, cases=own.fusion,
            remark="On a card each of eight small convolutions leaves most of the processors idle; on a CPU one of few"
            " channels fills its vectors with pixels and all cores with images, so there is less to gain. One thread's"
            " CPU time; joined only where prices say so.",
        ),
    ],
    is_shared=True,
)  # fmt: skip
