"""The methods that traced tensors share with PyTorch's, by name, arguments and results."""

from __future__ import annotations

import re

import numpy as np
import pytest

import einsmith as es
from einsmith.tracing.refused import REFUSED
from einsmith.tracing.torch_methods import CASTS, FUNCTIONS, SYNONYMS, TorchMethods

CALLS = [
    ("permute", lambda x: x.permute(2, 0, 1)),
    ("permute", lambda x: x.permute((0, -1, 1))),
    ("permute", lambda x: x.permute(dims=(1, 2, 0))),
    ("view", lambda x: x.view(3, -1)),
    ("view", lambda x: x.view((5, 1, -1))),
    ("flatten", lambda x: x.flatten()),
    ("flatten", lambda x: x.flatten(1)),
    ("flatten", lambda x: x.flatten(start_dim=0, end_dim=1)),
    ("unsqueeze", lambda x: x.unsqueeze(0)),
    ("unsqueeze", lambda x: x.unsqueeze(dim=-1)),
    ("squeeze", lambda x: x.unsqueeze(1).squeeze()),
    ("squeeze", lambda x: x.unsqueeze(1).squeeze(1)),
    ("squeeze", lambda x: x.squeeze(0)),
    ("expand", lambda x: x.unsqueeze(0).expand(2, -1, 5, 4)),
    ("expand", lambda x: x.expand((2, -1, -1, -1))),
    ("chunk", lambda x: x.chunk(2, dim=1)),
    ("chunk", lambda x: x.chunk(3)),
    ("split", lambda x: x.split(2, 1)),
    ("split", lambda x: x.split([1, 4], dim=1)),
    ("split", lambda x: x.split(split_size=2)),
    ("softmax", lambda x: x.softmax(-1)),
    ("softmax", lambda x: x.softmax(dim=1)),
    ("masked_fill", lambda x: x.masked_fill(x > 0, -1.5)),
    ("transpose", lambda x: x.transpose(1, 2)),
    ("transpose", lambda x: x.transpose(-1, 0)),
]

