"""float16 on the matrix cores of CDNA: those of gfx90a would lose subnormals, so it is multiplied as float32 there."""

import numpy as np
import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, simulator  # noqa: F401
from matmul_fused.testing import force_kernel


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("small", ["A", "B"])
def test_subnormals_of_float16_count(arch, layout, small):
    """By every row that takes the call. Sums of whole numbers below 2^24, times 2^-24, are exact in any order."""
    dev, rng = hipsim.Device(arch), np.random.default_rng(0)
    a, b = rng.integers(-1023, 1024, (20, 64)), rng.integers(-8, 9, (64, 40))
    a, b = (a, b) if small == "A" else (rng.integers(-8, 9, (20, 64)), rng.integers(-1023, 1024, (64, 40)))
    scale_a, scale_b = (2.0**-24, 1) if small == "A" else (1, 2.0**-24)

    def placed(values, turned):
        values = values.astype(np.float16)
        return dev.array(np.ascontiguousarray(values.T)).mT if turned else dev.array(values)

    x, w = placed(a * scale_a, layout[0] == "T"), placed(b * scale_b, layout[1] == "T")
    rows = [row for row in mf.explain(x, w, out_dtype="float32").candidates if row.reason is None]
    assert "gemm_mfma" in {row.family for row in rows}
    assert len(rows) >= (8 if layout == "NT" else 3)
    for row in rows:
        with force_kernel(row.name):
            y = mf.matmul_fused(x, w, out_dtype="float32")
        assert np.array_equal(dev.to_numpy(y), a @ b * 2.0**-24), row.name
