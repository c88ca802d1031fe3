"""What nobody passes on purpose: names that are no text, Python code that runs inside of a call, astronomic shapes."""

import itertools

import numpy as np
import pytest

import matmul_fused as mf
from fake_dlpack import Producer, new_capsule
from matmul_fused.testing import force_kernel
from support import KERNELS, Generic, check, draw, dtype_of, python

A, B = draw((5, 7)), draw((7, 6))


# --- names ---

NAMES = (
    "",
    "\0",
    "relu\0",
    "auto\0x",
    "a" + "é" * 60,
    "é" * 3000,
    "\udc80",
    "x\udcff" * 40,
    "\U0001d173" * 70,
    "\n'\"\\",
)
PLACES = {
    "activation": lambda name: mf.matmul_fused(A, B, None, name),
    "activation of a tuple": lambda name: mf.matmul_fused(A, B, None, (name, 1.0)),
    "gate_layout": lambda name: mf.matmul_fused(A, B, None, "swiglu", gate_layout=name),
    "gate_layout of prepack": lambda name: mf.prepack(B, gate_layout=name),
    "layout": lambda name: mf.prepack(B, layout=name),
    "kernel": mf._core.force_kernel,
}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_is_no_text_is_unknown(place, name):
    with pytest.raises(ValueError, match=r"^unknown (activation|gate_layout|layout|kernel) ") as caught:
        PLACES[place](name)
    assert type(caught.value) is ValueError  # a UnicodeError is one, too
    assert f'"{repr(name[:64])[1:-1]}"' in str(caught.value)
    assert str(caught.value).isprintable()
    with pytest.raises(TypeError, match=r"^out_dtype is "):
        mf.matmul_fused(A, B, out_dtype=name)


@pytest.mark.parametrize("name", ["relu", "swish"])
def test_a_name_is_known_by_its_value(name):
    class Text(str):
        __slots__ = ()
        __repr__ = __str__ = __hash__ = __eq__ = None

    for text in ("".join(list(name)), Text(name), np.str_(name)):
        check(mf.matmul_fused(A, B, None, text), A, B, None, name)


