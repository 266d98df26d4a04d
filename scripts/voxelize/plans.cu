// Plans that the product does not use: `scripts/bench-voxelize-gpu` measures them beside those
// that it does. It appends this to the kernels of crates/points/src/kernels, whose names it uses.
// What is kept moves there; what is not goes.
//
//   slabs_K  slabs whose points are cut among the K blocks of a cluster.
//   nothing  what a launch costs by itself.

#if CUDA && WHOLE && !WIDE && STRIDE == 3 && __CUDA_ARCH__ >= 900

#define SLABS_OF(parts)                                                                        \
    KERNEL void __cluster_dims__(parts, 1, 1) __launch_bounds__(1024, 1)                       \
        slabs_##parts(const float *__restrict__ points, const u64 *__restrict__ starts,        \
                      GRID_ARGUMENTS, u32 slabs_each, u32 slab_words, out_t *__restrict__ out, \
                      u32 *report) {                                                           \
        const Grid grid = GRID;                                                                \
        slabs(points, starts, grid, slabs_each, parts, slab_words, out, report);               \
    }
SLABS_OF(4)
SLABS_OF(8)
SLABS_OF(16)

KERNEL void nothing(u32 *report) {
    if (report == 0) *report = 1;
}

#endif
