"""Several targets of a batch: each is an argument of the loss, in every way to train and to evaluate."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

SAMPLES = 24


def arrays(rng):
    x = rng.standard_normal((SAMPLES, 5)).astype(np.float32)
    energy = (x**2).sum(1)
    return x, energy.astype(np.float32), (-2 * x).astype(np.float32)


class Potential(es.nn.Module):
    """A network of energies; forces are minus its derivatives by the positions."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = es.nn.Linear(5, 16), es.nn.Linear(16, 1)

    def energies(self, x):
        return self.outer(es.functional.tanh(self.inner(x)))[:, 0]

    def forward(self, x):
        return self.energies(x), -es.grad(lambda x: self.energies(x).sum())(x)


def both(output, energy, forces):
    e, f = output
    return ((e - energy) ** 2).mean() + ((f - forces) ** 2).mean()


def joined(output, target):
    """The same loss of one target, energies and forces side by side."""
    return both(output, target[:, 0], target[:, 1:])


def make(loss=both, **options):
    es.manual_seed(0)
    return es.TrainStep(Potential(), loss, es.optim.Adam(lr=1e-2), **options)


def weights(step):
    return {n: np.array(p.data) for n, p in step.model.named_parameters()}


def close(a, b):
    for name, values in weights(a).items():
        np.testing.assert_allclose(values, weights(b)[name], atol=2e-5, err_msg=name)


def error(output, energy, forces):
    return np.abs(output[1] - forces).mean()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"deterministic": True}, {"sizes": "shared"}, {"ema": 0.5}])
def test_targets_are_arguments_of_the_loss(rng, options):
    """Steps, `fit` and `evaluate` give what one joined target gives."""
    x, energy, forces = arrays(rng)
    target = np.concatenate([energy[:, None], forces], 1)
    step, twin = make(**options), make(joined, **options)
    for n in (8, 8, 4, 4):
        assert step(x[:n], (energy[:n], forces[:n])) == pytest.approx(twin(x[:n], target[:n]), rel=1e-5)
    several = es.data.batches(x, (energy, forces), 7, seed=1)
    one = es.data.batches(x, target, 7, seed=1)
    metrics = {"force": error}
    results = step.fit(several, 2, progress=False, validation=several, metrics=metrics)
    np.testing.assert_allclose(results, twin.fit(one, 2, progress=False, validation=one), rtol=1e-4)
    close(step, twin)
    found = step.evaluate([(x, (energy, forces)), (x[:3], (energy[:3], forces[:3]))], metrics=metrics)
    assert found["loss"] == pytest.approx(twin.evaluate([(x, target), (x[:3], target[:3])])["loss"], rel=1e-5)
    output = step.model.predict(x)
    np.testing.assert_allclose(
        step.evaluate([(x, (energy, forces))], metrics=metrics)["force"], error(output, energy, forces), rtol=1e-5
    )
    assert step.history[-1]["val_force"] > 0


def test_a_loader_of_pytorch_gives_lists(torch, rng):
    x, energy, forces = arrays(rng)
    data = [(x[n], (energy[n], forces[n])) for n in range(SAMPLES)]
    step, twin = make(), make()
    step.fit(torch.utils.data.DataLoader(data, 8), 1, progress=False)
    twin.fit(es.data.batches(x, (energy, forces), 8), 1, progress=False)
    close(step, twin)


def test_a_saved_step_trains_on(rng, tmp_path):
    x, energy, forces = arrays(rng)
    step = make()
    step(x, (energy, forces))
    es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run", model=Potential(), loss=both)
    assert again(x, (energy, forces)) == step(x, (energy, forces))
    close(step, again)


