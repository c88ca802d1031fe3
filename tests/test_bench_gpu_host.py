"""bench/bench_gpu_host.py runs, here on the stand-in CUDA driver: its figures are for real GPUs."""

import json
import subprocess
import sys

import stub_cuda
from gpu_support import PATHS
from test_device_objects import ROOT


def test_bench_of_the_host_cost(tmp_path):
    path = tmp_path / "host.json"
    environment = {"MATMUL_FUSED_CUDA_LIBRARY": str(stub_cuda.build()), "PYTHONPATH": PATHS}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # torch and CuPy would find those of a real driver
    command = [sys.executable, ROOT / "bench/bench_gpu_host.py", "--rounds", "4", "--calls", "3", "--json", path]
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads(path.read_text())
    assert written["gpu"].startswith("Stub 0, sm_90")
    assert {"bare launch", "bare launch, without ctypes", "matmul_fused, DLPack, out="} <= set(written["microseconds"])
    for arm, samples in written["microseconds"].items():
        assert arm in done.stdout
        assert len(samples) == 4
