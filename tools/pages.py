"""The API as pages: `python tools/pages.py [FOLDER]` writes plain HTML, made from the docstrings of the package.

No network, no library, no script in the pages; the folder (build/pages) can be opened from the disk or put on a server.
A front page with the call in ten lines and the pictures of the benches, a page for every public name, one for
matmul_fused.torch and matmul_fused.testing each, one for the command line, one for the environment. A link that leads
nowhere is an error.
"""

import argparse
import functools
import html
import importlib
import inspect
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import matmul_fused as mf
from matmul_fused import __main__ as cli

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {
    "cpu_speed_avx2.svg": "Time of torch eager / time of matmul_fused on a CPU with AVX2",
    "cpu_roofline_avx2.svg": "Rate of the CPU's kernels with AVX2 beside what the CPU can do",
    "cpu_speed_avx512.svg": "Time of torch eager / time of matmul_fused on a CPU with AVX-512",
    "cpu_roofline_avx512.svg": "Rate of the CPU's kernels with AVX-512 beside what the CPU can do",
    "cpu_speed_amx.svg": "Time of torch eager / time of matmul_fused on a CPU with AMX",
    "cpu_roofline_amx.svg": "Rate of the CPU's kernels with AMX beside what the CPU can do",
    "gpu_roofline.svg": "Measured rate of matmul_fused and of cuBLAS on an H200",
    "forward_gpu.svg": "Time of a forward on an H200: patched beside eager, the backend beside torch.compile",
    "forward_cpu.svg": "Time of a forward on a Xeon with AMX: patched beside eager, the backend beside torch.compile",
    "train_gpt2.svg": "Loss of a small GPT-2 in training: eager torch, and with matmul_fused",
    "amd_roofline.svg": "Modelled rate of the kernels on MI300X and MI355X; not measured",
}
PLAIN = ("__version__", "activations", "gated_activations", "testing")
EXAMPLE = """
import numpy as np
import matmul_fused as mf

x = np.ones((4, 512), np.float32)
W = np.ones((512, 2048), np.float32)
bias = np.zeros(2048, np.float32)
y = mf.matmul_fused(x, W, bias, "gelu")  # one pass over the result, rounded once
h = mf.matmul_fused(x, W, bias, "swiglu")  # gated: silu(z[:, :1024]) * z[:, 1024:]
mf.matmul_fused(x, mf.prepack(W), bias, "gelu", out=y)  # a weight reordered once; no new memory
print(mf.explain(x, W, bias, "gelu"))  # which kernel, modelled time, why no other
"""
STYLE = """
body { margin: 0 auto; max-width: 66rem; padding: 1rem 1.5rem 4rem; color: #1c2024; background: #fff;
       font: 16px/1.55 system-ui, sans-serif }
nav { border-bottom: 1px solid #d7dbdf; padding-bottom: .6rem; margin-bottom: 1.5rem }
nav a { margin-right: 1rem; white-space: nowrap }
a { color: #0b5cad; text-decoration: none } a:hover { text-decoration: underline }
h1 { font-size: 1.7rem } h2 { font-size: 1.2rem; margin-top: 2rem }
pre, code { font: 14px/1.5 ui-monospace, "DejaVu Sans Mono", monospace }
pre { background: #f5f7f9; border: 1px solid #e3e7eb; border-radius: 6px; padding: .8rem 1rem; overflow-x: auto }
pre.signature { border-left: 4px solid #0b5cad }
img { max-width: 100% } dt { margin-top: .8rem } table { border-collapse: collapse }
td, th { border-bottom: 1px solid #e3e7eb; padding: .35rem .8rem .35rem 0; text-align: left; vertical-align: top }
"""


def public():
    """Names that have a page of their own, functions first."""
    names = [name for name in mf.__all__ if name not in PLAIN]
    return sorted(names, key=lambda name: (inspect.isclass(getattr(mf, name)), name != "matmul_fused", name))


def linked(text, own=""):
    """Escaped text, in which a name of the package that is called, or stands after `mf.`, leads to its page."""
    names = "|".join(name for name in public() if name != own)
    pattern = rf"\bmf\.({names})\b|\b({names})(?=\()|\b(PackedMatrix|DeviceError)\b"

    def link(found):
        name = found[1] or found[2] or found[3]
        return found[0] if name == own else f'<a href="{name}.html">{found[0]}</a>'

    return re.sub(pattern, link, html.escape(text, quote=False))


def page(title, body):
    names = [*public(), "torch", "testing", "commands", "environment"]
    links = " ".join(f'<a href="{name}.html">{label(name)}</a>' for name in names)
    links = f'<a href="index.html">front page</a> {links}'
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<link rel="stylesheet" href="style.css">\n</head>\n'
        f"<body>\n<nav>{links}</nav>\n<h1>{html.escape(title)}</h1>\n{body}\n"
        f"<p>matmul_fused {mf.__version__}</p>\n</body>\n</html>\n"
    )


def label(name):
    """A name as a link shows it: functions with their parentheses."""
    return f"{name}()" if inspect.isroutine(getattr(mf, name, None)) else name


