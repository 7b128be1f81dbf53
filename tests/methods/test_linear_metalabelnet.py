"""Methods that are fitted to fixed features: baselines against scikit-learn, the meta-gradient, noise and limits."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

from metalabelnet.core.annotations import Annotations
from metalabelnet.core.dawid_skene import fit_dawid_skene
from metalabelnet.core.label_pool import LabelPool, fit_label_pool
from metalabelnet.core.logistic import fit_logistic, log_softmax, logits
from metalabelnet.core.noise_counts import count_noise, log_likelihood, with_missing_column
from metalabelnet.data.rows import Rows, make_rows
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.methods import LINEAR_METHODS, fixed_features, linear_metalabelnet
from metalabelnet.methods.fixed_features import FixedFeatures, make_features
from metalabelnet.methods.generative import Discriminant
from metalabelnet.methods.given_label_classifier import GivenLabelClassifier, fit_given_labels
from metalabelnet.methods.label_likelihood import label_log_likelihood
from metalabelnet.methods.linear_metalabelnet import (
    SMALL_DECAYS,
    SOFT_LABEL_DECAYS,
    LabelSource,
    _meta_gradient,
    _meta_learn,
    _meta_objective,
    _select_clean_decay,
    _select_student_decays,
)
from metalabelnet.methods.logistic import RELATIVE_DECAYS
from metalabelnet.nets import build


def rows(n: int, seed: int, noise: float = 0.3, unlabeled: int = 0, classes: int = 3) -> Rows:
    """Return samples of Gaussian classes with uniformly wrong given labels."""
    g = np.random.default_rng(seed)
    true = np.arange(n) % classes
    x = g.normal(size=(n, 6)) * [1, 1, 1, 5, 0.1, 1] + 1.5 * np.eye(6)[true] + 3
    given = np.where(g.random(n) < noise, g.integers(0, classes, n), true)
    given[:unlabeled] = -1
    names = tuple("abc"[:classes])
    return make_rows(torch.tensor(x), torch.tensor(given), true=torch.tensor(true), classes=names, what="rows")


def fitted(name: str, train: Rows, clean: Rows):
    def make_net(_k: int) -> torch.nn.Module:
        return build("linear", (6,), len(train.classes), seed=0).double()

    task = SimpleNamespace(make_net=make_net, train=train, clean=clean, dtype=torch.float64)
    method = LINEAR_METHODS[name](task, None)
    for _ in method.fit():
        pass
    return method


def exhaust(steps):
    """Return what a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("name", LINEAR_METHODS)
def test_fit_gives_a_classifier_and_labels(name: str) -> None:
    train, clean, test = rows(300, 0, unlabeled=30), rows(45, 1), rows(300, 2)
    method = fitted(name, train, clean)
    assert (method.logits(test.x).argmax(1) == test.true).double().mean() > 0.7
    assert method.result.log_p.shape == (300, 3)
    np.testing.assert_allclose(np.exp(method.result.log_p).sum(1), 1)
    assert method.result.clean_logits.shape == (45, 3)
    soft = method.soft_labels()
    assert (soft is not None) == (name == "metalabelnet-plus")