EXPRESSIONS = """
x.abs() x.absolute() x.acos() (x+2).acosh() x.add(y) x.add(y,alpha=2) m.addmm(m,m,beta=2,alpha=3) (x>0.5).all()
(x>0.5).all(dim=1,keepdim=True) x.amax(1) x.amin((0,-1),keepdim=True) (x>0.5).any(-1) x.argsort(dim=1,descending=True)
x.asin() x.asinh() x.atan() x.atan2(y) x.atanh() x.baddbmm(y,s) x.bmm(s) x.broadcast_to((2,3,5,4)) x.ceil()
x.chunk(2,dim=1) x.clamp(0.3,0.6) x.clamp(max=0.5) x.clamp(min=y) x.clip(min=0.4) x.cos() x.cosh()
(x>0.5).count_nonzero(dim=1) x.cummax(1) x.cummin(-1) x.cumprod(dim=0) x.cumsum(1) m.diag() m[0].diag(1)
x.diag_embed() x.diagonal(0,1,2) x.digamma() x.div(y) x.div(y,rounding_mode="floor") x.divide(y) m[0].dot(m[1])
x.eq(y) x.erf() x.erfc() x.erfinv() x.exp() x.exp2() x.expand(2,-1,-1,-1) x[:1].expand_as(x) x.expm1() x.flatten(1)
x.flip(0,2) x.flip((1,)) x.floor() x.frac() x.gather(1,i) x.ge(y) x.greater(y) x.greater_equal(y) x.gt(0.5)
x.hardshrink(0.5) x.i0() x.index_add(0,k,y[:2]) x.index_select(1,k) x.isfinite() x.isinf() x.isnan() x.le(y)
x.lerp(y,0.3) x.less(y) x.less_equal(y) x.lgamma() x.log() x.log10() x.log1p() x.log2() x.log_softmax(dim=-1)
x.logaddexp(y) x.logaddexp2(y) x.logcumsumexp(1) x.logical_and(y) x.logical_not() x.logical_or(y) x.logical_xor(y)
x.logit() x.logsumexp(dim=(0,1)) x.lt(y) x.masked_fill(x>0.5,-1.5) x.matmul(m) x.maximum(y) x.median(1) x.minimum(y)
m.mm(m) x.moveaxis(0,-1) x.movedim((0,1),(2,0)) x.mul(y) x.multiply(2) m.mv(m[0]) x.nan_to_num() x.narrow(1,2,2)
x.ne(y) x.neg() x.negative() x.norm() x.norm(p=1,dim=-1) x.norm(dim=(1,2),keepdim=True) x.not_equal(y)
m[0].outer(m[1]) x.pow(2) x.pow(y) (x-0.5).prelu(m[0][:1]) x.reciprocal() (x-0.5).relu() x.remainder(y) x.repeat(2,1,3)
x.repeat((2,1,1,1)) x.repeat_interleave(2,dim=1) x.roll(1,dims=0) x.roll((1,2),(0,1)) x.round() x.rsqrt()
x.scatter(1,i[:,:1],y) x.scatter_add(1,i,y) x.select(1,2) x.sigmoid() x.sign() x.sin() x.sinc() x.sinh()
x.softmax(-1) x.softmax(dim=1,dtype=DTYPE) x.sort(dim=1) x.sqrt() x.square() x.unsqueeze(1).squeeze() x.squeeze(0)
x.std() x.std(dim=1) x.std(1,unbiased=False,keepdim=True) x.sub(y) x.subtract(y) x.swapaxes(0,2) x.swapdims(1,2)
x.take_along_dim(i,dim=1) x.tan() x.tanh() x.tile((2,1)) x.topk(2,dim=1) m.trace() x.tril() x.tril(diagonal=-1)
x.triu(1) x.true_divide(y) x.trunc() x.unbind(1) x.unflatten(1,(1,5)) x.unsqueeze(0) x.unsqueeze(dim=-1) x.var(0)
x.var(dim=(0,1),correction=0) x.xlogy(y) x.permute(2,0,1) x.permute((0,-1,1)) x.permute(dims=(1,2,0)) x.view(3,-1)
x.view((5,1,-1)) x.view_as(y.transpose(1,2)) x.reshape_as(y.flatten()) x.transpose(1,2) x.transpose(-1,0)
x.split(2,1) x.split([1,4],dim=1) x.split(split_size=2) (x>0.5).where(x>0.2,y>0.1) x.where(x>0.5,y) x.where(x>0.5,0.0)
x.unfold(1,3,2) x.unfold(-1,2,1) m.t() m[0].t() x.mT x.contiguous() x.clone() x.cpu() x.detach() x.to(DTYPE)
x.to("cpu") x.to("cpu",DTYPE) x.to(dtype=DTYPE,device="cpu",non_blocking=True) i.to(x) i.type_as(x) i.type(DTYPE)
x.new_zeros(2,3) i.new_zeros((2,)) x.new_ones(3) x.new_ones((1,2),dtype=DTYPE) x.new_full((2,2),3) x.sum()
x.sum(1) x.sum(dim=(0,1)) x.sum(-1,keepdim=True) x.sum(dim=1,dtype=DTYPE) i.sum(dim=0) x.mean() x.mean((1,2))
x.mean(dim=-1,keepdim=True) x.prod(dim=1) x.max() x.max(dim=1) x.max(dim=1,keepdim=True)[0] x.max(y) x.min()
x.min(dim=-1) x.argmax() x.argmax(dim=1) x.argmax(1) x.argmin(dim=1,keepdim=True) x[k] x[:,k] x[...,[0,-1]]
x[k,k] x[:,k][:,:,0] x[0,k] x[k,:,k] x[None,:,k,1:] x[:,i[0,:,:2]] x.double() x.float() x.half() x.bfloat16().float()
x.long() (4*x).int() (4*x).short() (4*x).byte() (4*x).char() x.bool()
""".split()
"""Expressions of x and y [3, 5, 4], s [3, 4, 4], m [4, 4], integers i [3, 2, 4] and k [2]."""
FIXED = """
x.dim() x.ndimension() x.numel() x.nelement() x.size() x.size(0) x.size(-1) x.size(dim=1) x.size()[:-1] x.ndim
x.is_floating_point() i.is_floating_point() x.device.type
""".split()
"""Expressions whose value is known while tracing."""


