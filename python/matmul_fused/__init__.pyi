# The public interface with full texts. What the extension says at run time (help()) is the short form of these.
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, NoReturn, Protocol, SupportsIndex, TypeAlias, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray

from . import testing as testing
from .expression import Expression as Expression
from .expression import lazy as lazy
from .report import Explanation as Explanation
from .report import Info as Info
from .report import info as info
from .tuning import Tuning as Tuning
from .tuning import tune as tune
from .tuning import warmup as warmup

__all__ = [
    "Array",
    "DeviceError",
    "Explanation",
    "Expression",
    "Info",
    "PackedMatrix",
    "Tuning",
    "__version__",
    "activations",
    "as_prepacked",
    "explain",
    "gated_activations",
    "get_num_threads",
    "info",
    "lazy",
    "matmul_fused",
    "num_threads",
    "prepack",
    "set_num_threads",
    "testing",
    "tune",
    "warmup",
]

__version__: Final[str]

_Parameter: TypeAlias = float | np.floating[Any] | np.integer[Any]
# A name (see activations), (name, parameter, ...), or a function or module of torch or jax that is one.
_Activation: TypeAlias = str | tuple[str] | tuple[str, *tuple[_Parameter, ...]] | Callable[..., Any] | None
_GateLayout: TypeAlias = Literal["halves", "halves_up_first", "interleaved"] | None
_Real: TypeAlias = float | np.floating[Any] | np.integer[Any]

class _SupportsDLPack(Protocol):
    """Any object that speaks DLPack. (It has `__dlpack_device__`, too, which JAX's own stubs do not show.)"""

    def __dlpack__(self) -> Any: ...

class _LibraryArray(_SupportsDLPack, Protocol):
    """torch.Tensor, jax.Array, cupy.ndarray: results have the library of A."""

    def __matmul__(self, _: Any, /) -> Any: ...

_Operand: TypeAlias = _SupportsDLPack  # numpy.ndarray is one
_Weight: TypeAlias = _Operand | PackedMatrix | tuple[_Operand, _Operand] | tuple[PackedMatrix, PackedMatrix]
_Addend: TypeAlias = _Operand | _Real  # an array or a number
_Bias: TypeAlias = _Addend | tuple[_Addend, _Addend] | None

_Step: TypeAlias = Callable[..., Expression]

_Scalar = TypeVar("_Scalar", bound=np.generic)
_A = TypeVar("_A", bound=_LibraryArray)
_Out = TypeVar("_Out", bound=_Operand)

activations: Final[tuple[str, ...]]
"""Names that `activation` takes for a plain form, aliases included."""

gated_activations: Final[tuple[str, ...]]
"""Names that `activation` takes for a gated form."""

class DeviceError(RuntimeError):
    """A device or its driver failed; the text has the driver's own name and words for it."""

