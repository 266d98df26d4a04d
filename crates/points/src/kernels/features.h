// Counts, maxima and means.

// The bits of a float, of every NaN the same.
DEVICE u32 quiet(float value) { return value != value ? 0x7FC00000u : BITS_OF(value); }

// A float as a number that is larger where the float is: +0 above -0, NaN above everything,
// and 0 for no float at all.
DEVICE u32 ranked(float value) {
    const u32 bits = quiet(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// How many points each voxel has; `out` is zero before. Report: not finite, outside.
KERNEL void count(const GLOBAL float *points, const GLOBAL u64 *starts, GRID_ARGUMENTS,
                  GLOBAL u32 *out, GLOBAL u32 *report) {
    SHARED u32 tally;
    const Grid grid = GRID;
    u32 broken = 0, outside = 0;
    const u64 worker = (u64)BLOCK_X * LANES + LANE, workers = (u64)BLOCKS_X * LANES;
    for (u64 cloud = BLOCK_Y; cloud < grid.clouds; cloud += BLOCKS_Y) {
        GLOBAL u32 *own = out + cloud * grid.span;
        u64 begin, end;
        bounds(&grid, starts, cloud, &begin, &end);
#define COUNT(x, y, z, index) FIND(x, y, z, ATOMIC_ADD(own + at, 1u))
        EACH_POINT(points, begin, end, worker, workers, COUNT)
    }
    REPORT(report, 0, 2, tally, broken)
    REPORT(report, 1, 2, tally, outside)
}

DEVICE float unranked(u32 rank) {
    return FLOAT_OF(rank & 0x80000000u ? rank & 0x7FFFFFFFu : ~rank);
}

KERNEL void zeros(GLOBAL u32 *numbers, u64 total) {
    for (u64 i = (u64)BLOCK_X * LANES + LANE; i < total; i += (u64)BLOCKS_X * LANES) numbers[i] = 0;
}

// Ranks or counts become floats where they lie; a rank of 0 becomes 0.
KERNEL void to_floats(GLOBAL u32 *numbers, u64 total, u32 ranks) {
    for (u64 i = (u64)BLOCK_X * LANES + LANE; i < total; i += (u64)BLOCKS_X * LANES) {
        const u32 own = numbers[i];
        const float value = ranks && own ? unranked(own) : (float)own;
        numbers[i] = BITS_OF(value);
    }
}

#if STRIDE > 3

// The largest of each feature, ranked; `out` is zero before. Report: not finite, outside.
KERNEL void largest(const GLOBAL float *points, const GLOBAL u64 *starts, GRID_ARGUMENTS,
                    GLOBAL u32 *out, GLOBAL u32 *report) {
    SHARED u32 tally;
    const Grid grid = GRID;
    u32 broken = 0, outside = 0;
    const u64 worker = (u64)BLOCK_X * LANES + LANE, workers = (u64)BLOCKS_X * LANES;
    for (u64 cloud = BLOCK_Y; cloud < grid.clouds; cloud += BLOCKS_Y) {
        GLOBAL u32 *own = out + cloud * grid.span * (STRIDE - 3);
        u64 begin, end;
        bounds(&grid, starts, cloud, &begin, &end);
#define LARGEST(x, y, z, index)                                                                \
    FIND(x, y, z, {                                                                            \
        for (u32 f = 0; f < STRIDE - 3; f++)                                                   \
            ATOMIC_MAX(own + f * grid.span + at, ranked(points[STRIDE * (index) + 3 + f]));    \
    })
        EACH_POINT(points, begin, end, worker, workers, LARGEST)
    }
    REPORT(report, 0, 2, tally, broken)
    REPORT(report, 1, 2, tally, outside)
}

#endif

// Means are sums in the order of points, and nobody adds in order at random. So points are
// sorted by voxel, stably, and each voxel is then a run of points in their own order.
//
// The sort goes by four bits at a time from the lowest. A block has a tile of TILE points, of
// which each lane has RUN in a row; what is equal keeps its order because lanes, blocks and
// digits are all gone through in order.

#define DIGITS 16
#define RUN 8
#define LANES_OF_SORT 256
#define TILE (RUN * LANES_OF_SORT)

#if WIDE_KEYS
typedef u64 key_t_;
#else
typedef u32 key_t_;
#endif

// A key for each point: its voxel among those of all clouds, or `nowhere`, which is past them.
// Report: not finite, outside.
KERNEL void keys(const GLOBAL float *points, const GLOBAL u64 *starts, GRID_ARGUMENTS,
                 GLOBAL key_t_ *key, GLOBAL u32 *number, u64 nowhere, GLOBAL u32 *report) {
    SHARED u32 tally;
    const Grid grid = GRID;
    u32 broken = 0, outside = 0;
    const u64 worker = (u64)BLOCK_X * LANES + LANE, workers = (u64)BLOCKS_X * LANES;
    for (u64 cloud = BLOCK_Y; cloud < grid.clouds; cloud += BLOCKS_Y) {
        u64 begin, end;
        bounds(&grid, starts, cloud, &begin, &end);
#define KEY(x, y, z, index)                                                                    \
    {                                                                                          \
        key[index] = (key_t_)nowhere;                                                          \
        number[index] = (u32)(index);                                                          \
        FIND(x, y, z, key[index] = (key_t_)(cloud * grid.span + at))                           \
    }
        EACH_POINT(points, begin, end, worker, workers, KEY)
    }
    REPORT(report, 0, 2, tally, broken)
    REPORT(report, 1, 2, tally, outside)
}

// How often each digit occurs in each tile: all tiles of digit 0, then of digit 1.
KERNEL void digits(const GLOBAL key_t_ *key, u64 total, u32 shift, GLOBAL u32 *histogram) {
    SHARED u32 bins[DIGITS];
    if (LANE < DIGITS) bins[LANE] = 0;
    BARRIER();
    const u64 start = (u64)BLOCK_X * TILE + LANE;
    for (u32 i = 0; i < RUN; i++) {
        const u64 at = start + (u64)i * LANES_OF_SORT;
        if (at < total) ATOMIC_ADD(&bins[(u32)(key[at] >> shift) & (DIGITS - 1)], 1u);
    }
    BARRIER();
    if (LANE < DIGITS) histogram[(u64)LANE * BLOCKS_X + BLOCK_X] = bins[LANE];
}

// Each number becomes the sum of those before it. One block does it all.
KERNEL void sums(GLOBAL u32 *numbers, u64 total) {
    SHARED u32 part[LANES_OF_SORT];
    const u64 share = (total + LANES_OF_SORT - 1) / LANES_OF_SORT;
    const u64 start = LANE * share, end = start + share < total ? start + share : total;
    u32 sum = 0;
    for (u64 i = start; i < end; i++) sum += numbers[i];
    part[LANE] = sum;
    BARRIER();
    if (LANE == 0) {
        u32 before = 0;
        for (u32 i = 0; i < LANES_OF_SORT; i++) {
            const u32 own = part[i];
            part[i] = before;
            before += own;
        }
    }
    BARRIER();
    sum = part[LANE];
    for (u64 i = start; i < end; i++) {
        const u32 own = numbers[i];
        numbers[i] = sum;
        sum += own;
    }
}

// Moves every point behind those with a smaller digit, and those with the same before it.
KERNEL void move(const GLOBAL key_t_ *key, const GLOBAL u32 *number, u64 total, u32 shift,
                 const GLOBAL u32 *places, GLOBAL key_t_ *to_key, GLOBAL u32 *to_number) {
    SHARED u32 before[DIGITS * LANES_OF_SORT];
    const u64 start = (u64)BLOCK_X * TILE + (u64)LANE * RUN;
    for (u32 digit = 0; digit < DIGITS; digit++) before[digit * LANES_OF_SORT + LANE] = 0;
    for (u32 i = 0; i < RUN && start + i < total; i++)
        before[((u32)(key[start + i] >> shift) & (DIGITS - 1)) * LANES_OF_SORT + LANE]++;
    BARRIER();
    if (LANE < DIGITS) {
        u32 place = places[(u64)LANE * BLOCKS_X + BLOCK_X];
        for (u32 lane = 0; lane < LANES_OF_SORT; lane++) {
            const u32 own = before[LANE * LANES_OF_SORT + lane];
            before[LANE * LANES_OF_SORT + lane] = place;
            place += own;
        }
    }
    BARRIER();
    for (u32 i = 0; i < RUN && start + i < total; i++) {
        const key_t_ own = key[start + i];
        const u32 place = before[((u32)(own >> shift) & (DIGITS - 1)) * LANES_OF_SORT + LANE]++;
        to_key[place] = own;
        to_number[place] = number[start + i];
    }
}

#if STRIDE > 3 && !defined(NO_DOUBLE)

// The mean of each run; `out` is zero before. Report: voxels that are occupied.
KERNEL void means(const GLOBAL float *points, const GLOBAL key_t_ *key, const GLOBAL u32 *number,
                  u64 total, u64 span, u64 nowhere, GLOBAL u32 *out, GLOBAL u32 *report) {
    SHARED u32 tally;
    u32 occupied = 0;
    for (u64 i = (u64)BLOCK_X * LANES + LANE; i < total; i += (u64)BLOCKS_X * LANES) {
        const key_t_ own = key[i];
        if (own == (key_t_)nowhere || (i > 0 && key[i - 1] == own)) continue;
        occupied++;
        const u64 cloud = (u64)own / span, voxel = (u64)own % span;
        for (u32 f = 0; f < STRIDE - 3; f++) {
            double sum = 0.0;
            u64 j = i;
            for (; j < total && key[j] == own; j++)
                sum += (double)points[(u64)number[j] * STRIDE + 3 + f];
            const float mean = (float)(sum / (double)(j - i));
            out[(cloud * (STRIDE - 3) + f) * span + voxel] = quiet(mean);
        }
    }
    REPORT(report, 0, 1, tally, occupied)
}

#endif
