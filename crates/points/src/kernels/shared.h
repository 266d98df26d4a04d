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

DEVICE void keep(u32 *bits, u32 at, u32 first_word, u32 slab_words) {
    const u32 word = (at >> 5) - first_word, bit = 1u << (at & 31);
    if (word < slab_words && !(bits[word] & bit)) atomicOr(bits + word, bit);
}

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
#define KEEP(x, y, z, index) FIND(x, y, z, keep(bits, at, first_word, slab_words))
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

#define NOWHERE 0xFFFFFFFFu

// Where many blocks go through the same points, each point is placed once before: its voxel is
// a third of its coordinates to read. Report: not finite, outside.
KERNEL void place(const float *__restrict__ points, const u64 *__restrict__ starts,
                  GRID_ARGUMENTS, u32 *places, u32 *report) {
    __shared__ u32 tally;
    const Grid grid = GRID;
    u32 broken = 0, outside = 0;
    const u64 worker = (u64)BLOCK_X * LANES + LANE, workers = (u64)BLOCKS_X * LANES;
    for (u64 cloud = BLOCK_Y; cloud < grid.clouds; cloud += BLOCKS_Y) {
        u64 begin, end;
        bounds(&grid, starts, cloud, &begin, &end);
#define PLACE(x, y, z, index)                                                                  \
    {                                                                                          \
        u32 place = NOWHERE;                                                                   \
        FIND(x, y, z, place = at)                                                              \
        places[index] = place;                                                                 \
    }
        EACH_POINT(points, begin, end, worker, workers, PLACE)
    }
    REPORT(report, 0, 2, tally, broken)
    REPORT(report, 1, 2, tally, outside)
}

// The same as `slabs`, from places. NOWHERE is in no slab of a grid of at most 2^31 voxels.
// Report: occupied.
KERNEL void __launch_bounds__(1024, 1)
    placed_slabs(const u32 *__restrict__ places, u64 points_each, u64 voxels, u32 slabs_each,
                 u32 slab_words, out_t *__restrict__ out, u32 *report) {
    __shared__ u32 tally;
    u32 *bits = (u32 *)slab_vectors;
    const u32 slab = BLOCK_X % slabs_each, first_word = slab * slab_words;
    const u64 cloud = BLOCK_X / slabs_each;
    for (u32 i = LANE; i < slab_words / 4; i += LANES) slab_vectors[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();

    const u64 begin = cloud * points_each, end = begin + points_each;
    u64 head = begin + ((4 - (begin & 3)) & 3);
    if (head > end) head = end;
    const u64 quads = (end - head) / 4;
    for (u64 i = begin + LANE; i < head; i += LANES) keep(bits, places[i], first_word, slab_words);
    const uint4 *four = (const uint4 *)(places + head);
    for (u64 i = LANE; i < quads; i += LANES) {
        const uint4 at = four[i];
        keep(bits, at.x, first_word, slab_words);
        keep(bits, at.y, first_word, slab_words);
        keep(bits, at.z, first_word, slab_words);
        keep(bits, at.w, first_word, slab_words);
    }
    for (u64 i = head + 4 * quads + LANE; i < end; i += LANES)
        keep(bits, places[i], first_word, slab_words);
    __syncthreads();

    out_t *own_out = out + cloud * voxels;
    u32 occupied = 0;
    for (u32 tile = LANE / 32; tile < slab_words / 32; tile += LANES / 32) {
        const u64 place = ((u64)first_word + tile * 32) * 32;
        if (place >= voxels) break;
        const u32 word = bits[tile * 32 + (LANE & 31)];
        occupied += __popc(word);
        spread(word, own_out + place, voxels - place);
    }
    REPORT(report, 0, 1, tally, occupied)
}

#endif