def test_samples_are_those_of_the_first_target(rng):
    """Packed structures: energies of 6 of them, forces of all their atoms."""
    x, _, forces = arrays(rng)
    structure = np.repeat(np.arange(6), 4)
    energy = rng.standard_normal(6).astype(np.float32)

    def loss(output, energy, forces, structure):
        e, f = output
        total = es.op("E[s] = sum[a](where(S[a] == s, e[a], 0))", extents={"s": 6})(S=structure, e=e)
        return ((total - energy) ** 2).mean() + ((f - forces) ** 2).mean()

    step = make(loss)
    step.fit([(x, (energy, forces, structure))], 1, progress=False)
    assert step.steps == 1 and step.parts.definition.count_samples([x, energy, forces, structure]) == 6


def test_arrays_of_numbers_stay_one_target(rng):
    x, energy, _ = arrays(rng)

    def loss(output, target):
        return ((output[0] - target) ** 2).mean()

    step, twin = make(loss), make(loss)
    for target in (tuple(energy.tolist()), energy.tolist(), tuple(energy)):  # numbers of Python and of NumPy
        assert step(x, target) == pytest.approx(twin(x, energy), rel=1e-5)


@pytest.mark.parametrize(
    "use",
    [lambda s, x, t: s(x, t), lambda s, x, t: s.compile(x, t), lambda s, x, t: s.evaluate([(x, t)]),
     lambda s, x, t: s.fit([(x, t)], 1, progress=False), lambda s, x, t: s.profile(x, t)],
)  # fmt: skip
def test_a_loss_that_takes_another_number_of_targets_is_named(rng, use):
    x, energy, forces = arrays(rng)
    with pytest.raises(es.ArgumentError, match="2 targets.*called with .output, target, target.*joined does not take"):
        use(make(joined), x, (energy, forces))
    with pytest.raises(es.ArgumentError, match="one target.*called with .output, target.*both does not take"):
        use(make(), x, energy)


def test_the_number_of_targets_is_that_of_all_batches(rng):
    x, energy, forces = arrays(rng)

    def any_number(output, *targets):
        return sum(((output[n] - t) ** 2).mean() for n, t in enumerate(targets))

    step = make(any_number)
    step(x, (energy, forces))
    before = weights(step)
    with pytest.raises(es.ShapeError, match="number of targets is 1 in this batch and was 2"):
        step(x, energy)
    assert all((before[n] == w).all() for n, w in weights(step).items())
    step.loss = lambda output, target: any_number(output, target)
    assert np.isfinite(step(x, energy))


def test_a_metric_that_takes_one_target_is_named(rng):
    x, energy, forces = arrays(rng)
    for metric in (es.metrics.accuracy(), lambda output, target: 0.0):
        with pytest.raises(es.ArgumentError, match="metric score is called with .output, target, target"):
            make().evaluate([(x, (energy, forces))], metrics={"score": metric})


def test_batches_of_several_targets(rng):
    x, energy, forces = arrays(rng)
    seen = []

    def transform(rng, x, targets):
        seen.append(len(targets))
        return x, targets

    for a, (e, f) in es.data.batches(x, (energy, forces), 7, transform=transform):
        np.testing.assert_array_equal(f, -2 * a)
        np.testing.assert_allclose(e, (a**2).sum(1), rtol=1e-5)
    assert seen == [2] * 4
    with pytest.raises(es.ShapeError, match="target 1 has 3 samples where x has 24"):
        es.data.batches(x, (energy, forces[:3]), 7)
    named = es.data.columns({"x": x, "e": energy, "f": forces}, "x", ("e", "f"))
    (_, (e, f)), *_ = es.data.batches(*named, 5)
    np.testing.assert_array_equal(f, forces[:5])
    (_, one), *_ = es.data.batches(x, tuple(energy.tolist()), 5)
    np.testing.assert_array_equal(one, energy[:5].astype(np.float64))


def test_an_uneven_batch_is_not_divided(rng):
    x, energy, forces = arrays(rng)
    with pytest.raises(es.ShapeError, match="divides all arrays of a batch by samples"):
        make(deterministic=True)(x, (energy, forces[:5]))
