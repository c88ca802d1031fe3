"""Compare the seconds of CI's steps with their allowances: `python tools/seconds.py .ci/seconds SEEN [NEXT]`.

SEEN has a line "step seconds" for every step that ran. Prints a table; .ci/seconds has the rule. Exit status 1:
a step, or all of them, took too long. With NEXT, a step: exit status 1 if at the pace so far it would not end in time.
Runs on any Python 3, before anything is installed.
"""

import sys
from pathlib import Path

FAILS = 2  # times a step's allowance
LIMIT = 80 * 60  # seconds of a run: it is cut off ten minutes later
TOTAL = "total"


def read(path):
    """{step: seconds}, in order."""
    lines = (line.split("#")[0].split() for line in Path(path).read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if line}


def pace(allowed, seen, but=None):
    """How slow the machine is: seconds of the steps / their allowances, all steps but one; at least 1."""
    others = [step for step in seen if step != but]
    return max(1, sum(seen[step] for step in others) / max(1, sum(allowed[step] for step in others)))


def fits(allowed, seen, following):
    """Will the step that follows end in time?"""
    return sum(seen.values()) + allowed[following] * pace(allowed, seen) <= LIMIT


def judge(seconds, allowed, slowness=1):
    """What to say of a step, or of all: "", a warning or a failure."""
    if seconds > FAILS * allowed * slowness:
        return "FAILED: over twice its allowance"
    return "warning: over its allowance" if seconds > allowed else ""


def table(allowed, seen):
    """(lines, whether all is well)."""
    rows = [
        (step, seconds, allowed[step], judge(seconds, allowed[step], pace(allowed, seen, step)))
        for step, seconds in seen.items()
    ]
    total = sum(seen.values())
    rows.append((TOTAL, total, allowed[TOTAL], judge(total, allowed[TOTAL])))
    lines = [f"{'step':13}{'seconds':>8}{'allowed':>8}"]
    lines += [f"{step:13}{seconds:8}{most:8}  {said}".rstrip() for step, seconds, most, said in rows]
    return lines, not any(said.startswith("FAILED") for *_, said in rows)


if __name__ == "__main__":
    allowed, seen = map(read, sys.argv[1:3])
    if len(sys.argv) > 3:
        well = fits(allowed, seen, sys.argv[3])
        lines = [] if well else [f"== {sys.argv[3]}: NOT RUN, it would not end within {LIMIT // 60} minutes"]
    else:
        lines, well = table(allowed, seen)
    print("", *lines, sep="\n")
    sys.exit(not well)
