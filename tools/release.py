"""`make release`: what is published of a commit, made twice, compared, checked and tried: `python tools/release.py`.

    python tools/release.py       dist/release: sdist, wheels, SHA256SUMS, release.json (of what, with what)
    python tools/release.py tag   the annotated tag of the version, if dist/release is of HEAD and may be published

The files are made of the commit, not of the work tree: `git archive` gives the sdist, the sdist the wheels. The second
build lies in a folder of another length, under another umask and time zone, with empty caches of the compiler; a
difference of one byte refuses the release. Wheels are installed where there is no compiler and no network, that of
aarch64 under emulation. CONTRIBUTING.md says what a release needs.
"""

import datetime
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import wheel_build
from wheel_build import RefusedError

ROOT = Path(__file__).resolve().parents[1]
WORK, RELEASE = ROOT / "build/release", ROOT / "dist/release"
# Their versions decide the bytes: pyproject.toml pins them in the group wheel.
TOOLS = ("ziglang", "numpy", "scikit-build-core", "cmake", "ninja")
SDIST = "from scikit_build_core import build; import sys; build.build_sdist(sys.argv[1])"
HEADING = re.compile(r"^## (\S+) \((.*)\)$", re.MULTILINE)


def git(*arguments, root=ROOT):
    done = subprocess.run(["git", "-C", str(root), *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RefusedError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


# What is released


def notes(changelog, version):
    """(date or "not released", entries) of a version, which must be the first of the changelog."""
    headings = list(HEADING.finditer(changelog))
    if not headings or headings[0][1] != version:
        top = headings[0][0] if headings else "nothing"
        raise RefusedError(f"CHANGELOG.md begins with {top}, pyproject.toml has version {version}")
    first, end = headings[0], headings[1].start() if len(headings) > 1 else len(changelog)
    entries = changelog[first.end() : end].strip()
    if not re.match(r"- \S", entries):
        raise RefusedError(f"CHANGELOG.md says nothing of {version}")
    if first[2] != "not released":
        try:
            datetime.date.fromisoformat(first[2])
        except ValueError:
            raise RefusedError(f"CHANGELOG.md: {first[0]}: neither a date, as 2027-01-31, nor not released") from None
    return first[2], entries


def state(root=ROOT):
    """What HEAD is: version, commit, seconds of its date, date of the version, its entries. Refused: what cannot be
    released, or was.
    """
    changed = git("status", "--porcelain", root=root)
    if changed:
        raise RefusedError(f"the work tree is not the commit:\n{changed}")
    commit = git("rev-parse", "HEAD", root=root)
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    date, entries = notes((root / "CHANGELOG.md").read_text(), version)
    tag = f"v{version}"
    if git("tag", "--list", tag, root=root):
        tagged = git("rev-parse", f"{tag}^{{commit}}", root=root)
        if tagged != commit:
            raise RefusedError(f"{version} was released as {tagged}: raise the version in pyproject.toml")
        if date == "not released":
            raise RefusedError(f"{tag} is set, but CHANGELOG.md calls {version} not released: it needs its date")
    seconds = int(git("show", "--no-patch", "--format=%ct", "HEAD", root=root))
    return {"version": version, "commit": commit, "seconds": seconds, "date": date, "entries": entries}


# The files


def unpack(archive, folder):
    """The single folder in a tar archive, unpacked."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    return top


def make(folder, found, umask, zone):
    """Sdist and wheels in folder/dist, and a check of each wheel: {file name: targets of its GPU code, or None}."""
    shutil.rmtree(folder, ignore_errors=True)
    dist = folder / "dist"
    dist.mkdir(parents=True)
    caches = {f"ZIG_{kind}_CACHE_DIR": str(folder / "zig") for kind in ("GLOBAL", "LOCAL")}
    archive = subprocess.check_output(["git", "-C", str(ROOT), "archive", "--prefix=commit/", found["commit"]])
    os.environ.update({"SOURCE_DATE_EPOCH": str(found["seconds"]), "TZ": zone, **caches})
    previous = os.umask(umask)
    try:
        source = unpack(archive, folder / "export")
        subprocess.run([sys.executable, "-c", SDIST, dist], check=True, cwd=source, stdout=subprocess.DEVNULL)
        (sdist,) = dist.iterdir()
        holds_the_commit(sdist, source)
        source = unpack(sdist.read_bytes(), folder / "source")
        made, objects = {sdist.name: None}, ""
        for architecture in wheel_build.ARCHITECTURES:
            wheel = wheel_build.build(architecture, objects, source, folder / "wheel", dist)
            objects = objects or folder / "wheel" / architecture / "device"
            wheel_build.check(wheel)
            holds_licences(wheel)
            made[wheel.name] = wheel_build.device_code(wheel, architecture, folder / "wheel")
    finally:
        os.umask(previous)
    return made


def holds_the_commit(sdist, source):
    """An error unless an sdist is the commit, less the folders that only its own forge and CI read, and metadata."""
    with tarfile.open(sdist) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    wanted = {name for name in files if not name.startswith((".github/", ".ci/"))} | {"PKG-INFO"}
    if held != wanted:
        raise RefusedError(f"{sdist.name} lacks {sorted(wanted - held)}, has besides {sorted(held - wanted)}")


def holds_licences(wheel):
    """An error unless a wheel has the licences of all that it holds."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    with zipfile.ZipFile(wheel) as archive:
        held = {name.partition("/licenses/")[2] for name in archive.namelist()}
    missing = set(wanted) - held
    if missing:
        raise RefusedError(f"{wheel.name} lacks {sorted(missing)}")


def same(first, second):
    """An error unless two folders hold the same files, byte for byte; says of a zip or tar which members differ."""
    names = {path.name for path in first.iterdir()}
    if names != {path.name for path in second.iterdir()}:
        raise RefusedError(f"{first} and {second} hold files of other names")
    for name in sorted(names):
        if (first / name).read_bytes() != (second / name).read_bytes():
            raise RefusedError(f"two builds of the commit differ: {name}: {different(first / name, second / name)}")


def different(first, second):
    """What differs between two archives, in words."""
    members = [_members(path) for path in (first, second)]
    names = sorted(set(members[0]) | set(members[1]))
    content = [name for name in names if members[0].get(name) != members[1].get(name)]
    return f"the content of {', '.join(content)}" if content else "the order, times or rights of their members"


def _members(path):
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        return {member.name: archive.extractfile(member).read() for member in files}


# The trial


def install(wheel, folder, *options):
    """The wheel and NumPy in a folder, from wheels alone; the only step that needs the network."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", folder]
    subprocess.run(list(map(str, [*command, *options, wheel])), check=True)


def try_x86_64(wheel, folder):
    """The command of a Python in an empty environment that has the wheel and NumPy, nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    install(wheel, site)
    return [folder / "bin/python"], {}


def try_aarch64(wheel, folder):
    """The same with Debian's CPython for aarch64 under emulation."""
    qemu = ["sh", ROOT / "tools/aarch64_python.sh", ROOT / "build/qemu"]
    python = subprocess.check_output(qemu, text=True).split()
    version = re.search(r"python(3\.\d+)$", python[-1])[1]
    tags = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(wheel_build.GLIBC[1], 16, -1)]
    abis = [f"--abi={abi}" for abi in (f"cp{version.replace('.', '')}", "abi3", "none")]
    install(wheel, folder, *tags, *abis, "--implementation=cp", f"--python-version={version}")
    return python, {"PYTHONPATH": str(folder)}


def try_wheel(wheel):
    """Install a wheel and run its own check there; how many cases passed."""
    architecture = re.search(r"x86_64|aarch64", wheel.name)[0]
    folder = WORK / "try" / architecture
    shutil.rmtree(folder, ignore_errors=True)
    start = try_x86_64 if architecture == "x86_64" else try_aarch64
    python, environment = start(wheel, folder)
    # No compiler can be found, nor anything else; one thread, as emulated ones wait for each other for long.
    environment |= {"PATH": str(WORK / "nothing"), "MATMUL_FUSED_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    version = "import matmul_fused, platform; print(platform.machine(), matmul_fused.__version__)"
    for arguments in (["-c", version], ["-m", "matmul_fused", "check", "--device", "cpu", "--quick"]):
        command = [*map(str, python), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd="/")
        if done.returncode:
            raise RefusedError(f"{wheel.name}: {' '.join(command)}: {done.stdout}{done.stderr}")
        if arguments[0] == "-c" and done.stdout.split() != [architecture, wheel.name.split("-")[1]]:
            raise RefusedError(f"{wheel.name}: {done.stdout}")
    total = re.search(r"^ *all +(\d+) .* 0$", done.stdout, re.MULTILINE)
    if not total:
        raise RefusedError(f"{wheel.name}: check said: {done.stdout}")
    return int(total[1])


# The commands


def sums(folder):
    """Lines of SHA256SUMS, which `sha256sum -c` reads."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    return [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]


def publish(found, made, first):
    """Lay the files and what is said of them into dist/release."""
    shutil.rmtree(RELEASE, ignore_errors=True)
    shutil.copytree(first, RELEASE)
    lines = sums(RELEASE)
    (RELEASE / "SHA256SUMS").write_text("".join(f"{line}\n" for line in lines))
    for line in lines:
        path = RELEASE / line.split()[1]
        path.chmod(0o644)
        code = f"; GPU code for {', '.join(made[path.name])}" if made[path.name] else ""
        print(f"{line}  {path.stat().st_size / 1024:.0f} KiB{code}")
    tools = {name: importlib.metadata.version(name) for name in TOOLS} | {"python": platform.python_version()}
    report = {name: found[name] for name in ("version", "commit", "seconds", "date")} | {"made with": tools}
    (RELEASE / "release.json").write_text(json.dumps(report, indent=1) + "\n")


def release():
    found = state()
    print(f"matmul_fused {found['version']} ({found['date']}), commit {found['commit']}", flush=True)
    first, second = WORK / "a", WORK / "b-with-a-longer-name"
    made = make(first, found, 0o022, "UTC")
    print("built once; checked by auditwheel and abi3audit", flush=True)
    make(second, found, 0o077, "Asia/Kathmandu")
    same(first / "dist", second / "dist")
    print("built twice: the same bytes", flush=True)
    for wheel in sorted((first / "dist").glob("*.whl")):
        print(f"{wheel.name}, without a compiler: {try_wheel(wheel)} cases passed", flush=True)
    publish(found, made, first / "dist")
    if found["date"] == "not released":
        print("a rehearsal: CHANGELOG.md needs the date of the version before `make tag`")


def tag(root=ROOT, files=RELEASE):
    """Set the tag; an error unless the files were made of this commit, are whole, and the changelog has a date."""
    found = state(root)
    if found["date"] == "not released":
        raise RefusedError(f"CHANGELOG.md calls {found['version']} not released: it needs its date")
    report = files / "release.json"
    if not report.is_file() or json.loads(report.read_text())["commit"] != found["commit"]:
        raise RefusedError(f"dist/release was not made of {found['commit']}: make release")
    if (files / "SHA256SUMS").read_text().splitlines() != sums(files):
        raise RefusedError("dist/release holds other files than its SHA256SUMS says: make release")
    name = f"v{found['version']}"
    git("tag", "--annotate", name, "--message", f"matmul_fused {found['version']}\n\n{found['entries']}", root=root)
    print(f"{name} is {found['commit']}; to publish it: git push origin {name}")


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["tag"]):
        sys.exit(f"{' '.join(sys.argv[1:])}: the only argument is tag")
    try:
        tag() if sys.argv[1:] else release()
    except RefusedError as refused:
        sys.exit(str(refused))
