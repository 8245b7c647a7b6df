"""Distinct columns are numpy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fairreplay.sandbox.distinct import distinct_columns

NARROW = st.integers(-3, 3)
WIDE = st.integers(-(2**40), 2**40)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=30), elements=NARROW)
    | arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=WIDE)
)
def test_as_numpy(table: np.ndarray) -> None:  # type: ignore[type-arg]
    first, number = distinct_columns(table)
    expected, inverse = np.unique(table, axis=1, return_inverse=True)
    assert first.tolist() == expected.tolist()
    assert number.tolist() == inverse.reshape(-1).tolist()
