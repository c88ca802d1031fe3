"""Options, the seed, and the accounts of a run: cases per topic, precision figures, skips.

Reports are written to build/reports/*.json and summarised at the end. What a run may not do: skip for a reason that
tests/allowed_skips.txt does not list while CI=true, or run fewer cases of a topic than tests/case_counts.json says.
"""

from __future__ import annotations

import fnmatch
import gc
import hashlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The reference's many small products: threads that spin for each other cost more than they bring. Before NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What is measured on this machine is none of the tests' business: theirs have stores of their own.
os.environ["MATMUL_FUSED_TUNE"] = "off"

HERE = Path(__file__).parent
REPORTS = HERE.parent / "build" / "reports"

# The stand-in drivers: named before matmul_fused is imported, which reads its environment then; made by who needs them.
STUB_CUDA = HERE.parent / "build" / "stub_cuda" / "libcuda_stub.so"
PARTS = "gfx942,gfx950,gfx1100,gfx90a,gfx1201,gfx942"
HIPSIM = HERE.parent / "build" / "hipsim" / "libamdhip64_sim.so"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("matmul_fused")
    group.addoption("--full", action="store_true", help="every case of the case list, and the slow tests")
    group.addoption(
        "--device",
        default="cpu",
        help="where the operands of the sweeps lie: cpu; hip:gfx942 (or another part), simulated; stub, a stand-in "
        "CUDA driver; rocm or cuda, a real GPU (rocm:1: not the first). Other than cpu: only tests marked device run",
    )
    group.addoption("--shard", default="1/1", metavar="I/N", help="of the tests every N-th, from the I-th on")
    group.addoption("--record-counts", action="store_true", help="rewrite tests/case_counts.json from this run")


def _seed() -> tuple[int, str]:
    """The seed of every random choice of this run, and where it comes from."""
    given = os.environ.get("MMF_TEST_SEED")
    if given:
        return int(given), "MMF_TEST_SEED"
    git = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return 0, "not a git checkout"
    return int(hashlib.sha256(commit.encode()).hexdigest()[:7], 16), f"commit {commit[:12]}"


def _shard(config: pytest.Config) -> tuple[int, int]:
    """(I, N) of --shard."""
    text = config.getoption("shard")
    first, slash, step = text.partition("/")
    if not (slash and first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)):
        raise pytest.UsageError(f"--shard {text}: it is I/N, as 1/4, 2/4, 3/4 and 4/4")
    return int(first), int(step)


class Accounts:
    """What tests record, by report: record("linear", {...}) ends in build/reports/linear.json."""

    def __init__(self) -> None:
        self.reports: dict[str, list[dict[str, Any]]] = {}
        self.lines: dict[str, list[str]] = {}
        self.topics: dict[str, int] = {}
        self.sample_complete = False  # all of the covering sample ran and passed
        self.worst: dict[str, dict[str, float]] = {}  # of the sweep, by dtypes
        self.simulated: dict[str, int] = {}  # counters of the simulated GPU

    def record(self, report: str, row: dict[str, Any]) -> None:
        self.reports.setdefault(report, []).append(row)

    def say(self, title: str, line: str) -> None:
        """A line for the summary at the end of the run."""
        self.lines.setdefault(title, []).append(line)

    def count(self, topics: Any) -> None:
        for topic in topics:
            self.topics[topic] = self.topics.get(topic, 0) + 1

    def join(self, other: dict[str, Any]) -> None:
        """The accounts of another process, which ran other tests."""
        for mine, theirs in ((self.reports, other["reports"]), (self.lines, other["lines"])):
            for name, rows in theirs.items():
                mine.setdefault(name, []).extend(rows)
        for counts, theirs in ((self.topics, other["topics"]), (self.simulated, other["simulated"])):
            for name, count in theirs.items():
                counts[name] = counts.get(name, 0) + count
        for key, row in other["worst"].items():
            mine = self.worst.setdefault(key, dict.fromkeys(row, 0))
            for name, value in row.items():
                mine[name] = max(mine[name], value) if name.endswith("ratio") else mine[name] + value
        self.sample_complete |= other["sample_complete"]


