// Plans that the product does not use: `scripts/bench-voxelize-gpu` measures them beside those
// that it does. It appends this to the kernels of crates/points/src/kernels, whose names it uses.
// What is kept moves there; what is not goes.
//
// What bounds `slabs` at B32 N1M 128: four slabs read every point four times from the second
// level (1.5 GB), and the machine code takes four points one after the other, each with three
// branches, a look and an atomic that wait for one another.
//
//   lean_K  the points of a slab are cut among a cluster of K blocks, each with bits of its own
//           that are put together over the cluster's network while the output is written: two
//           slabs of two parts read points twice. Four points are looked up, then marked,
//           without a branch, while the next four are on the way.
//   far_K   a cluster of K slabs shares a cloud: each point is read once, by one of them, and
//           marked in the shared memory of the block that it belongs to.
//   gated   one cloud in one launch: points are read while the output is cleared, a gate that
//           all blocks pass, points written.

#if CUDA && WHOLE && !WIDE && STRIDE == 3

typedef struct {
    float4 a, b, c;
} Four;

DEVICE u32 address_of(const void *shared) { return (u32)__cvta_generic_to_shared(shared); }

DEVICE u32 of_block(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

DEVICE u32 rank_in_cluster() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEVICE void all_of_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}

// A word of somebody's bits, or all ones where `wanted` is 0.
DEVICE u32 look_if(u32 wanted, u32 address) {
    u32 word;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; mov.u32 %0, 0xFFFFFFFF;"
                 " @p ld.shared::cluster.u32 %0, [%2]; }" : "=r"(word) : "r"(wanted), "r"(address));
    return word;
}

DEVICE u32 look_here_if(u32 wanted, u32 address) {
    u32 word;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; mov.u32 %0, 0xFFFFFFFF;"
                 " @p ld.shared.u32 %0, [%2]; }" : "=r"(word) : "r"(wanted), "r"(address));
    return word;
}

DEVICE void mark_unless(u32 seen, u32 address, u32 bit) {
    asm volatile("{ .reg .pred p; .reg .b32 t; and.b32 t, %0, %2; setp.eq.u32 p, t, 0;"
                 " @p red.relaxed.cluster.shared::cluster.or.b32 [%1], %2; }"
                 :: "r"(seen), "r"(address), "r"(bit) : "memory");
}

DEVICE void mark_here_unless(u32 seen, u32 address, u32 bit) {
    asm volatile("{ .reg .pred p; .reg .b32 t; and.b32 t, %0, %2; setp.eq.u32 p, t, 0;"
                 " @p red.shared.or.b32 [%1], %2; }" :: "r"(seen), "r"(address), "r"(bit) : "memory");
}

// Where four points are, counted from the first voxel of the grid; 1 in `missed` for each that
// is in none.
DEVICE u32 locate_four(const Grid *grid, const Four *four, u32 at[4]) {
    const float xyz[12] = {four->a.x, four->a.y, four->a.z, four->a.w, four->b.x, four->b.y,
                           four->b.z, four->b.w, four->c.x, four->c.y, four->c.z, four->c.w};
    u32 missed = 0;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        int inside;
        locate(grid, xyz[3 * k], xyz[3 * k + 1], xyz[3 * k + 2], &at[k], &inside);
        if (!inside) missed |= 1u << k;
    }
    return missed;
}

DEVICE void count_missed(const Four *four, u32 missed, u32 *broken, u32 *outside) {
    const float xyz[12] = {four->a.x, four->a.y, four->a.z, four->a.w, four->b.x, four->b.y,
                           four->b.z, four->b.w, four->c.x, four->c.y, four->c.z, four->c.w};
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        const u32 one = missed >> k & 1;
        const u32 bad = is_broken(xyz[3 * k], xyz[3 * k + 1], xyz[3 * k + 2]);
        *broken += one & bad;
        *outside += one & !bad;
    }
}

// The points from begin to end for this worker, four at a time, the next four on the way.
#define EACH_FOUR(points, begin, end, worker, workers, VISIT, VISIT_ONE)                       \
    {                                                                                          \
        u64 head_ = begin + ((4 - (begin & 3)) & 3);                                           \
        if (head_ > end) head_ = end;                                                          \
        const u32 fours_ = (u32)((end - head_) / 4);                                           \
        for (u64 i_ = begin + worker; i_ < head_; i_ += workers)                               \
            VISIT_ONE(points[3 * i_], points[3 * i_ + 1], points[3 * i_ + 2])                  \
        const Four *from_ = (const Four *)(points + 3 * head_) + worker;                       \
        Four now_ = {};                                                                        \
        if (worker < fours_) now_ = read_four(from_);                                          \
        for (u32 i_ = worker; i_ < fours_; i_ += workers) {                                    \
            from_ += workers;                                                                  \
            Four next_ = {};                                                                   \
            if (i_ + workers < fours_) next_ = read_four(from_);                               \
            VISIT(&now_)                                                                       \
            now_ = next_;                                                                      \
        }                                                                                      \
        for (u64 i_ = head_ + 4 * (u64)fours_ + worker; i_ < end; i_ += workers)               \
            VISIT_ONE(points[3 * i_], points[3 * i_ + 1], points[3 * i_ + 2])                  \
    }

