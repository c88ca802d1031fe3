"""A call on plain tensors under a torch mode that may give new tensors no memory. Argument: the mode.

Prints "refused: " and the exception, or "computed" if the values are right. A crash shows in the exit status.
"""

import sys

import torch

import matmul_fused as mf

A, B = torch.ones(3, 4), torch.ones(4, 5)
mf.matmul_fused(A, B)


def call(x):
    """A call whose operands have nothing to do with the transformed x."""
    try:
        result = mf.matmul_fused(A, B)
    except (TypeError, ValueError, NotImplementedError) as error:
        print("refused:", error)
    else:
        results.append(result)
    return x.sum()


results = []


mode = sys.argv[1]
if mode == "FakeTensorMode":
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        call(torch.ones(3))
else:
    getattr(torch.func, mode)(call)(torch.ones(3))
for result in results:
    assert torch.equal(result, torch.full((3, 5), 4.0))
    print("computed")
