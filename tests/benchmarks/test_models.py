"""The networks of the training benchmark: the exported graph, run by any library, means what PyTorch means."""

import pickle

import numpy as np
import pytest

from benchmarks import worker
from benchmarks.graphs.forms import Formulation, applicable, by_name, pooled, product, taps
from benchmarks.graphs.interpreter import held_arrays, loss, orders, told_arrays
from benchmarks.graphs.layout import in_order, plain, reshaped
from benchmarks.models import NETWORKS, TRAINING, NetworkCase, NetworkForward, case_of
from benchmarks.small_networks import small
from benchmarks.verify import error
from einsmith.bench.verify import Exact, step_error

torch = pytest.importorskip("torch", reason="the networks are exported from PyTorch")
F = torch.nn.functional


class Torch:
    """The functions of `interpreter.Library`, so that PyTorch's gradients of what is interpreted can be had."""

    def __init__(self, form: Formulation):
        self.form = form

    reshape, broadcast = staticmethod(torch.reshape), staticmethod(torch.broadcast_to)
    concat, einsum, sqrt = staticmethod(torch.cat), staticmethod(torch.einsum), staticmethod(torch.sqrt)
    relu, clip, softmax = staticmethod(torch.relu), staticmethod(torch.clip), staticmethod(torch.softmax)

    def transpose(self, a, axes):
        return a.permute(*axes).contiguous()

    def dense(self, x, w, turned):
        return x @ (w.T if turned else w)

    def sum(self, a, axes, keep):
        return a.sum(tuple(axes), keepdim=keep)

    def mean(self, a, axes, keep):
        return a.mean(tuple(axes), keepdim=keep)

    def gelu(self, a, tanh):
        return F.gelu(a, approximate="tanh" if tanh else "none")

    def one_hot(self, a, classes):
        return F.one_hot(a.long(), classes).double()

    def gather(self, table, ids):
        return table[ids.long()]

    def layer_norm(self, x, scale, shift, eps):
        return F.layer_norm(x, x.shape[-1:], scale, shift, eps)

    def batch_norm(self, x, scale, shift, eps):
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        n = x.numel() // x.shape[-1]
        return (x - mean) / torch.sqrt(var * ((n - 1) / n) + eps) * scale + shift, mean, var

    def conv(self, x, w, stride, padding, dilation, groups):
        if w.shape[:2] == (1, 1) and (self.form.products if groups == 1 else self.form.slices):
            return product(self, x, w, stride, groups)
        x = F.pad(x, (0, 0, *padding[1], *padding[0]))
        if self.form.slices and groups == x.shape[3] == w.shape[3]:
            return taps(x, w, stride)
        y = F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), None, stride, 0, dilation, groups)
        return y.permute(0, 2, 3, 1).contiguous()

    def conv_transpose(self, x, w):
        return F.conv_transpose2d(x.permute(0, 3, 1, 2), w, None, w.shape[2:]).permute(0, 2, 3, 1).contiguous()

    def max_pool(self, x, size, stride, padding):
        x = F.pad(x, (0, 0, *padding[1], *padding[0]), value=-torch.inf)
        if self.form.slices:
            return pooled(x, size, stride, torch.maximum)
        return F.max_pool2d(x.permute(0, 3, 1, 2), size, stride).permute(0, 2, 3, 1).contiguous()

    def average_pool(self, x, size, stride, padding):
        x = F.pad(x, (0, 0, *padding[1], *padding[0]))
        return F.avg_pool2d(x.permute(0, 3, 1, 2), size, stride).permute(0, 2, 3, 1).contiguous()

    def attention(self, q, k, v, causal):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).contiguous()

    def cross_entropy(self, logits, labels):
        return F.cross_entropy(logits, labels.long())


