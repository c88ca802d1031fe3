"""What `make release` refuses: each in a repository or a folder of its own, with the mistake planted."""

import hashlib
import importlib.util
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("release", ROOT / "tools/release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

DATED = "# Changelog\n\n## 1.2.0 (2027-01-31)\n\n- It works.\n- Well.\n\n## 1.1.0 (2026-12-01)\n\n- Earlier.\n"


# Changelog, version, tag


def test_notes_of_a_version():
    assert release.notes(DATED, "1.2.0") == ("2027-01-31", "- It works.\n- Well.")
    assert release.notes(DATED.replace("2027-01-31", "not released"), "1.2.0")[0] == "not released"


@pytest.mark.parametrize(
    ("changelog", "why"),
    [
        (DATED.replace("1.2.0", "1.3.0"), r"begins with ## 1\.3\.0 .*pyproject.toml has version 1\.2\.0"),
        (DATED.replace("- It works.\n- Well.\n", ""), "says nothing of 1.2.0"),
        (DATED.replace("2027-01-31", "2027-02-31"), "neither a date"),
        (DATED.replace("2027-01-31", "soon"), "neither a date"),
        ("# Changelog\n", "begins with nothing"),
    ],
)
def test_changelog_that_is_refused(changelog, why):
    with pytest.raises(release.RefusedError, match=why):
        release.notes(changelog, "1.2.0")


def test_the_changelog_of_this_tree_is_right():
    version = release.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert release.notes((ROOT / "CHANGELOG.md").read_text(), version)[1]


class Repository:
    """A repository with a version and a changelog, committed; and files that claim to be made of HEAD."""

    def __init__(self, folder):
        self.root, self.files = folder / "repository", folder / "files"
        self.root.mkdir()
        self.files.mkdir()
        self.git("init", "--quiet")
        self.git("config", "user.name", "nobody")
        self.git("config", "user.email", "nobody@localhost")
        self.commit(**{"pyproject.toml": '[project]\nversion = "1.2.0"\n', "CHANGELOG.md": DATED})

    def git(self, *arguments):
        return release.git(*arguments, root=self.root)

    def commit(self, **files):
        for name, text in files.items():
            (self.root / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a change")

    def make(self):
        (self.files / "x-1.2.0.whl").write_bytes(b"a wheel")
        (self.files / "SHA256SUMS").write_text("".join(f"{line}\n" for line in release.sums(self.files)))
        report = {"commit": self.git("rev-parse", "HEAD")}
        (self.files / "release.json").write_text(json.dumps(report))

    def tag(self):
        release.tag(self.root, self.files)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")  # no signatures, no hooks
    return Repository(tmp_path)


def test_tag(repository, capsys):
    repository.make()
    repository.tag()
    assert repository.git("tag", "--list", "--format=%(refname:short) %(objecttype)") == "v1.2.0 tag"
    assert repository.git("tag", "--list", "--format=%(contents)") == "matmul_fused 1.2.0\n\n- It works.\n- Well."
    assert "git push origin v1.2.0" in capsys.readouterr().out
    assert release.state(repository.root)["version"] == "1.2.0"  # a tagged commit can be made again


def _not_clean(repository):
    (repository.root / "new").write_text("")


def _not_dated(repository):
    repository.commit(**{"CHANGELOG.md": DATED.replace("2027-01-31", "not released")})
    repository.make()


def _released_before(repository):
    repository.tag()
    repository.commit(other="a file")


def _made_before(repository):
    repository.commit(other="a file")


def _not_whole(repository):
    (repository.files / "x-1.2.0.whl").write_bytes(b"another")


def _not_made(repository):
    (repository.files / "release.json").unlink()


@pytest.mark.parametrize(
    ("mistake", "why"),
    [
        (_not_clean, r"the work tree is not the commit:\n\?\? new"),
        (_not_dated, "calls 1.2.0 not released"),
        (_released_before, "1.2.0 was released as [0-9a-f]{40}: raise the version"),
        (_made_before, "dist/release was not made of"),
        (_not_whole, "holds other files than its SHA256SUMS"),
        (_not_made, "dist/release was not made of"),
    ],
)
def test_tag_is_refused(repository, mistake, why):
    repository.make()
    mistake(repository)
    with pytest.raises(release.RefusedError, match=why):
        repository.tag()


# The files


def test_sums_are_those_of_sha256sum(tmp_path):
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "release.json").write_text("{}")
    lines = release.sums(tmp_path)
    assert lines == [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}" for name in ("a.tar.gz", "b.whl")]
    (tmp_path / "SHA256SUMS").write_text("".join(f"{line}\n" for line in lines))
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)


def wheel(path, date=(2027, 1, 31, 0, 0, 0), **members):
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, date), content)


def sdist(path, *names):
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"x-1/{name}"), io.BytesIO())


def test_the_same_bytes(tmp_path):
    for folder in "ab":
        wheel(tmp_path / folder / "x.whl", core="code", record="a")
    release.same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"core": "code of /somewhere", "record": "a"}, "two builds of the commit differ: x.whl: the content of core$"),
        ({"core": "code"}, "the content of record$"),
        ({"record": "a", "core": "code"}, "the order, times or rights"),
        ({"core": "code", "record": "a", "date": (2027, 2, 1, 0, 0, 0)}, "the order, times or rights"),
    ],
)
def test_two_builds_that_differ(tmp_path, other, why):
    wheel(tmp_path / "a/x.whl", core="code", record="a")
    wheel(tmp_path / "b/x.whl", **other)
    with pytest.raises(release.RefusedError, match=why):
        release.same(tmp_path / "a", tmp_path / "b")


def test_a_build_that_lacks_a_file(tmp_path):
    wheel(tmp_path / "a/x.whl", core="code")
    wheel(tmp_path / "b/y.whl", core="code")
    with pytest.raises(release.RefusedError, match="files of other names"):
        release.same(tmp_path / "a", tmp_path / "b")


def test_sdist_is_the_commit(tmp_path):
    source = tmp_path / "commit"
    (source / ".ci").mkdir(parents=True)
    for name in ("a.c", ".ci/run"):
        (source / name).write_text("")
    sdist(tmp_path / "x-1.tar.gz", "a.c", "PKG-INFO")
    release.holds_the_commit(tmp_path / "x-1.tar.gz", source)
    sdist(tmp_path / "x-1.tar.gz", "PKG-INFO", "b.o")
    with pytest.raises(release.RefusedError, match=r"lacks \['a.c'\], has besides \['b.o'\]"):
        release.holds_the_commit(tmp_path / "x-1.tar.gz", source)


def test_wheel_has_the_licences(tmp_path):
    wanted = release.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    members = {f"x-1.dist-info/licenses/{name}": "" for name in wanted}
    wheel(tmp_path / "x.whl", **members)
    release.holds_licences(tmp_path / "x.whl")
    del members["x-1.dist-info/licenses/LICENSE"]
    wheel(tmp_path / "x.whl", **members)
    with pytest.raises(release.RefusedError, match="LICENSE"):
        release.holds_licences(tmp_path / "x.whl")


def test_the_versions_that_decide_the_bytes_are_pinned():
    group = release.tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["wheel"]
    pinned = {need.partition("==")[0] for need in group if isinstance(need, str) and "==" in need}
    assert set(release.TOOLS) <= pinned
