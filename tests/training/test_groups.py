"""Parameter groups, frozen parameters and clipping, against torch step by step in float64."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from tests.training.small import batches, data, equal, net, twin

F = es.functional.cross_entropy


def train_both(torch, step, other, optimizer, steps=20, before=None):
    for x, y in batches(steps):
        value = step(x, y)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(other(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        if before is not None:
            before(step)
        optimizer.step()
        assert value == pytest.approx(loss.item(), rel=1e-10)
    equal(step.model, other)


def by_names(other, *groups):
    left = dict(other.named_parameters())
    out = []
    for names, options in groups:
        out.append({"params": [left.pop(n) for n in names], **options})
    return [*out, {"params": list(left.values())}]


def test_other_arguments_for_biases(torch) -> None:
    model = net()
    other = twin(torch, model)
    step = es.TrainStep(
        model, F,
        es.optim.Groups(es.optim.AdamW(lr=0.01, weight_decay=0.3), plain=es.optim.Group("*.bias", weight_decay=0.0)),
    )  # fmt: skip
    groups = by_names(other, (["0.bias", "2.bias"], {"weight_decay": 0.0}))
    train_both(torch, step, other, torch.optim.AdamW(groups, lr=0.01, weight_decay=0.3))


def test_other_rules_and_rates_that_are_set_alone(torch) -> None:
    model = net()
    other = twin(torch, model)
    rules = es.optim.Groups(
        es.optim.SGD(lr=0.1, momentum=0.9),
        head=es.optim.Group(model[2], rule=es.optim.RMSprop(lr=0.01)),
        bias=es.optim.Group([model[0].bias], lr=0.5),
    )
    step = es.TrainStep(model, F, rules)
    head = [p for n, p in other.named_parameters() if n.startswith("2.")]
    sgd = torch.optim.SGD([{"params": [other[0].bias], "lr": 0.5}, {"params": [other[0].weight]}], lr=0.1, momentum=0.9)
    rms = torch.optim.RMSprop(head, lr=0.01)

    class Both:
        def zero_grad(self):
            other.zero_grad()

        def step(self):
            sgd.step()
            rms.step()

    train_both(torch, step, other, Both(), 5)
    programs = list(step.compiler.programs.values())
    rules["head"].lr = rms.param_groups[0]["lr"] = 0.02
    rules["rest"].momentum = 0.5
    for g in sgd.param_groups[1:]:
        g["momentum"] = 0.5
    train_both(torch, step, other, Both(), 5)
    assert list(step.compiler.programs.values()) == programs


def test_matrices_by_muon_and_the_rest_by_adamw(torch) -> None:
    model = net()
    step = es.TrainStep(
        model, F,
        es.optim.Groups(es.optim.AdamW(lr=0.01), matrices=es.optim.Group(ndim=2, rule=es.optim.Muon(lr=0.05))),
    )  # fmt: skip
    assert {n: g for n, (g, _) in step.parts.state.rules.items()} == {
        "0.weight": "matrices", "0.bias": "rest", "2.weight": "matrices", "2.bias": "rest",
    }  # fmt: skip
    x, y = data(50)
    losses = [step(x, y) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]
    assert {n.split("/")[1] for n in step.store.state if n.startswith("0.weight")} == {"momentum_buffer"}
    assert {n.split("/")[1] for n in step.store.state if n.startswith("0.bias")} == {"exp_avg", "exp_avg_sq"}


def test_groups_are_found_in_many_ways() -> None:
    model = net()

    def names(*which, **options):
        rule = es.optim.SGD(lr=0.5)
        group = es.optim.Group(*which, rule=rule, **options)
        found = es.optim.Groups(es.optim.SGD(lr=0.1), g=group).assign(model)
        return [n for n, (label, _) in found.items() if label == "g"]

    assert names("0.bias") == ["0.bias"]
    assert names("0") == ["0.weight", "0.bias"]
    assert names("*.bias", "2") == ["0.bias", "2.weight", "2.bias"]
    assert names(model[0]) == names(model[0].parameters()) == ["0.weight", "0.bias"]
    assert names(lambda n, p: p.size > 20, "2.bias") == ["0.weight", "2.weight", "2.bias"]
    assert names(ndim=1) == ["0.bias", "2.bias"] and names("2", ndim=(0, 1)) == ["2.bias"]


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda m: es.optim.Groups(es.optim.SGD(), a=es.optim.Group("*.bais", lr=1)), r"'a' names '\*.bais'"),
        (lambda m: es.optim.Groups(es.optim.SGD(), a=es.optim.Group("0.weigt", lr=1)), "did you mean '0.weight'"),
        (lambda m: es.optim.Groups(es.optim.SGD(), a=es.optim.Group(ndim=7, lr=1)), "'a' is empty"),
        (lambda m: es.optim.Groups(es.optim.SGD(), a=es.optim.Group([], lr=1)), "names no parameters"),
        (lambda m: es.optim.Groups(es.optim.SGD(), a=es.optim.Group("0", lr=1), b=es.optim.Group("*.bias", lr=1)),
         "0.bias is in two groups, 'a' and 'b'"),
        (lambda m: es.optim.Groups(None, a=es.optim.Group("0", rule=es.optim.SGD())),
         "no group contains 2.weight, 2.bias"),
        (lambda m: es.optim.Groups(None, a=es.optim.Group("0", lr=0.1)), "give it a rule"),
        (lambda m: es.optim.Groups(es.optim.SGD()), "no group is given"),
        (lambda m: es.optim.Groups(es.optim.SGD(), a={"lr": 0.1}), "pass es.optim.Group"),
        (lambda m: es.optim.Groups(es.optim.SGD(), rest=es.optim.Group("0", lr=0.1)), "cannot be called 'rest'"),
        (lambda m: es.optim.Groups(es.optim.SGD(), a=es.optim.Group("0", momentun=0.1)), "momentun"),
        (lambda m: es.optim.Groups(es.optim.SGD(), a=es.optim.Group("0", lr=-0.1)), "lr=-0.1 must not be negative"),
        (lambda m: es.optim.Groups(es.optim.SGD(), a=es.optim.Group(net()[0], lr=0.1)), "matches no parameter of the"),
        (lambda m: es.optim.Groups([es.optim.SGD()], a=es.optim.Group("0", lr=0.1)), "rest="),
        (lambda m: es.optim.Group("0"), "arguments in which it differs"),
        (lambda m: es.optim.Group(lr=0.1), "names no parameters"),
        (lambda m: es.optim.Group(3, lr=0.1), "cannot be selected by 3"),
        (lambda m: es.optim.Group("0", rule=es.optim.SGD(), lr=0.1), "not both"),
        (lambda m: es.optim.Group("0", rule=es.optim.SGD), "is not an update rule"),
    ],
)  # fmt: skip
def test_errors(make, words) -> None:
    model = net()
    with pytest.raises(es.ArgumentError, match=words):
        es.TrainStep(model, F, make(model))


def test_errors_of_names() -> None:
    rules = es.optim.Groups(es.optim.SGD(lr=0.1), plain=es.optim.Group("0", lr=0.2))
    with pytest.raises(es.UnknownNameError, match="did you mean 'plain'"):
        rules["plan"]
    with pytest.raises(AttributeError, match=r"optimizer\['plain'\].lr"):
        rules.lr = 0.3
    with pytest.raises(es.ShapeError, match="parameter 0.bias: Muon"):
        es.TrainStep(net(), F, es.optim.Muon())


# ---------------------------------------------------------------------------------------------------------- frozen


def test_frozen_parameters_cost_nothing(torch) -> None:
    """Neither a gradient, nor state, nor an update: fewer kernels, and those of the layers before are gone."""
    x, y = data(6)

    def kernels(frozen):
        model = net()
        for n, p in model.named_parameters():
            p.requires_grad = not any(n.startswith(f) for f in frozen)
        step = es.TrainStep(model, F, es.optim.SGD(lr=0.1, momentum=0.9)).compile(x, y)
        (run,) = step.compiler.programs.values()
        return len(run.kernels), set(step.store.state), run

    everything, state, _ = kernels([])
    head, head_state, run = kernels(["0"])
    assert head_state == {"2.weight/momentum_buffer", "2.bias/momentum_buffer"} < state
    assert head <= everything - 2
    # Nothing is computed of the first layer's shape but its forward product.
    assert not [t for c in run.calls for t in c.nodes if t.shape in ((13, 7), (7, 13))]
    bias, bias_state, _ = kernels(["0.weight", "2"])
    assert bias_state == {"0.bias/momentum_buffer"} and bias < everything

    model = net()
    model[0].requires_grad_(False)
    other = twin(torch, model)
    step = es.TrainStep(model, F, es.optim.Adam(lr=0.1))
    train_both(torch, step, other, torch.optim.Adam(other[2].parameters(), lr=0.1), 5)
    model[0].requires_grad_(True)  # its state begins now
    step(x, y)
    assert "0.weight/exp_avg" in step.store.state


def test_rules_count_the_updates_of_each_parameter(torch, tmp_path) -> None:
    """Adam corrects means that began at zero by the parameter's own updates, as torch.optim: one that is thawed late or
    frozen for a while, and all under a new optimizer, would else take steps of another size."""
    model = net()
    other = twin(torch, model)
    step = es.TrainStep(model, F, es.optim.Adam(lr=0.1), ema=0.9)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.1)

    def freeze(layer, frozen, step):
        for both in (step.model, other):
            both[layer].requires_grad_(not frozen)
        for p in other[layer].parameters():
            p.grad = None

    freeze(0, True, step)
    train_both(torch, step, other, optimizer, 3)
    freeze(0, False, step)
    train_both(torch, step, other, optimizer, 2)
    freeze(2, True, step)
    train_both(torch, step, other, optimizer, 2)
    freeze(2, False, step)
    es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run", model=net())
    train_both(torch, step, other, optimizer, 3)
    equal(model, other)
    for x, y in batches(3):
        again(x, y)
    equal(again.model, other)
    step.optimizer = es.optim.Adam(lr=0.05)
    train_both(torch, step, other, torch.optim.Adam(other.parameters(), lr=0.05), 3)
    equal(model, other)


def test_parameters_without_gradient_stay_unchanged(torch) -> None:
    """As in torch, where its gradient is None: weight decay does not shrink it."""

    class Half(es.nn.Module):
        def __init__(self):
            self.a, self.b, self.c = (es.nn.Linear(7, 5) for _ in range(3))

        def forward(self, x):
            return self.a(x) + es.stop_gradient(self.b(x))

    step = es.TrainStep(Half(), F, es.optim.AdamW(lr=0.1, weight_decay=0.5))
    before = step.model.state_dict()
    step(*data(6, dtype="float32"))
    changed = {n[0] for n, v in step.model.state_dict().items() if not np.array_equal(v, before[n])}
    assert changed == {"a"} and {n[0] for n in step.store.state} == {"a"}


# -------------------------------------------------------------------------------------------------------- clipping


@pytest.mark.thinned(2)
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
def test_clipping_by_norm(torch, norm_type) -> None:
    model = net()
    other = twin(torch, model)
    step = es.TrainStep(model, F, es.optim.SGD(lr=0.5, momentum=0.9), clip_grad_norm=0.3, norm_type=norm_type)

    def clip(step):
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), step.clip_grad_norm, norm_type)
        assert step.grad_norm == pytest.approx(norm.item(), rel=1e-10)

    optimizer = torch.optim.SGD(other.parameters(), lr=0.5, momentum=0.9)
    train_both(torch, step, other, optimizer, 8, clip)
    programs = list(step.compiler.programs.values())
    step.clip_grad_norm = 100.0  # clips nothing
    train_both(torch, step, other, optimizer, 4, clip)
    assert list(step.compiler.programs.values()) == programs
    step.clip_grad_norm = None
    train_both(torch, step, other, optimizer, 4)
    assert step.grad_norm is None


def test_clipping_by_value(torch) -> None:
    model = net()
    other = twin(torch, model)
    step = es.TrainStep(model, F, es.optim.SGD(lr=0.5), clip_grad_value=0.01)

    def clip(step):
        torch.nn.utils.clip_grad_value_(other.parameters(), 0.01)

    train_both(torch, step, other, torch.optim.SGD(other.parameters(), lr=0.5), 10, clip)


def test_clipping_in_float32(torch) -> None:
    model = net("float32")
    other = twin(torch, model)
    step = es.TrainStep(model, F, es.optim.SGD(lr=0.5), clip_grad_norm=0.1, clip_grad_value=0.05)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
    for x, y in batches(8):
        step(x.astype(np.float32), y)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(other(torch.tensor(x)), torch.tensor(y)).backward()
        torch.nn.utils.clip_grad_value_(other.parameters(), 0.05)
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1)
        optimizer.step()
        assert step.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    for n, a in model.state_dict().items():
        np.testing.assert_allclose(a, other.state_dict()[n].numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [{"clip_grad_norm": -1.0}, {"clip_grad_norm": 0}, {"clip_grad_norm": "1"}, {"norm_type": 0}, {"ema": 1.0},
     {"clip_grad_value": float("nan")}, {"accumulate": 0}, {"accumulate": 2.0}, {"accumulate": True}, {"ema": -0.5},
     {"trained": "all"}, {"clip_grad_norm": [1.0]}],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_named(wrong) -> None:
    (name,) = wrong
    with pytest.raises(es.ArgumentError, match=f"{name}="):
        es.TrainStep(net(), F, es.optim.SGD(lr=0.1), **wrong)
    step = es.TrainStep(net(), F, es.optim.SGD(lr=0.1))
    with pytest.raises(es.ArgumentError, match=f"{name}="):
        setattr(step, name, wrong[name])


def test_clipping_over_two_types(torch) -> None:
    """Parameters of float32 and float64 have one norm."""

    class Both(es.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = es.nn.Parameter(np.full(3, 2.0, np.float32))
            self.b = es.nn.Parameter(np.full((2, 2), 3.0))

        def forward(self, x):
            return (self.a * self.a).sum() + (self.b * self.b).sum() * x

    step = es.TrainStep(Both(), lambda out, y: out + 0 * y, es.optim.SGD(lr=1.0), clip_grad_norm=0.5)
    step(np.ones(()), np.zeros(()))
    norm = np.sqrt(3 * 16 + 4 * 36)
    assert step.grad_norm == pytest.approx(norm, rel=1e-6)
    np.testing.assert_allclose(step.model.a.data, 2 - 4 * 0.5 / norm, rtol=1e-6)
    np.testing.assert_allclose(step.model.b.data, 3 - 6 * 0.5 / norm, rtol=1e-6)


def test_an_optimizer_that_is_put_in_place_of_another(torch) -> None:
    step = es.TrainStep(net(), F, es.optim.Adam(lr=0.1), ema=0.5)
    x, y = data(6)
    step(x, y)
    step.optimizer = [es.optim.SGD(lr=0.1)]
    with pytest.raises(es.ArgumentError, match="no update rule"):
        step(x, y)
    step.optimizer = es.optim.Groups(es.optim.SGD(lr=0.1), a=es.optim.Group("0", lr=0.2))
    average = step.averages()
    step(x, y)
    assert not [n for n in step.store.state if "exp_avg" in n]
    assert not np.array_equal(average["0.weight"], step.averages()["0.weight"])