def wide(arrays: dict) -> dict:
    return {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_exported_program_means_what_torch_means(name) -> None:
    """Loss, every gradient and the running statistics, in every formulation that applies, in float64."""
    from benchmarks.graphs.exporter import TorchWithLoss, export

    problem = small(name)
    arrays = wide(problem.arrays())
    module = TorchWithLoss(problem).double()
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    program = pickle.loads(pickle.dumps(export(module, x, y)))
    module.network.load_state_dict({n: torch.tensor(a) for n, a in arrays.items() if n not in ("x", "y")})
    want = module(x, y)
    want.backward()
    gradients = {n: p.grad.numpy() for n, p in module.network.named_parameters()}
    statistics = {n: b.numpy() for n, b in module.network.named_buffers() if b.is_floating_point()}
    held = orders(program)
    assert {n for n, _ in module.network.named_parameters()} == set(program.parameters)
    for form in applicable(program):
        given = {n: torch.tensor(a) for n, a in held_arrays(arrays, held).items()}
        for n in program.parameters:
            given[n].requires_grad_()
        found, updates = loss(program, Torch(form), given, held)
        found.backward()
        assert abs(found.item() - want.item()) <= 1e-12 * abs(want.item()), form.name
        got = told_arrays({n: given[n].grad.numpy() for n in program.parameters}, held)
        whole = max(np.abs(g).max() for g in gradients.values())
        for n, g in gradients.items():
            np.testing.assert_allclose(got[n], g, rtol=1e-9, atol=1e-11 * whole, err_msg=f"{form.name}: {n}")
        assert updates.keys() == statistics.keys()
        for n, b in statistics.items():
            np.testing.assert_allclose(updates[n].detach().numpy(), b, rtol=1e-12, err_msg=n)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_exported_output_means_what_torch_means(name) -> None:
    """In evaluation, by running statistics."""
    from benchmarks.graphs.exporter import TorchOutput, export

    problem = case_of(small(name), NetworkForward)
    arrays = wide(problem.arrays())
    module, x = TorchOutput(problem).double(), torch.from_numpy(arrays["x"])
    program = export(module, x)
    module.network.load_state_dict({n: torch.tensor(a) for n, a in arrays.items() if n not in ("x", "y")})
    want, held = module(x).detach().numpy(), orders(program)
    given = {n: torch.tensor(a) for n, a in held_arrays(arrays, held).items()}
    for form in applicable(program):
        found, updates = loss(program, Torch(form), given, held)
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-9, atol=1e-11 * np.abs(want).max(), err_msg=form.name)
        assert not updates and not program.parameters


@pytest.mark.parametrize("name", ["lenet5-b2-inference", "resnet18_cifar-b1-inference", "lltm-b2-t3-inference"])
@pytest.mark.parametrize("peer", ["torch", "einsmith", "onnxruntime"])
def test_outputs_in_evaluation_are_those_of_the_reference(name, peer) -> None:
    if peer == "onnxruntime":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnx")
    problem = worker.find(name)
    assert problem.name == name and not problem.stateful and not problem.exact
    arrays = problem.arrays()
    sessions = {p: worker.build(problem, arrays, 1, p, worker.variants(problem, p)[0]) for p in (peer, "reference")}
    for session in sessions.values():
        session.step()
    assert error(sessions[peer].results(), sessions["reference"].results()) == ""


@pytest.mark.parametrize("name", ["resnet18_cifar-b2-loss", "lenet5-b2-gradients", "lltm-b2-t3-gradients"])
@pytest.mark.parametrize("peer", ["torch", "torchscript", "einsmith"])
def test_parts_of_steps_are_those_of_the_reference(name, peer) -> None:
    """Twice, as nothing is updated but running statistics."""
    problem = worker.find(name)
    arrays = problem.arrays()
    sessions = {p: worker.build(problem, arrays, 1, p, worker.variants(problem, p)[0]) for p in (peer, "reference")}
    losses = {p: [session.step(), session.step()] for p, session in sessions.items()}
    ours, exact = (
        {n: a - arrays[n] for n, a in sessions[p].results().items() if n in arrays} for p in (peer, "reference")
    )
    assert step_error(losses[peer], ours, Exact(losses["reference"], exact, arrays)) == ""
    assert losses[peer][0] == pytest.approx(losses[peer][1])
    parameters = set(problem.results) or {n for n in exact if "running" not in n}
    assert any(exact[n].any() for n in parameters) == (problem.task == "gradients")


def test_every_formulation_is_among_those_tried() -> None:
    assert by_name("library") == Formulation() and all(
        by_name(f.name) == f for f in (Formulation(True, False), Formulation(True, True))
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_arrays_are_the_same_every_time_and_no_gradient_is_hidden(name) -> None:
    problem = small(name)
    a, b = problem.arrays(), problem.arrays()
    assert list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)
    floats = [v for n, v in a.items() if v.dtype.kind == "f" and "running" not in n]
    assert all(np.ptp(v) > 0 for v in floats if v.size > 1)


