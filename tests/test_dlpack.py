"""Import through DLPack: capsules, right and wrong ones. The deleter runs exactly once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import matmul_fused as mf
from fake_dlpack import READ_ONLY, DLTensor, Producer, capsule_name
from matmul_fused.testing import force_kernel

RNG = np.random.default_rng(5)
A = RNG.standard_normal((5, 7)).astype(np.float32)
B = RNG.standard_normal((7, 6)).astype(np.float32)
BIAS = RNG.standard_normal(6).astype(np.float32)


def check_product(result: Any, a: np.ndarray = A, b: np.ndarray = B) -> None:
    """result (a NumPy array or mf.Array, float32) is a @ b within the bound of one rounding a step."""
    got = np.from_dlpack(result) if isinstance(result, mf.Array) else np.asarray(result)
    reference = a.astype(np.float64) @ b.astype(np.float64)
    bound = (a.shape[-1] + 8) * 2.0**-24 * (np.abs(a).astype(float) @ np.abs(b).astype(float))
    np.testing.assert_array_less(np.abs(got - reference), bound + 1e-45)


def set_field(**fields: Any) -> Any:
    """A change for Producer: set fields of the DLTensor, or of its dtype by code=, bits=, lanes=."""

    def change(tensor: DLTensor) -> None:
        for name, value in fields.items():
            target = tensor.dtype if name in ("code", "bits", "lanes") else tensor
            setattr(target, name, value)

    return change


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("has_deleter", [True, False])
def test_capsule_is_taken_and_freed_once(versioned: bool, has_deleter: bool) -> None:
    producer = Producer(A, versioned=versioned, has_deleter=has_deleter)
    result = mf.matmul_fused(producer, B)
    assert isinstance(result, mf.Array)
    check_product(result)
    assert producer.deleted == (1 if has_deleter else 0)
    assert [capsule_name(c) for c in producer.handed] == ["used_dltensor_versioned" if versioned else "used_dltensor"]
    assert producer.calls == [{"max_version": (1, 3)}]


def test_every_operand_may_be_a_capsule() -> None:
    producers = [Producer(x) for x in (A, B, BIAS, np.ones((5, 6), np.float32))]
    a, b, bias, multiply = producers
    mf.matmul_fused(a, b, bias, "relu", multiply=multiply, C=multiply)
    assert [p.deleted for p in producers] == [1, 1, 1, 2]


def test_one_producer_twice() -> None:
    square = Producer(A[:5, :5].copy())
    check_product(mf.matmul_fused(square, square), square.array, square.array)
    assert square.deleted == 2


def test_null_strides_are_compact() -> None:
    check_product(mf.matmul_fused(Producer(A, change=set_field(strides=None)), B))


def test_strides_of_length_one_axes_are_ignored() -> None:
    def change(tensor: DLTensor) -> None:
        tensor.strides[0] = 123456789

    check_product(mf.matmul_fused(Producer(A[:1], change=change), B), A[:1])


@pytest.mark.parametrize("versioned", [True, False])
def test_byte_offset(versioned: bool) -> None:
    buffer = np.concatenate([np.full(3, np.nan, np.float32), A.ravel()])
    view = buffer[3:].reshape(A.shape)

    def change(tensor: DLTensor) -> None:
        tensor.data = buffer.ctypes.data
        tensor.byte_offset = 12

    check_product(mf.matmul_fused(Producer(view, versioned=versioned, change=change), B))


def test_byte_offset_may_wrap_around() -> None:
    """A negative offset, as an unsigned number."""

    def change(tensor: DLTensor) -> None:
        tensor.data += 64
        tensor.byte_offset = 2**64 - 64

    check_product(mf.matmul_fused(Producer(A, change=change), B))


def test_negative_and_zero_strides() -> None:
    reverse = A[::-1, ::-1]
    check_product(mf.matmul_fused(Producer(reverse), B), reverse)
    broadcast = np.broadcast_to(A[:1], (4, 7))
    check_product(mf.matmul_fused(Producer(broadcast), B), broadcast)


def test_newer_minor_version_is_read() -> None:
    check_product(mf.matmul_fused(Producer(A, version=(1, 99)), B))


@pytest.mark.parametrize("major", [0, 2, 77])
def test_other_major_version_is_freed_unread(major: int) -> None:
    producer = Producer(A, version=(major, 0), change=set_field(ndim=-5, shape=None, data=1))
    with pytest.raises(BufferError, match=f"A: .*DLPack version {major}.0; matmul_fused reads 1.x"):
        mf.matmul_fused(producer, B)
    assert producer.deleted == 1


def test_producer_that_knows_no_max_version() -> None:
    producer = Producer(A, versioned=False, knows_max_version=False)
    check_product(mf.matmul_fused(producer, B))
    assert producer.calls == [{"max_version": (1, 3)}, {}]
    assert producer.deleted == 1


@pytest.mark.parametrize("error", [ValueError("boom"), RuntimeError("boom"), TypeError("boom")])
def test_producer_exception_is_chained(error: Exception) -> None:
    producer = Producer(A, raises=error)
    with pytest.raises(BufferError, match=r"B: its __dlpack__\(\) failed") as caught:
        mf.matmul_fused(A, producer)
    assert caught.value.__cause__ is error
    # only a TypeError is an excuse to call again without arguments
    assert len(producer.calls) == (2 if isinstance(error, TypeError) else 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_interrupts_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        mf.matmul_fused(Producer(A, raises=error), B)
    assert caught.value is error


DTYPES = [
    ({"lanes": 2}, "float32 with 2 lanes"),
    ({"code": 0}, "int32"),
    ({"code": 1, "bits": 8}, "uint8"),
    ({"code": 6, "bits": 8}, "bool8"),
    ({"code": 5, "bits": 64}, "complex64"),
    ({"code": 2, "bits": 128}, "float128"),
    ({"code": 4, "bits": 32}, "bfloat32"),
    ({"code": 10, "bits": 8}, "float8_e4m3fn"),
    ({"code": 12, "bits": 8, "lanes": 2}, "float8_e5m2 with 2 lanes"),
    ({"code": 17, "bits": 4}, "float4_e2m1fn"),
    ({"code": 18, "bits": 8}, "DLPack code 18 with 8 bits"),
]


@pytest.mark.parametrize(("fields", "text"), DTYPES, ids=[text for _, text in DTYPES])
def test_other_dtypes_are_refused(fields: dict[str, int], text: str) -> None:
    producer = Producer(A, change=set_field(**fields))
    with pytest.raises(TypeError, match=f"A has dtype {text}; matmul_fused takes float32, "):
        mf.matmul_fused(producer, B)
    assert producer.deleted == 1


BROKEN = [
    (set_field(ndim=-1), BufferError, "A: its DLPack tensor has -1 axes"),
    (set_field(shape=None), BufferError, "A: its DLPack tensor has 2 axes and no shape"),
    (set_field(data=None), BufferError, "A: its DLPack tensor has elements but no memory"),
    (
        set_field(byte_offset=2),
        ValueError,
        r"A lies at an address that is no multiple of its item size \(4\); copy it first",
    ),
    (set_field(ndim=9), NotImplementedError, "A has 9 axes; at most 8 are supported"),
]


@pytest.mark.parametrize(("change", "error", "text"), BROKEN, ids=[text for _, _, text in BROKEN])
def test_broken_tensors(change: Any, error: type[Exception], text: str) -> None:
    producer = Producer(A, change=change)
    with pytest.raises(error, match=text):
        mf.matmul_fused(producer, B)
    assert producer.deleted == 1


def test_negative_length() -> None:
    def change(tensor: DLTensor) -> None:
        tensor.shape[0] = -5

    with pytest.raises(BufferError, match="negative length"):
        mf.matmul_fused(Producer(A, change=change), B)


@pytest.mark.parametrize("strides", [True, False])
@pytest.mark.parametrize("lengths", [(2**62, 2**62), (2**40, 2**40), (2**61, 7)])
def test_more_elements_than_memory(lengths: tuple[int, int], strides: bool) -> None:
    def change(tensor: DLTensor) -> None:
        tensor.shape[0], tensor.shape[1] = lengths
        if not strides:
            tensor.strides = None

    producer = Producer(A, change=change)
    with pytest.raises(BufferError, match="A: its DLPack tensor has more elements than any memory"):
        mf.matmul_fused(producer, B)
    assert producer.deleted == 1


@pytest.mark.parametrize("stride", [2**62, 2**63 - 1, -(2**63), 2**55])
def test_strides_beyond_memory(stride: int) -> None:
    def change(tensor: DLTensor) -> None:
        tensor.strides[1] = stride

    producer = Producer(A, change=change)
    with pytest.raises(ValueError, match="A has lengths and strides that reach farther than any memory"):
        mf.matmul_fused(producer, B, out=np.empty((5, 6), np.float32))
    assert producer.deleted == 1


@pytest.mark.parametrize("shape", [(0, 7), (5, 0)])
def test_strides_over_nothing_may_be_anything(shape: tuple[int, int]) -> None:
    def change(tensor: DLTensor) -> None:
        tensor.strides[0], tensor.strides[1] = 2**62, -(2**63)

    out = np.full((shape[0], 6), np.nan, np.float32)
    mf.matmul_fused(Producer(np.empty(shape, np.float32), change=change), B[: shape[1]], out=out)
    assert not out.any()


def test_no_memory_is_fine_without_elements() -> None:
    empty = np.empty((0, 7), np.float32)
    result = mf.matmul_fused(Producer(empty, change=set_field(data=None)), B)
    assert result.shape == (0, 6)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ((2, 0), r"says \(2, 0\) but its capsule \(1, 0\)"),
        ((1, 3), r"says \(1, 3\) but its capsule \(1, 0\)"),
        (None, "returned no pair"),
        ((1, 0, 0), "returned no pair"),
        (("cpu", 0), "__dlpack_device__.. failed"),
        (RuntimeError("no device"), "__dlpack_device__.. failed"),
        ((1, 2**100), "__dlpack_device__.. failed"),
    ],
)
def test_lying_or_broken_device(device: Any, text: str) -> None:
    producer = Producer(A, device=device)
    with pytest.raises(BufferError, match=text):
        mf.matmul_fused(producer, B)
    assert producer.deleted == len(producer.handed)


def test_no_device_method() -> None:
    class Half:
        def __dlpack__(self, **keywords: Any) -> Any:
            return A.__dlpack__(**keywords)

    with pytest.raises(BufferError, match=r"A: its __dlpack_device__\(\) failed") as caught:
        mf.matmul_fused(Half(), B)
    assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.parametrize("name", [b"used_dltensor", b"used_dltensor_versioned", b"other"])
def test_other_capsule_names(name: bytes) -> None:
    producer = Producer(A, name=name)
    with pytest.raises(BufferError, match=f'a capsule named "{name.decode()}"'):
        mf.matmul_fused(producer, B)
    assert producer.deleted == 0  # not ours to free


def test_no_capsule_at_all() -> None:
    class Wrong(Producer):
        def __dlpack__(self, **keywords: Any) -> Any:
            return 3

    with pytest.raises(BufferError, match="returned a int, not a DLPack capsule"):
        mf.matmul_fused(Wrong(A), B)


def device_change(device_type: int, ordinal: int = 0) -> Any:
    def change(tensor: DLTensor) -> None:
        tensor.device.device_type = device_type
        tensor.device.device_id = ordinal

    return change


def on_device(array: np.ndarray, device_type: int, ordinal: int = 0) -> Producer:
    return Producer(array, device=(device_type, ordinal), change=device_change(device_type, ordinal))


@pytest.mark.parametrize("device_type", [3, 11])
def test_pinned_host_memory_is_the_cpu(device_type: int) -> None:
    check_product(mf.matmul_fused(on_device(A, device_type), B))


@pytest.mark.parametrize(("device_type", "gpus", "stream"), [(2, "NVIDIA", 1), (13, "NVIDIA", 1), (10, "AMD", 0)])
def test_gpu_operands_without_such_a_gpu(device_type: int, gpus: str, stream: int) -> None:
    a, b = on_device(A, device_type, 60), on_device(B, device_type, 60)
    with pytest.raises(mf.DeviceError, match=f"{gpus} GPUs cannot be used: |there is no device (cuda|rocm):60; "):
        mf.matmul_fused(a, b)
    assert (a.deleted, b.deleted) == (1, 1)
    assert a.calls == b.calls == [{"max_version": (1, 3), "stream": stream}]  # the default stream, as DLPack names it


@pytest.mark.parametrize(("library", "stream"), [("another", -1), ("jax", None)])
def test_what_explain_asks_for(library: str, stream: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no memory, so nothing has to be in order; jax's __dlpack__ takes -1 for a stream."""

    class Array(Producer):
        pass

    if library == "jax":
        monkeypatch.setattr(pytest.importorskip("jax"), "Array", Array)
    a, b = (Array(x, device=(2, 60), change=device_change(2, 60)) for x in (A, B))
    with pytest.raises(mf.DeviceError, match=r"NVIDIA GPUs cannot be used: |there is no device cuda:60; "):
        mf.explain(a, b)
    assert a.calls == b.calls == [{"max_version": (1, 3), "stream": stream}]