def names(of) -> set[str]:
    return set(re.findall(r"\.([a-zA-Z_0-9]+)", " ".join(of)))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(expression, torch, rng):
    x, y, s, m = (rng.uniform(0.05, 0.95, shape) for shape in ((3, 5, 4), (3, 5, 4), (3, 4, 4), (4, 4)))
    arrays = {"x": x, "y": y, "s": s, "m": m, "i": rng.integers(0, 5, (3, 2, 4)), "k": np.array([2, 0])}
    if "i[:,:1]" in expression:
        arrays["i"] %= 3
    code = compile(expression, expression, "eval")
    want = eval(code, {n: torch.tensor(a) for n, a in arrays.items()} | {"DTYPE": torch.float64})
    got = es.interpret(lambda given: eval(code, given | {"DTYPE": "float64"}))(arrays)
    assert isinstance(got, tuple) == isinstance(want, tuple)
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True):
        assert a.shape == tuple(b.shape) and a.dtype.kind == b.numpy().dtype.kind.replace("u", "i")
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-6 if b.dtype == torch.float32 else 1e-9, atol=1e-12)


@pytest.mark.parametrize("expression", FIXED)
def test_questions_about_shapes(expression, torch, rng):
    x, i = rng.standard_normal((3, 5, 4)), rng.integers(0, 3, (2, 2))
    want = eval(expression, {"x": torch.tensor(x), "i": torch.tensor(i)})
    seen = []
    es.jit(lambda x, i: [seen.append(eval(expression, {"x": x, "i": i})), x])(x, i)
    seen.append(eval(expression, {"x": es.nn.Parameter(x), "i": es.nn.Buffer(i)}) if "size" in expression else seen[0])
    for got in seen:
        assert got == (tuple(want) if isinstance(want, tuple) else want)
    assert x.size == es.nn.Parameter(x).size


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name,call", CALLS, ids=[n for n, _ in CALLS])
def test_as_torch_s(name, call, torch, rng):
    x = rng.standard_normal((3, 5, 4))
    want = call(torch.tensor(x))
    for run in (es.jit, es.interpret):
        got = run(call)(x)
        if isinstance(want, tuple):
            assert len(got) == len(want)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for a, b in pairs:
            assert a.shape == tuple(b.shape)
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-12)


def test_every_name_is_tried():
    methods = {n for n in vars(TorchMethods) if not n.startswith("_")} - {"exchange"}
    assert {*FUNCTIONS, *SYNONYMS, *CASTS} < methods
    assert methods <= names(EXPRESSIONS + FIXED)


def test_refused_methods_say_what_to_use(rng):
    names = [n.rpartition(".")[2] for n in REFUSED if n.startswith("torch.Tensor.")]
    assert len(names) > 10

    def ask(x):
        for name in names:
            reason, instead = REFUSED[f"torch.Tensor.{name}"]
            with pytest.raises(es.UnknownAttributeError) as e:
                getattr(x, name)
            assert f"{name!r}: {reason}; use {instead}" in str(e.value)
        return x

    es.jit(ask)(rng.standard_normal(3))


def test_numpy_s_transpositions_stay(rng):
    """Two numbers are an order of two dimensions, and more of more."""
    x, y = rng.standard_normal((3, 5)), rng.standard_normal((3, 5, 4))
    for order in ((), (0, 1), (1, 0)):
        got = es.jit(lambda v, o=order: v.transpose(*o), static_argnames="o")(x)
        np.testing.assert_array_equal(got, x.transpose(*order))
    for order in ((), (2, 0, 1)):
        got = es.jit(lambda v, o=order: v.transpose(*o), static_argnames="o")(y)
        np.testing.assert_array_equal(got, y.transpose(*order))


def test_a_forward_pass_of_torch_runs_unchanged(torch, rng):
    """Heads of attention, split and joined by methods; parameters have them as well."""

    def heads(x, w, mask):
        b, t, _ = x.shape
        parts = (x @ w.transpose(0, 1)).view(b, t, 3, 2, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unsqueeze(0).flatten(0, 1).chunk(3)
        scores = (q.squeeze(0) @ k.squeeze(0).transpose(-2, -1)).masked_fill(mask, -1e9).softmax(-1)
        return (scores @ v.squeeze(0)).transpose(1, 2).flatten(2)

    def own(x, w, mask):
        return heads(x, w.T, mask).sum()  # NumPy's meaning of transpose(0, 1) of two dimensions

    x, w = rng.standard_normal((2, 5, 6)), rng.standard_normal((18, 6))
    mask = np.triu(np.ones((5, 5), bool), 1)
    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in (x, w, mask)]
    heads(*tensors).sum().backward()
    for got, t in zip(es.grad(own, argnums=(0, 1))(x, w, mask), tensors, strict=False):
        np.testing.assert_allclose(got, t.grad.numpy(), rtol=1e-9, atol=1e-12)


