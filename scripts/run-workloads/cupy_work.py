"""Matrix products, then arrays up to CuPy's own out-of-memory error, then products on."""
import cupy

from driver import MIB, full

a = cupy.random.rand(2048, 2048, dtype=cupy.float32)
first = float((a @ a).sum())
held = []
try:
    while True:
        held.append(cupy.ones(48 * MIB // 4, dtype=cupy.float32))
except cupy.cuda.memory.OutOfMemoryError:
    pass
pool = cupy.get_default_memory_pool()
at_error = pool.total_bytes() / MIB
full()
held.clear()
pool.free_all_blocks()
again = float((a @ a).sum())
print(f"cupy: {at_error:.0f} MiB at its error; goes on: {abs(again - first) <= 1e-3 * abs(first)}")
