"""Host cost of one small call on an NVIDIA GPU, beside what it cannot do without: a result's memory and a launch.

    python bench/bench_gpu_host.py [--device cuda:0] [--rounds N] [--calls N] [--json FILE]

1x64 @ 64x64 float32, bias, relu. Arms are interleaved round by round; a sample is the mean of a few calls (too few to
fill the driver's queue), and the device is idle again before the next one. Shown are medians and quartiles over the
rounds, microseconds. A bare launch is cuLaunchKernel by ctypes less a C function that does nothing, called with the
same arguments: of an empty kernel, and of one with as many bytes of arguments as ours has.

Operands are torch's, CuPy's besides; without torch's CUDA those of a plain DLPack producer, written in Python, whose
own cost is then part of the call's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import random
import statistics
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import matmul_fused as mf
from matmul_fused import _core
from matmul_fused.testing import assert_close, expect
from matmul_fused.testing.devices import Device

GOAL = 1.5  # microseconds, beside the result's memory and the launch
ARGUMENT_BYTES = 944  # of our kernels: docs/amd_objects.md's objects say so, too
PTX = f"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry empty() {{ ret; }}
.visible .entry empty_with_arguments(.param .align 8 .b8 arguments[{ARGUMENT_BYTES}]) {{ ret; }}
"""
PLAIN, LOADED, NOTHING = "bare launch", f"bare launch, {ARGUMENT_BYTES} bytes", "C function that does nothing"
CALL, CALL_OUT, EMPTY = "matmul_fused, torch", "matmul_fused, torch, out=", "torch.empty"


