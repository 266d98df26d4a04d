// Occupancy of one cloud in one launch of blocks that hand points to each other (CUDA only).
//
// The second-level cache takes about one write to a scattered place a clock for every three
// multiprocessors, so that half a million points cost more than all else together. Here each
// block sorts its points into bins, one for each slab of the grid, in shared memory, where an
// atomic costs next to nothing; it leaves the bins for the blocks that own the slabs, as whole
// vectors; and when all have done so, each block lights its own slab in shared memory and
// writes the slab's output once, in order. Nothing has to be cleared before.
//
// A bin has room for what an even cloud puts into it and a good deal more. Where one is full
// all the same, its block writes every point of its own to its place when all slabs are
// written: points that share a voxel write the same, so doing it twice changes nothing.
//
// Blocks wait for each other, so that they must be launched together.

#if CUDA && WHOLE && !WIDE && __CUDA_ARCH__ >= 800

// A bin is 2^`vector_bits` vectors, at most a warp's, of eight short numbers: how many follow,
// with FULL where a bin of the block was full, and places in the slab. A slab is 2^`slab_bits`
// voxels, at most 2^16.
#define FULL 0x8000u
typedef struct {
    u32 *counts;
    unsigned short *bins;
    u32 slab_bits, room;
} Bins;

// Puts voxels (NOWHERE for none) into their bins; 1 where one was full.
#define NOWHERE 0xFFFFFFFFu
template <u32 many> DEVICE int put(const Bins *to, const u32 *at) {
    u32 rank[many];
    int full = 0;
#pragma unroll
    for (u32 k = 0; k < many; k++)
        rank[k] = at[k] == NOWHERE ? 0 : atomicAdd(&to->counts[at[k] >> to->slab_bits], 1);
#pragma unroll
    for (u32 k = 0; k < many; k++) {
        if (at[k] == NOWHERE) continue;
        const u32 slab = at[k] >> to->slab_bits, place = at[k] & ((1u << to->slab_bits) - 1);
        if (rank[k] < to->room) to->bins[slab * (to->room + 1) + 1 + rank[k]] = (unsigned short)place;
        else full = 1;
    }
    return full;
}

DEVICE u32 find(const Grid *grid, float x, float y, float z, u32 *broken, u32 *outside) {
    u32 at;
    int inside;
    if (locate(grid, x, y, z, &at, &inside)) return at;
    if (is_broken(x, y, z)) (*broken)++;
    else (*outside)++;
    return NOWHERE;
}

