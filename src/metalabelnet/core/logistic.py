"""Multinomial logistic regression on soft labels, solved to convergence, and the gradient through its solution.

    x_i        features of sample i, a row of X (dense, or a SciPy sparse matrix; float64, or float32 if large)
    q_i        its soft label, w_i its weight
    W          (d + 1, C) coefficients; the last row is the bias
    p_i        softmax(x_i W)
    F(W)       Σ_i w_i CE(q_i, p_i) + λ/2 ‖W‖², without the bias in the norm
    W*         argmin F, by Newton's method; each step is found by conjugate gradients
    H          the Hessian of F, known by its products alone: (HV)_· = Xᵀ [w p (s − Σ p s)] + λV with s = XV
    L(W*)      a loss on other samples, with gradient g

The solution depends on soft labels, weights and λ through ∇F(W*) = 0. By the implicit function theorem, with u = H⁻¹ g,

    ∂L/∂q_i     = w_i (x_i u)
    ∂L/∂w_i     = −(x_i u) · (p_i − q_i)
    ∂L/∂log λ   = −λ ⟨u, W*⟩, again without the bias

References
----------
.. [1] C.-J. Lin, R. C. Weng and S. S. Keerthi, "Trust region Newton method for large-scale logistic regression",
   JMLR 2008, https://www.jmlr.org/papers/v9/lin08b.html
.. [2] C.-S. Foo, C. B. Do and A. Y. Ng, "Efficient multiple hyperparameter learning for log-linear models",
   NIPS 2007, https://papers.nips.cc/paper/3286
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metalabelnet.core.sparse_matrix import nonzero_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TOLERANCE = 1e-4  # of the gradient, relative to the gradient at W = 0
MAX_NEWTON_STEPS = 100
MAX_CG_STEPS = 200
MAX_SHORT_ROW = 32
PART_VALUES, MIN_PART_ROWS = 1 << 16, 64  # of dense features that are multiplied at a time
MIN_STEP = 1e-8  # of the line search
SUFFICIENT_DECREASE = 1e-4  # Armijo's condition


def logits(X: Any, W: Array) -> Array:
    """Return X W with the bias. The product has the precision of X, which may be float32."""
    z: Array = X @ W[:-1].astype(X.dtype, copy=False) + W[-1]
    return z


def _transposed_product(X: Any, r: Array) -> Array:
    """Return Xᵀ r, in the precision of X."""
    product: Array = (X.T @ r.astype(X.dtype, copy=False)).astype(np.float64, copy=False)
    return product


def log_softmax(z: Array) -> Array:
    """Return log softmax of each row."""
    shifted: Array = z - _row_max(z)
    shifted -= np.log(np.exp(shifted) @ np.ones((z.shape[1], 1)))
    return shifted


def _row_max(z: Array) -> Array:
    """Return the maximum of each row, (n, 1). NumPy's reduction of short rows takes several times as long."""
    if z.shape[1] > MAX_SHORT_ROW:
        largest: Array = z.max(1, keepdims=True)
        return largest
    return np.asarray(functools.reduce(np.maximum, z.T))[:, None]


def _row_dot(a: Array, b: Array) -> Array:
    """Return Σ_j a_ij b_ij, (n,)."""
    dot: Array = np.einsum("ij,ij->i", a, b)
    return dot


def _column_sums(a: Array) -> Array:
    """Return Σ_i a_ij, (C,). NumPy's reduction of short rows takes several times as long."""
    sums: Array = np.ones(len(a), a.dtype) @ a
    return sums


def fit_logistic(
    X: Any, q: Array, w: Array, decay: float, start: Array | None = None, tolerance: float = TOLERANCE
) -> Array:
    """Return W*.

    X      (n, d) features
    q, w   (n, C) soft labels, rows of sum 1, and (n,) weights; rows of weight 0 are ignored
    decay  λ > 0
    start  W to start from; default: 0
    """
    W = np.zeros((X.shape[1] + 1, q.shape[1])) if start is None else start
    if not (used := w > 0).all():
        X, q, w = X[used], q[used], w[used]
    if isinstance(X, np.ndarray):
        return _newton(X, q, w, decay, W, tolerance)
    X, columns = nonzero_columns(X)
    solution = np.zeros_like(W)  # of a column without values, too
    coefficients = np.append(columns, -1)
    solution[coefficients] = _newton(X, q, w, decay, W[coefficients], tolerance)
    return solution


def _newton(X: Any, q: Array, w: Array, decay: float, W: Array, tolerance: float) -> Array:
    """Return W* by Newton's method from W."""
    limit = tolerance * _norm(_gradient(X, np.full_like(q, 1 / q.shape[1]), q, w, 0.0, np.zeros_like(W)))
    value, log_p = _objective(X, W, q, w, decay)
    for _ in range(MAX_NEWTON_STEPS):
        p = np.exp(log_p)
        gradient = _gradient(X, p, q, w, decay, W)
        size = _norm(gradient)
        if size <= limit:
            break
        # The forcing term √ of the relative gradient gives superlinear convergence with few inner steps.
        forcing = min(0.3, math.sqrt(size * tolerance / max(limit, 1e-300)))
        step = -_solve(X, p, w, decay, gradient, forcing)
        slope, length = float((step * gradient).sum()), 1.0
        while True:
            new_value, log_p = _objective(X, W + length * step, q, w, decay)
            if new_value <= value + SUFFICIENT_DECREASE * length * slope or length < MIN_STEP:
                break
            length /= 2
        if length < MIN_STEP:  # no decrease is left at this precision
            break
        W, value = W + length * step, new_value
    return W


