"""A user's file for `mypy --strict` (run by test_package.py). A line that ends in `# error` must be refused."""

from typing import Any, TypedDict, assert_type

import numpy as np
from numpy.typing import NDArray

import matmul_fused as mf


class Producer:
    """An array of a library that matmul_fused does not know."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


a = np.ones((2, 3), dtype=np.float32)
b = np.ones((3, 4), dtype=np.float32)
bias = np.ones(4, dtype=np.float32)
halves = np.ones((2, 4), dtype=np.float16)
packed = mf.prepack(b)
borrowed = mf.as_prepacked(b, b.shape)

assert_type(mf.matmul_fused(a, b), NDArray[np.float32])
assert_type(mf.matmul_fused(a, b, bias, "relu"), NDArray[np.float32])
assert_type(
    mf.matmul_fused(a, packed, bias, ("leaky_relu", 0.2), alpha=np.float64(2), beta=1, C=bias), NDArray[np.float32]
)
assert_type(mf.matmul_fused(a, (b, b), (bias, bias), "swiglu"), NDArray[np.float32])
assert_type(mf.matmul_fused(a, b, activation=("swiglu_oai", 7.0), gate_layout="interleaved"), NDArray[np.float32])
assert_type(mf.matmul_fused(a, b, out_dtype="float64"), NDArray[Any])
assert_type(mf.matmul_fused(a, Producer()), NDArray[np.float32])
assert_type(mf.matmul_fused(Producer(), b, bias), mf.Array)
assert_type(mf.explain(a, b, bias, "gelu").kernel, str)
assert_type(mf.info().threads, int)
assert_type(packed.shape, tuple[int, int])
np.from_dlpack(mf.matmul_fused(Producer(), b))

out: NDArray[np.float64] = np.empty((2, 4))
same: NDArray[np.float64] = mf.matmul_fused(a, b, out=out)
for name in mf.activations + mf.gated_activations:
    print(name.upper(), mf.__version__)
mf.set_num_threads(mf.get_num_threads())


class Config(TypedDict):
    act: str
    limit: float


class Layer:
    """The user of a model's configuration: names that a checker does not know."""

    def __init__(self, weight: NDArray[np.float32], act: str | None) -> None:
        self.weight, self.act = mf.prepack(weight), act

    def __call__(self, x: NDArray[np.float32], scale: float = 1.0) -> NDArray[np.float32]:
        return mf.matmul_fused(x, self.weight, 0.5, self.act, multiply=scale, C=np.float32(2))


def gated(x: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    return mf.matmul_fused(x, (b, b), (0.0, bias), (config["act"], config["limit"]))


for name in mf.activations:
    assert_type(mf.matmul_fused(a, b, bias, name), NDArray[np.float32])
Layer(b, None)(a)
gated(a, {"act": "swiglu", "limit": 7})

assert_type(mf.leaky_relu(mf.lazy(a) @ b + bias, 0.2) * halves, mf.Expression)

mf.matmul_fused([[1.0]], b)  # error
mf.matmul_fused(a, b, bias, 3)  # error
mf.matmul_fused(a, b, alpha=a)  # error
mf.matmul_fused(a, b, None, ("clamp", "0"))  # error
mf.matmul_fused(a, b, gate_layout="quarters")  # error
mf.prepack(b, "auto")  # error
mf.relu(mf.lazy(a) @ b).eval(into=halves)  # error