@pytest.mark.parametrize("name", ["a" + "é" * 60, "é" * 3000, "\U0001d173" * 70, "'\"\\\n"], ids=ascii)
def test_a_type_of_any_name_is_refused(name):
    stranger = type(name, (), {})()
    shown = repr(name[:64])[1:-1]
    for call in (
        lambda: mf.matmul_fused(stranger, B),
        lambda: mf.matmul_fused(A, B, alpha=stranger),
        lambda: mf.matmul_fused(A, B, None, stranger),
        lambda: mf.matmul_fused(A, B, None, ("elu", stranger)),
        lambda: mf.matmul_fused(A, B, None, "swiglu", gate_layout=stranger),
        lambda: mf.matmul_fused(A, B, allow_tf32=stranger),
        lambda: mf.prepack(B, layout=stranger),
        lambda: mf.set_num_threads(stranger),
        lambda: mf._core.force_kernel(stranger),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert shown in str(caught.value)
    with pytest.raises(TypeError, match="A has dtype"):
        mf.matmul_fused(np.zeros((5, 7), [(name, "f4")]), B)


def test_a_capsule_of_any_name_is_refused():
    class Odd(Producer):
        def __dlpack__(self, **keywords):
            return new_capsule(1, b"\xff\xc3")

    with pytest.raises(BufferError, match='a capsule named "\ufffd\ufffd"'):
        mf.matmul_fused(Odd(A), B)


# --- Python that runs inside of a call ---


class Meddler(np.ndarray):
    """Its death calls the library and fails."""

    def __del__(self):
        try:
            mf.matmul_fused(A, B, None, "meddler")
        except ValueError:
            Meddler.deaths += 1


class Fleeting:
    """Its tensor lives as long as its capsule."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __dlpack__(self, **keywords):
        return np.ones((5, 7), self.dtype).view(Meddler).__dlpack__(**keywords)

    def __dlpack_device__(self):
        return (1, 0)


def test_an_error_text_outlives_calls_by_destructors():
    Meddler.deaths = 0
    with pytest.raises(TypeError, match="A has dtype int32"):
        mf.matmul_fused(Fleeting(np.int32), B)
    assert Meddler.deaths > 0


def test_a_device_that_is_no_pair_outlives_nobody():
    class Pair(list):
        __del__ = Meddler.__del__

    class NoPair(Fleeting):
        def __dlpack_device__(self):
            return Pair()

    Meddler.deaths = 0
    with pytest.raises(BufferError, match="returned no pair"):
        mf.matmul_fused(NoPair(np.float32), B)
    assert Meddler.deaths > 0


# --- scale factors and counts ---

SCALARS = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int4", "uint4")


@pytest.mark.parametrize("name", SCALARS)
def test_scalars_of_ml_dtypes_are_numpy_scalars(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    two = getattr(ml_dtypes, name)(2)
    check(
        mf.matmul_fused(A, B, None, ("elu", two), alpha=two, C=A[:, :6], beta=two),
        A,
        B,
        None,
        ("elu", 2),
        alpha=2.0,
        C=A[:, :6],
        beta=2.0,
    )


@pytest.mark.parametrize(
    "value", [True, False, np.True_, np.int8(-3), np.uint64(2**63), np.float16(0.5), np.longdouble(3)]
)
def test_real_scalars_are_what_float_makes_of_them(value):
    check(mf.matmul_fused(A, B, alpha=value), A, B, alpha=float(value))


def unreal():
    import decimal
    import fractions

    yield from (
        np.complex64(1),
        np.str_("1"),
        np.void(b"1234"),
        np.timedelta64(1, "s"),
        np.datetime64("2020"),
        np.array(1.0),
    )
    yield from (fractions.Fraction(1), decimal.Decimal(1), "1", b"1", [1.0])
    try:
        import ml_dtypes
    except ImportError:
        return
    yield from (getattr(ml_dtypes, name)(1) for name in ("complex32", "bcomplex32") if hasattr(ml_dtypes, name))


@pytest.mark.parametrize("value", list(unreal()), ids=lambda value: type(value).__name__)
def test_other_scalars_are_refused(value):
    with pytest.raises(TypeError, match="alpha must be a float, an int or a real NumPy scalar, got "):
        mf.matmul_fused(A, B, alpha=value)


# --- types that raise ---


def test_a_metaclass_that_raises_is_named_and_the_cause_chained():
    class Meta(type):
        def __getattr__(cls, name):
            raise RuntimeError("no attributes")

    class Stranger(metaclass=Meta):
        pass

    for call in (lambda: mf.matmul_fused(A, Stranger()), lambda: mf.prepack(Stranger())):
        with pytest.raises(
            TypeError, match=r"^B is a test_hostile.Stranger, whose type raised when asked for DLPack"
        ) as caught:
            call()
        assert str(caught.value.__cause__) == "no attributes"


def test_a_torch_function_that_raises_is_named_and_the_cause_chained():
    torch = pytest.importorskip("torch")

    class Raising(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), keywords=None):
            raise RuntimeError("no functions")

    with pytest.raises(TypeError, match=r"^bias: its __torch_function__ raised when asked for requires_grad") as caught:
        mf.matmul_fused(A, B, torch.ones(6).as_subclass(Raising))
    assert str(caught.value.__cause__) == "no functions"


# --- empty and astronomic shapes ---

LENGTHS = (0, 1, 17)


@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_empty_axes(kernel, threads):
    before = mf.get_num_threads()
    mf.set_num_threads(threads)
    try:
        with force_kernel(kernel):
            for batch, m, n, k in itertools.product((None, *LENGTHS), LENGTHS, LENGTHS, LENGTHS):
                if 0 in (batch, m, n, k):
                    call_with_empty_axes(() if batch is None else (batch,), m, n, k, kernel)
    finally:
        mf.set_num_threads(before)


def call_with_empty_axes(batch, m, n, k, kernel):
    for dtype in ("float32", "float16", "float64"):
        x, y, bias, c = draw((*batch, m, k), dtype), draw((*batch, k, 2 * n), dtype), draw(2 * n), draw((m, 2 * n))
        for weight in (y, np.ascontiguousarray(y.swapaxes(-1, -2)).swapaxes(-1, -2)):
            out, z = np.full((*batch, m, n), np.nan, dtype), np.full((*batch, m, 2 * n), np.nan)
            got = mf.matmul_fused(x, weight, bias, "swiglu", C=c, preactivation=z, out=out)
            assert got is out
            check(got, x, y, bias, "swiglu", C=c)
            check(mf.matmul_fused(x, weight, bias, "gelu"), x, y, bias, "gelu")
            assert not np.isnan(z).any()
            assert mf.explain(x, weight, bias, "swiglu").flops == 4.0 * np.prod(batch) * m * n * k
    if not batch and kernel != "cpu_reference":
        packed = mf.prepack(y, gate_layout="halves")
        check(mf.matmul_fused(x, packed, bias, "swiglu"), x, y, bias, "swiglu")
        assert mf.explain(x, packed, bias, "swiglu").threads >= 1
        assert np.array_equal(np.from_dlpack(packed.unpack()), y)


def view(shape, dtype="float32"):
    """Zeros of any shape, of one element."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype_of(dtype)), shape, (0,) * len(shape))


LONG = 2**40


@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((LONG, 7), (7, 0)),
        ((0, 7), (7, LONG)),
        ((LONG, 0), (0, 0)),
        ((0, LONG), (LONG, 0)),
        ((0, LONG), (LONG, 2**20)),
        ((2**20, 2**20, 3, 7), (7, 0)),
        ((2**20, 0, 7), (2**20, 7, 2**30)),
        ((0, 2**58), (2**58, 5)),
    ],
)
def test_empty_results_of_astronomic_operands(kernel, a, b):
    """Nothing is computed, and nothing counts to 2**40."""
    with force_kernel(kernel):
        x, y = view(a), view(b)
        got = mf.matmul_fused(x, y, None, "relu")
        assert got.shape == (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
        assert mf.explain(x, y).flops == 0
        assert mf.matmul_fused(x, y, out=got) is got


@pytest.mark.parametrize("a", [(2**58, 7), (2**20, 2**38, 7)])
def test_astronomic_results_are_refused(a):
    for call in (mf.matmul_fused, mf.explain):
        with pytest.raises(ValueError, match="would not fit into memory"):
            call(view(a), view((7, 5)))
    assert mf.explain(view(a), view((7, 1)), alpha=0).flops == 0
    assert mf.explain(view((1, 2**58)), view((2**58, 3))).flops == 3 * 2.0**59


def test_an_astronomic_sum_ends_when_told_to():
    """Of so many float16 the bytes can be counted, and those of as many float32, which are packed, can not."""
    code = """if True:
        import signal, numpy as np, matmul_fused as mf
        mf.set_num_threads(16)
        a, b = (np.broadcast_to(np.float16(1), shape) for shape in ((159, 28823037615171175), (28823037615171175, 157)))
        mf.explain(a, b)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            mf.matmul_fused(a, b)
        except KeyboardInterrupt:
            print("ended")
    """
    assert python("-c", code).stdout == "ended\n"


@pytest.mark.parametrize("library", ["numpy", "generic", "jax"])
def test_a_result_without_memory_says_how_much(library):
    if library == "jax":
        convert = pytest.importorskip("jax.numpy").asarray
    else:
        convert = {"numpy": np.asarray, "generic": Generic}[library]
    with pytest.raises(MemoryError) as caught:
        mf.matmul_fused(convert(np.ones((1, 7), np.float32)), view((LONG, 7, 64)))  # beyond the addresses of a process
    if library == "numpy":
        assert "(1099511627776, 1, 64) and data type float32" in str(caught.value)
    else:
        assert str(caught.value) == "no memory for the 281474976710656 bytes of a float32 array (1099511627776, 1, 64)"
