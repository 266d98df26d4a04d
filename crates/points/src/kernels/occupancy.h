// Occupancy: a bit for every voxel first, which stays in the cache, then each line of the
// output written once.

// Marks the points of every cloud; `bits` has `words` for each and is zero before.
// Report: points that are not finite, points outside the grid.
KERNEL void mark(const GLOBAL float *points, const GLOBAL u64 *starts, GRID_ARGUMENTS,
                 GLOBAL u32 *bits, u64 words, GLOBAL u32 *report) {
    SHARED u32 tally;
    const Grid grid = GRID;
    u32 broken = 0, outside = 0;
    const u64 worker = (u64)BLOCK_X * LANES + LANE, workers = (u64)BLOCKS_X * LANES;
    for (u64 cloud = BLOCK_Y; cloud < grid.clouds; cloud += BLOCKS_Y) {
        GLOBAL u32 *own = bits + cloud * words;
        u64 begin, end;
        bounds(&grid, starts, cloud, &begin, &end);
        // Where many points share a voxel, a look that the first-level cache answers spares
        // the second level an atomic. An old answer only costs one that was not needed.
#define MARK(x, y, z, index)                                                                   \
    FIND(x, y, z, {                                                                            \
        GLOBAL u32 *word = own + (at >> 5);                                                    \
        const u32 bit = 1u << (at & 31);                                                       \
        if (!(*word & bit)) ATOMIC_OR(word, bit);                                              \
    })
        EACH_POINT(points, begin, end, worker, workers, MARK)
    }
    REPORT(report, 0, 2, tally, broken)
    REPORT(report, 1, 2, tally, outside)
}

#if CUDA

DEVICE float lit(u32 word, u32 bit) {
    return __uint_as_float((u32)((int)(word << (31 - bit)) >> 31) & 0x3F800000u);
}

// Four bits become four bytes: the product puts bit k at the bottom of byte k.
DEVICE u32 four_bytes(u32 nibble) {
    return (nibble * 0x00204081u) & 0x01010101u;
}

// A warp writes what its 32 words stand for; lanes past the end hold a word of no voxels.
DEVICE void spread(u32 word, out_t *out, u64 voxels) {
    const u32 lane = LANE & 31;
#if OUT_U8
#pragma unroll
    for (u32 step = 0; step < 2; step++) {
        const u32 from = step * 16 + lane / 2;
        const u32 half = __shfl_sync(0xFFFFFFFFu, word, from) >> (16 * (lane & 1));
        const u64 place = 32 * from + 16 * (lane & 1);
        if (place + 16 <= voxels && ((u64)out & 15) == 0) {
            const uint4 bytes = make_uint4(four_bytes(half & 15), four_bytes(half >> 4 & 15),
                                           four_bytes(half >> 8 & 15), four_bytes(half >> 12 & 15));
            __stcs((uint4 *)(out + place), bytes);
        } else {
            for (u32 k = 0; k < 16 && place + k < voxels; k++) out[place + k] = half >> k & 1;
        }
    }
#else
    if (voxels >= 1024 && ((u64)out & 15) == 0) {
#pragma unroll
        for (u32 step = 0; step < 8; step++) {
            const u32 four = __shfl_sync(0xFFFFFFFFu, word, step * 4 + lane / 8) >> (4 * (lane & 7));
            const float4 values = make_float4(lit(four, 0), lit(four, 1), lit(four, 2), lit(four, 3));
            __stcs((float4 *)out + step * 32 + lane, values);
        }
    } else {
        for (u32 step = 0; step < 32; step++) {
            const u32 one = __shfl_sync(0xFFFFFFFFu, word, step) >> lane & 1;
            if (32 * step + lane < voxels) out[32 * step + lane] = (float)one;
        }
    }
#endif
}

#endif

// Turns bits into the output and leaves them zero for the next launch.
// Report: voxels that are occupied.
KERNEL void expand(GLOBAL u32 *bits, u64 words, u64 voxels, u64 clouds, GLOBAL out_t *out,
                   GLOBAL u32 *report) {
    SHARED u32 tally;
    u32 occupied = 0;
    for (u64 cloud = BLOCK_Y; cloud < clouds; cloud += BLOCKS_Y) {
        GLOBAL u32 *own = bits + cloud * words;
        GLOBAL out_t *to = out + cloud * voxels;
#if CUDA
        // Four tiles at a time: their words are all on the way before the first is spread.
        const u64 warps = (u64)BLOCKS_X * (LANES / 32), lane = LANE & 31;
        const u64 warp = (u64)BLOCK_X * (LANES / 32) + LANE / 32;
        for (u64 start = warp * 128; start < words; start += warps * 128) {
            u32 word[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u64 index = start + 32 * i + lane;
                word[i] = index < words ? own[index] : 0;
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u64 index = start + 32 * i + lane, place = (start + 32 * i) * 32;
                if (index < words) own[index] = 0;
                occupied += POPULATION(word[i]);
                if (place < voxels) spread(word[i], to + place, voxels - place);
            }
        }
#else
        for (u64 index = (u64)BLOCK_X * LANES + LANE; index < words; index += (u64)BLOCKS_X * LANES) {
            const u32 word = own[index];
            own[index] = 0;
            occupied += POPULATION(word);
            for (u32 bit = 0; bit < 32 && 32 * index + bit < voxels; bit++)
                to[32 * index + bit] = (out_t)(word >> bit & 1);
        }
#endif
    }
    REPORT(report, 0, 1, tally, occupied)
}
