// Sums, means and maxima of the points of voxels in the order of points, and back from voxels to
// points, one text for CUDA and OpenCL. Points are sorted by voxel, stably (features.h).

// The voxel of each point as a key to sort by; `voxels` where it has none.
KERNEL void scatter_keys(const GLOBAL int *point_to_voxel, u64 total, u32 voxels, GLOBAL u32 *key,
                         GLOBAL u32 *number) {
    for (u64 i = (u64)BLOCK_X * LANES + LANE; i < total; i += (u64)BLOCKS_X * LANES) {
        const u32 voxel = (u32)point_to_voxel[i];
        key[i] = voxel < voxels ? voxel : voxels;
        number[i] = (u32)i;
    }
}

DEVICE float largest_of(const GLOBAL float *features, const GLOBAL u32 *key,
                        const GLOBAL u32 *number, u64 i, u64 total, u32 columns, u32 column) {
    const u32 own = key[i];
    u32 most = 0;
    for (; i < total && key[i] == own; i++) {
        const u32 rank = ranked(features[(u64)number[i] * columns + column]);
        most = rank > most ? rank : most;
    }
    return unranked(most);
}

#ifndef NO_DOUBLE
DEVICE float sum_of(const GLOBAL float *features, const GLOBAL u32 *key, const GLOBAL u32 *number,
                    u64 i, u64 total, u32 columns, u32 column, int divide) {
    const u32 own = key[i];
    const u64 start = i;
    double sum = 0.0;
    for (; i < total && key[i] == own; i++)
        sum += (double)features[(u64)number[i] * columns + column];
    return FLOAT_OF(quiet((float)(divide ? sum / (double)(i - start) : sum)));
}
#endif

// `rule` is 0 for sums, 1 for means and 2 for the largest; `out` is zero before. Each run of equal
// keys is a voxel, and has a lane for each column.
KERNEL void scatter(const GLOBAL float *features, const GLOBAL u32 *key, const GLOBAL u32 *number,
                    u64 total, u32 voxels, u32 columns, u32 rule, GLOBAL float *out) {
    const u64 all = total * columns;
    for (u64 at = (u64)BLOCK_X * LANES + LANE; at < all; at += (u64)BLOCKS_X * LANES) {
        const u64 i = at / columns;
        const u32 column = (u32)(at % columns), own = key[i];
        if (own >= voxels || (i > 0 && key[i - 1] == own)) continue;
        float value = 0.0f;
        if (rule == 2) value = largest_of(features, key, number, i, total, columns, column);
#ifndef NO_DOUBLE
        if (rule < 2) value = sum_of(features, key, number, i, total, columns, column, rule == 1);
#endif
        out[(u64)own * columns + column] = value;
    }
}

// The row of each point's voxel, and zeros for a point without one.
KERNEL void voxels_to_points(const GLOBAL float *values, const GLOBAL int *point_to_voxel,
                             u64 total, u32 voxels, u32 columns, GLOBAL float *out) {
    const u64 all = total * columns;
    for (u64 at = (u64)BLOCK_X * LANES + LANE; at < all; at += (u64)BLOCKS_X * LANES) {
        const u32 voxel = (u32)point_to_voxel[at / columns];
        out[at] = voxel < voxels ? values[(u64)voxel * columns + at % columns] : 0.0f;
    }
}
