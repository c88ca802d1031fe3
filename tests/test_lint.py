"""House rules that a machine can hold, by naive text checks; every rule is shown to bite on a planted bug.

A line of C that must break a rule says why at its end: `/* lint: the reason */`.
"""

import functools
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {
    "binding": {"binding", "xla", "plan", "problem"},
    "xla": {"xla", "plan", "problem"},
    "plan": {"plan", "cpu", "gpu", "problem"},
    "cpu": {"cpu", "problem"},
    "gpu": {"gpu", "problem"},
    "problem": {"problem"},
}
IGNORED = re.compile(r"/\* lint: \S.{8,}")  # clang-format may wrap the end of the comment
# Written in two halves, so that this file keeps the rules itself.
MARKS = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"))
MACHINE = r"(?<![\w.])/(?:work|farm|root|home)/\w|" + "|".join((r"pypi\." + "org", "python" + "hosted", "npm" + "js"))

# API of CPython that hides errors, is outside the stable ABI, or parses with format strings: pattern -> what to use.
BANNED_API = {
    r"PyArg_\w+": "binding/arguments.c parses without format strings",
    r"Py(?:Tuple|List)_(?:GET|SET)_\w+|PyBytes_AS_STRING|PyUnicode_(?:READ|DATA|KIND|GET_LENGTH)": "not the stable ABI",
    r"PyDict_GetItem(?:String)?\b": "it hides errors: PyDict_GetItemWithError",
    r"PyObject_HasAttr\w*|PyMapping_HasKey\w*|PySequence_Contains": "it hides errors, or may: PyObject_GetAttr",
    r"PyModule_AddObject\b": "it steals on success only: PyModule_AddObjectRef",
    r"PyErr_(?:Print\w*|WriteUnraisable)|PySys_\w*Write\w*": "nobody prints",
    r"PyErr_Clear\b": "say why the error may go",
    r"PyObject_Call(?:Function|Method)\b": "format strings: PyObject_CallFunctionObjArgs",
    r"Py_FatalError|PyErr_BadInternalCall": "no path may crash",
}
PRINTS_OR_DIES = r"abort|exit|_exit|quick_exit|assert|printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror|raise"
ALLOCATORS = r"(?:malloc|calloc|realloc|aligned_alloc|PyMem_\w*(?:alloc|Calloc)|PyObject_(?:Malloc|Calloc))"