def test_given_labels_alone_equal_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one candidate for λ, on standardized columns, folded back into the layer."""
    from metalabelnet.methods import logistic

    monkeypatch.setattr(logistic, "RELATIVE_DECAYS", (0.3,))
    train, clean = rows(200, 0, unlabeled=20), rows(30, 1)
    features = make_features(train, clean)
    method = fitted("logistic-given", train, clean)
    labeled = features.given >= 0
    expected = LogisticRegression(C=1 / (0.3 * features.mean_square), tol=1e-10, max_iter=1000)
    expected.fit(features.X[labeled], features.given[labeled])
    p = method.logits(clean.x).softmax(1).detach().numpy()
    np.testing.assert_allclose(p, expected.predict_proba(features.X[200:]), atol=1e-3)


def test_clean_labels_alone_ignore_the_training_rows() -> None:
    clean = rows(45, 1)
    first, second = (fitted("logistic-clean", train, clean) for train in (rows(100, 0), rows(100, 0, noise=0.9)))
    assert torch.equal(first.net[1].weight, second.net[1].weight)


def test_labels_improve_and_wrong_labels_are_found() -> None:
    train, clean = rows(600, 0, noise=0.45), rows(90, 1, noise=0.45)
    result = fitted("metalabelnet-plus", train, clean).result
    label = torch.tensor(result.log_p.argmax(1))
    assert (label == train.true).double().mean() > (train.given == train.true).double().mean() + 0.05


def test_given_labels_are_kept_where_corrected_ones_are_worse() -> None:
    """Features without information, and given labels that are all right."""
    train, clean = rows(300, 0, noise=0.0), rows(45, 1, noise=0.0)
    g = torch.Generator().manual_seed(0)
    train.x.copy_(torch.randn(train.x.shape, generator=g, dtype=torch.float64))
    clean.x.copy_(torch.randn(clean.x.shape, generator=g, dtype=torch.float64))
    result = fitted("metalabelnet-plus", train, clean).result
    assert (torch.tensor(result.log_p.argmax(1)) == train.given).all()


def test_clean_rows_without_given_labels_are_enough() -> None:
    train, clean = rows(600, 0, noise=0.45), rows(90, 1)
    clean = clean.with_given_labels(torch.full((90,), -1))
    method, test = fitted("metalabelnet-plus", train, clean), rows(300, 2)
    assert (method.logits(test.x).argmax(1) == test.true).double().mean() > 0.75


def test_unlabeled_training_rows_have_soft_labels() -> None:
    train = rows(300, 0, unlabeled=150)
    soft = fitted("metalabelnet-plus", train, rows(60, 1, unlabeled=20)).soft_labels()
    assert (soft[:150].argmax(1) == train.true[:150]).double().mean() > 0.7


def test_gradient_of_the_meta_objective_equals_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_metalabelnet, "CROSS_FIT_TOLERANCE", 1e-11)
    f = make_features(rows(60, 0), rows(30, 1))
    rng = np.random.default_rng(0)
    sources = [
        LabelSource(
            opinions=np.stack([log_softmax(z) for z in rng.normal(size=(3, 60, 3)) * 2]),
            pool=LabelPool(np.ones(3), np.zeros(3)),
        )
        for _ in range(f.folds)
    ]

    def evaluate(values):
        return exhaust(_meta_objective(f, sources, values, 2.0, [np.zeros((7, 3))] * f.folds))

    values = np.array([0.1, -0.2, 0.3, 0.4, -0.5])
    found = exhaust(_meta_gradient(f, sources, evaluate(values)))
    for k in range(5):
        e = 1e-3 * np.eye(5)[k]
        numeric = (evaluate(values + e).total - evaluate(values - e).total) / 2e-3
        assert found[k] == pytest.approx(numeric, rel=1e-3, abs=1e-4), k


def test_counted_noise_with_many_samples_is_the_frequency() -> None:
    true, given = np.repeat([0, 1], 1000), np.concatenate([np.repeat([0, 1, -1], [700, 200, 100]), np.ones(1000, int)])
    np.testing.assert_allclose(count_noise(true, given, 2), [[0.7, 0.2, 0.1], [0, 1, 0]], atol=5e-3)


def test_counted_noise_of_a_class_without_samples_is_the_mean_noise() -> None:
    T = count_noise(np.zeros(100, int), np.repeat([0, 1], [80, 20]), 3)
    assert T[2, 2] == pytest.approx(0.8, abs=0.02)
    assert T[2, 0] == pytest.approx(T[2, 1])
    np.testing.assert_allclose(T.sum(1), 1)


def test_a_missing_label_says_nothing_without_a_count() -> None:
    T = with_missing_column(np.array([[0.9, 0.1], [0.2, 0.8]]))
    np.testing.assert_allclose(log_likelihood(T, np.array([-1])), 0)
    assert log_likelihood(T, np.array([1])).argmax() == 1


def annotated(rows_: Rows, seed: int, accuracies=(0.9, 0.5, 0.5, 0.5), asked: float = 0.7) -> Rows:
    """Return rows with annotations; their given label is the majority vote."""
    g, n = np.random.default_rng(seed), len(rows_)
    true = rows_.true.numpy()
    columns = [np.where(g.random(n) < a, true, g.integers(0, 3, n)) for a in accuracies]
    table = np.where(g.random((n, len(columns))) < asked, np.stack(columns, 1), -1)
    annotations = Annotations.from_array(table, tuple("wxyz"))
    given = torch.from_numpy(annotations.majority_vote(3))
    return dataclasses.replace(rows_, annotations=annotations, given=given)


def test_annotations_give_better_labels_than_their_majority_vote() -> None:
    train, clean = annotated(rows(600, 0), 0), annotated(rows(60, 1), 1)
    with_all = fitted("metalabelnet-plus", train, clean).result.log_p.argmax(1)
    vote = [dataclasses.replace(part, annotations=None) for part in (train, clean)]
    with_vote = fitted("metalabelnet-plus", *vote).result.log_p.argmax(1)
    right = [float((labels == train.true.numpy()).mean()) for labels in (with_all, with_vote, train.given.numpy())]
    assert right[0] > right[1] + 0.02
    assert right[0] > right[2] + 0.05


def test_likelihood_of_annotations_is_that_of_the_annotator_model() -> None:
    f = make_features(annotated(rows(90, 0), 0), annotated(rows(30, 1), 1))
    log_p = np.log(np.random.default_rng(0).dirichlet(np.ones(3), 120))
    use = np.arange(30) < 20
    true = np.concatenate([np.full(90, -1), np.where(use, f.true, -1)])
    expected = fit_dawid_skene(f.annotations, 3, log_prior=log_p, true=true).log_likelihood(f.annotations)
    np.testing.assert_allclose(label_log_likelihood(f, log_p, use), expected)


def test_given_label_of_a_row_without_annotations_is_an_annotation() -> None:
    """One row of five has only a given label: it counts as that of one more annotator."""
    train = annotated(rows(100, 0, noise=0.2), 0)
    alone = np.arange(100) % 5 == 0
    own = rows(100, 0, noise=0.2).given.numpy()
    table = np.full((100, 5), -1)
    table[train.annotations.sample, train.annotations.annotator] = train.annotations.label
    table[alone] = -1
    few = dataclasses.replace(
        train,
        given=torch.from_numpy(np.where(alone, own, train.given.numpy())),
        annotations=Annotations.from_array(table[:, :4], tuple("wxyz")),
    )
    table[:, 4] = np.where(alone | ((table < 0).all(1) & (few.given.numpy() >= 0)), few.given.numpy(), -1)
    expected = Annotations.from_array(table, (*"wxyz", "given label"))
    clean = annotated(rows(30, 1), 1)
    f = make_features(few, clean)
    log_p = np.zeros((130, 3))
    explicit = dataclasses.replace(
        f, annotations=expected.concat(dataclasses.replace(clean.annotations, names=expected.names))
    )
    use = np.ones(30, bool)
    np.testing.assert_allclose(label_log_likelihood(f, log_p, use), label_log_likelihood(explicit, log_p, use))


def test_clean_rows_without_annotations() -> None:
    """Clean rows from elsewhere have no annotations; those of the training rows are used."""
    train = annotated(rows(90, 0), 0)
    f = make_features(train, rows(30, 1))
    assert f.annotations is not None
    assert (f.annotations.size, len(f.annotations)) == (120, len(train.annotations))


def test_subset_keeps_label_shares_and_clean_rows() -> None:
    f = make_features(rows(300, 0, unlabeled=30), rows(45, 1))
    part, positions = f.subset(100, 2)
    assert (part.n, len(part.true), part.folds) == (100, 45, 2)
    np.testing.assert_array_equal(part.X, f.X[positions])
    np.testing.assert_array_equal(part.given, f.given[positions])
    np.testing.assert_array_equal(positions[100:], np.arange(300, 345))
    shares = [np.bincount(g.given[: g.n] + 1, minlength=4) / g.n for g in (f, part)]
    np.testing.assert_allclose(*shares, atol=0.011)
    assert [int((part.fold[:100] == k).sum()) for k in range(2)] == [50, 50]
    everything, positions = f.subset(1000, 5)
    np.testing.assert_array_equal(positions, np.arange(345))
    np.testing.assert_array_equal(everything.fold, f.fold)


def test_rotated_features_have_the_layer_of_the_original_ones() -> None:
    """Columns of the rotated features are uncorrelated; the layer undoes standardization and rotation."""
    train, clean = rows(200, 0), rows(30, 1)
    f = make_features(train, clean)
    moments = f.X.T @ f.X
    np.testing.assert_allclose(moments - np.diag(np.diag(moments)), 0, atol=1e-9)
    W = np.random.default_rng(0).normal(size=(7, 3))
    weight, bias = f.linear_layer(W)
    x = torch.cat([train.x, clean.x])
    np.testing.assert_allclose((x @ weight.T + bias).numpy(), logits(f.X, W), atol=1e-9)


def test_decay_of_the_clean_classifier_is_the_best_for_the_pool() -> None:
    """Against scikit-learn's classifiers, and a pool for each held-out fold."""
    f = make_features(rows(300, 0, noise=0.6), rows(60, 1, noise=0.6))
    log_p = log_softmax(np.random.default_rng(0).normal(size=(360, 3)))
    W = np.zeros((7, 3))
    first = GivenLabelClassifier(log_p=log_p, start=W, coefficients=W, decay=1.0, smoothing=None, labels=0)
    noise = label_log_likelihood(f, log_p, np.ones(60, bool))[300:]
    X, fold, losses = f.X[300:], f.fold[300:], {}
    for relative in RELATIVE_DECAYS:
        decay, p_c, loss = relative * f.mean_square, np.zeros((60, 3)), 0.0
        for k in range(5):
            model = LogisticRegression(C=1 / decay, tol=1e-8, max_iter=1000).fit(X[fold != k], f.true[fold != k])
            p_c[fold == k] = model.predict_log_proba(X[fold == k])
        opinions = np.stack([log_p[300:], p_c, noise])
        for k in range(5):
            pool = fit_label_pool(opinions[:, fold != k], f.true[fold != k])
            q = pool.soft_labels(opinions[:, fold == k])
            loss -= np.log(q[np.arange(len(q)), f.true[fold == k]]).sum()
        losses[decay] = loss
    best, second = sorted(losses.values())[:2]
    assert second - best > 0.01  # the tolerance of the solver does not decide
    assert exhaust(_select_clean_decay(f, first)) == min(losses, key=losses.__getitem__)


