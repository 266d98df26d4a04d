// Occupancy in one launch, for grids whose bits fit into the shared memory of a few blocks
// (CUDA only).
//
// Each block has a slab of a cloud's grid: it goes through the points of the cloud and keeps
// the bits that fall into its slab, in shared memory, where an atomic costs next to nothing;
// then it writes its part of the output. The blocks of a cloud read the same points at about
// the same time, so that all but one find them in the second-level cache. Nothing but points
// and output crosses the device's memory, and nothing has to be cleared before.
//
// Where there are many points, those of a slab are cut among the blocks of a cluster
// (`slabs_2`): each has bits of its own, which are put together over the cluster's network
// while the output is written. Four points are looked up, then marked, without a branch, while
// the next four are on the way: one after the other, each would wait for the last.

#if CUDA && WHOLE && !WIDE

extern __shared__ uint4 slab_vectors[];

DEVICE u32 address_of(const void *shared) { return (u32)__cvta_generic_to_shared(shared); }

// A word of this block's bits, or all ones where `wanted` is 0.
DEVICE u32 look_if(u32 wanted, u32 address) {
    u32 word;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; mov.u32 %0, 0xFFFFFFFF;"
                 " @p ld.shared.u32 %0, [%2]; }" : "=r"(word) : "r"(wanted), "r"(address));
    return word;
}

DEVICE void mark_unless(u32 seen, u32 address, u32 bit) {
    asm volatile("{ .reg .pred p; .reg .b32 t; and.b32 t, %0, %2; setp.eq.u32 p, t, 0;"
                 " @p red.shared.or.b32 [%1], %2; }" :: "r"(seen), "r"(address), "r"(bit) : "memory");
}

// The same word of another block of the cluster.
DEVICE u32 look_at_block(u32 address, u32 rank) {
    u32 word = 0;
#if __CUDA_ARCH__ >= 900
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(there) : "memory");
#endif
    return word;
}

DEVICE void all_of_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

#if STRIDE == 3

// Marks four points in the slab that begins at `first` and has `span` voxels.
DEVICE void keep_four(const Grid *grid, const Four *four, u32 first, u32 span, u32 base,
                      u32 *broken, u32 *outside) {
    const float xyz[12] = {four->a.x, four->a.y, four->a.z, four->a.w, four->b.x, four->b.y,
                           four->b.z, four->b.w, four->c.x, four->c.y, four->c.z, four->c.w};
    u32 at[4], seen[4], missed = 0;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        int inside;
        locate(grid, xyz[3 * k], xyz[3 * k + 1], xyz[3 * k + 2], &at[k], &inside);
        if (!inside) missed |= 1u << k;
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        at[k] -= first;
        seen[k] = look_if(at[k] < span && !(missed >> k & 1), base + (at[k] >> 5 << 2));
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++)
        mark_unless(seen[k], base + (at[k] >> 5 << 2), 1u << (at[k] & 31));
    if (!missed) return;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        const u32 one = missed >> k & 1;
        const u32 bad = is_broken(xyz[3 * k], xyz[3 * k + 1], xyz[3 * k + 2]);
        *broken += one & bad;
        *outside += one & !bad;
    }
}

#endif

// `slab_words` (a multiple of 32) is what a block keeps, `slabs` what a cloud is cut into; the
// last may be short; `parts` blocks share the points. Report: not finite, outside, occupied.
DEVICE void slabs(const float *__restrict__ points, const u64 *__restrict__ starts,
                  const Grid grid, u32 slabs_each, u32 parts, u32 slab_words,
                  out_t *__restrict__ out, u32 *report) {
    __shared__ u32 tally;
    const u32 part = BLOCK_X % parts, slab = BLOCK_X / parts % slabs_each;
    const u64 cloud = BLOCK_X / parts / slabs_each;
    for (u32 i = LANE; i < slab_words / 4; i += LANES) slab_vectors[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();

    const u32 base = address_of(slab_vectors), span = slab_words * 32, first = slab * span;
    u64 begin, last;
    bounds(&grid, starts, cloud, &begin, &last);
    const u64 each = ((last - begin + parts - 1) / parts + 3) & ~3ull;
    begin += part * each;
    if (begin > last) begin = last;
    const u64 end = begin + each < last ? begin + each : last;
    u32 broken = 0, outside = 0;
#define KEEP(x, y, z, index)                                                                   \
    FIND(x, y, z, {                                                                            \
        const u32 here = at - first;                                                           \
        if (here < span) mark_unless(0, base + (here >> 5 << 2), 1u << (here & 31));           \
    })
#if STRIDE == 3
    u64 aligned = begin + ((4 - (begin & 3)) & 3);
    if (aligned > end) aligned = end;
    const u32 fours = (u32)((end - aligned) / 4);
    for (u64 i = begin + LANE; i < aligned; i += LANES)
        KEEP(points[3 * i], points[3 * i + 1], points[3 * i + 2], i)
    const Four *from = (const Four *)(points + 3 * aligned) + LANE;
    Four now = {};
    if (LANE < fours) now = read_four(from);
    for (u32 i = LANE; i < fours; i += LANES) {
        from += LANES;
        Four next = {};
        if (i + LANES < fours) next = read_four(from);
        keep_four(&grid, &now, first, span, base, &broken, &outside);
        now = next;
    }
    for (u64 i = aligned + 4 * (u64)fours + LANE; i < end; i += LANES)
        KEEP(points[3 * i], points[3 * i + 1], points[3 * i + 2], i)
#else
    EACH_POINT(points, begin, end, LANE, LANES, KEEP)
#endif
    if (parts > 1) all_of_cluster();
    else __syncthreads();

    const u64 voxels = grid.span;
    out_t *own_out = out + cloud * voxels;
    const u32 warp = LANE / 32 + part * (LANES / 32), warps = parts * (LANES / 32);
    u32 occupied = 0;
    for (u32 tile = warp; tile < slab_words / 32; tile += warps) {
        const u64 place = (u64)first + tile * 1024;
        if (place >= voxels) break;
        const u32 address = base + (tile * 32 + (LANE & 31)) * 4;
        u32 word = look_if(parts == 1, address);
        if (parts > 1) {
            word = 0;
            for (u32 other = 0; other < parts; other++) word |= look_at_block(address, other);
        }
        occupied += __popc(word);
        spread(word, own_out + place, voxels - place);
    }
    REPORT(report, 0, 3, tally, (slab == 0 ? broken : 0))
    REPORT(report, 1, 3, tally, (slab == 0 ? outside : 0))
    REPORT(report, 2, 3, tally, occupied)
    // Nobody's bits go while others look at them.
    if (parts > 1) all_of_cluster();
}

KERNEL void __launch_bounds__(1024, 1)
    slabs_1(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
            u32 slabs_each, u32 slab_words, out_t *__restrict__ out, u32 *report) {
    const Grid grid = GRID;
    slabs(points, starts, grid, slabs_each, 1, slab_words, out, report);
}

#if __CUDA_ARCH__ >= 900
KERNEL void __cluster_dims__(2, 1, 1) __launch_bounds__(1024, 1)
    slabs_2(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
            u32 slabs_each, u32 slab_words, out_t *__restrict__ out, u32 *report) {
    const Grid grid = GRID;
    slabs(points, starts, grid, slabs_each, 2, slab_words, out, report);
}
#endif

#endif
