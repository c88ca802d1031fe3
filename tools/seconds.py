"""Compare the seconds of CI's steps with their allowances: `python tools/seconds.py .ci/seconds SEEN`.

SEEN has a line "step seconds" for every step that ran. Prints a table; .ci/seconds has the rule. Exit status 1:
a step, or all of them, took too long. Runs on any Python 3, before anything is installed.
"""

import sys
from pathlib import Path

FAILS = 2  # times a step's allowance
TOTAL = "total"


def read(path):
    """{step: seconds}, in order."""
    lines = (line.split("#")[0].split() for line in Path(path).read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if line}


def judge(seconds, allowed):
    """What to say of a step, or of all: "", a warning or a failure."""
    if seconds > FAILS * allowed:
        return "FAILED: over twice its allowance"
    return "warning: over its allowance" if seconds > allowed else ""


def table(allowed, seen):
    """(lines, whether all is well)."""
    rows = [(step, seconds, allowed[step], judge(seconds, allowed[step])) for step, seconds in seen.items()]
    total = sum(seen.values())
    rows.append((TOTAL, total, allowed[TOTAL], judge(total, allowed[TOTAL])))
    lines = [f"{'step':13}{'seconds':>8}{'allowed':>8}"]
    lines += [f"{step:13}{seconds:8}{most:8}  {said}".rstrip() for step, seconds, most, said in rows]
    return lines, not any(said.startswith("FAILED") for *_, said in rows)


if __name__ == "__main__":
    lines, well = table(*map(read, sys.argv[1:]))
    print("", *lines, sep="\n")
    sys.exit(not well)
