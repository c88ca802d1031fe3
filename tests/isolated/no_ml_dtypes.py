"""bfloat16 where ml_dtypes cannot be imported: none in NumPy, with a clear error; in torch as ever. Prints "done".

Arguments: "torch" to use it.
"""

import sys

from common import block

block("ml_dtypes")

import numpy as np  # noqa: E402

import matmul_fused as mf  # noqa: E402

rng = np.random.default_rng(0)
A, B = rng.integers(-8, 9, (2, 16, 16)).astype(np.float32)


def error_of(**keywords):
    try:
        mf.matmul_fused(A, B, **keywords)
    except TypeError as error:
        return str(error)
    return "none"


wanted = "a bfloat16 result for NumPy operands needs ml_dtypes; import ml_dtypes or choose another out_dtype"
assert error_of(out_dtype="bfloat16") == wanted, error_of(out_dtype="bfloat16")
assert "bfloat16" not in error_of(out_dtype="float16")

if "torch" in sys.argv[1:]:
    import torch

    a, b = (torch.from_numpy(x).to(torch.bfloat16) for x in (A, B))
    exact = torch.from_numpy(A.astype(float) @ B.astype(float))  # products of small integers: one rounding
    for result in (
        mf.matmul_fused(a, b),
        mf.matmul_fused(a, mf.prepack(b)),
        mf.matmul_fused(torch.from_numpy(A), B, out_dtype="bfloat16"),
        mf.matmul_fused(A, B, out=torch.empty(16, 16, dtype=torch.bfloat16)),
        mf.matmul_fused(A, B, out=torch.empty(16, 16, dtype=torch.bfloat16), out_dtype=torch.bfloat16),
        torch.from_dlpack(mf.prepack(b).unpack()) @ torch.zeros(16, 16, dtype=torch.bfloat16) + exact.bfloat16(),
    ):
        assert result.dtype == torch.bfloat16
        assert torch.equal(result, exact.to(torch.bfloat16))
    assert torch.equal(torch.from_dlpack(mf.prepack(b).unpack()), b)
assert "ml_dtypes" not in sys.modules
print("done")
