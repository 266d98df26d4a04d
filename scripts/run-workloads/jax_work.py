"""Gradient steps, then arrays up to JAX's own out-of-memory error, then steps on."""
import sys

import jax
import jax.numpy as jnp

from driver import full


@jax.jit
def step(w, x):
    value, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * grad, value


w = jnp.ones((2048, 2048)) * 0.01
x = jax.random.normal(jax.random.PRNGKey(0), (512, 2048))
for _ in range(20):
    w, loss = step(w, x)
first = float(loss)
held = []
try:
    while True:
        block = jnp.ones((64, 1024, 1024), dtype=jnp.uint8)
        block.block_until_ready()
        held.append(block)
except Exception as error:
    text = type(error).__name__ + " " + str(error)[:60].replace("\n", " ")
count = len(held)
full()
held.clear()
for _ in range(20):
    w, loss = step(w, x)
print(f"jax {sys.argv[1]}: {count * 64} MiB at its error ({text}); goes on: {float(loss) < first}")