def _choose_device(device: str) -> str:
    """The name of the device for matmul_fused: "cpu", "cuda:0", "rocm:1"; names the stand-in drivers."""
    kind, _, rest = device.partition(":")
    if kind not in ("cpu", "hip", "stub", "rocm", "cuda"):
        raise pytest.UsageError(f"--device {device}: it is cpu, hip:gfx942, stub, rocm or cuda")
    if kind != "cuda":
        os.environ.setdefault("MATMUL_FUSED_CUDA_LIBRARY", str(STUB_CUDA))
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    made = "MATMUL_FUSED_HIP_LIBRARY" in os.environ
    if kind != "rocm":
        os.environ.setdefault("MATMUL_FUSED_HIP_LIBRARY", str(HIPSIM))
        os.environ["HIPSIM_DEVICES"] = rest if kind == "hip" and rest else PARTS
    if kind == "stub":
        import stub_cuda

        stub_cuda.build()
    if kind == "hip":
        import hipsim.build  # finds the disassembler, too

        if not made:
            hipsim.build.build(HIPSIM.parent)
    return {"cpu": "cpu", "stub": "cuda:0", "hip": "rocm:0"}.get(kind, f"{kind}:{rest or 0}")


def pytest_configure(config: pytest.Config) -> None:
    _shard(config)
    device = config.getoption("device")
    os.environ["MMF_TEST_DEVICE"] = _choose_device(device)
    os.environ["MMF_TEST_SIMULATED"] = os.environ["HIPSIM_DEVICES"] if device.startswith("hip") else ""
    config.mmf_accounts = Accounts()  # type: ignore[attr-defined]
    config.mmf_seed, config.mmf_seed_origin = _seed()  # type: ignore[attr-defined]
    os.environ["MMF_TEST_SEED"] = str(config.mmf_seed)  # type: ignore[attr-defined]  # decorators, children
    if config.getoption("full"):
        os.environ.setdefault("MMF_TEST_EXAMPLES", "20000")  # of Hypothesis
    config.mmf_skips = []  # type: ignore[attr-defined]


