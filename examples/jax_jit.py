"""A step of training in jax with fused layers, and the same step with jax's own operators.

python examples/jax_jit.py
"""

import jax
import jax.numpy as jnp

from matmul_fused.jax import matmul_fused


def fused(p, x):
    """The MLP of Llama: the gate and the up product, silu and their multiplication are one call."""
    return matmul_fused(matmul_fused(x, (p["gate"], p["up"]), None, "swiglu"), p["down"], p["bias"])


def plain(p, x):
    return (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"] + p["bias"]


def step(model):
    def loss(p, x, y):
        return jnp.mean((jax.vmap(model, (None, 0))(p, x) - y) ** 2)

    @jax.jit
    def update(p, x, y):
        value, gradients = jax.value_and_grad(loss)(p, x, y)
        return value, jax.tree.map(lambda w, g: w - 2 * g, p, gradients)

    return update


keys = jax.random.split(jax.random.key(0), 5)
width, hidden = 64, 176
params = {
    "gate": jax.random.normal(keys[0], (width, hidden)) / width**0.5,
    "up": jax.random.normal(keys[1], (width, hidden)) / width**0.5,
    "down": jax.random.normal(keys[2], (hidden, width)) / hidden**0.5,
    "bias": jnp.zeros(width),
}
x, y = (jax.random.normal(key, (4, 32, width)) for key in keys[3:])

losses = []
for name, model in (("fused", fused), ("plain", plain)):
    p, update = params, step(model)
    first, p = update(p, x, y)
    for _ in range(20):
        last, p = update(p, x, y)
    losses.append(float(last))
    print(f"{name}: loss {first:.4f}, {last:.4f} after 20 steps")
print(f"difference {abs(losses[0] - losses[1]):.1e}")
