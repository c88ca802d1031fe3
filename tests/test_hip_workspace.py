"""Plans of two launches and a workspace on simulated AMD GPUs, where work runs late and in a seeded order: memory that
goes back too early, or a launch too soon, is a wrong result or a violation.
"""

import gc

import pytest

import hipsim
import matmul_fused as mf
from hip_support import account, in_child, simulator  # noqa: F401
from matmul_fused.testing import force_kernel
from support import check, draw


@pytest.mark.parametrize("seed", range(8))
def test_workspaces_on_several_streams(seed):
    hipsim.configure(seed=seed)
    dev = hipsim.Device("gfx942")
    streams = [dev.stream(), dev.stream(), None]
    pairs = [(draw((9, 300), seed=i), draw((300, 20), seed=9 + i)) for i in range(6)]
    with force_kernel("gemm_simt_splitk"):
        results = [
            mf.matmul_fused(dev.array(a), dev.array(b), activation="relu", stream=streams[i % 3])
            for i, (a, b) in enumerate(pairs)
        ]
    for (a, b), y in zip(pairs, results, strict=True):
        check(dev.to_numpy(y), a, b, activation="relu")


def test_workspaces_do_not_pile_up():
    dev = hipsim.Device("gfx942")
    a, b, out = dev.array(draw((9, 300))), dev.array(draw((300, 20))), dev.empty((9, 20))
    with force_kernel("gemm_simt_splitk"):
        live = set()
        for _ in range(4):
            mf.matmul_fused(a, b, out=out)
            gc.collect()
            dev.synchronize()
            live.add(dev.report(reset=False).allocations)
    assert len(live) == 1


def test_graphs_with_workspaces_of_a_library():
    """Two graphs, each with the memory that its library gave it, replayed in turn and at once."""
    in_child("""
import sys, types
from matmul_fused.testing import force_kernel
dev = hipsim.Device(0)
pool = [dev.empty((1 << 14,)) for _ in range(4)]  # a capture may not allocate; a graph's memory stays its own
cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
class ndarray:
    def __init__(self, array):
        self.array = array
        self.data = types.SimpleNamespace(ptr=array.pointer)
    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
current, given = types.SimpleNamespace(ptr=0), []
def empty(shape, dtype):
    given.append(shape)
    return ndarray(pool[len(given) - 1])
cupy.ndarray, cupy.cuda, cupy.empty = ndarray, cuda, empty
cuda.get_current_stream = lambda ordinal: current
cuda.runtime = types.SimpleNamespace(getDevice=lambda: 0)
sys.modules.update({"cupy": cupy, "cupy.cuda": cuda})

a, b = draw((9, 300)), draw((300, 20))
x, w = dev.array(a), dev.array(b)
outs = [dev.empty((9, 20)) for _ in range(2)]
streams = [dev.stream(), dev.stream()]
graphs = []
def call(out, activation, stream):
    current.ptr = stream.handle
    mf.matmul_fused(ndarray(x), ndarray(w), out=ndarray(out), activation=activation)
with force_kernel("gemm_simt_splitk"):
    for out, activation, stream in zip(outs, ("relu", "silu"), streams):
        call(out, activation, stream)  # loads
        dev.synchronize()
        with dev.capture(stream) as graph:
            call(out, activation, stream)
        graphs.append(graph)
assert given == [(5 * 9 * 20,)] * 4, given
for seed in (7, 8, 9):
    hipsim.configure(seed=seed)
    new = draw(a.shape, seed=seed)
    hipsim.hip("hipMemcpyAsync", x.pointer, new.ctypes.data, new.nbytes, 1, 0)
    dev.synchronize()
    for _ in range(2):
        for graph, stream in zip(graphs, streams):
            graph.launch(stream)
    for out, activation, stream in zip(outs, ("relu", "silu"), streams):
        check(dev.to_numpy(out, stream=stream), new, b, activation=activation)
for graph in graphs:
    graph.destroy()
dev.assert_clean()
""")