def code_lines(text):
    """(number, line without comments and strings' contents) of C text; comment lines come out empty."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.DOTALL)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    return list(enumerate(text.split("\n"), 1))


def matches(path, text, pattern, message):
    return [
        (number, message.format(m.group())) for number, line in code_lines(text) for m in re.finditer(pattern, line)
    ]


def include_direction(path, text):
    layer = path.parts[1]
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        include = re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line)
        if not include:
            continue
        name = include[2]
        if name == "Python.h" or name.startswith("numpy/"):
            if layer != "binding":
                found.append((number, f"{layer} may not include {name}: only binding knows Python"))
            elif name == "Python.h" and path.name != "state.h":
                found.append((number, "binding/state.h includes it, and counts references by functions"))
        elif include[1] == '"' and name.split("/")[0] not in LAYERS[layer]:
            found.append((number, f"{layer} may not include {name}: {layer} -> {', '.join(sorted(LAYERS[layer]))}"))
    return found


def kernels_named_once(path, text):
    if path.parts[1] != "plan" or path.name in ("kernels.c", "kernels.h", "backends.c"):
        return []
    return matches(path, text, r"mmf_[cg]pu_\w+", "{} is named outside kernels.c, kernels.h and backends.c")


def python_api(path, text):
    if path.parts[1] != "binding":
        return []
    return [f for api, why in BANNED_API.items() for f in matches(path, text, rf"\b(?:{api})", "{}: " + why)]


def global_objects(path, text):
    pattern = r"^(?:static\s+|extern\s+)*(?:const\s+)?(?:PyObject|PyTypeObject)\s*\*\s*(?:const\s+)?\w+\s*(?:=|;|\[|,)"
    return matches(path, text, pattern, "{}: objects live in the module state")


def prints_or_dies(path, text):
    return matches(path, text, rf"(?<![\w.>])(?:{PRINTS_OR_DIES})\s*\(", "{}: nobody prints, aborts or exits")


def unchecked_allocation(path, text):
    lines = code_lines(text)
    found = []
    for index, (number, line) in enumerate(lines):
        call = re.search(rf"(?<!\w){ALLOCATORS}\s*\(", line)
        if not call:
            continue
        target = re.search(r"([\w.\->\[\]]+)\s*=\s*(?:\([^()]*\)\s*)?$", line[: call.start()])
        if not target:
            found.append((number, "the result of an allocation goes into a variable first"))
            continue
        name = re.escape(target[1])
        after = "\n".join([line[call.end() :], *(text for _, text in lines[index + 1 : index + 5])])
        if not re.search(rf"!\s*{name}(?!\w)|{name}\s*(?:==\s*NULL|\?|&&)|(?:if|return) \(?{name}(?!\w)", after):
            found.append((number, f"{target[1]} is not checked for NULL on the next lines"))
    return found


def function_length(path, text):
    if "kernels" in path.parts:
        return []
    found, start = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        if line == "{":
            start = number
        elif line == "}" and start and number - start > 75:
            found.append((start, f"a function of {number - start} lines; about 60 is the house number"))
    return found


def opens_with_its_role(path, text):
    head = text[: text.find("*/")] if text.startswith("/*") else ""
    if re.search("Path of a call: |Not on the path of a call", re.sub(r"[\s*]+", " ", head)):
        return []
    return [
        (
            1,
            "a file opens with a comment: its role, and `Path of a call: ...` or `Not on the path of a call`",
        )
    ]


def file_length(path, text):
    lines, limit = text.count("\n"), 500 if path.parts[0] == "tests" else 450
    return [(lines, f"{lines} lines; 400 is the house number, {limit} the limit")] if lines > limit else []


def left_over_marks(path, text):
    pattern = re.compile(rf"\b(?:{MARKS})\b")
    return [(n, f"{m.group()}: file an issue") for n, s in enumerate(text.split("\n"), 1) for m in pattern.finditer(s)]


def one_machine(path, text):
    pattern = re.compile(MACHINE)
    lines = enumerate(text.split("\n"), 1)
    return [(n, f"{m.group()}: true of one machine or place only") for n, s in lines for m in pattern.finditer(s)]


def prose(path, text):
    """(number, line) of what people read: comments and docstrings of Python, all of other files."""
    if path.suffix != ".py":
        return list(enumerate(text.split("\n"), 1))
    found = []
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT)
        if token.type == tokenize.COMMENT or docstring:
            found += enumerate(token.string.split("\n"), token.start[0])
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.type
    return found


def cites_what_is_here(path, text):
    """Documents are named by their path (from the root or from the file), or by a name that one of them has."""
    names = {document.name for document in documents()}
    return [
        (number, f"{name} is not in the repository")
        for number, line in prose(path, text)
        for name in re.findall(r"(?<![\w/.*-])[\w./-]*\w\.md\b", re.sub(r"https?://\S+", "", line))
        if name not in names and not any((folder / name).is_file() for folder in (ROOT, ROOT / path.parent))
    ]


C_RULES = [
    include_direction,
    kernels_named_once,
    python_api,
    global_objects,
    prints_or_dies,
    unchecked_allocation,
    function_length,
    opens_with_its_role,
]
TEXT_RULES = [file_length, left_over_marks, one_machine, cites_what_is_here]


def lint(rule, path, text):
    """What a rule finds in a file (path relative to the repository), less the lines that carry a reason."""
    lines = text.split("\n")
    return [f"{path}:{n}: {what}" for n, what in rule(path, text) if not IGNORED.search(lines[min(n, len(lines)) - 1])]


def files(*patterns):
    return sorted(path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern))


@functools.cache
def tracked():
    """What belongs to the project: not what was built, nor what lies beside it."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        names = subprocess.run(git, capture_output=True, text=True, check=True, timeout=60).stdout.split("\0")
    except (OSError, subprocess.SubprocessError):
        pytest.skip("not a git checkout")
    return [Path(name) for name in names if (ROOT / name).is_file()]


@functools.cache
def documents():
    return files("*.md", "docs/*.md", "bench/*.md", "tests/**/*.md")


