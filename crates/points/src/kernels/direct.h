// Occupancy straight into the output, for outputs that stay in the second-level cache (CUDA
// only): all of it is cleared, then each point writes its voxel. Points that share one write
// the same, so it does not matter who comes last.

#if CUDA && WHOLE && !WIDE

KERNEL void wipe(uint4 *out, u64 vectors) {
    let_next_start();
    for (u64 i = (u64)BLOCK_X * LANES + LANE; i < vectors; i += (u64)BLOCKS_X * LANES)
        out[i] = make_uint4(0, 0, 0, 0);
}

// Report: not finite, outside.
KERNEL void light(const float *__restrict__ points, const u64 *__restrict__ starts,
                  GRID_ARGUMENTS, out_t *out, u32 *report) {
    __shared__ u32 tally;
    const Grid grid = GRID;
    u32 broken = 0, outside = 0;
    int waited = 0;
    const u64 worker = (u64)BLOCK_X * LANES + LANE, workers = (u64)BLOCKS_X * LANES;
    for (u64 cloud = BLOCK_Y; cloud < grid.clouds; cloud += BLOCKS_Y) {
        out_t *own = out + cloud * grid.span;
        u64 begin, end;
        bounds(&grid, starts, cloud, &begin, &end);
        // Points are on the way, and placed, before the output is clear.
#define LIGHT(x, y, z, index)                                                                  \
    FIND(x, y, z, {                                                                            \
        if (!waited) wait_for_last();                                                          \
        waited = 1;                                                                            \
        own[at] = (out_t)1;                                                                    \
    })
        EACH_POINT(points, begin, end, worker, workers, LIGHT)
    }
    if (!waited) wait_for_last();
    REPORT(report, 0, 2, tally, broken)
    REPORT(report, 1, 2, tally, outside)
}

#endif