@final
class Array:
    """A result for a DLPack producer that is no library matmul_fused knows and has no `__array_namespace__`.

    It has memory, a shape and a dtype; any library takes it over through DLPack. On the CPU it is also a buffer and
    what np.asarray takes, without a copy (bfloat16: with ml_dtypes); an index and a loop give what NumPy gives.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """ "float32", "float64", "float16" or "bfloat16"."""
    @property
    def device(self) -> str:
        """ "cpu", "rocm:0", "cuda:1"."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    if sys.version_info >= (3, 12):  # before, buffers have no method
        def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """An ndarray that shares the memory unless dtype or copy=True asks for another. TypeError for a GPU's."""
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class PackedMatrix:
    """A weight reordered once by `prepack` for the kernels of its device: pass it as B.

    It owns a copy, never changes and may be used by many threads at once. A pickle of it holds the plain weight, which
    is packed again when it is loaded; one on a GPU cannot be pickled. docs/prepack.md shows how a torch module holds
    one beside its state_dict. One of `as_prepacked` holds another's array instead, whose changes show.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(K, N) of the weight."""
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def layout(self) -> str:
        """Name of the packed layout, e.g. "panels64"."""
    @property
    def gate_layout(self) -> str | None:
        """The gate layout that it was packed with."""
    @property
    def nbytes(self) -> int:
        """Bytes that the packed weight takes."""
    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raises TypeError: it is no array; `np.asarray(packed.unpack())` is the plain weight."""
    def __copy__(self) -> PackedMatrix: ...
    def __deepcopy__(self, memo: object, /) -> PackedMatrix: ...
    def unpack(self) -> Array:
        """The weight as it was passed to prepack, in a new (K, N) Array; the values are exactly the same."""

@overload
def matmul_fused(
    A: _Operand,
    B: _Weight,
    bias: _Bias = None,
    activation: _Activation = None,
    *,
    alpha: _Real = 1.0,
    beta: _Real | None = None,
    C: _Addend | None = None,
    multiply: _Addend | None = None,
    preactivation: _Operand | None = None,
    gate_layout: _GateLayout = None,
    out: _Out,
    out_dtype: object = None,
    allow_tf32: bool = False,
    stream: object = None,
) -> _Out:
    """activation(alpha * (A @ B) + beta * C + bias) * multiply, in one kernel.

        z   = alpha * sum_k A[m, k] * B[k, n] + beta * C[m, n] + bias    in float32 (float64 for float64 operands)
        out = activation(z) * multiply[m, n]                             rounded once, to out_dtype

    Shapes follow numpy.matmul: A (..., M, K), B (..., K, N), leading axes broadcast, 1-D operands gain and lose an
    axis. A weight stored (N, K), as in torch.nn.Linear, is passed as `W.T`: a view, never copied.

    A: (..., M, K). float32, float64, float16 or bfloat16 (ml_dtypes.bfloat16 in NumPy), in any strides: a NumPy array,
        a torch tensor, a JAX array, anything with `__dlpack__`. The result belongs to the library of A (that of the
        array API makes it by `A.__array_namespace__().from_dlpack`); other DLPack producers get a matmul_fused.Array.
    B: (..., K, N), dtype of A; a PackedMatrix; for a gated activation also the pair (B_gate, B_up).
    bias: broadcasts to z by NumPy's rules; 1-D lies along the last axis, (M, 1) is a bias per row. A pair with a pair
        B. dtype of A, of the result, or float32. Or a number (not a bool), rounded once to the type of the sums. C and
        multiply alike; a 0-d array is an array.
    activation: None, a name in letters of any case, (name, parameter, ...), or a function or module of torch or jax
        that is one of them: torch.nn.functional.gelu, torch.nn.SiLU(), jax.nn.gelu (its tanh form). By name:
        "relu": max(z, 0)
        "gelu": z * (1 + erf(z / sqrt(2))) / 2  [arXiv:1606.08415]
        "gelu_tanh": z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3)))  [arXiv:1606.08415]
        "silu": z * sigmoid(z)  [arXiv:1702.03118]
        "sigmoid": 1 / (1 + e^-z)
        "tanh": tanh(z)
        "relu_squared": max(z, 0)^2  [arXiv:2109.08668]
        "quick_gelu": z * sigmoid(1.702 z)  [arXiv:1606.08415; CLIP]
        ("leaky_relu", slope=0.01): z if z >= 0 else slope * z
        ("elu", alpha=1): z if z >= 0 else alpha * (e^z - 1)  [arXiv:1511.07289]
        "hardswish": z * clamp(z + 3, 0, 6) / 6  [arXiv:1905.02244]
        "softplus": log(1 + e^z), z itself above 20
        "mish": z * tanh(log(1 + e^z))  [arXiv:1908.08681]
        ("clamp", low, high): min(max(z, low), high)
        ("hardtanh", low=-1, high=1): min(max(z, low), high)
        "hardsigmoid": clamp(z + 3, 0, 6) / 6
        "selu": 1.0507 * (z if z >= 0 else 1.6733 * (e^z - 1))  [arXiv:1706.02515]
        ("celu", alpha=1): z if z >= 0 else alpha * (e^(z / alpha) - 1)  [arXiv:1704.07483]
        "softsign": z / (1 + |z|)
        "logsigmoid": log(sigmoid(z))
        ("threshold", threshold, value): z if z > threshold else value
        ("softshrink", lambda=0.5): z - clamp(z, -lambda, lambda)
        ("hardshrink", lambda=0.5): z if |z| > lambda else 0
        "tanhshrink": z - tanh(z)
        "exp": e^z
        "gelu_10": clamp(gelu(z), -10, 10)  [transformers]
        "laplace": (1 + erf((z - 0.707107) / (0.282095 sqrt(2)))) / 2  [arXiv:2209.10655; transformers]
        ("xielu", alpha_p=0.8, alpha_n=0.8, beta=0.5, eps=-1e-06):
            alpha_p z^2 + beta z if z > 0 else alpha_n (e^min(z, eps) - 1 - z) + beta z  [arXiv:2411.13010]
        Gated forms f(g, u) of the gate and up columns of z:
        "swiglu": silu(g) * u  [arXiv:2002.05202]
        "geglu": gelu(g) * u  [arXiv:2002.05202]
        "geglu_tanh": gelu_tanh(g) * u  [arXiv:2002.05202]
        "reglu": relu(g) * u  [arXiv:2002.05202]
        "glu": sigmoid(g) * u  [arXiv:1612.08083]
        ("swiglu_oai", limit=7, alpha=1.702):
            g * sigmoid(alpha g) * (u + 1), g = min(g, limit), u = clamp(u, -limit, limit)  [gpt-oss]
        ("swiglu", limit, alpha=1, beta=0):
            g * sigmoid(alpha g) * (u + beta), g = min(g, limit), u = clamp(u, -limit, limit)  [GLM-5.3,
            MiniMax-M3, DeepSeek-V4]
        ("situglu", beta, linear_beta=inf):
            beta tanh(g / beta) * sigmoid(g) * linear_beta tanh(u / linear_beta), inf: no bound  [Kimi K3]
        ("swiglustep", limit=7): min(silu(g), limit) * clamp(u, -limit, limit)  [vLLM]
        ("fatreglu", threshold=0): (g if g > threshold else 0) * u  [MiniCPM-S]
        Other names: identity, linear, none; swish; gelu_new, gelu_pytorch_tanh, gelu_fast; relu2, relu6; and those of
        vLLM, which mean a gate_layout too: silu_and_mul, mul_and_silu, gelu_and_mul, situ_and_mul, ... "gelu" is always
        the erf form. xielu takes the alphas after softplus; vLLM and transformers store them before: pass
        ("xielu", softplus(m.alpha_p), m.beta + softplus(m.alpha_n), m.beta, m.eps).
        A NaN in z stays a NaN in all of them.
    alpha, beta: real numbers. beta None: 1 if C is given, else 0. beta == 0: C is not read. alpha == 0: A and B are
        not read.
    C, multiply: broadcast to z and to the result.
    preactivation: an array with exactly the shape of z that is filled with z, rounded to its dtype (any of the four).
    gate_layout: where gate and up columns lie in B, z, bias and C of a gated form with one B of 2I columns:
        "halves" (default) [gate | up], "halves_up_first" [up | gate], "interleaved" g0 u0 g1 u1 ...
    out: an array with exactly the shape of the result, of any library, that is filled and returned itself. It may be C
        (in place) but share no element with another operand.
    out_dtype: dtype of the result: a name, a NumPy, torch or JAX dtype. Default: that of out, else of A.
    allow_tf32: let devices round float32 inputs to 11 bits; the CPU never does.
    stream: for GPU arrays: the handle of a stream as an int, or an object with `__cuda_stream__`. None: the current
        stream of A's library (torch, CuPy), else the default stream. It waits for the streams of the operands'
        libraries, as far as they have one. The call returns before the GPU is done; arrays of libraries that are not
        torch or CuPy must live until then if the stream is not their own. On the CPU only None.

    Raises TypeError (an operand that is no array, a dtype, operands of different dtypes), ValueError (shapes, strides,
    overlap, an unknown activation, beta without C, an operand that requires grad), BufferError (a DLPack producer broke
    the protocol), NotImplementedError (no kernel takes it; the reasons of all are in the text), MemoryError,
    DeviceError. Every text names the argument. Nothing is written before all arguments are checked.

    Two calls with the same values, shapes, strides, alignment, device and version give the same bits, whatever the
    number of threads.

    Signal handlers run during a long call of the main thread on the CPU, every 50 ms, and may call matmul_fused
    themselves. What one raises (KeyboardInterrupt) ends the call; out, a C that is out, and preactivation then hold
    anything. What was launched on a GPU runs to its end.
    """

@overload
def matmul_fused(
    A: NDArray[_Scalar],
    B: _Weight,
    bias: _Bias = None,
    activation: _Activation = None,
    *,
    alpha: _Real = 1.0,
    beta: _Real | None = None,
    C: _Addend | None = None,
    multiply: _Addend | None = None,
    preactivation: _Operand | None = None,
    gate_layout: _GateLayout = None,
    out: None = None,
    out_dtype: None = None,
    allow_tf32: bool = False,
    stream: object = None,
) -> NDArray[_Scalar]: ...
@overload
def matmul_fused(
    A: NDArray[Any],
    B: _Weight,
    bias: _Bias = None,
    activation: _Activation = None,
    *,
    alpha: _Real = 1.0,
    beta: _Real | None = None,
    C: _Addend | None = None,
    multiply: _Addend | None = None,
    preactivation: _Operand | None = None,
    gate_layout: _GateLayout = None,
    out: None = None,
    out_dtype: object,
    allow_tf32: bool = False,
    stream: object = None,
) -> NDArray[Any]: ...
@overload
def matmul_fused(  # type: ignore[overload-overlap]  # a _LibraryArray is a _SupportsDLPack, too
    A: _A,
    B: _Weight,
    bias: _Bias = None,
    activation: _Activation = None,
    *,
    alpha: _Real = 1.0,
    beta: _Real | None = None,
    C: _Addend | None = None,
    multiply: _Addend | None = None,
    preactivation: _Operand | None = None,
    gate_layout: _GateLayout = None,
    out: None = None,
    out_dtype: object = None,
    allow_tf32: bool = False,
    stream: object = None,
) -> _A: ...
@overload
def matmul_fused(
    A: _SupportsDLPack,
    B: _Weight,
    bias: _Bias = None,
    activation: _Activation = None,
    *,
    alpha: _Real = 1.0,
    beta: _Real | None = None,
    C: _Addend | None = None,
    multiply: _Addend | None = None,
    preactivation: _Operand | None = None,
    gate_layout: _GateLayout = None,
    out: None = None,
    out_dtype: object = None,
    allow_tf32: bool = False,
    stream: object = None,
) -> Array: ...
def explain(
    A: _Operand,
    B: _Weight,
    bias: _Bias = None,
    activation: _Activation = None,
    *,
    alpha: _Real = 1.0,
    beta: _Real | None = None,
    C: _Addend | None = None,
    multiply: _Addend | None = None,
    preactivation: _Operand | None = None,
    gate_layout: _GateLayout = None,
    out: _Operand | None = None,
    out_dtype: object = None,
    allow_tf32: bool = False,
    stream: object = None,
) -> Explanation:
    """What matmul_fused would run for the same arguments: every kernel of the device with its time, or why not.

    Takes the arguments of matmul_fused, raises what it would raise, computes nothing and writes nothing.
    """

def _cache_folder(given: str | None) -> str: ...
def _set_up_logging(level: str | None) -> logging.Logger: ...
def prepack(
    B: _Operand | tuple[_Operand, _Operand], *, gate_layout: _GateLayout = None, layout: str = "auto"
) -> PackedMatrix:
    """Reorder a (K, N) weight once, so that calls with it as B need not.

    B: 2-D, any strides, one of the four dtypes; it is copied. A pair (gate, up) of one shape and dtype becomes one
    PackedMatrix with "halves". gate_layout: where the gate and up columns lie, if one weight holds both. layout:
    "auto", or the name of a packed layout of B's device: on the CPU "panels64", "pairs64" (of bfloat16, for CPUs with
    AMX or AVX512_BF16) or "columns", on a GPU "columns", on some of AMD's also "preshuffle_16x16". docs/prepack.md says
    which of them "auto" takes, what they hold and when prepacking pays. On a GPU the copy is made on the current stream
    of B's library; until that is done, a B that is not of torch or CuPy must live.

    Raises what matmul_fused raises for B; ValueError for an unknown layout, for sizes and dtypes that it does not hold,
    and for an odd number of gated columns; NotImplementedError for a B of more than two axes, on a GPU that cannot pack
    (docs/gpu.md), and where no kernel for B's device reads the layout; DeviceError while the stream is being captured.
    """

def as_prepacked(tensor: _Operand, shape: Sequence[SupportsIndex], *, layout: str = "preshuffle_16x16") -> PackedMatrix:
    """A weight (K, N) that another library shuffled for AMD GPUs, as a PackedMatrix: pass it as B (docs/prepack.md).

    tensor: on an AMD GPU, 16-bit, C-contiguous, at a multiple of 16 bytes, of any shape; it is kept, not copied, and
    what is written into it shows. shape: (K, N), multiples of 32 and 16. Raises what prepack raises.
    """

def set_num_threads(n: SupportsIndex, /) -> None:
    """Threads of the CPU back end from the next call on, the calling thread included. ValueError unless 1 to 1024."""

def num_threads(n: SupportsIndex, /) -> AbstractContextManager[None]:
    """Threads of the CPU back end for calls of this thread within the block: `with mf.num_threads(1): ...`.

    Other threads keep their number. A block must not await: other tasks of the thread would have its number, too.
    """

def get_num_threads() -> int:
    """Threads of the CPU back end for a call made here and now: num_threads, else set_num_threads, else
    MATMUL_FUSED_NUM_THREADS, else OMP_NUM_THREADS, else the cores that this process may use."""

# mf.relu(mf.lazy(A) @ B), mf.leaky_relu(e, 0.2): the activations of the lazy form, by every name.
relu: Final[_Step]
gelu: Final[_Step]
gelu_tanh: Final[_Step]
silu: Final[_Step]
sigmoid: Final[_Step]
tanh: Final[_Step]
relu_squared: Final[_Step]
quick_gelu: Final[_Step]
leaky_relu: Final[_Step]
elu: Final[_Step]
hardswish: Final[_Step]
softplus: Final[_Step]
mish: Final[_Step]
clamp: Final[_Step]
hardtanh: Final[_Step]
hardsigmoid: Final[_Step]
selu: Final[_Step]
celu: Final[_Step]
softsign: Final[_Step]
logsigmoid: Final[_Step]
threshold: Final[_Step]
softshrink: Final[_Step]
hardshrink: Final[_Step]
tanhshrink: Final[_Step]
exp: Final[_Step]
gelu_10: Final[_Step]
laplace: Final[_Step]
xielu: Final[_Step]
swish: Final[_Step]
gelu_new: Final[_Step]
gelu_pytorch_tanh: Final[_Step]
gelu_fast: Final[_Step]
gelu_accurate: Final[_Step]
gelu_python_tanh: Final[_Step]
gelu_python: Final[_Step]
relu2: Final[_Step]
relu6: Final[_Step]
swiglu: Final[_Step]
geglu: Final[_Step]
geglu_tanh: Final[_Step]
reglu: Final[_Step]
glu: Final[_Step]
swiglu_oai: Final[_Step]
swiglu_clamped: Final[_Step]
situglu: Final[_Step]
swiglustep: Final[_Step]
fatreglu: Final[_Step]
silu_and_mul: Final[_Step]
mul_and_silu: Final[_Step]
gelu_and_mul: Final[_Step]
gelu_tanh_and_mul: Final[_Step]
swigluoai_and_mul: Final[_Step]
silu_and_mul_with_clamp: Final[_Step]
situ_and_mul: Final[_Step]
swiglustep_and_mul: Final[_Step]
fatrelu_and_mul: Final[_Step]