def check(rule, paths):
    found = [finding for path in paths for finding in lint(rule, path, (ROOT / path).read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", C_RULES, ids=lambda rule: rule.__name__)
def test_c_sources(rule):
    paths = files("csrc/**/*.[ch]", "csrc/**/*.inc", "csrc/**/*.def")
    assert len(paths) > 20
    check(rule, paths)


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_text_files(rule):
    assert Path("README.md") in tracked()
    check(rule, [path for path in tracked() if b"\0" not in (ROOT / path).read_bytes()])


# rule -> (path, text of a file with the bug on its last line, a harmless neighbour of it)
PLANTED = [
    (include_direction, "csrc/cpu/a.c", '#include "gpu/b.h"', '#include "problem/b.h"'),
    (include_direction, "csrc/gpu/a.c", '#include "cpu/b.h"', '#include "gpu/b.h"'),
    (include_direction, "csrc/problem/a.h", '#include "plan/plan.h"', "#include <string.h>"),
    (include_direction, "csrc/binding/a.c", '#include "cpu/rows.h"', '#include "plan/plan.h"'),
    (include_direction, "csrc/binding/a.c", "#include <Python.h>", '#include "binding/state.h"'),
    (include_direction, "csrc/plan/a.c", "#include <Python.h>", '#include "cpu/rows.h"'),
    (include_direction, "csrc/cpu/a.c", "#include <numpy/arrayobject.h>", '#include "cpu/pool.h"'),
    (kernels_named_once, "csrc/plan/cost.c", "if (row == &mmf_cpu_blocked)", "if (row->run)"),
    (python_api, "csrc/binding/a.c", '    PyArg_ParseTuple(args, "O", &a);', "    parse(args);"),
    (python_api, "csrc/binding/a.c", "    x = PyTuple_GET_ITEM(t, 0);", "    x = PyTuple_GetItem(t, 0);"),
    (python_api, "csrc/binding/a.c", "    x = PyDict_GetItem(d, k);", "    x = PyDict_GetItemWithError(d, k);"),
    (python_api, "csrc/binding/a.c", "    if (PyObject_HasAttrString(o, n))", "    x = PyObject_GetAttrString(o, n);"),
    (python_api, "csrc/binding/a.c", "    PyErr_Clear();", "    PyErr_Clear(); /* lint: absence is an answer */"),
    (python_api, "csrc/binding/a.c", "    PyErr_Clear(); /* lint: */", "    /* PyErr_Clear() would hide it */"),
    (python_api, "csrc/binding/a.c", "    PyModule_AddObject(m, n, o);", "    PyModule_AddObjectRef(m, n, o);"),
    (global_objects, "csrc/binding/a.c", "static PyObject *cache;", "static PyObject *make(void)"),
    (global_objects, "csrc/binding/a.c", "PyObject *cache = NULL;", "    PyObject *local = NULL;"),
    (prints_or_dies, "csrc/cpu/a.c", '    printf("here");', '    snprintf(text, 8, "here");'),
    (prints_or_dies, "csrc/plan/a.c", '    fprintf(stderr, "no");', "    row->abort(x);"),
    (prints_or_dies, "csrc/problem/a.c", "    abort();", "    mmf_abort();"),
    (prints_or_dies, "csrc/problem/a.c", "    assert(x);", "_Static_assert(x, y);"),
    (unchecked_allocation, "csrc/cpu/a.c", "    p = malloc(8);", "    p = malloc(8); if (!p)"),
    (
        unchecked_allocation,
        "csrc/cpu/a.c",
        "    p->q = (T *)calloc(1, 8);",
        "    p->q = calloc(1, 8);\n    if (p->q)",
    ),
    (unchecked_allocation, "csrc/cpu/a.c", "    use(malloc(8));", "    use(mmf_malloc_text(8));"),
    (function_length, "csrc/cpu/a.c", "{" + "\n" * 90 + "}", "{" + "\n" * 60 + "}"),
    (opens_with_its_role, "csrc/cpu/a.c", "int x;", "/* The role. Path of a\n * call: last. */"),
    (opens_with_its_role, "csrc/cpu/a.h", "/* The role. */", "/* The role. Not on the path of a\n * call: info. */"),
    (file_length, "csrc/cpu/a.c", "\n" * 451, "\n" * 400),
    (left_over_marks, "python/a.py", "# FIX" + "ME later", "# fixed"),
    (one_machine, "Makefile", "cd /" + "root/x", "cd root/x"),
    (cites_what_is_here, "csrc/cpu/a.c", "/* see no_" + "such.md, section 4 */", "/* see docs/errors.md, section 4 */"),
    (cites_what_is_here, "docs/a.md", "[it](../docs/no_" + "such.md)", "[it](../CONTRIBUTING.md), errors.md, *.md"),
    (one_machine, "a.md", "https://py" + "pi.org/simple", "a package registry"),
]


@pytest.mark.parametrize(("rule", "path", "bad", "good"), PLANTED, ids=lambda x: getattr(x, "__name__", None))
def test_rules_bite(rule, path, bad, good):
    assert lint(rule, Path(path), bad)
    assert lint(rule, Path(path), good) == []


def test_every_rule_has_a_planted_bug():
    assert {planted[0] for planted in PLANTED} == {*C_RULES, *TEXT_RULES}


def test_a_reason_is_needed_to_ignore():
    assert lint(prints_or_dies, Path("csrc/cpu/a.c"), "    abort(); /* lint: x */")
    assert lint(prints_or_dies, Path("csrc/cpu/a.c"), "    abort(); /* lint: a reason that says something */") == []


def test_contributing_maps_every_test_and_folder():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    names = [path.stem for path in files("tests/test_*.py")] + [path.parts[1] for path in files("csrc/*")]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