def signature(name, thing):
    """One parameter a line where they are many."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:  # an exception: its arguments are those of every exception
        return name
    words = str(inspect.signature(thing))
    if len(name + words) <= 100:
        return name + words
    lines, star = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            lines.append("*")
        lines.append(str(parameter))
    return f"{name}(\n    " + ",\n    ".join(lines) + ",\n)"


def entry(name, thing, own):
    text = inspect.getdoc(thing)
    if not text:
        raise SystemExit(f"{name} has no docstring")
    called = inspect.isroutine(thing)
    head = f'<pre class="signature">{html.escape(signature(name, thing), quote=False)}</pre>\n' if called else ""
    return f"{head}<pre>{linked(text, own)}</pre>"


def of_class(name, kind):
    """A class: its docstring, then what it has that is public."""
    parts = [f"<pre>{linked(inspect.getdoc(kind), name)}</pre>"]
    fields = getattr(kind, "__annotations__", {})
    if fields:
        cells = (
            f"<td><code>{field}</code></td><td><code>{html.escape(str(t))}</code></td>" for field, t in fields.items()
        )
        rows = "\n".join(f"<tr>{cell}</tr>" for cell in cells)
        parts.append(f"<h2>Fields</h2>\n<table>{rows}</table>")
    for member, value in sorted(vars(kind).items()):
        hidden = member.startswith("_") and not member.startswith("__dlpack")
        if hidden or member in fields or not inspect.getdoc(value):
            continue
        parts.append(f'<h2 id="{member}">{member}</h2>\n{entry(member, value, name)}')
    return "\n".join(parts)


def front():
    about = (ROOT / "README.md").read_text().split("\n\n")[1]
    about = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(about, quote=False))
    pictures = "\n".join(f'<p><img src="{name}" alt="{html.escape(text)}"></p>' for name, text in PICTURES.items())
    rows = "\n".join(
        f'<dt><a href="{name}.html"><code>{label(name)}</code></a></dt>'
        f"<dd>{html.escape(inspect.getdoc(getattr(mf, name)).splitlines()[0], quote=False)}</dd>"
        for name in public()
    )
    values = "\n".join(f"<dt><code>{name}</code></dt><dd>{', '.join(getattr(mf, name))}</dd>" for name in PLAIN[1:3])
    call = f"<p>{about}</p>\n<pre>{linked(EXAMPLE.strip())}</pre>"
    return f"{call}\n{pictures}\n<h2>Names</h2>\n<dl>\n{rows}\n{values}\n</dl>"


def of_module(module):
    parts = [f"<pre>{linked(inspect.getdoc(module))}</pre>"]
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        if inspect.ismodule(thing) or not (inspect.isclass(thing) or inspect.isroutine(thing)):
            continue
        parts.append(f'<h2 id="{name}">{name}</h2>')
        parts.append(f'<pre class="signature">{html.escape(signature(name, thing), quote=False)}</pre>')
        parts.append(f"<pre>{linked(inspect.getdoc(thing) or '', '')}</pre>")
    return "\n".join(parts)


def for_torch():
    """matmul_fused.torch, or why it cannot be imported here."""
    try:
        return of_module(importlib.import_module("matmul_fused.torch"))
    except ImportError as error:
        return f"<p>Not described here: {html.escape(str(error))}</p>"


def commands():
    """The help of every command, at a width that does not depend on the terminal."""
    parser = cli._parser()
    (choices,) = [action.choices for action in parser._actions if action.dest == "command"]
    parts = [f"<p>{html.escape(parser.description)}</p>"]
    for name, command in choices.items():
        command.formatter_class = functools.partial(argparse.HelpFormatter, width=100)
        parts.append(f'<h2 id="{name}">{name}</h2>\n<pre>{html.escape(command.format_help(), quote=False)}</pre>')
    return "\n".join(parts)


def environment():
    cells = (f"<td><code>{name}</code></td><td>{html.escape(text)}</td>" for name, text, _ in mf.info().environment)
    rows = "\n".join(f"<tr>{cell}</tr>" for cell in cells)
    return f"<p>Read once, at import; what has no meaning is ignored, and info says why.</p>\n<table>{rows}</table>"


class Links(HTMLParser):
    """The links and the ids of a page; an error where a tag is not closed, or a resource is fetched from elsewhere."""

    EMPTY = ("meta", "link", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.open = [], set(), []
        self.feed(text)
        self.close()
        if self.open:
            raise ValueError(f"not closed: {', '.join(self.open)}")

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.links += [given[name] for name in ("href", "src") if name in given]
        self.ids.add(given.get("id"))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise ValueError(f"</{tag}> closes what was not open")


def broken(folder):
    """What is wrong with the links of the pages in a folder, a sentence each."""
    pages = {path.name: Links(path.read_text()) for path in sorted(folder.glob("*.html"))}
    found = []
    for name, parsed in pages.items():
        for link in parsed.links:
            file, _, anchor = link.partition("#")
            if ":" in file:
                found.append(f"{name}: {link} is not of these pages")
            elif file and not (folder / file).is_file():
                found.append(f"{name}: {link} is not there")
            elif anchor and anchor not in pages[file or name].ids:
                found.append(f"{name}: {link} has no such place")
    return found


def write(folder):
    """All pages into a folder, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "style.css").write_text(STYLE)
    for picture in PICTURES:
        shutil.copyfile(ROOT / "docs" / picture, folder / picture)
    bodies = {"index": ("matmul_fused", front()), "testing": ("matmul_fused.testing", of_module(mf.testing))}
    bodies["torch"] = ("matmul_fused.torch", for_torch())
    bodies |= {"commands": ("python -m matmul_fused", commands()), "environment": ("Environment", environment())}
    for name in public():
        thing = getattr(mf, name)
        bodies[name] = (name, of_class(name, thing) if inspect.isclass(thing) else entry(name, thing, name))
    for name, (title, body) in bodies.items():
        (folder / f"{name}.html").write_text(page(title, body))
    return sorted(bodies)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build/pages"
    written = write(folder)
    found = broken(folder)
    if found:
        sys.exit("\n".join(found))
    print(f"{len(written)} pages in {folder}: {', '.join(written)}; every link leads somewhere")