// As many blocks as slabs. `gate`: the word that blocks meet at, 0 before the first launch.
// `exchanged` has room for every block's bins. Report: not finite, outside.
KERNEL void __launch_bounds__(1024, 1)
    exchange(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
             u32 slab_bits, u32 vector_bits, uint4 *exchanged, u32 *gate,
             out_t *__restrict__ out, u32 *report) {
    extern __shared__ uint4 exchange_vectors[];
    __shared__ u32 counts[1024], tally[2];
    const Grid grid = GRID;
    const u32 worker = BLOCK_X * LANES + LANE, workers = BLOCKS_X * LANES;
    const u32 bin_vectors = 1u << vector_bits, slab_span = 1u << slab_bits;
    uint4 *bins = exchange_vectors, *slab = bins + (BLOCKS_X << vector_bits);
    const Bins to = {counts, (unsigned short *)bins, slab_bits, bin_vectors * 8 - 1};
    const u32 turn = LANE == 0 ? *(volatile u32 *)gate : 0;
    u32 broken = 0, outside = 0;
    int full = 0;
#if STRIDE == 3
    const u32 fours = (u32)(grid.points / 4);
    const Four *from = (const Four *)points;
    Four now = {};
    if (worker < fours) now = read_four(from + worker);
#endif
    for (u32 i = LANE; i < BLOCKS_X; i += LANES) counts[i] = 0;
    for (u32 i = LANE; i < slab_span / 16; i += LANES) slab[i] = make_uint4(0, 0, 0, 0);
    if (LANE < 2) tally[LANE] = 0;
    __syncthreads();

#define PUT(x, y, z, index)                                                                    \
    {                                                                                          \
        const u32 at = find(&grid, x, y, z, &broken, &outside);                                \
        full |= put<1>(&to, &at);                                                              \
    }
#if STRIDE == 3
    for (u32 i = worker; i < fours; i += workers) {
        Four next = {};
        if (i + workers < fours) next = read_four(from + i + workers);
        const u32 at[4] = {find(&grid, now.a.x, now.a.y, now.a.z, &broken, &outside),
                           find(&grid, now.a.w, now.b.x, now.b.y, &broken, &outside),
                           find(&grid, now.b.z, now.b.w, now.c.x, &broken, &outside),
                           find(&grid, now.c.y, now.c.z, now.c.w, &broken, &outside)};
        full |= put<4>(&to, at);
        now = next;
    }
    for (u64 i = 4 * (u64)fours + worker; i < grid.points; i += workers)
        PUT(points[3 * i], points[3 * i + 1], points[3 * i + 2], i)
#else
    EACH_POINT(points, 0, grid.points, (u64)worker, (u64)workers, PUT)
#endif
    if (broken) atomicAdd(&tally[0], broken);
    if (outside) atomicAdd(&tally[1], outside);
    full = __syncthreads_or(full);
    if (LANE < 2) report[BLOCK_X * 2 + LANE] = tally[LANE];
    const u32 vectors = BLOCKS_X << vector_bits;
    for (u32 i = LANE; i < vectors; i += LANES) {
        const u32 bin = i >> vector_bits, part = i & (bin_vectors - 1);
        const u32 count = counts[bin] < to.room ? counts[bin] : to.room;
        uint4 vector = bins[i];
        if (part == 0) vector.x = (vector.x & 0xFFFF0000u) | count | (full ? FULL : 0);
        if (part * 8 <= count) exchanged[((bin * BLOCKS_X + BLOCK_X) << vector_bits) + part] = vector;
    }
    meet(gate, turn);

    // Whole warps: what stands first in a bin comes from the lane that read its first vector.
    const uint4 *mine = exchanged + ((u64)BLOCK_X * BLOCKS_X << vector_bits);
    u32 late = 0;
    for (u32 i = LANE; i - (LANE & 31) < vectors; i += LANES) {
        const uint4 vector = i < vectors ? __ldcg(mine + i) : make_uint4(0, 0, 0, 0);
        const u32 head = __shfl_sync(0xFFFFFFFFu, vector.x & 0xFFFF, LANE & 31 & ~(bin_vectors - 1));
        const u32 first = (i & (bin_vectors - 1)) * 8, last = head & ~FULL;
        const u32 words[4] = {vector.x, vector.y, vector.z, vector.w};
        late |= head & FULL;
#pragma unroll
        for (u32 k = 0; k < 8; k++)
            if (first + k > 0 && first + k <= last)
                ((u8 *)slab)[words[k / 2] >> (k % 2 * 16) & 0xFFFF] = 1;
    }
    late = __syncthreads_or(late);
    const u64 begin = (u64)BLOCK_X << slab_bits;
    const u32 voxels = (u32)(grid.span - begin < slab_span ? grid.span - begin : slab_span);
    uint4 *own = (uint4 *)(out + begin);
#if OUT_U8
    for (u32 i = LANE; i < voxels / 16; i += LANES) own[i] = slab[i];
#else
#pragma unroll 4
    for (u32 i = LANE; i < voxels / 4; i += LANES) {
        const u32 lit = ((u32 *)slab)[i], one = __float_as_uint(1.0f);
        own[i] = make_uint4((lit & 1) * one, (lit >> 8 & 1) * one, (lit >> 16 & 1) * one,
                            (lit >> 24) * one);
    }
#endif
    if (!late) return;
    meet(gate, turn ^ 0x80000000u);
    if (!full) return;
#define AGAIN(x, y, z, index)                                                                  \
    {                                                                                          \
        const u32 at = find(&grid, x, y, z, &broken, &outside);                                \
        if (at != NOWHERE) out[at] = (out_t)1;                                                 \
    }
#if STRIDE == 3
    for (u32 i = worker; i < fours; i += workers) {
        now = read_four(from + i);
        AGAIN(now.a.x, now.a.y, now.a.z, 0)
        AGAIN(now.a.w, now.b.x, now.b.y, 0)
        AGAIN(now.b.z, now.b.w, now.c.x, 0)
        AGAIN(now.c.y, now.c.z, now.c.w, 0)
    }
    for (u64 i = 4 * (u64)fours + worker; i < grid.points; i += workers)
        AGAIN(points[3 * i], points[3 * i + 1], points[3 * i + 2], i)
#else
    EACH_POINT(points, 0, grid.points, (u64)worker, (u64)workers, AGAIN)
#endif
}

#endif
