"""Pins 2 GiB of the host's memory, then fills the device: on a GPU with memory of its own the two are not the same."""
import ctypes

from driver import MIB, alloc, context, cuda, free, full, info, raw_16_gib

context()
pinned = []
for _ in range(32):
    pointer = ctypes.c_void_p()
    code = cuda.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(64 * MIB), 0)
    if code:
        break
    pinned.append(pointer)
buffer = ctypes.create_string_buffer(64 * MIB + 4096)
at = ctypes.c_void_p((ctypes.addressof(buffer) + 4095) & ~4095)
registered = cuda.cuMemHostRegister_v2(at, ctypes.c_size_t(64 * MIB), 0)
held = []
while True:
    code, pointer = alloc(32 * MIB)
    if code:
        break
    held.append(pointer)
full()
left = info()[0] // MIB
raw = raw_16_gib()
cuda.cuMemHostUnregister(at)
for pointer in held:
    free(pointer)
for pointer in pinned:
    cuda.cuMemFreeHost(pointer)
print(f"pinned: {len(pinned) * 64} MiB pinned, registered with code {registered}; {len(held) * 32} MiB on the device up to code {code} with {left} MiB left; raw 16 GiB {raw}; goes on: {alloc(MIB)[0] == 0}")
