"""Try the wheel of dist/ on every CPython from 3.11 on that this machine has: `python tools/wheel_try.py`.

Each gets a fresh virtual environment with the wheel, NumPy and pytest, and runs a part of the suite that needs no more;
on the newest also test_lifetime.py, which counts references, watches memory and ends interpreters. With --ends, those
between the oldest and the newest leave out the sweep: what differs between Pythons is their API, not the arithmetic.
Seconds and sizes are printed and written to build/reports/wheel.json. The tests run side by side, one Python for each
processor; what is timed before them, one Python after the other.
"""

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
API_TESTS = ("tests/test_dlpack.py", "tests/test_exchange_api.py", "tests/test_errors.py")
TESTS = ("tests/test_sweep.py", *API_TESTS)
OF_THE_NEWEST = ("tests/test_lifetime.py",)
CHOICE = "not test_sample or chosen"  # of the sweep: each case as the plan chooses
FACTS = (
    "import platform, sys, sysconfig; print(platform.python_implementation(), sys.version_info >= (3, 11), "
    "sysconfig.get_config_var('Py_GIL_DISABLED') or 0, platform.python_version(), sys.base_prefix)"
)
IMPORT = """
import time
start = time.perf_counter()
import numpy
between = time.perf_counter()
import matmul_fused
print(between - start, time.perf_counter() - between)
"""


def pythons():
    """version -> interpreter, for every CPython >= 3.11 with the stable ABI (free-threaded builds have another)."""
    folders = [*os.environ["PATH"].split(os.pathsep), "/usr/bin", "/usr/local/bin"]
    folders += map(str, Path.home().glob(".pyenv/versions/*/bin"))
    paths = [path for folder in folders for path in sorted(Path(folder).glob("python3.*"))]
    found = {}
    for path in paths:
        if not re.fullmatch(r"python3\.\d+", path.name):
            continue
        done = subprocess.run([path, "-I", "-c", FACTS], check=False, capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.startswith("CPython True 0 "):
            version, prefix = done.stdout.split()[3:]
            found.setdefault((version, prefix), path)
    order = sorted(found, key=lambda key: (tuple(map(int, re.findall(r"\d+", key[0]))), key[1]))
    return {f"{version} ({prefix})": found[version, prefix] for version, prefix in order}


def seconds(command, **keywords):
    start = time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, **keywords)
    return time.perf_counter() - start


def install(wheel, interpreter, folder):
    """The wheel and what the tests need, in a virtual environment at folder. The figures."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)  # Debian may lack ensurepip
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--only-binary=:all:"]
    row = {"install_with_numpy_s": seconds([*pip, wheel])}
    row["install_s"] = seconds([*pip, "--force-reinstall", "--no-deps", wheel])
    imports = [
        list(map(float, subprocess.check_output([python, "-c", IMPORT], text=True, cwd="/").split())) for _ in range(9)
    ]
    medians = map(statistics.median, zip(*imports, strict=True))
    row["import_numpy_ms"], row["import_ms"] = (1000 * median for median in medians)
    subprocess.run([*pip, "--group", f"{ROOT}/pyproject.toml:wheel-test"], check=True)
    return row


def test(interpreter, folder, tests):
    """The figures of the tests in that environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTHONPATH")}
    command = [folder / "bin/python", "-m", "pytest", "-q", "-r", "fE", "-p", "no:cacheprovider", "-k", CHOICE, *tests]
    start = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    took = time.perf_counter() - start
    passed = re.search(r"(\d+) passed", done.stdout)
    if done.returncode or not passed:
        sys.exit(f"{interpreter}: {done.stdout}{done.stderr}")
    return {"test_s": took, "passed": int(passed[1])}


def tests_of(number, count, ends):
    """The tests of one of the Pythons, which are in order of age."""
    if number == count - 1:
        return (*TESTS, *OF_THE_NEWEST)
    return TESTS if number == 0 or not ends else API_TESTS


def main(ends):
    wheels = list((ROOT / "dist").glob(f"*manylinux*_{platform.machine()}.whl"))
    if len(wheels) != 1:
        sys.exit(f"dist/ holds {len(wheels)} wheels for {platform.machine()}; make wheel builds one")
    (wheel,) = wheels
    report = {"wheel": wheel.name, "bytes": wheel.stat().st_size, "pythons": {}}
    found = pythons()
    folders = [ROOT / f"build/wheel/venv{number}" for number in range(len(found))]
    for (name, interpreter), folder in zip(found.items(), folders, strict=True):
        report["pythons"][name] = install(wheel, interpreter, folder)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [
            pool.submit(test, interpreter, folder, tests_of(number, len(found), ends))
            for number, (interpreter, folder) in enumerate(zip(found.values(), folders, strict=True))
        ]
    for (name, row), job in zip(report["pythons"].items(), jobs, strict=True):
        row |= job.result()
        print(
            f"CPython {name}: {row['passed']} tests passed in {row['test_s']:.0f} s; "
            f"installed in {row['install_s']:.1f} s (with NumPy {row['install_with_numpy_s']:.1f}), "
            f"imported in {row['import_ms']:.1f} ms (NumPy before it {row['import_numpy_ms']:.0f})",
            flush=True,
        )
    if not report["pythons"]:
        sys.exit("no CPython from 3.11 on was found")
    path = ROOT / "build/reports/wheel.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{wheel.name}: {report['bytes'] / 1024:.0f} KiB; figures in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--ends"]):
        sys.exit(f"{' '.join(sys.argv[1:])}: the only argument is --ends")
    main(ends=bool(sys.argv[1:]))