class Turned(es.nn.Module):
    def __init__(self):
        self.weight = es.nn.Parameter(np.arange(6.0).reshape(1, 2, 3))

    def forward(self, x):
        return x + self.weight.permute(0, 2, 1).squeeze(0).flatten()


def test_parameters_have_them():
    np.testing.assert_array_equal(Turned()(np.zeros(6)), [0, 3, 1, 4, 2, 5])


@pytest.mark.parametrize("call,words", [
    (lambda x: x.selu(), r"no attribute 'selu'; use es\.functional\.selu\(x, \.\.\.\)"),
    (lambda x: x.repeat(2), "repeat: sizes="),
    (lambda x: x.add_(1), r"'add_': tensors are not changed in place; write x = x\.add\("),
    (lambda x: x.fill_(1), r"'fill_': tensors are not changed in place; make a new one"),
    (lambda x: x.nonzero(), "'nonzero': the shape of the result depends on values.*where"),
    (lambda x: x.backward(), "'backward': gradients are those of functions; use es.grad"),
    (lambda x: x.to("cuda:0"), "device='cuda:0' must be 'cpu'"),
    (lambda x: x.to(dtyp="f4"), "to takes dtype, device and other by name, not dtyp"),
    (lambda x: x.to("float31"), "element type 'float31' is not supported"),
    (lambda x: x.size(3), "size: dim=3 is not a dimension"),
    (lambda x: x.size(1.5), "size: dim=1.5 must be an integer"),
    (lambda x: x.t(), "at most two dimensions"),
    (lambda x: x[0, 0].mT, "mT needs two dimensions"),
    (lambda x: x.expand_as(3), "expand_as: other=3 must be a tensor"),
    (lambda x: x.unfold(1, 6, 1), "unfold: size=6"),
    (lambda x: x.new_full(3), "new_full takes"),
    (lambda x: x.sum(dims=1), "sum has no option 'dims'; did you mean 'dim'"),
    (lambda x: x[x > 0], "indexed with a mask.*where"),
    (lambda x: x[[0.5]], "indexed with a tensor of f"),
    (lambda x: x[0, :, [1, 2]], "not adjacent.*select by the integer first"),
    (lambda x: x.permuted(0, 1), r"no attribute 'permuted'; did you mean \.permute"),
    (lambda x: x.zzz, "no attribute 'zzz'; it has"),
    (lambda x: x.permute(0), "permute: dims=.* does not name each of 3"),
    (lambda x: x.permute((0, 1, 2), dims=1), "permute takes"),
    (lambda x: x.view(7, -1), "do not fill"),
    (lambda x: x.view("a"), "reshape: shape=.* must be"),
    (lambda x: x.unsqueeze(9), "dim=9 is no dimension"),
    (lambda x: x.transpose(0, 7), "transpose: dim=7 is no dimension"),
    (lambda x: x.split(-1), "split_size_or_sections=-1"),
    (lambda x: x.masked_fill(1, 2), "'mask' must hold bools"),
])  # fmt: skip
def test_errors(call, words, rng):
    with pytest.raises(es.EinsmithError, match=words):
        es.jit(call)(rng.standard_normal((3, 5, 4)))


def test_missing_names_are_missing_attributes():
    assert es.jit(lambda x: 1 if hasattr(x, "nothing_of_it") or hasattr(x, "__nothing__") else 2)(np.ones(2)) == 2
    assert issubclass(es.UnknownAttributeError, AttributeError)
    for thing in (es.nn.Linear(2, 2), es.nn.Parameter(np.ones(2))):
        with pytest.raises(es.UnknownAttributeError, match="has no attribute 'nothing'"):
            _ = thing.nothing