def pytest_report_header(config: Any) -> str:
    full = "full" if config.getoption("full") else "covering sample"
    return (
        f"matmul_fused: MMF_TEST_SEED={config.mmf_seed} ({config.mmf_seed_origin}), {full}, "
        f"device {config.getoption('device')}"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests that need a real GPU, or a simulated one, are not part of other runs."""
    kinds = {
        "test_cuda.py": "cuda",
        "test_cuda_precision.py": "cuda",
        "test_jax_cuda.py": "cuda",
        "test_wgmma.py": "cuda",
        "test_mma.py": "cuda",
        "test_gemv.py": "cuda",
        "test_mma_thin.py": "cuda",
        "test_repack.py": "cuda",
        "test_mutants.py": "hip",
        "test_large.py": "hip",
    }
    needs = kinds.get(collection_path.name, "")
    return None if config.getoption("device").startswith(needs) else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --full, tests marked slow are deselected; on a GPU, those that are not marked device."""

    def wanted(item: pytest.Item) -> bool:
        slow, device = item.get_closest_marker("slow"), item.get_closest_marker("device")
        return (config.getoption("full") or not slow) and (config.getoption("device") == "cpu" or device is not None)

    first, step = _shard(config)
    kept = [item for item in items if wanted(item)][first - 1 :: step]
    if len(kept) < len(items):
        chosen = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = kept


@pytest.fixture(scope="session")
def sweep_seed(pytestconfig: Any) -> int:
    return pytestconfig.mmf_seed


@pytest.fixture(scope="session")
def full_run(pytestconfig: Any) -> bool:
    return pytestconfig.getoption("full")


@pytest.fixture(scope="session")
def accounts(pytestconfig: Any) -> Accounts:
    return pytestconfig.mmf_accounts


@pytest.fixture(scope="session", autouse=True)
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not the user's: what another program compiled for fewer instructions than this one sees gives wrong values."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """The libraries and all the tests are some million objects: gc.collect() in a test need not visit them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_simulator(pytestconfig: Any) -> Iterator[None]:
    """On a simulated GPU, a violation of its rules fails the test; its counters go into the accounts."""
    yield
    if not pytestconfig.getoption("device").startswith("hip:"):
        return
    import hipsim

    device, accounts = hipsim.Device(0), pytestconfig.mmf_accounts
    hipsim.try_hip("hipDeviceSynchronize")
    for name, count in device.report(reset=False).counters.items():
        accounts.simulated[name] = accounts.simulated.get(name, 0) + count
    device.assert_clean()


# Skips


def _allowed_skips() -> list[str]:
    path = HERE / "allowed_skips.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


class _SkipGuard:
    """With CI=true, collects the skips whose reason is not on the list."""

    def __init__(self, config: Any) -> None:
        self.skips: list[str] = config.mmf_skips
        self.allowed = _allowed_skips()

    def look(self, report: Any) -> None:
        if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
            return
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not any(fnmatch.fnmatchcase(reason, pattern) for pattern in self.allowed):
            self.skips.append(f"{report.nodeid}: {reason}")

    pytest_runtest_logreport = look
    pytest_collectreport = look


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if os.environ.get("CI", "").lower() == "true":
        session.config.pluginmanager.register(_SkipGuard(session.config), "mmf_skip_guard")


# The end of a run


def _least_counts() -> dict[str, int]:
    """Of each topic nine tenths of the fewest cases in the samples of 40 seeds: rare topics differ by a third."""
    from matmul_fused.testing import covering_sample

    counts = [Counter(topic for case in covering_sample(seed) for topic in case.topics) for seed in range(40)]
    return {topic: int(0.9 * min(count[topic] for count in counts)) for topic in sorted(counts[0])}


def _missing_cases(config: Any) -> list[str]:
    """Topics with fewer cases than are recorded, if this run ran the whole sample."""
    accounts, path = config.mmf_accounts, HERE / "case_counts.json"
    if not accounts.sample_complete or config.getoption("device") != "cpu":
        return []
    if config.getoption("record_counts"):
        path.write_text(json.dumps(_least_counts(), indent=2) + "\n")
    recorded = json.loads(path.read_text())
    return [
        f"{topic}: {accounts.topics.get(topic, 0)} cases, tests/case_counts.json says at least {least}"
        for topic, least in recorded.items()
        if accounts.topics.get(topic, 0) < least
    ]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config: Any = session.config
    accounts = config.mmf_accounts
    if hasattr(config, "workerinput"):  # a process of pytest-xdist: the one that began it goes on with its accounts
        config.workeroutput["mmf_accounts"] = json.dumps(vars(accounts))
        return
    if config.getoption("collectonly"):
        return
    if accounts.topics:
        rows = {"seed": config.mmf_seed, "full": config.getoption("full"), "topics": accounts.topics}
        accounts.reports["cases"] = [rows]
    if accounts.worst:
        accounts.reports["sweep"] = [{"dtypes": key, **row} for key, row in sorted(accounts.worst.items())]
    device = config.getoption("device")
    if accounts.simulated:
        stats = config.pluginmanager.get_plugin("terminalreporter").stats
        results = {outcome: len(stats.get(outcome, ())) for outcome in ("passed", "failed", "error")}
        results["cases"] = sum(row["cases"] for row in accounts.worst.values())
        accounts.reports["simulated"] = [results | accounts.simulated]
    first, step = _shard(config)
    folder = REPORTS if device == "cpu" else REPORTS / device.replace(":", "-")
    if step > 1:
        folder /= f"{first}of{step}"
    for name, rows in accounts.reports.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    config.mmf_missing = _missing_cases(config)
    if exitstatus == pytest.ExitCode.OK and (config.mmf_skips or config.mmf_missing):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """A process of pytest-xdist has ended; one that crashed left no accounts, and its test has failed."""
    given = getattr(node, "workeroutput", {}).get("mmf_accounts")
    if given:
        node.config.mmf_accounts.join(json.loads(given))


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    accounts = config.mmf_accounts
    if accounts.topics:
        counts = ", ".join(f"{topic} {count}" for topic, count in sorted(accounts.topics.items()))
        terminalreporter.section("cases per topic")
        terminalreporter.line(counts)
    if accounts.simulated:
        counters = ", ".join(f"{name} {count}" for name, count in accounts.simulated.items() if count)
        accounts.say(f"simulated {config.getoption('device')}", counters + "; no violations in the tests that passed")
    for key, row in sorted(accounts.worst.items()):
        accounts.say(
            "sweep: greatest error / bound, RMS / allowed",
            f"{key}: {row['max_ratio']:.3f}, {row['rms_ratio']:.3f} ({row['cases']} cases, {row['elements']} elements)",
        )
    for title, lines in accounts.lines.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.line(line)
    for title, lines in (
        ("FAILED: skips that tests/allowed_skips.txt does not list (CI=true)", config.mmf_skips),
        ("FAILED: fewer cases than recorded", getattr(config, "mmf_missing", [])),
    ):
        if lines:
            terminalreporter.section(title, red=True)
            for line in lines:
                terminalreporter.line(line)