def test_arithmetic_is_counted_from_the_program() -> None:
    from benchmarks.graphs.exporter import TorchWithLoss, export

    def flops(problem: NetworkCase) -> int:
        return export(TorchWithLoss(problem), *(torch.from_numpy(a) for a in problem.inputs_and_targets())).flops()

    mlp = 784 * 512 + 512 * 256 + 256 * 10
    assert flops(NETWORKS["mlp3"](3)) == 2 * 3 * (3 * mlp - 784 * 512)
    conv1, conv2, dense = 28 * 28 * 6 * 25, 10 * 10 * 16 * 6 * 25, 400 * 120 + 120 * 84 + 84 * 10
    assert flops(NETWORKS["lenet5"](2)) == 2 * 2 * (3 * (conv1 + conv2 + dense) - conv1)
    linear, attention = 5 * (4 * 36 + 2 * 60), 2 * 5 * 5 * 6
    # The input is given: the first layer's three projections have no gradient by it.
    assert flops(small("bert_base")) == 2 * 3 * (3 * (linear + attention) - 5 * 3 * 36)


def test_there_are_all_models_at_both_batch_sizes() -> None:
    import einsmith as es

    recurrent = {"lstm-lm": "lstm_lm", "milstm": "milstm", "scrn": "scrn", "sublstm": "sublstm", "lltm": "lltm"}
    for name in es.models.names():
        assert {1, 16} <= {p.batch for p in TRAINING.values() if p.network == recurrent.get(name, name)}, name


@pytest.mark.parametrize("seed", range(40))
def test_reshaping_is_that_of_the_program_whatever_the_order(seed) -> None:
    rng = np.random.default_rng(seed)
    primes = rng.choice([1, 2, 3, 5], rng.integers(1, 6)).tolist()

    def grouped() -> list[int]:
        cuts = sorted(rng.choice(len(primes) + 1, rng.integers(0, 4)).tolist())
        return [int(np.prod(primes[a:b])) for a, b in zip([0, *cuts], [*cuts, len(primes)], strict=True)]

    old, new = grouped(), grouped()
    a = rng.standard_normal(old)
    order = rng.permutation(len(old)).tolist()
    got = reshaped(np, in_order(np, plain(a), order), new)
    assert got.shape == tuple(new)
    np.testing.assert_array_equal(in_order(np, got, range(len(new))).array, a.reshape(new))


def test_axes_that_stay_apart_are_not_moved() -> None:
    moved = []

    class Counted:
        reshape = staticmethod(np.reshape)

        def transpose(self, a, axes):
            moved.append(tuple(axes))
            return np.transpose(a, axes)

    lib = Counted()
    image = in_order(np, plain(np.zeros((2, 6, 5, 7))), (0, 2, 3, 1))
    split = reshaped(lib, image, (2, 3, 2, 5, 7))
    reshaped(lib, image, (2, 6, 35))
    assert not moved
    reshaped(lib, split.permuted((0, 2, 1, 3, 4)), (2, 6, 5, 7))
    assert len(moved) == 1, "shuffled channels are the one thing that moves"


def test_a_wrong_step_is_named(rng) -> None:
    exact = {"w": rng.standard_normal((7, 5)), "b": 1e-9 * rng.standard_normal(5)}
    near = {n: v * (1 + 1e-6 * rng.standard_normal(v.shape)) for n, v in exact.items()}

    def wrong(losses: list[float], changes: dict, start: float = 0.0, theirs: float | None = None) -> str:
        values = {n: np.full(v.shape, start) for n, v in exact.items()}
        float32 = None if theirs is None else ([2.0, 1.0 + theirs], {n: v * (1 + theirs) for n, v in exact.items()})
        return step_error(losses, changes, Exact([2.0, 1.0], exact, values, float32))

    assert not wrong([2.0, 1.0], near)
    assert not wrong([2.0, 1.0], near | {"b": -near["b"]}), "zero but for rounding"
    assert "losses" in wrong([2.001, 1.0], near) and "losses" in wrong([2.0, 1.1], near)
    assert "losses" in wrong([2.0, np.nan], near) and not wrong([2.0, 1.001], near)
    assert "w differs" in wrong([2.0, 1.0], near | {"w": near["w"] * 1.1}, start=1.0)
    assert "w differs" in wrong([2.0, 1.0], near | {"w": near["w"] * np.nan}, start=1.0)
    assert not wrong([2.0, 1.0], near | {"w": near["w"] * 1.1}, start=1e6), "less than the values can hold"
    assert "b differs" in wrong([2.0, 1.0], near | {"b": near["b"] + 1e-3})
    assert not wrong([2.0, 1.2], near | {"w": near["w"] * 1.2}, theirs=0.1), "no farther than five times PyTorch's"
    assert "w differs" in wrong([2.0, 1.0], near | {"w": near["w"] * 1.6}, theirs=0.1)
    assert "losses" in wrong([2.0, 1.6], near, theirs=0.1)
    assert "w differs" in wrong([2.0, 1.0], near | {"w": 0 * near["w"]}, theirs=0.4), "there is no gradient"
    assert "what they are" in wrong([2.0, 1.0], {"w": near["w"]})