def test_operands_on_two_devices() -> None:
    a = on_device(A, 2)
    with pytest.raises(ValueError, match="B is on cpu but A is on cuda:0; move it to A's device"):
        mf.matmul_fused(a, B)
    assert a.deleted == 1


@pytest.mark.parametrize("device", [(2**32 + 1, 0), (1, 2**32), (1 - 2**32, 0), (2**70, 0)])
def test_a_device_number_is_not_cut(device: tuple[int, int]) -> None:
    for producer in (Producer(A, device=device), Producer(A, device=device, versioned=False)):
        with pytest.raises(BufferError, match=r"^A: its __dlpack_device__\(\) (returned|failed)"):
            mf.matmul_fused(producer, B)
        assert producer.calls == []


def test_unknown_device() -> None:
    with pytest.raises(NotImplementedError, match="A is on a device of DLPack type 7"):
        mf.matmul_fused(on_device(A, 7), B)


def test_failure_of_a_later_operand_frees_the_earlier_ones() -> None:
    a, b = Producer(A), Producer(B, raises=RuntimeError("late"))
    with pytest.raises(BufferError):
        mf.matmul_fused(a, b)
    with pytest.raises(ValueError, match="bias has shape"):
        mf.matmul_fused(a, B, Producer(A))
    with force_kernel("cpu_reference"), pytest.raises(NotImplementedError):
        mf.matmul_fused(a, mf.prepack(B))
    assert a.deleted == 3


def test_read_only_inputs_are_taken() -> None:
    check_product(mf.matmul_fused(Producer(A, flags=READ_ONLY), B))


UNVERSIONED = "comes in an unversioned DLPack capsule, which cannot say that it may be written; pass an array whose"


@pytest.mark.parametrize(
    ("keywords", "text"),
    [({"flags": READ_ONLY}, "is read-only"), ({"versioned": False}, UNVERSIONED)],
    ids=["read-only", "unversioned"],
)
@pytest.mark.parametrize("argument", ["out", "preactivation"])
def test_outputs_must_be_writable(keywords: dict[str, Any], text: str, argument: str) -> None:
    buffer = np.full((5, 6), np.nan, np.float32)
    producer = Producer(buffer, **keywords)
    with pytest.raises(ValueError, match=f"^{argument} {text}"):
        mf.matmul_fused(A, B, **{argument: producer})
    assert producer.deleted == 1
    assert np.isnan(buffer).all()


def test_out_capsule_is_written_and_returned() -> None:
    buffer = np.full((5, 6), np.nan, np.float32)
    producer = Producer(buffer)
    assert mf.matmul_fused(A, B, out=producer) is producer
    check_product(buffer)
    assert producer.deleted == 1