def test_no_classifier_of_many_rows_is_fitted_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folds would leave one for the clean classifier, which could not be judged on clean rows."""
    monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 150)
    fit, counts = linear_metalabelnet.fit_logistic, []

    def counted(X, q, w, *args, **kwargs):
        counts.append(int((w > 0).sum()))
        return fit(X, q, w, *args, **kwargs)

    monkeypatch.setattr(linear_metalabelnet, "fit_logistic", counted)
    fitted("metalabelnet-plus", rows(300, 0), rows(45, 1))
    assert min(counts) == 15


@pytest.mark.parametrize("student_rows", [200, 10_000])
def test_many_rows_are_fitted_by_some_of_them(student_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 150 of 900 rows that decide, labels and classifier are nearly those of all rows; order is kept."""
    train, clean, test = rows(900, 0, unlabeled=30), rows(60, 1), rows(600, 2)
    slow = fitted("metalabelnet-plus", train, clean)
    monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 150)
    monkeypatch.setattr(linear_metalabelnet, "STUDENT_ROWS", student_rows)
    fast = fitted("metalabelnet-plus", train, clean)
    accuracy = [float((m.logits(test.x).argmax(1) == test.true).double().mean()) for m in (slow, fast)]
    assert accuracy[1] > accuracy[0] - 0.03
    right = [(m.result.log_p.argmax(1) == train.true.numpy()).mean() for m in (slow, fast)]
    assert right[1] > right[0] - 0.04
    assert (slow.result.log_p.argmax(1) == fast.result.log_p.argmax(1)).mean() > 0.9
    assert fast.result.clean_logits.shape == (60, 3)