def hessian_product(X: Any, p: Array, w: Array, decay: float, V: Array) -> Array:
    """Return HV, with p the probabilities at W.

    Dense features are read once: both products are made for a few rows at a time, which stay in the cache. The numbers
    of a row have the precision of X, the product has that of V.
    """
    p, w, U = (a.astype(X.dtype, copy=False) for a in (p, w, V))
    product = decay * V
    product[-1] = 0
    for x, rows in _parts(X):
        p_x = p[rows]
        s = x @ U[:-1] + U[-1]
        r = w[rows, None] * p_x * (s - _row_dot(p_x, s)[:, None])
        product[:-1] += x.T @ r
        product[-1] += _column_sums(r)
    return product


def _parts(X: Any) -> Iterator[tuple[Any, slice]]:
    """Yield some rows after the others, with their positions; sparse features in one part, as a part is a copy."""
    step = max(MIN_PART_ROWS, PART_VALUES // X.shape[1]) if isinstance(X, np.ndarray) else X.shape[0]
    for start in range(0, X.shape[0], step):
        rows = slice(start, start + step)
        yield (X if step >= X.shape[0] else X[rows]), rows


def solve_hessian(X: Any, p: Array, w: Array, decay: float, gradient: Array, tolerance: float) -> Array:
    """Return H⁻¹ g up to a relative residual, by conjugate gradients.

    H is singular: a constant added to all biases changes nothing. The sum of g over the biases is 0, as that of every
    gradient here, so that the system is consistent, and conjugate gradients stay in that subspace.

    Dense features are preconditioned by the diagonal of H, with the mean of p (1 − p) in place of that of each row.
    This helps where columns are uncorrelated and differ in scale, as principal components do. TF-IDF needs more steps
    with it.
    """
    if not (used := w > 0).all():
        X, p, w = X[used], p[used], w[used]
    if isinstance(X, np.ndarray):
        return _solve(X, p, w, decay, gradient, tolerance)
    X, columns = nonzero_columns(X)
    solution = gradient / decay  # H is λ in a column without values
    coefficients = np.append(columns, -1)
    solution[coefficients] = _solve(X, p, w, decay, gradient[coefficients], tolerance)
    return solution


def _solve(X: Any, p: Array, w: Array, decay: float, gradient: Array, tolerance: float) -> Array:
    """Return H⁻¹ g. For sparse features, which have many columns, it is found in the precision of X."""
    precondition = None
    if isinstance(X, np.ndarray):
        curvature = np.maximum((w[:, None] * p * (1 - p)).sum(0), 1e-12)
        squares = np.einsum("ij,ij->j", X, X).astype(np.float64) / max(len(X), 1)
        diagonal = np.concatenate([squares[:, None] * curvature + decay, curvature[None]])

        def precondition(r: Array) -> Array:
            z: Array = r / diagonal
            z[-1] -= z[-1].mean()
            return z

    else:
        gradient = gradient.astype(X.dtype, copy=False)
    p, w = p.astype(X.dtype, copy=False), w.astype(X.dtype, copy=False)
    x = _conjugate_gradients(lambda V: hessian_product(X, p, w, decay, V), gradient, tolerance, precondition)
    return x.astype(np.float64, copy=False)


class SolutionGradient(NamedTuple):
    """Gradient of a loss at W* with respect to what W* was fitted with: (n, C), (n,) and a number."""

    labels: Array
    weights: Array
    log_decay: float


def differentiate_solution(
    X: Any, W: Array, q: Array, w: Array, decay: float, gradient: Array, tolerance: float = 1e-3
) -> SolutionGradient:
    """Return the gradient of L(W*) with respect to soft labels, weights and log λ; `gradient` is that of L by W."""
    p = np.exp(log_softmax(logits(X, W)))
    u = solve_hessian(X, p, w, decay, gradient, tolerance)
    s = logits(X, u)
    return SolutionGradient(
        labels=w[:, None] * s,
        weights=-_row_dot(s, p - q),
        log_decay=-decay * float((u[:-1] * W[:-1]).sum()),
    )


def _objective(X: Any, W: Array, q: Array, w: Array, decay: float) -> tuple[float, Array]:
    log_p = log_softmax(logits(X, W))
    return float(-(w @ _row_dot(q, log_p)) + decay / 2 * (W[:-1] ** 2).sum()), log_p


def _gradient(X: Any, p: Array, q: Array, w: Array, decay: float, W: Array) -> Array:
    r = w[:, None] * (p - q)
    return np.concatenate([_transposed_product(X, r) + decay * W[:-1], r.sum(0, keepdims=True)])


def _conjugate_gradients(
    product: Callable[[Array], Array], b: Array, tolerance: float, precondition: Callable[[Array], Array] | None = None
) -> Array:
    x, r = np.zeros_like(b), b.copy()
    z = r if precondition is None else precondition(r)
    direction, rz = z.copy(), float(np.vdot(r, z))
    limit = tolerance * _norm(b)
    for _ in range(MAX_CG_STEPS):
        if rz <= 0 or _norm(r) <= limit:
            break
        Ad = product(direction)
        curvature = float(np.vdot(direction, Ad))
        if curvature <= 0:  # rounding; H is positive semidefinite
            break
        x += rz / curvature * direction
        r -= rz / curvature * Ad
        z = r if precondition is None else precondition(r)
        rz, before = float(np.vdot(r, z)), rz
        direction *= rz / before
        direction += z
    return x


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x))
