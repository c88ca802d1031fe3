"""A worker of the pool reads a mapped file that somebody has cut short meanwhile. faulthandler must tell of it.

Arguments: the file, the number of threads. The caller's rows are there, the last ones are not.
"""

import faulthandler
import os
import sys

import numpy as np

import matmul_fused as mf

path, threads = sys.argv[1], int(sys.argv[2])
B = np.ones((64, 512), np.float32)
mapped = np.memmap(path, np.float32, "w+", shape=(1 << 16, 64))
mapped[:] = 1
mf.set_num_threads(threads)
assert (mf.matmul_fused(mapped, B)[-1] == 64).all()
os.truncate(path, mapped.nbytes // 2)
faulthandler.enable()
mf.matmul_fused(mapped, B)
raise AssertionError("the rows that are gone were read")
