"""Fused layers that are sharded by torch's parallelize_module: values and gradients are those of the whole layer."""

import ast
import contextlib
import json
import os
import subprocess
import sys

import pytest

from support import ISOLATED, python

torch = pytest.importorskip("torch")

SCRIPT = ISOLATED / "parallel.py"
CASES = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]
LIMIT = 400  # seconds for all of them; they need a few


@pytest.fixture(scope="module", params=["cpu", "cuda"], ids=["gloo", "nccl"])
def outcome(request, tmp_path_factory):
    """{case: "" or its error} in each of two processes."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    if request.param == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL not run: it needs two GPUs")
    folder = tmp_path_factory.mktemp("parallel")
    outs, logs = ([folder / f"rank{rank}.{kind}" for rank in range(2)] for kind in ("json", "log"))
    with contextlib.ExitStack() as stack:
        both = []
        for rank in range(2):
            command = [sys.executable, SCRIPT, str(rank), folder / "store", request.param, outs[rank]]
            log = stack.enter_context(logs[rank].open("w"))
            environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
            both.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
            stack.callback(both[-1].wait)
            stack.callback(both[-1].kill)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the first case without an outcome shows the logs
            for process in both:
                process.wait(LIMIT)
    return [
        (json.loads(out.read_text()) if out.exists() else {}, log.read_text())
        for out, log in zip(outs, logs, strict=True)
    ]


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("case", CASES)
def test_two_processes(outcome, case):
    for said, log in outcome:
        assert said.get(case, f"did not end; all that was printed:\n{log}") == ""


def test_torch_distributed_is_imported_with_the_first_sharded_tensor_alone():
    code = (
        "import sys, torch, matmul_fused.torch as mt\n"
        "mt.FusedMLP(4, 6)(torch.randn(2, 4)).sum().backward()\n"
        "assert 'torch.distributed.tensor' not in sys.modules\n"
        "assert 'matmul_fused.torch.sharded' not in sys.modules\n"
    )
    python("-c", code)


def test_layers_of_others_in_a_fused_mlp_are_refused():
    from matmul_fused.torch import FusedMLP

    module = FusedMLP(4, 6)
    module.gate_proj = torch.nn.Sequential(torch.nn.Linear(4, 6))
    with pytest.raises(TypeError, match="gate_proj and up_proj are Sequential and Linear; FusedMLP has no rule"):
        module(torch.randn(2, 4))
