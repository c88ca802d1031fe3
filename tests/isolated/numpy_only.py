"""Use the package where torch, JAX and ml_dtypes cannot be imported. Prints "done"."""

import sys

from common import block

ABSENT = ("torch", "jax", "jaxlib", "ml_dtypes", "rich", "matplotlib")


block(*ABSENT)

import numpy as np  # noqa: E402

import matmul_fused as mf  # noqa: E402

A, B = np.random.default_rng(0).random((2, 40, 40), np.float32)
for dtype, tolerance in (("float32", 1e-4), ("float64", 1e-13), ("float16", 1e-1)):
    got = mf.matmul_fused(A.astype(dtype), B.astype(dtype), B[0], "relu")
    a, b = (x.astype(dtype).astype(np.longdouble) for x in (A, B))
    wanted = np.maximum(a @ b + B[0], 0)
    assert got.dtype == dtype
    assert abs(got - wanted).max() < tolerance, dtype
packed = mf.prepack(B, gate_layout="halves")
assert np.array_equal(np.from_dlpack(packed.unpack()), B)
assert np.array_equal(mf.matmul_fused(A, packed, None, "swiglu"), mf.matmul_fused(A, packed, None, "swiglu"))
repr(mf.explain(A, B))
repr(mf.info())


def error_of(**keywords):
    try:
        mf.matmul_fused(A, B, **keywords)
    except TypeError as error:
        return str(error)
    return "none"


assert "ml_dtypes" in error_of(out_dtype="bfloat16"), error_of(out_dtype="bfloat16")
preactivation = np.empty_like(A)
mf.matmul_fused(A, B, preactivation=preactivation)
assert not set(ABSENT) & set(sys.modules), set(ABSENT) & set(sys.modules)
print("done")
