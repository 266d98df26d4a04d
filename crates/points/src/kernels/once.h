// Mark and expand in one launch, for work so small that a second launch would be felt
// (CUDA only; every block must be resident, so the launch is a cooperative one).

#if CUDA && defined(AT_ONCE)

// Holds every block until all have come. The gate only counts up: a launch leaves it at a
// multiple of its blocks.
DEVICE void gather(u32 *gate) {
    __syncthreads();
    if (LANE == 0) {
        u32 seen;
        __threadfence();
        const u32 ticket = atomicAdd(gate, 1);
        const u32 wanted = ticket - ticket % BLOCKS_X + BLOCKS_X;
        do {
            asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(gate) : "memory");
        } while ((int)(seen - wanted) < 0);
    }
    __syncthreads();
}

// Report: not finite, outside, occupied.
KERNEL void __launch_bounds__(1024, 1)
    at_once(const float *__restrict__ points, const u64 *__restrict__ starts, const Grid grid,
            u32 *bits, u64 words, out_t *__restrict__ out, u32 *report, u32 *gate) {
    __shared__ u32 tally;
    u32 broken = 0, outside = 0, occupied = 0;
    const u64 worker = (u64)BLOCK_X * LANES + LANE, workers = (u64)BLOCKS_X * LANES;
    for (u64 cloud = 0; cloud < grid.clouds; cloud++) {
        u32 *own = bits + cloud * words;
        u64 begin, end;
        bounds(&grid, starts, cloud, &begin, &end);
#define SET(at, bit) ATOMIC_OR(at, bit)
        EACH_POINT(points, begin, end, worker, workers, MARK)
#undef SET
    }
    gather(gate);
    const u64 tiles = (words + 31) / 32;
    for (u64 tile = worker / 32; tile < tiles * grid.clouds; tile += workers / 32) {
        const u64 cloud = tile / tiles, place = tile % tiles;
        const u64 index = place * 32 + (LANE & 31);
        u32 *at = bits + cloud * words + index;
        const u32 word = index < words ? __ldcg(at) : 0;
        if (index < words) __stcg(at, 0);
        occupied += __popc(word);
        spread(word, out + cloud * grid.span + place * 1024, grid.span - place * 1024);
    }
    REPORT(report, 0, 3, tally, broken)
    REPORT(report, 1, 3, tally, outside)
    REPORT(report, 2, 3, tally, occupied)
}

#endif
