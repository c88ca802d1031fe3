# The public interface with full texts. What the extension says at run time (help()) is the short form of these.
from typing import Any, Final, Literal, Protocol, SupportsIndex, TypeAlias, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray

from . import testing as testing
from .report import Explanation as Explanation
from .report import Info as Info
from .report import info as info

__all__ = [
    "Array",
    "DeviceError",
    "Explanation",
    "Info",
    "PackedMatrix",
    "__version__",
    "activations",
    "explain",
    "gated_activations",
    "get_num_threads",
    "info",
    "matmul_fused",
    "prepack",
    "set_num_threads",
    "testing",
]

__version__: Final[str]

_ActivationName: TypeAlias = Literal[
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "swish",
    "sigmoid",
    "tanh",
    "relu_squared",
    "quick_gelu",
    "leaky_relu",
    "elu",
    "hardswish",
    "softplus",
    "mish",
]
_GatedName: TypeAlias = Literal["swiglu", "geglu", "geglu_tanh", "reglu", "glu", "swiglu_oai"]
_WithParameters: TypeAlias = (
    tuple[Literal["leaky_relu", "elu"], float]
    | tuple[Literal["clamp"], float, float]
    | tuple[Literal["swiglu_oai"], float]
    | tuple[Literal["swiglu_oai"], float, float]
)
_Activation: TypeAlias = _ActivationName | _GatedName | _WithParameters | None
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
_Bias: TypeAlias = _Operand | tuple[_Operand, _Operand] | None

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
    """A result for a DLPack producer that is no library matmul_fused knows.

    It has memory, a shape and a dtype; read it through DLPack, e.g. `np.from_dlpack(result)`.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """ "float32", "float64", "float16" or "bfloat16"."""
    @property
    def device(self) -> str:
        """ "cpu", "rocm:0", "cuda:1"."""
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
    is packed again when it is loaded.
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
        """Bytes that the panels take."""
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
    C: _Operand | None = None,
    multiply: _Operand | None = None,
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
        a torch tensor, a JAX array, anything with `__dlpack__`. The result belongs to the library of A; other DLPack
        producers get a matmul_fused.Array.
    B: (..., K, N), dtype of A; a PackedMatrix; for a gated activation also the pair (B_gate, B_up).
    bias: broadcasts to z by NumPy's rules; 1-D lies along the last axis, (M, 1) is a bias per row. A pair with a pair
        B. dtype of A, of the result, or float32 (C and multiply too).
    activation: None, a name, or a name with parameters:
        "relu"          max(z, 0)
        "gelu"          z * (1 + erf(z / sqrt 2)) / 2; never the tanh form     Hendrycks, Gimpel, arXiv:1606.08415
        "gelu_tanh"     z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3)))  ibid.
        "quick_gelu"    z * sigmoid(1.702 z)                                   ibid.; CLIP
        "silu", "swish" z * sigmoid(z)                                         Elfwing et al., arXiv:1702.03118
        "sigmoid", "tanh"
        "relu_squared"  max(z, 0)^2                                            So et al., arXiv:2109.08668
        "leaky_relu"    z if z >= 0 else slope * z; slope 0.01, or ("leaky_relu", slope)
        "elu"           z if z >= 0 else a * (e^z - 1); a 1, or ("elu", a)     Clevert et al., arXiv:1511.07289
        "hardswish"     z * clamp(z + 3, 0, 6) / 6                             Howard et al., arXiv:1905.02244
        "softplus"      log(1 + e^z); z itself above 20, as in torch
        "mish"          z * tanh(softplus(z))                                  Misra, arXiv:1908.08681
        ("clamp", low, high)
        Gated forms f(g, u) of the gate and up columns of z: Dauphin et al., arXiv:1612.08083; Shazeer, arXiv:2002.05202
        "swiglu"        silu(g) * u
        "geglu", "geglu_tanh"  gelu(g) * u, gelu_tanh(g) * u
        "reglu"         relu(g) * u
        "glu"           sigmoid(g) * u
        "swiglu_oai"    with g = min(g, limit), u = clamp(u, -limit, limit): g * sigmoid(a * g) * (u + 1); limit 7,
                        a 1.702, or ("swiglu_oai", limit, a)                   gpt-oss
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
    C: _Operand | None = None,
    multiply: _Operand | None = None,
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
    C: _Operand | None = None,
    multiply: _Operand | None = None,
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
    C: _Operand | None = None,
    multiply: _Operand | None = None,
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
    C: _Operand | None = None,
    multiply: _Operand | None = None,
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
    C: _Operand | None = None,
    multiply: _Operand | None = None,
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

def prepack(
    B: _Operand | tuple[_Operand, _Operand], *, gate_layout: _GateLayout = None, layout: str = "auto"
) -> PackedMatrix:
    """Reorder a (K, N) weight once, so that calls with it as B need not.

    B: 2-D, any strides, one of the four dtypes; it is copied. A pair (gate, up) of one shape and dtype becomes one
    PackedMatrix with "halves". gate_layout: where the gate and up columns lie, if one weight holds both. layout:
    "auto", or the name of a packed layout of B's device ("panels64" on the CPU, or "pairs64", of bfloat16, for CPUs
    with AMX alone).

    Raises what matmul_fused raises for B; ValueError for an unknown layout or an odd number of gated columns;
    NotImplementedError for a B of more than two axes.
    """

def set_num_threads(n: SupportsIndex, /) -> None:
    """Threads of the CPU back end from the next call on, the calling thread included. ValueError unless 1 to 1024."""

def get_num_threads() -> int:
    """Threads of the CPU back end: set_num_threads, else MATMUL_FUSED_NUM_THREADS, else OMP_NUM_THREADS, else the
    cores that this process may use."""
