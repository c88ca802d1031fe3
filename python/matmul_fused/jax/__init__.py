"""matmul_fused under jax.jit, jax.grad and jax.vmap, on the CPU and on GPUs.

    from matmul_fused.jax import matmul_fused
    y = jax.jit(lambda x, w, b: matmul_fused(x, w, b, "gelu"))(x, w, b)

`import matmul_fused` does not import this package, nor jax.
"""

try:
    import jax as _jax
except ImportError as _error:
    raise ImportError("matmul_fused.jax needs jax, which is not installed; pip install 'jax>=0.5'") from _error

try:
    import jax.ffi as _ffi  # noqa: F401
except ImportError as _error:
    raise ImportError(f"matmul_fused.jax needs jax 0.5 or later; this is jax {_jax.__version__}") from _error

from .functional import matmul_fused

__all__ = ["matmul_fused"]