def test_many_rows_with_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 100)
    monkeypatch.setattr(linear_metalabelnet, "STUDENT_ROWS", 150)
    train, clean = rows(300, 0), rows(45, 1)
    g = np.random.default_rng(5)

    def annotate(part: Rows) -> Rows:
        people = [
            np.where(g.random(len(part)) < 0.75, part.true.numpy(), g.integers(0, 3, len(part))) for _ in range(3)
        ]
        sample, annotator = np.repeat(np.arange(len(part)), 3), np.tile(np.arange(3), len(part))
        made = Annotations.from_entries(
            sample, annotator, np.stack(people, 1).ravel(), size=len(part), names=("x", "y", "z")
        )
        return dataclasses.replace(part, annotations=made)

    method = fitted("metalabelnet-plus", annotate(train), annotate(clean))
    assert (method.result.log_p.argmax(1) == train.true.numpy()).mean() > 0.88


def test_float32_features_give_the_same_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    train, clean, test = rows(400, 0), rows(45, 1), rows(300, 2)
    double = fitted("metalabelnet-plus", train, clean)
    monkeypatch.setattr(fixed_features, "MAX_FLOAT64_VALUES", 0)
    monkeypatch.setattr(fixed_features, "PART_ROWS", 64)
    f = make_features(train, clean)
    assert f.X.dtype == np.float32
    np.testing.assert_allclose(f.X.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose((f.X @ f.rotation.T).std(0), 1, rtol=1e-5)
    single = fitted("metalabelnet-plus", train, clean)
    np.testing.assert_allclose(single.logits(test.x).numpy(), double.logits(test.x).numpy(), atol=2e-2)


def texts(n: int, seed: int, noise: float = 0.3, unlabeled: int = 0) -> Rows:
    """Return samples like texts: sparse counts of 400 terms, with slightly different frequencies in three classes."""
    g = np.random.default_rng(seed)
    frequency = np.random.default_rng(99).dirichlet(np.full(400, 0.3), 4)
    true = np.arange(n) % 3
    x = g.poisson(12 * (0.6 * frequency[3] + 0.4 * frequency[true])).astype(np.float32)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    given = np.where(g.random(n) < noise, g.integers(0, 3, n), true)
    given[:unlabeled] = -1
    x = SparseTensor(csr_matrix(x))
    return make_rows(x, torch.tensor(given), true=torch.tensor(true), classes=tuple("abc"), what="rows")


def fitted_texts(train: Rows, clean: Rows):
    def make_net(_k: int) -> torch.nn.Module:
        return build("linear", (400,), 3, seed=0).double()

    task = SimpleNamespace(make_net=make_net, train=train, clean=clean, dtype=torch.float64)
    method = LINEAR_METHODS["metalabelnet-plus"](task, None)
    for _ in method.fit():
        pass
    return method


def accuracy(method, part: Rows) -> float:
    return float((method.logits(part.x[:].double()).argmax(1) == part.true).double().mean())


def test_naive_bayes_helps_where_texts_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    train, clean, test = texts(300, 0, unlabeled=30), texts(60, 1), texts(1500, 2)
    both = fitted_texts(train, clean)
    monkeypatch.setattr(FixedFeatures, "suits_naive_bayes", False)
    assert accuracy(both, test) > accuracy(fitted_texts(train, clean), test) + 0.05


def test_features_that_may_be_negative_have_no_naive_bayes() -> None:
    part, clean = texts(60, 0), texts(30, 1)
    assert make_features(part, clean).suits_naive_bayes
    part.x.csr.data[3] = -0.1
    assert not make_features(part, clean).suits_naive_bayes
    assert not make_features(rows(60, 0), rows(30, 1)).suits_naive_bayes


def test_a_given_label_is_judged_without_itself() -> None:
    """Changing it changes p_g of its row by trust and bias alone, which are fitted to all given labels."""
    train, clean = texts(120, 0), texts(45, 1)
    f = make_features(train, clean)
    given = f.given.copy()
    given[0] = (given[0] + 1) % 3
    changed = dataclasses.replace(f, given=given)
    before, after = (exhaust(fit_given_labels(features)).log_p for features in (f, changed))
    assert np.abs(before[0] - after[0]).max() < 0.1
    assert np.abs(before[1:] - after[1:]).max() > 0.1


def test_naive_bayes_of_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are in no student's fold are predicted by the pooled coefficients, as well as the others."""
    train, clean, test = texts(900, 0, unlabeled=30), texts(60, 1), texts(900, 2)
    slow = fitted_texts(train, clean)
    monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 150)
    monkeypatch.setattr(linear_metalabelnet, "STUDENT_ROWS", 450)
    fast = fitted_texts(train, clean)
    assert accuracy(fast, test) > accuracy(slow, test) - 0.03
    right = [(m.result.log_p.argmax(1) == train.true.numpy()).mean() for m in (slow, fast)]
    assert right[1] > right[0] - 0.05


