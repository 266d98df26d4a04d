// A kernel that starts before the work in front of it is over, memory before it is needed (CUDA only).

#if CUDA

// The next kernel of the stream may start now; it waits by itself before it writes.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

DEVICE void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Fetches a line of memory into the cache that all processors share, and does not wait for it.
DEVICE void fetch_soon(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

#endif
