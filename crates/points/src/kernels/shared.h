// Occupancy in one launch, for grids whose bits fit into the shared memory of a few blocks
// (CUDA only, with SLABS and PARTS defined).
//
// SLABS blocks share the grid of a cloud and PARTS share its points: each block goes through
// its part of the points and keeps the bits that fall into its slab, in shared memory, where
// an atomic costs next to nothing. Then the parts of a slab are put together, read from
// neighbour to neighbour inside a cluster, and each block writes its share of the output.
// Nothing but points and output crosses the device's memory.

#if CUDA && defined(SLABS)

extern __shared__ uint4 slab_vectors[];

#if PARTS > 1
#define CLUSTER __cluster_dims__(SLABS * PARTS, 1, 1)
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE uint4 from_neighbour(const uint4 *at, u32 rank) {
    uint4 value;
    u32 address = (u32)__cvta_generic_to_shared(at);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address));
    return value;
}
#else
#define CLUSTER
#endif

// `slab_words` (a multiple of 128 · PARTS) is what a block keeps; the last slab may be short.
// Report: not finite, outside, occupied.
KERNEL void CLUSTER __launch_bounds__(1024, 1)
    occupancy(const float *__restrict__ points, const u64 *__restrict__ starts, const Grid grid,
              u32 slab_words, out_t *__restrict__ out, u32 *report) {
    __shared__ u32 tally;
    u32 *bits = (u32 *)slab_vectors;
    const u32 rank = BLOCK_X % (SLABS * PARTS), slab = rank % SLABS, part = rank / SLABS;
    const u64 cloud = BLOCK_X / (SLABS * PARTS);
    for (u32 i = LANE; i < slab_words / 4; i += LANES) slab_vectors[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();

    u64 begin, end;
    bounds(&grid, starts, cloud, &begin, &end);
    const u64 share = ((end - begin + PARTS - 1) / PARTS + 3) & ~(u64)3;
    const u64 from = begin + part * share < end ? begin + part * share : end;
    const u64 to = from + share < end ? from + share : end;
    const u32 first_word = slab * slab_words;
    u32 broken = 0, outside = 0;
#define KEEP(x, y, z, index)                                                                   \
    {                                                                                          \
        voxel_t at;                                                                            \
        int inside;                                                                            \
        if (locate(&grid, x, y, z, &at, &inside)) {                                            \
            const u32 word = (u32)(at >> 5) - first_word, bit = 1u << (at & 31);               \
            if (word < slab_words && !(bits[word] & bit)) atomicOr(bits + word, bit);          \
        } else if (!inside) {                                                                  \
            if (is_dropped(x, y, z)) broken++;                                                 \
            else outside++;                                                                    \
        }                                                                                      \
    }
    EACH_POINT(points, from, to, LANE, LANES, KEEP)

    const u32 own_words = slab_words / PARTS, own_first = part * own_words;
#if PARTS > 1
    cluster_arrive();
    cluster_wait();
    for (u32 i = own_first / 4 + LANE; i < (own_first + own_words) / 4; i += LANES) {
        uint4 sum = slab_vectors[i];
#pragma unroll
        for (u32 other = 1; other < PARTS; other++) {
            const u32 from_part = (part + other) % PARTS;
            const uint4 theirs = from_neighbour(slab_vectors + i, slab + SLABS * from_part);
            sum.x |= theirs.x;
            sum.y |= theirs.y;
            sum.z |= theirs.z;
            sum.w |= theirs.w;
        }
        slab_vectors[i] = sum;
    }
    cluster_arrive();
#endif
    __syncthreads();

    const u64 voxels = grid.span;
    out_t *own_out = out + cloud * voxels;
    u32 occupied = 0;
    for (u32 tile = own_first / 32 + LANE / 32; tile < (own_first + own_words) / 32; tile += LANES / 32) {
        const u64 place = ((u64)first_word + tile * 32) * 32;
        if (place >= voxels) break;
        const u32 word = bits[tile * 32 + (LANE & 31)];
        occupied += __popc(word);
        spread(word, own_out + place, voxels - place);
    }
    REPORT(report, 0, 3, tally, (slab == 0 ? broken : 0))
    REPORT(report, 1, 3, tally, (slab == 0 ? outside : 0))
    REPORT(report, 2, 3, tally, occupied)
#if PARTS > 1
    cluster_wait(); // nobody leaves while a neighbour may still read
#endif
}

#endif
