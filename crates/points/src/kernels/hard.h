// Hard voxelization: the first points of the first voxels, both in the order of points. Here is
// what CUDA (hard_runs.h) and OpenCL share, and OpenCL's kernels, one lane for each point:
//
//   insert  finds the slot of each point's cell in a table, and enters the point into the slot's
//           row, in any order. A row keeps the first MAX_POINTS points by one rule: at each place
//           the earlier point stays and the later one moves on. So it ends the same in whatever
//           order points come.
//   count   counts the voxels that begin in each block: a point begins one that is the first of
//           its row.
//   number  finds the places of points within voxels. The number of voxels that begin before one
//           is its number.
//   copy    copies each point to its place.
//
//   MAX_POINTS    points of a voxel at most
//   HARD_LANES    lanes of a block

#define NOBODY 0xFFFFFFFFu

DEVICE u32 slot_of(u64 cell, u32 slots) {
    const u64 mixed = cell * 0x9E3779B97F4A7C15ul;
    return (u32)(((mixed >> 32) * slots) >> 32);
}

#if !CUDA

// A point as a number: the earlier is the larger, and none is 0.
#define POINT(number) (~(number))
#define PEEK(at) (*(const volatile GLOBAL u32 *)(at))

DEVICE u32 slot_with(GLOBAL u32 *keys, u32 slots, u64 cell) {
    const u32 mine = (u32)cell + 1;
    u32 at = slot_of(cell, slots);
    for (;;) {
        const u32 was = atomic_cmpxchg(keys + at, 0u, mine);
        if (was == 0 || was == mine) return at;
        if (++at == slots) at = 0;
    }
}

DEVICE void put(GLOBAL u32 *row, u32 point) {
    for (u32 place = 0; place < MAX_POINTS; place++) {
        if (PEEK(row + place) > point) continue;
        const u32 was = ATOMIC_MAX(row + place, point);
        if (was == 0) return;
        if (was < point) point = was;
    }
}

// Report: not finite, outside.
KERNEL void hard_insert(const GLOBAL float *points, const GLOBAL u64 *starts, GRID_ARGUMENTS,
                        GLOBAL u32 *keys, u32 slots, GLOBAL u32 *rows, GLOBAL u32 *owners,
                        GLOBAL u32 *report) {
    SHARED u32 tally;
    const Grid grid = GRID;
    const u32 number = BLOCK_X * HARD_LANES + LANE;
    voxel_t cell = 0;
    int inside = 0, broken = 0;
    if (number < starts[1]) {
        const GLOBAL float *at = points + (u64)number * STRIDE;
        locate(&grid, at[0], at[1], at[2], &cell, &inside);
        if (!inside) broken = is_broken(at[0], at[1], at[2]);
        const u32 owner = inside ? slot_with(keys, slots, cell) : NOBODY;
        if (inside) put(rows + (u64)owner * MAX_POINTS, POINT(number));
        owners[number] = owner;
    }
    const u32 lost = broken, missed = number < starts[1] && !inside && !broken;
    REPORT(report, 0, 2, tally, lost)
    BARRIER();
    REPORT(report, 1, 2, tally, missed)
}

// How many voxels each block of points begins: `sums` makes of these how many begin before it.
KERNEL void hard_count(const GLOBAL u32 *rows, const GLOBAL u32 *owners, u32 points,
                       GLOBAL u32 *status) {
    SHARED u32 tally;
    const u32 number = BLOCK_X * HARD_LANES + LANE;
    const u32 owner = number < points ? owners[number] : NOBODY;
    const u32 first = owner != NOBODY && rows[(u64)owner * MAX_POINTS] == POINT(number);
    REPORT(status, 0, 1, tally, first)
}

// The voxels of one cloud; `status` says how many begin before each block.
KERNEL void hard_number(const GLOBAL float *points, const GLOBAL u64 *starts, GRID_ARGUMENTS,
                        const GLOBAL u32 *rows, const GLOBAL u32 *owners, const GLOBAL u32 *status,
                        u32 max_voxels, u32 cloud, GLOBAL u32 *ranks, GLOBAL u32 *numbers,
                        GLOBAL float *voxels, GLOBAL int *coordinates, GLOBAL int *counts) {
    SHARED u32 sums[HARD_LANES];
    const Grid grid = GRID;
    const u32 number = BLOCK_X * HARD_LANES + LANE;
    const u32 owner = number < starts[1] ? owners[number] : NOBODY;
    u32 rank = NOBODY, all = 0;
    if (owner != NOBODY) {
        const GLOBAL u32 *row = rows + (u64)owner * MAX_POINTS;
        for (; all < MAX_POINTS && row[all]; all++)
            if (row[all] == POINT(number)) rank = all;
    }
    if (number < starts[1]) ranks[number] = rank;
    sums[LANE] = rank == 0;
    BARRIER();
    for (u32 step = 1; step < HARD_LANES; step *= 2) {
        const u32 other = LANE >= step ? sums[LANE - step] : 0;
        BARRIER();
        sums[LANE] += other;
        BARRIER();
    }
    const u32 count = sums[HARD_LANES - 1], earlier = status[BLOCK_X];
    const u32 room = earlier < max_voxels ? max_voxels - earlier : 0;
    const u32 some = count < room ? count : room;
    if (rank == 0) {
        const u32 own = sums[LANE] - 1, voxel = earlier + own;
        numbers[owner] = own < some ? voxel : NOBODY;
        if (own < some) {
            counts[voxel] = (int)all;
            const GLOBAL float *at = points + (u64)number * STRIDE;
            write_place((int)cell_along(&grid, at[0], 0), (int)cell_along(&grid, at[1], 1),
                        (int)cell_along(&grid, at[2], 2), cloud,
                        coordinates + (u64)voxel * COORDINATES);
        }
    }
    const u32 floats = some * MAX_POINTS * STRIDE;
    GLOBAL float *to = voxels + (u64)earlier * MAX_POINTS * STRIDE;
    for (u32 at = LANE; at < floats; at += LANES) to[at] = 0.0f;
}

KERNEL void hard_copy(const GLOBAL float *points, u32 count, const GLOBAL u32 *owners,
                      const GLOBAL u32 *ranks, const GLOBAL u32 *numbers, GLOBAL float *voxels) {
    const u32 number = BLOCK_X * HARD_LANES + LANE;
    if (number >= count || owners[number] == NOBODY || ranks[number] == NOBODY) return;
    const u32 voxel = numbers[owners[number]];
    if (voxel == NOBODY) return;
    const GLOBAL float *from = points + (u64)number * STRIDE;
    GLOBAL float *to = voxels + ((u64)voxel * MAX_POINTS + ranks[number]) * STRIDE;
    for (u32 k = 0; k < STRIDE; k++) to[k] = from[k];
}

#endif
