"""The package as a newcomer meets it: version, wheel, light import, types, logger, command line."""

import ast
import collections
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import matmul_fused as mf
from matmul_fused import report

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = ("torch", "jax", "ml_dtypes", "rich", "matplotlib", "importlib.metadata", "matmul_fused.testing")


def python(*arguments, check=True, **environment):
    """A child interpreter outside the repository; MATMUL_FUSED_* of this process is not passed on."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MATMUL_FUSED_")}
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        check=check,
        capture_output=True,
        text=True,
        cwd="/",
        env=clean | environment,
        timeout=600,
    )


# --- version and wheel ---


def test_one_version():
    version = PROJECT["project"]["version"]
    assert mf.__version__ == version
    assert importlib.metadata.version("matmul_fused") == version
    assert mf.info().version == version
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version


def test_installed_wheel():
    distribution = importlib.metadata.distribution("matmul_fused")
    tags = re.findall(r"^Tag: (.*)$", distribution.read_text("WHEEL"), re.MULTILINE)
    assert all(tag.startswith(("cp311-abi3-linux", "cp311-abi3-manylinux")) for tag in tags)
    assert tags
    assert Path(mf._core.__file__).name == "_core.abi3.so"
    assert [need for need in distribution.requires if "extra ==" not in need] == ["numpy>=2"]
    package = Path(mf.__file__).parent
    assert all((package / name).is_file() for name in ("py.typed", "__init__.pyi", "_core.pyi"))


def test_references_are_counted_by_the_interpreter():
    """Code inlined from headers of 3.11 has _Py_Dealloc, and counts None and bools down, which 3.12 never counts up."""
    assert b"\0_Py_Dealloc\0" not in Path(mf._core.__file__).read_bytes()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from an sdist of this tree, both in isolation."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    python("-m", "build", "--sdist", "--outdir", str(folder), str(ROOT))
    (sdist,) = folder.glob("*.tar.gz")
    python("-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(sdist))
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_sdist_builds_again_from_itself(wheel, tmp_path):
    assert re.fullmatch(r"matmul_fused-[\d.]+-cp311-abi3-\w*linux\w*\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        installed = {f"matmul_fused/{path.name}" for path in Path(mf.__file__).parent.glob("*.*")}
        assert installed <= set(archive.namelist())
    code = "import matmul_fused as m, numpy as n; print(m.__file__); print(m.matmul_fused(n.eye(2), n.eye(2)).tolist())"
    lines = python("-c", code, PYTHONPATH=str(tmp_path)).stdout.splitlines()
    assert lines == [str(tmp_path / "matmul_fused/__init__.py"), "[[1.0, 0.0], [0.0, 1.0]]"]


# --- import ---


def test_import_is_light():
    code = f"import sys, matmul_fused; print([name for name in {HEAVY} if name in sys.modules])"
    assert python("-c", code).stdout == "[]\n"


def test_subinterpreters_are_refused():
    lines = python(ROOT / "tests" / "isolated" / "subinterpreter.py").stdout.splitlines()
    ours = "matmul_fused works in the main interpreter only, not in subinterpreter [0-9]+"
    pythons = "module matmul_fused._core does not support loading in subinterpreters"  # 3.12 asks the module itself
    for line in lines[:2]:
        assert re.fullmatch(f"{ours}|{pythons}", line)
    assert lines[2:] == ["the main interpreter works"]


def test_testing_is_imported_on_first_use():
    code = "import sys, matmul_fused as m; m.testing; print('matmul_fused.testing' in sys.modules)"
    assert python("-c", code).stdout == "True\n"


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="module 'matmul_fused' has no attribute 'matmul'"):
        mf.matmul  # noqa: B018


def test_public_names():
    assert sorted(mf.__all__) == sorted(dir(mf))
    assert all(hasattr(mf, name) for name in mf.__all__)


def test_the_import_needs_nothing_but_numpy():
    """Other modules cost more than the rest of the import; they come with what needs them."""
    code = (
        "import sys, numpy; before = set(sys.modules); import matmul_fused as mf; print(*set(sys.modules) - before)\n"
        "mf.info(); print(*(set(sys.modules) - before) & {'dataclasses', 'logging'})"
    )
    done = python("-c", code, MATMUL_FUSED_TUNE="off")  # a store is read by more modules
    alone, later = (line.split() for line in done.stdout.splitlines())
    assert sorted(alone) == ["matmul_fused", "matmul_fused._core"]
    assert sorted(later) == ["dataclasses", "logging"]


# --- logger ---


def test_logger_is_silent_unless_asked():
    logger = logging.getLogger("matmul_fused")
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]
    assert python("-c", "import matmul_fused").stderr == ""


def test_log_level_from_the_environment():
    lines = python("-c", "import matmul_fused", MATMUL_FUSED_LOG="debug").stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"matmul_fused: DEBUG: version {mf.__version__}, kernels ")
    assert python("-c", "import matmul_fused", MATMUL_FUSED_LOG="info").stderr == ""


def test_unknown_log_level_is_told():
    assert "MATMUL_FUSED_LOG=loud: ignored, " in python("-c", "import matmul_fused", MATMUL_FUSED_LOG="loud").stderr


# --- types ---


def _mypy(*paths):
    pytest.importorskip("mypy", reason="mypy is not installed")
    cache = ROOT / ".mypy_cache"
    done = python("-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(cache), *map(str, paths), check=False)
    return done.stdout + done.stderr


def test_stubs_for_a_user():
    path = ROOT / "tests" / "typing" / "user.py"
    said = _mypy(path)
    errors = {int(line) for line in re.findall(r"user\.py:(\d+): error", said)}
    assert all(said.count(f"user.py:{line}:") <= 15 for line in errors)
    wanted = {number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# error")}
    assert errors == wanted


def test_stubs_for_a_user_by_pyright():
    """The same by pyright (a package of PyPI that runs on node)."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    if not shutil.which("node"):
        pytest.skip("pyright needs node")
    path = ROOT / "tests" / "typing" / "user.py"
    done = python("-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(path), check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = collections.Counter()
    for error in found:
        lines[error["range"]["start"]["line"] + 1] += error["message"].count("\n") + 1
    wanted = {number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# error")}
    assert set(lines) == wanted, done.stdout
    assert max(lines.values()) <= 15, lines


def test_stubs_for_a_user_of_torch():
    pytest.importorskip("torch")
    assert _mypy(ROOT / "tests" / "typing" / "torch_user.py").startswith("Success")


def test_the_full_text_has_every_activation():
    text = (Path(mf.__file__).parent / "__init__.pyi").read_text()
    for name, _, formula, source, parameters, _ in mf._core.activation_table()[1:]:
        said = text[text.index('"""activation(alpha') :].replace("\n            ", " ")
        assert f"{formula}" in said, name
        assert source in ("", "torch") or f"[{source}]" in said, name
        for parameter, default in parameters:
            assert parameter in said if default is None else f"{parameter}={default:g}" in said, (name, parameter)


def test_help_reaches_the_formulas():
    text = inspect.getdoc(mf.matmul_fused)
    for name, _, formula, *_ in mf._core.activation_table():
        assert f"{name}: {formula}" in text


def test_stubs_match_the_package(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    allowed = tmp_path / "allowed"
    # private; typed inline, exported lazily; typed in __init__.pyi; a class within a function
    names = [r"(_core|testing)\..*", r"report\.explain", r"integrations\.sglang\.FusedDualGemm@\d+"]
    # mypy does not look into torch, if it is there, and takes what is cached for any function
    torch = importlib.util.find_spec("torch")
    hosts = r"(torch|integrations\.(seam|transformers|vllm_graph))(\..*)?"
    names.append(r"torch\.(functional|modules|reading|sharded)\._\w+" if torch else hosts)
    allowed.write_text(rf"matmul_fused\.({'|'.join(names)})")
    options = ("--concise", "--allowlist", str(allowed), "--mypy-config-file", str(ROOT / "pyproject.toml"))
    done = python("-m", "mypy.stubtest", "matmul_fused", *options, check=False)
    assert done.returncode == 0, done.stdout


def _parameters(function):
    return {p.name: (p.kind, p.default) for p in inspect.signature(function).parameters.values() if p.name != "self"}


def _stub_parameters(node):
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return _parameters(eval(f"lambda {ast.unparse(node.args)}: None"))


def test_signatures_at_run_time_are_those_of_the_stubs():
    tree = ast.parse((Path(mf.__file__).parent / "__init__.pyi").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and hasattr(mf, node.name)]
    overloads = {}
    for owner, space in ((mf, tree), *((getattr(mf, node.name), node) for node in classes)):
        for node in (node for node in space.body if isinstance(node, ast.FunctionDef)):
            if callable(getattr(owner, node.name)):  # no property
                overloads.setdefault(getattr(owner, node.name), []).append(_stub_parameters(node))
    assert {mf.matmul_fused, mf.explain, mf.prepack, mf.set_num_threads, mf.get_num_threads} <= set(overloads)
    assert {mf.PackedMatrix.unpack, mf.Array.__dlpack__, mf.Array.__dlpack_device__} <= set(overloads)
    for function, stubs in overloads.items():
        real = _parameters(function)
        for name in {name for stub in stubs for name in stub} | set(real):
            assert all(stub[name][0] == real[name][0] for stub in stubs), (function, name)
            # an overload may demand what another one leaves out
            defaults = {stub[name][1] for stub in stubs}
            assert real[name][1] in defaults, (function, name)
            assert defaults <= {real[name][1], inspect.Parameter.empty}, (function, name)
        assert all(list(stub) == list(real) for stub in stubs), function


@pytest.mark.parametrize(
    "name", ["matmul_fused", "prepack", "as_prepacked", "explain", "info", "set_num_threads", "get_num_threads"]
)
def test_help_is_enough_at_a_prompt(name):
    function = getattr(mf, name)
    text = inspect.getdoc(function)
    assert all(len(line) <= 115 for line in text.splitlines())
    if name in ("matmul_fused", "prepack", "as_prepacked"):  # one line for every argument, the errors
        for parameter in inspect.signature(function).parameters:
            assert re.search(rf"^(\w+, )*{parameter}(, \w+)*  +\S", text, re.MULTILINE), parameter
        assert "Raises" in text


def test_stubs_document_everything():
    tree = ast.parse((Path(mf.__file__).parent / "__init__.pyi").read_text())
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    documented = {node.name for node in public if ast.get_docstring(node)}
    assert {node.name for node in public} == documented


# --- explain and info ---


def test_explanation_prints_as_a_table():
    a = np.ones((4, 8), np.float32)
    explanation = mf.explain(a, a.T, activation="relu")
    assert explanation.kernel in mf.info().kernels
    assert explanation.flops == 2 * 4 * 4 * 8
    assert tuple(row.name for row in explanation.candidates) == mf.info().kernels
    for row in explanation.candidates:
        assert (row.seconds is None) == (row.reason is not None)
    assert explanation.seconds == {row.name: row.seconds for row in explanation.candidates}[explanation.kernel]
    text = str(explanation)
    assert repr(explanation) == text
    assert re.search(rf"^  kernel +{explanation.kernel}$", text, re.MULTILINE)
    assert re.search(r"^  time +[\d.]+ [mun]?s, modelled$", text, re.MULTILINE)


def test_explain_raises_what_the_call_would():
    a = np.ones((4, 8), np.float32)
    with pytest.raises(ValueError) as explained:  # noqa: PT011
        mf.explain(a, a)
    with pytest.raises(ValueError) as called:  # noqa: PT011
        mf.matmul_fused(a, a)
    assert str(explained.value) == str(called.value)


def test_info_prints_as_a_table():
    info = mf.info()
    text = str(info)
    assert text.startswith(f"matmul_fused {mf.__version__}\n")
    for word in (
        *info.kernels,
        np.__version__,
        "AMD GPUs",
        "NVIDIA GPUs",
        *info.gpu_families,
        *(row[0] for row in info.environment),
    ):
        assert word in text


def test_info_finds_libraries_without_importing_them():
    code = (
        "import sys, matmul_fused as m; i = m.info(); print({n: rest for n, *rest in i.libraries}); "
        "print([n for n in ('torch', 'jax', 'ml_dtypes') if n in sys.modules])"
    )
    found, imported = map(ast.literal_eval, python("-c", code).stdout.splitlines())
    for name, (version, folder) in found.items():
        spec = importlib.util.find_spec(name)
        assert (version is None) == (spec is None)
        assert folder == (spec and str(Path(spec.origin).parent))
    assert found["numpy"] == [np.__version__, str(Path(np.__file__).parent)]
    assert imported == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (1.25e-5, "12.5 us"), (3e-10, "0.3 ns"), (1e-3, "1 ms"), (2.5, "2.5 s"), (4e9, "4 Gs")],
)
def test_engineering_units(value, text):
    assert report.engineering(value, "s") == text
