"""Linear readers against scikit-learn, against themselves alone, and on noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from restack.errors import DataError
from restack.observe import linear_base
from restack.observe.linear import Draw, Examples, Kind, Settings, fit, predict

ROWS, LAYERS, HIDDEN = 400, 3, 12
KINDS: tuple[Kind, ...] = ("classification", "regression", "multilabel")
QUICK = Settings(epochs=6, rate=0.01)


def draws(trials: int = 3, train: int = 250, held: int = 50, rows: int = ROWS) -> list[Draw]:
    found = []
    for number in range(trials):
        order = np.random.default_rng(number).permutation(rows)
        found.append(Draw(number, order[:train], order[train : train + held]))
    return found


def examples(kind: Kind, *, dtype: torch.dtype = torch.float32, outputs: int = 3) -> Examples:
    """Targets that layer 1 tells with some noise, and no other layer tells at all."""
    random = torch.Generator().manual_seed(0)
    features = torch.randn(ROWS, LAYERS, HIDDEN, generator=random)
    features = features * torch.linspace(0.5, 3, HIDDEN) + torch.linspace(-2, 5, HIDDEN)
    features = features.to(dtype)
    told = (features[:, 1].float() - features[:, 1].float().mean(0)) @ torch.randn(
        HIDDEN, outputs, generator=random
    )
    told += torch.randn(ROWS, outputs, generator=random)
    if kind == "classification":
        targets = nn.functional.one_hot(told.argmax(1), outputs).float()
    else:
        targets = told if kind == "regression" else (told > 0).float()
    return Examples(features, targets, kind)


def near(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", ["adam", "exact"])
@pytest.mark.parametrize("standardise", [False, True])
def test_a_problem_alone_learns_what_it_learns_among_others(
    kind: Kind, solver: str, standardise: bool
) -> None:
    settings = replace(QUICK, solver=solver, standardise=standardise, patience=1)
    data = examples(kind)
    together = fit(data, draws(), [0, 1, 2], settings)
    alone = fit(data, draws()[2:], [1], settings)
    # two ways of summing up differ in rounding, which L-BFGS amplifies
    tolerance = 1e-5 if solver == "adam" else 2e-3
    assert near(together.weight[1, 2], alone.weight[0, 0], tolerance)
    assert near(together.bias[1, 2], alone.bias[0, 0], tolerance)
    assert near(together.loss[1, 2], alone.loss[0, 0], tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_what_can_be_told_is_found_and_the_rest_is_not(kind: Kind, solver: str) -> None:
    data = examples(kind)
    rows = np.arange(300, ROWS)  # unseen by all trials
    trials = [Draw(d.number, d.train % 250, 250 + d.held % 50) for d in draws()]
    found = fit(data, trials, [0, 1, 2], Settings(solver=solver, rate=0.01))
    outputs = torch.from_numpy(predict(found, data.features[rows]))
    wanted = data.targets[rows]
    if kind == "classification":
        score = (outputs.argmax(-1) == wanted.argmax(-1)).float().mean(-1)
        chance, good = 1 / 3, 0.75
    elif kind == "multilabel":
        score = ((outputs > 0) == wanted.bool()).float().mean((-1, -2))
        chance, good = 0.5, 0.8
    else:
        score = 1 - (outputs - wanted).square().mean((-1, -2)) / wanted.var()
        chance, good = 0.0, 0.8
    assert (score[1] > good).all()
    assert (score[[0, 2]] < chance + 0.15).all()


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("l2", [0.1, 10.0])
def test_exact_logistic_regression_is_that_of_scikit_learn(l2: float, standardise: bool) -> None:
    data = examples("classification")
    found = fit(data, draws(), [0, 1, 2], Settings("exact", standardise, l2=l2))
    for layer, trial in ((0, 0), (1, 2)):
        rows = draws()[trial].train
        x = data.features[rows, layer].double().numpy()
        scale = x.std(0) if standardise else np.ones(HIDDEN)
        middle = x.mean(0) if standardise else np.zeros(HIDDEN)
        known = LogisticRegression(C=1 / l2, tol=1e-8, max_iter=2000)
        known.fit((x - middle) / scale, data.targets[rows].argmax(1).numpy())
        wanted = (data.features[:, layer].double().numpy() - middle) / scale
        ours = torch.from_numpy(predict(found, data.features)[layer, trial]).softmax(-1)
        assert np.allclose(ours, known.predict_proba(wanted), atol=2e-3)
        # known only up to a constant over the classes
        weight = (found.weight - found.weight.mean(2, keepdim=True))[layer, trial]
        assert np.allclose(weight, known.coef_ / scale, atol=3e-3)


def test_of_two_classes_scikit_learn_counts_the_weights_once() -> None:
    data = examples("classification", outputs=2)
    found = fit(data, draws(), [1], Settings("exact", l2=4.0))
    rows = draws()[0].train
    known = LogisticRegression(C=2 / 4.0, tol=1e-8, max_iter=2000)
    known.fit(data.features[rows, 1].numpy(), data.targets[rows].argmax(1).numpy())
    assert np.allclose(found.weight[0, 0, 1] - found.weight[0, 0, 0], known.coef_[0], atol=3e-3)


def test_exact_multilabel_is_a_logistic_regression_for_each_label() -> None:
    data = examples("multilabel")
    found = fit(data, draws(), [1], Settings("exact", l2=2.0))
    rows = draws()[1].train
    for label in range(3):
        known = LogisticRegression(C=1 / 2.0, tol=1e-8, max_iter=2000)
        known.fit(data.features[rows, 1].numpy(), data.targets[rows, label].numpy())
        assert np.allclose(found.weight[0, 1, label], known.coef_[0], atol=3e-3)


@pytest.mark.parametrize("standardise", [False, True])
def test_exact_regression_is_the_ridge_of_scikit_learn(standardise: bool) -> None:
    data = examples("regression")
    found = fit(data, draws(), [0, 1, 2], Settings("exact", standardise, l2=5.0))
    for layer, trial in ((0, 1), (1, 2)):
        rows = draws()[trial].train
        x = data.features[rows, layer].double().numpy()
        scale = x.std(0) if standardise else np.ones(HIDDEN)
        known = Ridge(alpha=5.0).fit((x - x.mean(0)) / scale, data.targets[rows].numpy())
        assert np.allclose(found.weight[layer, trial], known.coef_ / scale, atol=1e-4)
        bias = known.intercept_ - known.coef_ / scale @ x.mean(0)
        assert np.allclose(found.bias[layer, trial], bias, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_adam_goes_the_way_of_torch(kind: Kind) -> None:
    """The same batches through torch's own Adam, with gradients by autograd."""
    data, draw = examples(kind), draws(1, train=64)
    settings = Settings(epochs=1, batch_size=64, rate=0.01, betas=(0.8, 0.95))
    start = fit(data, draw, [1], replace(settings, rate=0.0))
    steps = 3
    found = fit(data, draw, [1], replace(settings, epochs=steps, patience=None))
    head = nn.Linear(HIDDEN, 3)
    with torch.no_grad():
        head.weight.copy_(start.weight[0, 0])
        head.bias.copy_(start.bias[0, 0])
    best = torch.optim.Adam(head.parameters(), lr=0.01, betas=(0.8, 0.95))
    rows = torch.from_numpy(draw[0].train)
    x, y = data.features[rows, 1], data.targets[rows]
    loss = {
        "classification": lambda out: nn.functional.cross_entropy(out, y),
        "regression": lambda out: 3 * nn.functional.mse_loss(out, y),
        "multilabel": lambda out: 3 * nn.functional.binary_cross_entropy_with_logits(out, y),
    }[kind]
    for _ in range(steps):  # one batch an epoch, in which the order of the rows does not matter
        best.zero_grad()
        loss(head(x)).backward()
        best.step()
    assert int(found.rounds) == steps  # else these are the weights of an earlier epoch
    assert near(found.weight[0, 0], head.weight, 1e-4)
    assert near(found.bias[0, 0], head.bias, 1e-4)