DEVICE Four read_four(const Four *from) {
    const float4 *vectors = (const float4 *)from;
    const Four four = {__ldg(vectors), __ldg(vectors + 1), __ldg(vectors + 2)};
    return four;
}

#ifndef LOOK
#define LOOK 1
#endif

DEVICE void lean(const float *__restrict__ points, const Grid *grid, u32 slabs_each, u32 parts,
                 u32 slab_words, out_t *__restrict__ out, u32 *report) {
    __shared__ u32 tally;
    const u32 part = BLOCK_X % parts, slab = BLOCK_X / parts % slabs_each;
    const u64 cloud = BLOCK_X / parts / slabs_each;
    for (u32 i = LANE; i < slab_words / 4; i += LANES) slab_vectors[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();

    const u32 base = address_of(slab_vectors), first = slab * slab_words * 32;
    const u32 span = slab_words * 32, each = (u32)((grid->points + parts - 1) / parts + 3) & ~3u;
    u64 begin = cloud * grid->points + (u64)part * each, end = begin + each;
    const u64 last = (cloud + 1) * grid->points;
    if (begin > last) begin = last;
    if (end > last) end = last;
    u32 broken = 0, outside = 0;
#define LEAN_ONE(x, y, z)                                                                      \
    {                                                                                          \
        u32 at;                                                                                \
        int inside;                                                                            \
        if (locate(grid, x, y, z, &at, &inside)) {                                             \
            if (at - first < span)                                                             \
                mark_here_unless(0, base + ((at - first) >> 5 << 2), 1u << (at & 31));         \
        } else if (is_broken(x, y, z)) broken++;                                               \
        else outside++;                                                                        \
    }
#define LEAN(four)                                                                             \
    {                                                                                          \
        u32 at[4], seen[4];                                                                    \
        const u32 missed = locate_four(grid, four, at);                                        \
        _Pragma("unroll") for (u32 k = 0; k < 4; k++) {                                        \
            at[k] -= first;                                                                    \
            const u32 here = at[k] < span && !(missed >> k & 1);                               \
            seen[k] = LOOK ? look_here_if(here, base + (at[k] >> 5 << 2)) : here - 1;          \
        }                                                                                      \
        _Pragma("unroll") for (u32 k = 0; k < 4; k++)                                          \
            mark_here_unless(seen[k], base + (at[k] >> 5 << 2), 1u << (at[k] & 31));           \
        if (missed) count_missed(four, missed, &broken, &outside);                             \
    }
    EACH_FOUR(points, begin, end, LANE, LANES, LEAN, LEAN_ONE)
    if (parts > 1) all_of_cluster();
    else __syncthreads();

    const u64 voxels = grid->span;
    out_t *own_out = out + cloud * voxels;
    u32 occupied = 0;
    for (u32 tile = LANE / 32 + part * (LANES / 32); tile < slab_words / 32; tile += parts * (LANES / 32)) {
        const u64 place = (u64)first + tile * 1024;
        if (place >= voxels) break;
        const u32 address = base + (tile * 32 + (LANE & 31)) * 4;
        u32 word = 0;
        for (u32 other = 0; other < parts; other++)
            word |= parts > 1 ? look_if(1, of_block(address, other)) : look_here_if(1, address);
        occupied += __popc(word);
        spread(word, own_out + place, voxels - place);
    }
    REPORT(report, 0, 3, tally, (slab == 0 ? broken : 0))
    REPORT(report, 1, 3, tally, (slab == 0 ? outside : 0))
    REPORT(report, 2, 3, tally, occupied)
    // Nobody's bits go while others look at them.
    if (parts > 1) all_of_cluster();
}

#define LEAN_KERNEL(name, parts, cluster)                                                      \
    KERNEL void cluster __launch_bounds__(1024, 1)                                             \
        name(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS, \
             u32 slabs_each, u32 slab_words, out_t *__restrict__ out, u32 *report) {           \
        const Grid grid = GRID;                                                                \
        lean(points, &grid, slabs_each, parts, slab_words, out, report);                       \
    }
LEAN_KERNEL(lean_1, 1, )
LEAN_KERNEL(lean_2, 2, __cluster_dims__(2, 1, 1))
LEAN_KERNEL(lean_4, 4, __cluster_dims__(4, 1, 1))

// `slab_words` is a power of two here: 1 << (slab_shift - 5).
DEVICE void far(const float *__restrict__ points, const Grid *grid, u32 slabs_each, u32 slab_shift,
                out_t *__restrict__ out, u32 *report) {
    __shared__ u32 tally;
    const u32 slab = rank_in_cluster(), slab_words = 1u << (slab_shift - 5);
    const u64 cloud = BLOCK_X / slabs_each;
    for (u32 i = LANE; i < slab_words / 4; i += LANES) slab_vectors[i] = make_uint4(0, 0, 0, 0);
    all_of_cluster();

    const u32 base = address_of(slab_vectors), low = (1u << slab_shift) - 1;
    const u64 begin = cloud * grid->points, end = begin + grid->points;
    u32 broken = 0, outside = 0;
#define FAR_PLACE(at) (of_block(base, (at) >> slab_shift) + (((at) & low) >> 5 << 2))
#define FAR_ONE(x, y, z)                                                                       \
    {                                                                                          \
        u32 at;                                                                                \
        int inside;                                                                            \
        if (locate(grid, x, y, z, &at, &inside)) mark_unless(0, FAR_PLACE(at), 1u << (at & 31)); \
        else if (is_broken(x, y, z)) broken++;                                                 \
        else outside++;                                                                        \
    }
#define FAR(four)                                                                              \
    {                                                                                          \
        u32 at[4], seen[4];                                                                    \
        const u32 missed = locate_four(grid, four, at);                                        \
        _Pragma("unroll") for (u32 k = 0; k < 4; k++) {                                        \
            const u32 here = !(missed >> k & 1);                                               \
            if (!here) at[k] = 0;                                                              \
            seen[k] = LOOK ? look_if(here, FAR_PLACE(at[k])) : here - 1;                       \
        }                                                                                      \
        _Pragma("unroll") for (u32 k = 0; k < 4; k++)                                          \
            mark_unless(seen[k], FAR_PLACE(at[k]), 1u << (at[k] & 31));                        \
        if (missed) count_missed(four, missed, &broken, &outside);                             \
    }
    const u32 worker = slab * LANES + LANE, workers = slabs_each * LANES;
    EACH_FOUR(points, begin, end, worker, workers, FAR, FAR_ONE)
    all_of_cluster();

    const u64 voxels = grid->span;
    const u64 first = (u64)slab << slab_shift;
    out_t *own_out = out + cloud * voxels;
    u32 occupied = 0;
    for (u32 tile = LANE / 32; tile < slab_words / 32; tile += LANES / 32) {
        const u64 place = first + tile * 1024;
        if (place >= voxels) break;
        const u32 word = look_here_if(1, base + (tile * 32 + (LANE & 31)) * 4);
        occupied += __popc(word);
        spread(word, own_out + place, voxels - place);
    }
    REPORT(report, 0, 3, tally, broken)
    REPORT(report, 1, 3, tally, outside)
    REPORT(report, 2, 3, tally, occupied)
}

#define FAR_KERNEL(name, cluster)                                                              \
    KERNEL void cluster __launch_bounds__(1024, 1)                                             \
        name(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS, \
             u32 slabs_each, u32 slab_shift, out_t *__restrict__ out, u32 *report) {           \
        const Grid grid = GRID;                                                                \
        far(points, &grid, slabs_each, slab_shift, out, report);                               \
    }
FAR_KERNEL(far_2, __cluster_dims__(2, 1, 1))
FAR_KERNEL(far_4, __cluster_dims__(4, 1, 1))
FAR_KERNEL(far_8, __cluster_dims__(8, 1, 1))

// One cloud. `gate` only counts up, so nothing has to be cleared between launches; all blocks
// must be on the device at once.
KERNEL void __launch_bounds__(1024, 1)
    gated(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
          out_t *out, u64 vectors, u32 *gate, u32 *report) {
    __shared__ u32 tally;
    const Grid grid = GRID;
    u32 broken = 0, outside = 0;
    const u32 worker = BLOCK_X * LANES + LANE, workers = BLOCKS_X * LANES;
    const u32 fours = (u32)(grid.points / 4);
    Four now = {};
    if (worker < fours) now = read_four((const Four *)points + worker);
    for (u64 i = worker; i < vectors; i += workers) ((uint4 *)out)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (LANE == 0) {
        u32 before, seen;
        asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(gate) : "memory");
        const u32 open = (before / BLOCKS_X + 1) * BLOCKS_X;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(gate) : "memory");
        } while ((int)(seen - open) < 0);
    }
    __syncthreads();
    for (u32 i = worker; i < fours; i += workers) {
        if (i != worker) now = read_four((const Four *)points + i);
        u32 at[4];
        const u32 missed = locate_four(&grid, &now, at);
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            if (!(missed >> k & 1)) out[at[k]] = (out_t)1;
        if (missed) count_missed(&now, missed, &broken, &outside);
    }
    for (u64 i = 4 * (u64)fours + worker; i < grid.points; i += workers)
        FIND(points[3 * i], points[3 * i + 1], points[3 * i + 2], out[at] = (out_t)1)
    REPORT(report, 0, 2, tally, broken)
    REPORT(report, 1, 2, tally, outside)
}

#endif
