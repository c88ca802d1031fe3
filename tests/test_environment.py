"""Environment variables in new processes: the number of threads, the kernels that may run, what is ignored and told."""

import ast
import os

import pytest

import matmul_fused as mf
from support import ISOLATED, KERNELS, python


def say(expression, **environment):
    """What a new process says of an expression."""
    code = (
        "import os, numpy as np, matmul_fused as mf\n"
        "A, B = np.ones((5, 7), np.float32), np.ones((7, 6), np.float32)\n"
        f"print({expression})"
    )
    return python("-c", code, environment=environment).stdout.strip()


@pytest.mark.parametrize(
    ("matmul_fused", "omp", "threads"),
    [
        ("3", None, "3"),
        ("3", "5", "3"),
        (None, "5", "5"),
        (None, "4,2", "4"),
        ("", "5", "5"),
        ("1024", None, "1024"),
        (" 3 ", None, "3"),
        ("1025", "5", "5"),
        ("99999999999999999999", "5", "5"),
        ("4x", "5", "5"),
        ("2.7", "5", "5"),
        ("1e3", "5", "5"),
        ("4,2", "5", "5"),
        (None, "4x", None),
        (None, "99999999999999999999", "1024"),
        ("0", "5", "5"),
        ("-3", "5", "5"),
        ("many", "5", "5"),
        ("many", "few", None),
        (None, "0", None),
    ],
)
def test_variables_for_the_number_of_threads(matmul_fused, omp, threads):
    """What is no number from 1 to 1024 counts as unset."""
    given = {"MATMUL_FUSED_NUM_THREADS": matmul_fused, "OMP_NUM_THREADS": omp}
    given = {name: value for name, value in given.items() if value is not None}
    assert say("mf.get_num_threads()", **given) == (threads or say("mf.get_num_threads()"))


def test_default_number_of_threads_follows_the_affinity():
    code = "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]); import matmul_fused as mf; print({})"
    assert python("-c", code.format("mf.get_num_threads()")).stdout == "1\n"
    assert 1 <= int(say("mf.get_num_threads()")) <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("how", ["two", "one", "outside"])
def test_a_worker_leaves_the_callers_cpu(how):
    """Where threads of another library spin on every CPU, the scheduler may leave it there."""
    assert python(ISOLATED / "placement.py", how).stdout == "done\n"


def test_variables_are_read_once():
    code = (
        "os.environ.update(MATMUL_FUSED_NUM_THREADS='7', MATMUL_FUSED_KERNEL='cpu_blocked') or mf.explain(A, B).kernel"
    )
    assert say(code, MATMUL_FUSED_KERNEL="cpu_reference") == "cpu_reference"
    code = "{name: value for name, _, value in mf.info().environment if value is not None}"
    set_by_hand = {"MATMUL_FUSED_NUM_THREADS": "2", "MATMUL_FUSED_TUNE": "off"}
    assert say(code, **set_by_hand, MATMUL_FUSED_KERNEL="") == str(set_by_hand)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_variable_names_the_only_kernel(kernel):
    expression = "mf.explain(A, B).kernel, float(mf.matmul_fused(A, B)[0, 0])"
    assert say(expression, MATMUL_FUSED_KERNEL=kernel) == f"{kernel} 7.0"


@pytest.mark.parametrize(
    ("value", "kernel"),
    [
        (KERNELS[0], KERNELS[1]),
        (f" {KERNELS[0]} ,,", KERNELS[1]),
        (",".join(reversed(KERNELS[:-1])), KERNELS[-1]),
        (f"nonsense, {', '.join(KERNELS[:-1])}", KERNELS[-1]),
        (KERNELS[0][:-1], KERNELS[0]),
        (KERNELS[0] + "x", KERNELS[0]),
        ("cpu_reference", KERNELS[0]),
    ],
)
def test_a_variable_disables_kernels(value, kernel):
    assert say("mf.explain(A, B).kernel", MATMUL_FUSED_DISABLE=value) == kernel


def test_no_kernel_is_left():
    code = "import numpy as np, matmul_fused as mf; mf.matmul_fused(np.ones((2, 2)), np.ones((2, 2)))"
    done = python("-c", code, environment={"MATMUL_FUSED_DISABLE": ",".join(mf.info().kernels)}, check=False)
    assert done.returncode == 1
    assert "NotImplementedError: no kernel takes this call (" in done.stderr
    assert "cpu_reference: disabled by MATMUL_FUSED_DISABLE" in done.stderr


NAMES = ", ".join((*mf.info().kernels, *mf.info().gpu_families))
IGNORED = [
    ("NUM_THREADS", "4x", "ignored, it must be a whole number from 1 to 1024"),
    ("NUM_THREADS", "1025", "ignored, it must be a whole number from 1 to 1024"),
    ("KERNEL", "cpu_magic", f'"cpu_magic" is ignored, the kernels of this build are {NAMES}'),
    ("KERNEL", "cpu_reference,cpu_", f'"cpu_" is ignored, the kernels of this build are {NAMES}'),
    ("DISABLE", "cpu_blocked,cpu_magic", f'"cpu_magic" is ignored, the kernels of this build are {NAMES}'),
    ("DISABLE", "\n\udcff" * 99, '"' + r"\n\udcff" * 32 + f'" is ignored, the kernels of this build are {NAMES}'),
    ("LOG", "loud", "ignored, the levels of logging are debug, info, warning, error and critical"),
]


@pytest.mark.parametrize(("name", "value", "why"), IGNORED)
def test_a_variable_without_meaning_is_told(name, value, why):
    """By info, and once to the logger; the program goes on."""
    name = f"MATMUL_FUSED_{name}"
    environment = {"MATMUL_FUSED_LOG": "info", name: value}
    expression = "mf.info().ignored, str(mf.info()), float(mf.matmul_fused(A, B)[0, 0])"
    code = f"import numpy as np, matmul_fused as mf; A = B = np.ones((7, 7)); print(ascii(({expression})))"
    done = python("-c", code, environment=environment)
    ignored, table, value_of_call = ast.literal_eval(done.stdout)
    assert ignored == ((name, why),)
    assert f"{repr(value)[1:-1]} ({why})" in table
    assert value_of_call == 7
    assert done.stderr == f"matmul_fused: WARNING: {name}={repr(value)[1:-1]}: {why}\n"


def test_variables_with_a_meaning_are_not_complained_of():
    environment = {"NUM_THREADS": "3", "KERNEL": KERNELS[0], "DISABLE": f" {NAMES} ,", "LOG": "warning"}
    done = python(
        "-c",
        "import matmul_fused as mf; print(mf.info().ignored)",
        environment={f"MATMUL_FUSED_{name}": value for name, value in environment.items()},
    )
    assert (done.stdout, done.stderr) == ("()\n", "")


@pytest.mark.parametrize("name", [name for name, _, _ in mf.info().environment])
def test_a_variable_that_is_no_text_does_not_break_the_import(name):
    code = "import matmul_fused as mf; print(mf.info()); print(mf.get_num_threads() > 0)"
    done = python("-c", code, environment={name: os.fsdecode(b"\xff\xfe")})
    assert done.stdout.endswith("True\n")