class Launcher:
    """Bare launches through the driver that the extension uses."""

    def __init__(self, ordinal: int) -> None:
        self.driver = ctypes.PyDLL(_core.gpus()["libraries"]["cuda"])  # keeps the GIL: nothing but the call is timed
        self.context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), ordinal)
        self._check("cuCtxPushCurrent_v2", self.context)
        self._check("cuModuleLoadData", ctypes.byref(module), PTX.encode())
        self.functions = [self._function(module, name) for name in (b"empty", b"empty_with_arguments")]
        self.block = ctypes.create_string_buffer(ARGUMENT_BYTES)
        self.pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.block))
        prototype = (ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
        self.launch, self.nothing = self.driver.cuLaunchKernel, ctypes.PyDLL(None).abs
        self.launch.argtypes = self.nothing.argtypes = prototype

    def _check(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def _function(self, module: Any, name: bytes) -> Any:
        function = ctypes.c_void_p()
        self._check("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function

    def synchronize(self) -> None:
        self._check("cuCtxSynchronize")

    def arms(self) -> tuple[dict[str, str], dict[str, Any]]:
        names = {"launch": self.launch, "nothing": self.nothing, "pointers": self.pointers}
        names |= {"plain": self.functions[0], "loaded": self.functions[1]}
        for function in self.functions:
            if self.launch(function, 1, 1, 1, 1, 1, 1, 0, None, self.pointers, None):
                raise RuntimeError("cuLaunchKernel failed")
        rest = "1, 1, 1, 1, 1, 1, 0, None, pointers, None)"
        return {
            PLAIN: f"launch(plain, {rest}",
            LOADED: f"launch(loaded, {rest}",
            NOTHING: f"nothing(plain, {rest}",
        }, names


def operands() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = ((1, 64), (64, 64), (64,), (1, 64))
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


def torch_arms(ordinal: int) -> tuple[dict[str, str], dict[str, Any]]:
    import torch
    import torch.nn.functional as functional

    device = torch.device("cuda", ordinal)
    torch.cuda.set_device(device)
    host = operands()
    tA, tB, tb, tout = (torch.from_numpy(x).to(device) for x in host)
    W = tB.T.contiguous()
    expected, _ = expect(*host[:3], "relu")
    assert_close(mf.matmul_fused(tA, tB, tb, "relu").cpu().numpy(), expected, "float32")
    names = {"tA": tA, "tB": tB, "tb": tb, "tout": tout, "W": W, "WT": W.T, "empty": torch.empty, "device": device}
    names |= {"linear": functional.linear, "relu": torch.relu}
    return {
        CALL: "f(tA, tB, tb, 'relu')",
        CALL_OUT: "f(tA, tB, tb, 'relu', out=tout)",
        "matmul_fused, torch, W.T, out=": "f(tA, WT, tb, 'relu', out=tout)",
        EMPTY: "empty((1, 64), device=device)",
        "torch linear + relu": "relu(linear(tA, W, tb))",
    }, names


def cupy_arms(ordinal: int) -> tuple[dict[str, str], dict[str, Any]]:
    import cupy

    cupy.cuda.Device(ordinal).use()
    cA, cB, cb, cout = (cupy.asarray(x) for x in operands())
    names = {"cA": cA, "cB": cB, "cb": cb, "cout": cout, "cupy_empty": cupy.empty}
    return {
        "matmul_fused, CuPy": "f(cA, cB, cb, 'relu')",
        "matmul_fused, CuPy, out=": "f(cA, cB, cb, 'relu', out=cout)",
        "cupy.empty": "cupy_empty((1, 64), 'float32')",
    }, names


def plain_arms(ordinal: int) -> tuple[dict[str, str], dict[str, Any]]:
    device = Device(f"cuda:{ordinal}")
    names = {name: device.array(x) for name, x in zip(("A", "B", "b", "out"), operands(), strict=True)}
    return {
        "matmul_fused, DLPack": "f(A, B, b, 'relu')",
        "matmul_fused, DLPack, out=": "f(A, B, b, 'relu', out=out)",
    }, names


def libraries() -> list[Callable[[int], tuple[dict[str, str], dict[str, Any]]]]:
    """Of what this machine has of them."""
    found: list[Callable[[int], tuple[dict[str, str], dict[str, Any]]]] = []
    try:
        import torch

        found += [torch_arms] if torch.cuda.is_available() else []
    except ImportError:
        pass
    try:
        import cupy

        found += [cupy_arms] if cupy.cuda.is_available() else []
    except ImportError:
        pass
    return found or [plain_arms]


def measure(ordinal: int, rounds: int, calls: int) -> dict[str, list[float]]:
    """Microseconds per call of every arm, a sample per round; the order is another one in every round."""
    launcher = Launcher(ordinal)
    arms, names = launcher.arms()
    for library in libraries():
        more_arms, more_names = library(ordinal)
        arms, names = more_arms | arms, more_names | names
    names["f"] = mf.matmul_fused
    # locals of a function are the cheapest names Python has: the cost of the call is what remains
    setup = "; ".join(f"{name} = {name}_" for name in names)
    scope = {f"{name}_": value for name, value in names.items()}
    timers = {arm: timeit.Timer(statement, setup, globals=scope) for arm, statement in arms.items()}
    samples: dict[str, list[float]] = {arm: [] for arm in arms}
    order = random.Random(0)
    for turn in range(-2, rounds):  # two to warm up
        for arm in order.sample(list(timers), len(timers)):
            seconds = timers[arm].timeit(calls)
            launcher.synchronize()
            if turn >= 0:
                samples[arm].append(1e6 * seconds / calls)
    return samples


def derive(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    """What is left of a call beside the memory and the launch, round by round."""
    result = {}
    for launch in (PLAIN, LOADED):
        bare = [x - nothing for x, nothing in zip(samples[launch], samples[NOTHING], strict=True)]
        result[f"{launch}, without ctypes"] = bare
        if CALL in samples:
            rounds = zip(samples[CALL], samples[EMPTY], bare, strict=True)
            result[f"call - torch.empty - {launch}"] = [call - empty - x for call, empty, x in rounds]
            result[f"call with out= - {launch}"] = [call - x for call, x in zip(samples[CALL_OUT], bare, strict=True)]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--calls", type=int, default=100, help="a sample: fewer than the driver's queue takes")
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args()
    ordinal = int(options.device.partition(":")[2] or 0)
    samples = measure(ordinal, options.rounds, options.calls)
    samples |= derive(samples)
    about = {"gpu": dict(mf.info().devices)[f"cuda:{ordinal}"], "cpu": cpu_name(), "python": platform.python_version()}
    about |= {name: version for name, version, _ in mf.info().libraries if version}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"{'1x64 @ 64x64 float32, bias, relu':44}{'median us':>10}{'quartiles':>18}")
    for arm, values in samples.items():
        low, median, high = statistics.quantiles(values, n=4)
        print(f"{arm:44}{median:10.2f}{f'{low:.2f} ... {high:.2f}':>18}")
    print(f"goal of call - torch.empty - bare launch: {GOAL}")
    if options.json:
        options.json.write_text(json.dumps({**about, "microseconds": samples}, indent=1) + "\n")


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
