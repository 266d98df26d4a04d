// Where blocks that were launched together wait for each other (CUDA only).

#if CUDA && __CUDA_ARCH__ >= 800

// All blocks have come here, and see what the others wrote before. `turn` is the gate's word as
// it was before anybody came: its highest bit turns when the last has come.
DEVICE void meet(u32 *gate, u32 turn) {
    __syncthreads();
    if (LANE == 0) {
        const u32 more = BLOCK_X == 0 ? 0x80000000u - (BLOCKS_X - 1) : 1;
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(gate), "r"(more) : "memory");
        u32 now;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(gate) : "memory");
        } while (!((now ^ turn) >> 31));
    }
    __syncthreads();
}

#endif
