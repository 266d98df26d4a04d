"""The CUDA driver by ctypes: raw calls beside a framework, and a look at how it takes memory."""
import ctypes
import time

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def check(code, what):
    if code:
        raise RuntimeError(f"{what}: {code}")


def context():
    check(cuda.cuInit(0), "cuInit")
    handle = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), 0), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(handle), "cuCtxSetCurrent")


def info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    return free.value, total.value


def alloc(size):
    """The code and the address."""
    pointer = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)), pointer.value


def free(pointer):
    check(cuda.cuMemFree_v2(ctypes.c_uint64(pointer)), "cuMemFree")


def full():
    """Stays full for a moment, so that whoever samples from outside sees it."""
    time.sleep(0.5)


def raw_16_gib():
    """Whether a raw allocation of 16 GiB is refused beside whatever runs in this process."""
    code, pointer = alloc(16 << 30)
    if code == 0:
        free(pointer)
    return {0: "succeeded", 2: "refused"}.get(code, f"code {code}")
