// What networks take beside hard voxels, one text for CUDA and OpenCL: the voxel of every point,
// features of pillars, and the image from above.
//
//   MAX_POINTS   points of a pillar at most

// The voxel of every point, or -1: no table, nothing to wait for.
KERNEL void place_points(const GLOBAL float *points, GRID_ARGUMENTS, u32 cloud,
                         GLOBAL int *coordinates) {
    const Grid grid = GRID;
    const u64 point = (u64)BLOCK_X * LANES + LANE;
    if (point >= grid.points) return;
    const GLOBAL float *at = points + point * STRIDE;
    const u32 x = cell_along(&grid, at[0], 0), y = cell_along(&grid, at[1], 1),
              z = cell_along(&grid, at[2], 2);
    const int inside = x < grid.extent[0] && y < grid.extent[1] && z < grid.extent[2];
    write_place(inside ? (int)x : -1, inside ? (int)y : -1, inside ? (int)z : -1, cloud,
                coordinates + point * COORDINATES);
}

// How many pillars there are: `total` may say that they are fewer than there is room for.
DEVICE u64 pillars_of(u64 most, const GLOBAL int *total) {
    if (total == 0) return most;
    const int told = *total;
    return told < 0 ? 0 : (u64)told < most ? (u64)told : most;
}

#ifndef NO_DOUBLE

#define FEATURES (STRIDE + 6)
#define PILLARS 8 // of a block

// A point's own numbers, its offset from the mean of its pillar's points, and from the pillar's
// centre; 0 where there is no point. Three lanes of a block go through the points of a pillar, one
// for each axis, in the order of points; then all write.
KERNEL void pillar_features(const GLOBAL float *voxels, const GLOBAL int *coordinates,
                            const GLOBAL int *counts, GRID_ARGUMENTS, u64 pillars,
                            const GLOBAL int *total, GLOBAL float *features) {
    SHARED float means[3 * PILLARS];
    SHARED float centres[3 * PILLARS];
    SHARED u32 filled[PILLARS];
    const Grid grid = GRID;
    const u64 all = pillars_of(pillars, total), start = (u64)BLOCK_X * PILLARS;
    if (start >= all) return; // a whole block
    const u32 some = all - start < PILLARS ? (u32)(all - start) : PILLARS;
    if (LANE < 3 * some) {
        const u32 own = LANE / 3, axis = LANE % 3;
        const GLOBAL float *at = voxels + (start + own) * MAX_POINTS * STRIDE + axis;
        const int count = counts[start + own];
        const u32 points = count < 0 ? 0 : count < MAX_POINTS ? count : MAX_POINTS;
        double sum = 0.0;
        for (u32 k = 0; k < points; k++) sum += (double)at[(u64)k * STRIDE];
        means[LANE] = FLOAT_OF(quiet((float)(sum / (double)points)));
        const VoxelPlace place = read_place(coordinates + (start + own) * COORDINATES);
        const int cell = axis == 0 ? place.x : axis == 1 ? place.y : place.z;
        const float size = grid.size[axis];
        centres[LANE] = (float)cell * size + (size / 2.0f + grid.origin[axis]);
        if (axis == 0) filled[own] = points;
    }
    BARRIER();
    const u32 floats = some * MAX_POINTS * FEATURES;
    const GLOBAL float *from = voxels + start * MAX_POINTS * STRIDE;
    GLOBAL float *to = features + start * MAX_POINTS * FEATURES;
    for (u32 at = LANE; at < floats; at += LANES) {
        const u32 point = at / FEATURES, column = at % FEATURES, own = point / MAX_POINTS;
        float value = 0.0f;
        if (point % MAX_POINTS < filled[own]) {
            if (column < STRIDE) {
                value = from[(u64)point * STRIDE + column];
            } else {
                const u32 axis = (column - STRIDE) % 3;
                const float middle = column < STRIDE + 3 ? means[3 * own + axis] : centres[3 * own + axis];
                value = FLOAT_OF(quiet(from[(u64)point * STRIDE + axis] - middle));
            }
        }
        to[at] = value;
    }
}

#endif

// The pillar of each place of the image: its number and one, and 0 for none; `map` is zero before.
// Of several at one place the last counts. Report: pillars whose place there is not.
KERNEL void birds_mark(const GLOBAL int *coordinates, GRID_ARGUMENTS, u64 pillars,
                       const GLOBAL int *total, GLOBAL u32 *map, GLOBAL u32 *report) {
    SHARED u32 tally;
    const Grid grid = GRID;
    const u64 pillar = (u64)BLOCK_X * LANES + LANE;
    u32 wrong = 0;
    if (pillar < pillars_of(pillars, total)) {
        const VoxelPlace place = read_place(coordinates + pillar * COORDINATES);
        wrong = place.z != 0 || (u32)place.y >= grid.extent[1] || (u32)place.x >= grid.extent[0] ||
                place.cloud < 0 || (u64)place.cloud >= grid.clouds;
        if (!wrong) {
            const u64 row = (u64)place.cloud * grid.extent[1] + (u32)place.y;
            ATOMIC_MAX(map + row * grid.extent[0] + (u32)place.x, (u32)pillar + 1);
        }
    }
    REPORT(report, 0, 1, tally, wrong)
}

#define TOGETHER_FEATURES 16 // of a block

// Writes every number of the image once: a lane has four places in a row of some features. Blocks
// down are groups of features of the first cloud, then those of the next.
KERNEL void birds_fill(const GLOBAL u32 *map, const GLOBAL float *values, u64 area, u32 features,
                       GLOBAL float *image) {
    const u64 first = 4 * ((u64)BLOCK_X * LANES + LANE);
    if (first >= area) return;
    const u32 groups = (features + TOGETHER_FEATURES - 1) / TOGETHER_FEATURES;
    const u32 cloud = BLOCK_Y / groups, from = BLOCK_Y % groups * TOGETHER_FEATURES;
    const u32 end = features - from < TOGETHER_FEATURES ? features : from + TOGETHER_FEATURES;
    const u32 some = area - first < 4 ? (u32)(area - first) : 4;
    u32 pillars[4] = {0, 0, 0, 0};
    for (u32 k = 0; k < some; k++) pillars[k] = map[cloud * area + first + k];
    GLOBAL float *to = image + ((u64)cloud * features + from) * area + first;
    for (u32 feature = from; feature < end; feature++, to += area) {
        float own[4];
        for (u32 k = 0; k < 4; k++)
            own[k] = pillars[k] ? values[(u64)(pillars[k] - 1) * features + feature] : 0.0f;
#if CUDA
        if (area % 4 == 0) {
            *(float4 *)to = make_float4(own[0], own[1], own[2], own[3]);
            continue;
        }
#endif
        for (u32 k = 0; k < some; k++) to[k] = own[k];
    }
}