def test_a_negative_value_outside_the_selected_rows_ends_naive_bayes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts would have a negative logarithm."""
    monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 60)
    monkeypatch.setattr(linear_metalabelnet, "STUDENT_ROWS", 100)
    train, clean = texts(300, 0), texts(60, 1)
    selected = make_features(train, clean).subset(100, 3)[1]
    row = int(np.setdiff1d(np.arange(300), selected)[0])
    train.x.csr.data[train.x.csr.indptr[row]] = -50
    method = fitted_texts(train, clean)
    assert method.net[1].weight.isfinite().all()
    assert accuracy(method, texts(600, 2)) > 0.4


def test_decay_of_soft_labels_predicts_the_held_out_fold_best() -> None:
    """Against scikit-learn's classifiers of weighted copies of each row."""
    f = make_features(rows(300, 0, noise=0.4), rows(60, 1, noise=0.4))
    soft = np.random.default_rng(0).dirichlet(np.ones(3), 300) + 2 * np.eye(3)[f.given[:300]]
    soft /= soft.sum(1, keepdims=True)
    source = LabelSource(opinions=np.log(soft)[None].repeat(3, 0), pool=LabelPool(np.full(3, 1 / 3), np.zeros(3)))
    q, w = np.concatenate([soft, np.eye(3)[f.true]]), np.where(np.arange(360) < 300, 1.0, 3.0)
    train, held_out, losses = f.fold != 0, (f.fold == 0) & (np.arange(360) < 300), {}
    X, label, weights = np.tile(f.X[train], (3, 1)), np.repeat(np.arange(3), train.sum()), (q * w[:, None])[train]
    for relative in SOFT_LABEL_DECAYS + SMALL_DECAYS:
        model = LogisticRegression(C=1 / (relative * f.mean_square), tol=1e-8, max_iter=1000)
        model.fit(X, label, sample_weight=weights.T.ravel())
        losses[relative] = -(soft[held_out[:300]] * model.predict_log_proba(f.X[held_out])).sum()
    best, second = sorted(losses.values())[:2]
    assert second - best > 0.01
    found = np.array(exhaust(_select_student_decays(f, source))) / f.mean_square
    assert min(losses, key=losses.__getitem__) in SOFT_LABEL_DECAYS
    assert found == pytest.approx([min(losses, key=losses.__getitem__)])


