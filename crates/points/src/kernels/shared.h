// Occupancy in one launch, for grids whose bits fit into the shared memory of a few blocks
// (CUDA only).
//
// Each block has a slab of a cloud's grid: it goes through all points of the cloud and keeps
// the bits that fall into its slab, in shared memory, where an atomic costs next to nothing;
// then it writes its part of the output. The blocks of a cloud read the same points at about
// the same time, so that all but one find them in the second-level cache. Nothing but points
// and output crosses the device's memory, and nothing has to be cleared before.

#if CUDA && WHOLE && !WIDE

extern __shared__ uint4 slab_vectors[];

// `slab_words` (a multiple of 32) is what a block keeps, `slabs` what a cloud is cut into; the
// last may be short. Report: not finite, outside, occupied.
KERNEL void __launch_bounds__(1024, 1)
    slabs(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
          u32 slabs_each, u32 slab_words, out_t *__restrict__ out, u32 *report) {
    __shared__ u32 tally;
    const Grid grid = GRID;
    u32 *bits = (u32 *)slab_vectors;
    const u32 slab = BLOCK_X % slabs_each;
    const u64 cloud = BLOCK_X / slabs_each;
    for (u32 i = LANE; i < slab_words / 4; i += LANES) slab_vectors[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();

    u64 begin, end;
    bounds(&grid, starts, cloud, &begin, &end);
    const u32 first_word = slab * slab_words;
    u32 broken = 0, outside = 0;
#define KEEP(x, y, z, index)                                                                   \
    FIND(x, y, z, {                                                                            \
        const u32 word = (at >> 5) - first_word, bit = 1u << (at & 31);                        \
        if (word < slab_words && !(bits[word] & bit)) atomicOr(bits + word, bit);              \
    })
    EACH_POINT(points, begin, end, LANE, LANES, KEEP)
    __syncthreads();

    const u64 voxels = grid.span;
    out_t *own_out = out + cloud * voxels;
    u32 occupied = 0;
    for (u32 tile = LANE / 32; tile < slab_words / 32; tile += LANES / 32) {
        const u64 place = ((u64)first_word + tile * 32) * 32;
        if (place >= voxels) break;
        const u32 word = bits[tile * 32 + (LANE & 31)];
        occupied += __popc(word);
        spread(word, own_out + place, voxels - place);
    }
    REPORT(report, 0, 3, tally, (slab == 0 ? broken : 0))
    REPORT(report, 1, 3, tally, (slab == 0 ? outside : 0))
    REPORT(report, 2, 3, tally, occupied)
}

#endif
