"""The API pages: complete, whole, without broken links, made of nothing but the package."""

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import matmul_fused as mf

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("pages", ROOT / "tools/pages.py")
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages") / "pages"
    written = pages.write(folder)
    assert {path.stem for path in folder.glob("*.html")} == set(written)
    return folder


def text_of(path):
    return pages.html.unescape(re.sub(r"<[^>]*>", "", path.read_text()))


def test_every_public_name_is_there(folder):
    front = text_of(folder / "index.html")
    for name in mf.__all__:
        if name in ("__version__", "testing"):
            continue
        assert name in front
        if name not in ("activations", "gated_activations"):
            page = text_of(folder / f"{name}.html")
            assert all(line in page for line in inspect.getdoc(getattr(mf, name)).splitlines())
    assert all(name in front for name in (*mf.activations, *mf.gated_activations))


def test_a_function_shows_its_arguments(folder):
    for name in ("matmul_fused", "prepack", "explain", "set_num_threads"):
        page = text_of(folder / f"{name}.html")
        assert all(parameter in page for parameter in inspect.signature(getattr(mf, name)).parameters)
        assert f"{name}(" in page


def test_members_of_classes(folder):
    assert 'id="unpack"' in (folder / "PackedMatrix.html").read_text()
    assert 'id="__dlpack__"' in (folder / "Array.html").read_text()
    assert "candidates" in text_of(folder / "Explanation.html")


def test_the_page_for_torch(folder):
    pytest.importorskip("torch")
    module = importlib.import_module("matmul_fused.torch")
    page = text_of(folder / "torch.html")
    for name in module.__all__:
        assert all(line in page for line in inspect.getdoc(getattr(module, name)).splitlines()), name


def test_commands_and_environment(folder):
    commands = text_of(folder / "commands.html")
    assert all(word in commands for word in ("--objects", "--quick", "--plot"))
    assert all(name in text_of(folder / "environment.html") for name, *_ in mf.info().environment)


def test_the_front_page_shows_the_call_in_ten_lines(folder):
    lines = pages.EXAMPLE.strip().splitlines()
    assert len(lines) <= 11  # one is empty
    assert all(line in text_of(folder / "index.html") for line in lines)
    names = {}
    exec(compile(pages.EXAMPLE, "front page", "exec"), names)
    assert names["y"].shape == (4, 2048)
    assert names["h"].shape == (4, 1024)


def test_the_front_page_has_every_picture(folder):
    assert {path.name for path in (ROOT / "docs").glob("*.svg")} == set(pages.PICTURES)
    assert all(f'<img src="{name}"' in (folder / "index.html").read_text() for name in pages.PICTURES)


def test_no_link_is_broken(folder):
    assert pages.broken(folder) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('<a href="nowhere.html">x</a>', "index.html: nowhere.html is not there"),
        ('<img src="nowhere.svg">', "index.html: nowhere.svg is not there"),
        ('<a href="#nowhere">x</a>', "index.html: #nowhere has no such place"),
        ('<a href="https://example.invalid/">x</a>', "index.html: https://example.invalid/ is not of these pages"),
        ('<a href="#here">x</a><p id="here"></p>', None),
    ],
)
def test_broken_links_are_seen(body, says, tmp_path):
    (tmp_path / "index.html").write_text(body)
    assert pages.broken(tmp_path) == ([says] if says else [])


@pytest.mark.parametrize("body", ["<p><b>x</p>", "<p>", "</p>"])
def test_pages_that_are_not_whole_are_seen(body, tmp_path):
    (tmp_path / "index.html").write_text(body)
    with pytest.raises(ValueError, match=r"closed|closes"):
        pages.broken(tmp_path)
