"""Operands that Python code resizes while a call runs: in __dlpack__, a finaliser, an allocator, a torch function mode.

Their memory must not be read after it is gone. The arrays are large enough for malloc to give their pages back, so that
a pointer kept too long ends the process.
"""

import gc

import numpy as np
import pytest

import matmul_fused as mf
from fake_dlpack import make_library
from support import Generic, check, draw

SIZE = 512  # 1 MiB of float32


def operand(seed=0):
    return draw((SIZE, SIZE), seed=seed)


class Runs(Generic):
    """Runs code when it is imported."""

    def __init__(self, array, code):
        super().__init__(array)
        self.code = code

    def __dlpack__(self, **keywords):
        self.code()
        return super().__dlpack__(**keywords)


def shrink(array):
    """Give an ndarray's memory back while views of it may exist, as refcheck=False allows."""
    array.resize((1, 1), refcheck=False)


def calls():
    """By the operand that is resized: arguments, given that operand and the one whose import resizes it."""
    x = operand(2)
    return {
        "A": lambda x_, runs: ((x_, runs), {}),
        "B": lambda x_, runs: ((x, x_, runs), {}),
        "B[0]": lambda x_, runs: ((x, (x_, runs), None, "swiglu"), {}),
        "bias": lambda x_, runs: ((x, x, x_), {"C": runs}),
        "C": lambda x_, runs: ((x, x), {"C": x_, "multiply": runs}),
        "preactivation": lambda x_, runs: ((x, x), {"preactivation": x_, "out": runs}),
        "A, by out": lambda x_, runs: ((x_, x), {"out": runs}),
    }


@pytest.mark.parametrize("case", calls())
@pytest.mark.parametrize("function", ["matmul_fused", "explain"])
def test_a_later_import_resizes_an_array(case, function):
    array = operand()
    runs = Runs(operand(1), lambda: shrink(array))
    arguments, keywords = calls()[case](array, runs)
    if case in ("bias", "C"):  # an epilogue operand of one element broadcasts
        getattr(mf, function)(*arguments, **keywords)
    else:
        with pytest.raises(ValueError, match=r"\(1, 1\)|pair|one shape"):
            getattr(mf, function)(*arguments, **keywords)
    assert array.shape == (1, 1)


def test_a_later_import_resizes_a_tensor():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(operand()).clone()
    runs = Runs(operand(1), lambda: tensor.untyped_storage().resize_(0))
    with pytest.raises(TypeError, match=r"^A has elements but no memory"):
        mf.matmul_fused(tensor, runs)


def test_a_later_import_changes_an_array_of_another_library():
    """A view by the exchange API is borrowed from its object."""
    array = make_library()(operand())

    def change():
        array.array = draw((3, 3))  # frees the memory

    with pytest.raises(ValueError, match=r"A \(3, 3\)"):
        mf.matmul_fused(array, Runs(operand(1), change))


def test_the_second_of_a_pair_resizes_the_first_in_prepack():
    array = operand()
    with pytest.raises(ValueError, match=r"B\[0\] and B\[1\] must have one shape"):
        mf.prepack((array, Runs(operand(1), lambda: shrink(array))))


def test_the_first_look_at_a_type_resizes_an_array():
    array = operand()

    class Meta(type):
        def __getattr__(cls, name):
            shrink(array)
            raise AttributeError(name)

    class Unseen(Generic, metaclass=Meta):
        pass

    with pytest.raises(ValueError, match=r"A \(1, 1\)"):
        mf.matmul_fused(array, Unseen(operand(1)))


def test_an_allocator_resizes_an_array():
    array = operand()
    library = make_library(on_allocate=lambda: shrink(array))
    with pytest.raises(BufferError, match=r"^B changed its memory or shape during the call"):
        mf.matmul_fused(library(operand(1)), array)
    assert library.deleted == 1  # the result's memory
    check(mf.matmul_fused(library(operand(1)), operand()).array, operand(1), operand())


def test_an_allocator_moves_an_array():
    """Its shape stays."""
    library = make_library(on_allocate=lambda: setattr(moved, "array", operand(2)))
    moved = library(operand())
    with pytest.raises(BufferError, match=r"^B changed its memory or shape during the call"):
        mf.matmul_fused(library(operand(1)), moved)


def call_with_garbage(finaliser, function, *arguments):
    """Call function while a finaliser is due: CPython 3.11 collects garbage when an object is allocated."""

    class Garbage:
        def __del__(self):
            finaliser()

    threshold = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        garbage = Garbage()
        garbage.itself = garbage
        del garbage
        gc.set_threshold(1)
        gc.enable()
        return function(*arguments)
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
        gc.collect()


def test_a_finaliser_resizes_a_tensor_when_the_result_is_made():
    torch = pytest.importorskip("torch")
    A, B = operand(), operand(1)
    tensor, other = torch.from_numpy(A).clone(), torch.from_numpy(B)
    mf.matmul_fused(other, other)  # its types are known by now
    storage = tensor.untyped_storage()
    got = call_with_garbage(lambda: storage.resize_(0), mf.matmul_fused, tensor, other)
    assert storage.size() == 0
    check(got.numpy(), A, B)


def test_a_finaliser_resizes_a_weight_when_the_packed_one_is_made():
    """Either the weight was read before, or the call says that its memory is not what it was."""
    torch = pytest.importorskip("torch")
    A, B = operand(), operand(1)
    tensor = torch.from_numpy(B).clone()
    mf.prepack(torch.from_numpy(A))
    storage = tensor.untyped_storage()
    try:
        packed = call_with_garbage(lambda: storage.resize_(0), mf.prepack, tensor)
    except (BufferError, TypeError) as error:
        assert str(error).startswith("B ")  # noqa: PT017
    else:
        assert (np.asarray(packed.unpack()) == B).all()
    assert storage.size() == 0


@pytest.mark.parametrize("member", ["requires_grad", "is_neg"])
def test_a_torch_function_mode_resizes_an_array(member):
    """torch asks a mode even for plain tensors."""
    torch = pytest.importorskip("torch")
    array = operand()
    mf.matmul_fused(torch.ones(1, 1), torch.ones(1, 1))

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            owner = getattr(function, "__self__", None)  # the descriptor behind __get__
            if member in (getattr(function, "__name__", ""), getattr(owner, "__name__", "")):
                shrink(array)
            return function(*arguments, **(keywords or {}))

    column = torch.ones(SIZE, 2)[:, :1]  # all strides are even: is_neg is asked
    with Mode(), pytest.raises((BufferError, ValueError), match=r"^A changed its memory|A \(1, 1\)"):
        mf.matmul_fused(array, column)
    assert array.shape == (1, 1)
