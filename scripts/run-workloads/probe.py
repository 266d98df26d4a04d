"""How the driver takes memory: by what steps plain allocations and pools grow."""
import ctypes
import time

from driver import MIB, alloc, check, context, cuda, free, info

context()
print("probe: total", info()[1] // MIB, "MiB")
for size in [1, 512, 4096, 65536, 262144, 524288, MIB - 1, MIB, MIB + 1, 3 * MIB // 2, 2 * MIB, 2 * MIB + 1, 3 * MIB, 5 * MIB, 20 * MIB + 512]:
    before = info()[0]
    held = [alloc(size)[1] for _ in range(64)]
    taken = before - info()[0]
    for pointer in held:
        free(pointer)
    left = before - info()[0]
    print(f"probe: 64 x {size}: took {taken / MIB:.2f} MiB, {taken / 64 / size:.3f} of it; {left / MIB:.2f} left after")

pool = ctypes.c_void_p()
check(cuda.cuDeviceGetMemPool(ctypes.byref(pool), 0), "pool")


def attribute(which):
    value = ctypes.c_uint64()
    check(cuda.cuMemPoolGetAttribute(pool, which, ctypes.byref(value)), "attribute")
    return value.value


for size in [1, 65536, MIB, 3 * MIB, 31 * MIB, 33 * MIB, 65 * MIB, 100 * MIB, 1000 * MIB]:
    cuda.cuCtxSynchronize()
    cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0))
    start, before = attribute(5), info()[0]
    pointer = ctypes.c_uint64()
    check(cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), None), "async")
    print(f"probe: pool {size}: reserved {(attribute(5) - start) / MIB:.2f} MiB, device {(before - info()[0]) / MIB:.2f} MiB")
    cuda.cuMemFreeAsync(pointer, None)
start = time.perf_counter_ns()
for _ in range(1000):
    attribute(5)
print("probe: attribute", (time.perf_counter_ns() - start) / 1000, "ns (python)")