def test_clean_rows_that_were_drawn_by_class_do_not_change_the_class_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of the training and test rows are of one class, a half of the clean ones."""

    def imbalanced(n: int, seed: int, share: float) -> Rows:
        g = np.random.default_rng(seed)
        true = (g.random(n) > share).astype(int)
        x = g.normal(size=(n, 6)) + 0.8 * true[:, None] * [1, 1, 0, 0, 0, 0]
        given = np.where(g.random(n) < 0.2, 1 - true, true)
        return make_rows(torch.tensor(x), torch.tensor(given), true=torch.tensor(true), classes=("a", "b"), what="rows")

    train, clean, test = imbalanced(1500, 0, 0.9), imbalanced(120, 1, 0.5), imbalanced(4000, 2, 0.9)
    weighted = accuracy(fitted("metalabelnet-plus", train, clean), test)
    monkeypatch.setattr(FixedFeatures, "clean_weights", np.ones(120))
    assert weighted > accuracy(fitted("metalabelnet-plus", train, clean), test) + 0.04


def circle(n: int, seed: int, classes: int = 9) -> Rows:
    """Return points on a circle, whose classes are arcs: two columns separate many classes with large weights only."""
    angle = np.random.default_rng(seed).uniform(0, 1, n)
    x, true = np.stack([np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)], 1), torch.tensor(angle * classes).long()
    return make_rows(torch.tensor(x), true, true=true, classes=tuple("abcdefghi"[:classes]), what="rows")


def linear_sources(f: FixedFeatures, true: np.ndarray) -> list[LabelSource]:
    """For each fold the same soft labels of the training rows: those of a linear classifier of the classes `true`."""
    classes = np.eye(f.classes)[true]
    log_q = log_softmax(logits(f.X[: f.n], fit_logistic(f.X[: f.n], classes, np.ones(f.n), 1e-3)))
    pool = LabelPool(np.full(3, 1 / 3), np.zeros(f.classes))
    return [LabelSource(opinions=log_q[None].repeat(3, 0), pool=pool) for _ in range(f.folds)]


@pytest.mark.parametrize(("multiple", "small_is_better"), [(1, False), (4, True)])
def test_small_decay_is_used_if_it_is_better_on_clean_rows(*, multiple: int, small_is_better: bool) -> None:
    """Soft labels of a linear classifier are imitated best with little decay, which the clean rows may not confirm.

    Labels that are right are learned as well with more decay, those of mixed-up arcs are not.
    """
    train = circle(400, 0)
    f = make_features(train, circle(100, 1))
    sources = linear_sources(f, train.true.numpy() * multiple % 9)
    decays = exhaust(_select_student_decays(f, sources[0]))
    moderate, small = (np.array(decays) / f.mean_square).round(6)
    assert moderate in SOFT_LABEL_DECAYS
    assert small in SMALL_DECAYS
    chosen = exhaust(_meta_learn(f, sources, decays, np.zeros((3, 9)), 0))
    losses = [
        exhaust(_meta_objective(f, sources, np.zeros(5), decay, [np.zeros((3, 9))] * f.folds)).losses
        for decay in decays
    ]
    gain = losses[0] - losses[1]
    assert gain.mean() > 0
    assert (gain.mean() > gain.std() / 10) == small_is_better
    assert chosen.decay == decays[small_is_better]


def test_many_rows_and_texts_have_no_small_decays(monkeypatch: pytest.MonkeyPatch) -> None:
    train = circle(400, 0)
    f = make_features(train, circle(100, 1))
    source = linear_sources(f, train.true.numpy())[0]
    monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 400)
    assert len(exhaust(_select_student_decays(f, source))) == 2
    monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 399)
    assert len(exhaust(_select_student_decays(f, source))) == 1
    monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 400)
    monkeypatch.setattr(FixedFeatures, "suits_naive_bayes", True)
    assert len(exhaust(_select_student_decays(dataclasses.replace(f), source))) == 1


def test_shrinkage_is_the_one_whose_pool_predicts_given_labels_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against scikit-learn's discriminant analysis without each fold. Its log prior lacks the added one."""
    f = make_features(rows(240, 0, noise=0.5), rows(60, 1, noise=0.5))
    found = exhaust(fit_given_labels(f))
    monkeypatch.setattr(FixedFeatures, "suits_discriminant", False)
    alone, losses = exhaust(fit_given_labels(f)), {}
    for s in Discriminant.candidates:
        z = np.zeros((300, 3))
        for k in range(5):
            others = f.fold != k
            model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s).fit(f.X[others], f.given[others])
            count = np.bincount(f.given[others])
            z[~others] = f.X[~others] @ model.coef_.T + model.intercept_ + np.log1p(count) - np.log(count)
        opinions = np.stack([alone.log_p, log_softmax(z)])
        log_p = log_softmax(fit_label_pool(opinions, f.given).logits(opinions))
        losses[s] = -log_p[np.arange(300), f.given].sum(), log_p
    best = min(losses, key=lambda s: losses[s][0])
    assert found.smoothing == best
    assert losses[best][0] < min(losses[s][0] for s in losses if s != best) - 1e-4
    np.testing.assert_allclose(found.log_p, losses[best][1], atol=1e-8)


def test_columns_beyond_the_limit_have_no_discriminant_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    f = make_features(rows(60, 0), rows(30, 1))
    assert f.suits_discriminant
    monkeypatch.setattr(fixed_features, "MAX_ROTATED_COLUMNS", 5)
    assert not f.suits_discriminant
    assert not make_features(texts(60, 0), texts(30, 1)).suits_discriminant
