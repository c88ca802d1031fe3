"""Import in subinterpreters, then in the main one. Prints each outcome."""

import importlib
import warnings

warnings.simplefilter("ignore")
for name in ("_interpreters", "_xxsubinterpreters"):
    try:
        interpreters = importlib.import_module(name)
    except ImportError:
        continue
    break
CODE = """
try:
    import matmul_fused
except ImportError as error:
    print(error, flush=True)
else:
    print("imported", flush=True)
"""
for _ in range(2):
    interpreter = interpreters.create("legacy") if interpreters.__name__ == "_interpreters" else interpreters.create()
    interpreters.run_string(interpreter, CODE)
    interpreters.destroy(interpreter)
import numpy as np  # noqa: E402 (NumPy must not be in the process before: it refuses, too)

import matmul_fused as mf  # noqa: E402

assert np.array_equal(mf.matmul_fused(np.eye(3), np.eye(3)), np.eye(3))
print("the main interpreter works")
