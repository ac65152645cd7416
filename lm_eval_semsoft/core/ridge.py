"""Ridge regression with the penalty chosen by leave-one-out, for many targets at once.

What scikit-learn's ``RidgeCV`` does, but one decomposition serves all penalties, all
targets and the minimum-norm solution beside it (Hastie, Tibshirani & Friedman, The Elements of
Statistical Learning, 2nd edition, 3.4.1 and 7.10).
"""

from __future__ import annotations

import numpy as np

from .classification import Floats

# Times the trace of the training documents' Gram matrix: from hardly any penalty to nearly all.
PENALTIES: Floats = 10.0 ** np.arange(-5, 1.25, 0.5)


def principal_scores(x: Floats) -> Floats:
    """Rows of `x` [n, d] about their mean, rotated into as few as min(n, d) columns.

    Scalar products between rows stay as they are, and ridge and minimum-norm least squares depend
    on nothing else.
    """
    x = x - x.mean(axis=0)
    if x.shape[1] <= x.shape[0]:
        return x
    values, vectors = np.linalg.eigh(x @ x.T)
    return np.asarray(vectors * np.sqrt(values.clip(0)))


class Ridge:
    """Ridge regression on some documents for T targets, each with its own penalty.

    With the training documents' thin decomposition X = U diag(s) V' (about their mean), the fit to
    y is U diag(s²/(s²+a)) U'y, and leaving document i out changes its residual by the factor
    1/(1 - h_ii), h the matrix of that fit plus 1/m for the intercept.

    Args:
        x: [m, k]. y: [m, T].

    Attributes:
        choice: [T] index of the penalty in `PENALTIES`; as in RidgeCV the first of equals.
        error: [T] its mean squared leave-one-out error.
    """

    def __init__(self, x: Floats, y: Floats) -> None:
        self.x_mean, self.y_mean = x.mean(axis=0), y.mean(axis=0)
        u, self._s, self._v = _thin(x - self.x_mean)
        y = y - self.y_mean
        self._uy = u.T @ y
        self._alphas = PENALTIES * float(self._s @ self._s)
        errors = np.array([self._error(u, y, alpha) for alpha in self._alphas])
        self.choice = errors.argmin(axis=0)
        self.error = errors.min(axis=0)

    def _error(self, u: Floats, y: Floats, alpha: float) -> Floats:
        shrink = self._s**2 / (self._s**2 + alpha)
        leverage = 1 / len(y) + u**2 @ shrink
        residual = y - (u * shrink) @ self._uy
        return np.asarray(((residual / (1 - leverage)[:, None]) ** 2).mean(axis=0))

    def predict(self, x: Floats) -> Floats:
        """Predictions [m', T] with the chosen penalties."""
        alpha = self._alphas[self.choice]
        s = self._s[:, None]
        return self._predict(x, s / (s**2 + alpha))

    def predict_ols(self, x: Floats) -> Floats:
        """Predictions [m', T] of least squares, of minimum norm where m <= k."""
        return self._predict(x, 1 / self._s[:, None])

    def _predict(self, x: Floats, weights: Floats) -> Floats:
        projected = (x - self.x_mean) @ self._v
        return np.asarray(projected @ (weights * self._uy) + self.y_mean)


def _thin(x: Floats) -> tuple[Floats, Floats, Floats]:
    """U [m, r], s [r], V [k, r] of a centred matrix [m, k] of rank r."""
    tall = x.shape[0] > x.shape[1]
    values, vectors = np.linalg.eigh(x.T @ x if tall else x @ x.T)
    # The square of what ``numpy.linalg.lstsq`` cuts at is below what squaring left.
    real = values > values[-1] * max(x.shape) * np.finfo(np.float64).eps
    s, vectors = np.sqrt(values[real]), vectors[:, real]
    other = (x @ vectors if tall else x.T @ vectors) / s
    return (other, s, vectors) if tall else (vectors, s, other)