def test_who_gets_no_better_stops_and_keeps_the_best_weights() -> None:
    data = examples("classification")
    told: list[tuple[int, int, int]] = []
    settings = Settings(rate=0.05, patience=2, epochs=12)
    found = fit(data, draws(), [0, 1], settings, progress=lambda *said: told.append(said))
    left = [count for _, _, count in told]
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0] <= 6
    # without patience the weights are the same: the best are kept, however long one goes on
    untiring = fit(data, draws(), [0, 1], replace(settings, epochs=4, patience=None))
    short = fit(data, draws(), [0, 1], replace(settings, epochs=4))
    same = untiring.rounds == short.rounds
    assert same.any()
    assert near(untiring.weight[same], short.weight[same])
    # and the loss is that of these weights
    for layer, trial in ((0, 0), (1, 2)):
        held = draws()[trial].held
        outputs = torch.from_numpy(predict(found, data.features[held])[layer, trial])
        loss = nn.functional.cross_entropy(outputs, data.targets[held].argmax(1))
        assert near(loss, found.loss[layer, trial], 1e-4)


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_small_chunks_give_the_same(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = examples("classification")
    settings = replace(QUICK, solver=solver, standardise=True)
    whole = fit(data, draws(), [0, 2], settings)
    monkeypatch.setattr(linear_base, "CHUNK", 40 * LAYERS * HIDDEN)
    monkeypatch.setattr("restack.observe.linear_adam.CHUNK", 40 * HIDDEN)
    parts = fit(data, draws(), [0, 2], settings)
    assert near(whole.weight, parts.weight, 2e-3)
    assert near(whole.loss, parts.loss, 2e-3)
    assert np.allclose(predict(whole, data.features), predict(parts, data.features), atol=2e-2)


def test_half_precision_features_are_read_as_float32() -> None:
    half = examples("classification", dtype=torch.float16)
    full = Examples(half.features.float(), half.targets, half.kind)
    found = [fit(data, draws(), [1], QUICK) for data in (half, full)]
    assert near(found[0].weight, found[1].weight, 1e-6)


def test_the_seed_decides_and_nothing_else() -> None:
    data = examples("classification")
    torch.manual_seed(1)
    first = fit(data, draws(), [1], QUICK)
    torch.manual_seed(2)
    again = fit(data, draws(), [1], QUICK)
    other = fit(data, draws(), [1], replace(QUICK, seed=1))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    # trials start apart, even on the same rows
    rows = draws()[0]
    same = [Draw(number, rows.train, rows.held) for number in (0, 1)]
    found = fit(data, same, [1], QUICK)
    assert not torch.equal(found.weight[0, 0], found.weight[0, 1])


def test_errors_say_what_is_wrong() -> None:
    data = examples("classification")
    with pytest.raises(DataError, match="no solver 'newton'"):
        Settings("newton")  # type: ignore[arg-type]
    for name, value in (("epochs", 0), ("batch_size", 0), ("rate", -1.0), ("rate", float("nan"))):
        with pytest.raises(DataError, match=f"{name} is {value}"):
            Settings(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(DataError, match="one number"):
        fit(data, [*draws(1), *draws(1, train=99)], [1], QUICK)
    broken = data.features.clone()
    broken[:, 2] = float("nan")
    with pytest.raises(DataError, match="layer 2, trial 0"):
        fit(replace(data, features=broken), draws(), [1, 2], QUICK)
    flat = replace(examples("regression"), features=torch.ones(ROWS, LAYERS, HIDDEN))
    with pytest.raises(DataError, match="no unique solution with l2=0"):
        fit(flat, draws(), [1], Settings("exact", l2=0.0))
