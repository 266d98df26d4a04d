// Plans that the product does not use: `scripts/bench-voxelize-gpu` measures them beside those
// that it does. It appends this to the kernels of crates/points/src/kernels, whose names it uses.
// What is kept moves there; what is not goes.
//
//   once    one cloud in one launch: a bit for each point, which stays in the second level, a
//           gate that all blocks pass, and every line of the output written once. The bits are
//           left zero for the next launch.

#if CUDA && WHOLE && !WIDE && STRIDE == 3

#define KEEP_CACHED(to, value) (*(to) = (value))

DEVICE void light_bit(u32 *bits, u32 at) {
    asm volatile("red.relaxed.gpu.global.or.b32 [%0], %1;" :: "l"(bits + (at >> 5)), "r"(1u << (at & 31)) : "memory");
}

// `gate` only counts up, so nothing has to be cleared between launches; all blocks must be on the
// device at once.
DEVICE void all_of_grid(u32 *gate) {
    __syncthreads();
    if (LANE == 0) {
        u32 before, seen;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(gate) : "memory");
        const u32 open = (before / BLOCKS_X + 1) * BLOCKS_X;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(gate) : "memory");
        } while ((int)(seen - open) < 0);
    }
    __syncthreads();
}

KERNEL void __launch_bounds__(1024, 1)
    once(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
         u32 *bits, u64 words, out_t *out, u32 *gate, u32 *report) {
    __shared__ u32 tally;
    const Grid grid = GRID;
    u32 broken = 0, outside = 0;
    const u32 worker = BLOCK_X * LANES + LANE, workers = BLOCKS_X * LANES;
    const u32 fours = (u32)(grid.points / 4);
    for (u32 i = worker; i < fours; i += workers) {
        const Four four = read_four((const Four *)points + i);
        const float xyz[12] = {four.a.x, four.a.y, four.a.z, four.a.w, four.b.x, four.b.y,
                               four.b.z, four.b.w, four.c.x, four.c.y, four.c.z, four.c.w};
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            FIND(xyz[3 * k], xyz[3 * k + 1], xyz[3 * k + 2], light_bit(bits, at))
    }
    for (u64 i = 4 * (u64)fours + worker; i < grid.points; i += workers)
        FIND(points[3 * i], points[3 * i + 1], points[3 * i + 2], light_bit(bits, at))
    all_of_grid(gate);
    // Sixteen words to a warp, so that there is one for each.
    const u32 lane = LANE & 31;
    u32 occupied = 0;
    for (u64 start = (u64)(worker / 32) * 16; start < words; start += (u64)(workers / 32) * 16) {
        const u64 index = start + lane;
        u32 word = 0;
        if (lane < 16 && index < words) {
            word = __ldcg(bits + index);
            __stcg(bits + index, 0u);
        }
        occupied += __popc(word);
        float4 *to = (float4 *)(out + start * 32);
#pragma unroll
        for (u32 step = 0; step < 4; step++) {
            const u32 four = __shfl_sync(0xFFFFFFFFu, word, step * 4 + lane / 8) >> (4 * (lane & 7));
            if ((start * 32 + step * 128 + lane * 4) < grid.span)
                STORE(to + step * 32 + lane, make_float4(lit(four, 0), lit(four, 1), lit(four, 2), lit(four, 3)));
        }
    }
    REPORT(report, 0, 3, tally, broken)
    REPORT(report, 1, 3, tally, outside)
    REPORT(report, 2, 3, tally, occupied)
}

KERNEL void nothing(u32 *report) {
    if (report == 0) *report = 1;
}

#endif
