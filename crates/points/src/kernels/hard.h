// Hard voxelization: the first points of the first voxels, both in the order of points.
//
// Three steps, one thread for each point in all of them:
//
//   insert  finds the voxel of each point in a table of cells, and enters points into it by
//           runs, in any order; a run is what one warp has in one cell (CUDA), or one point
//           (OpenCL). The first that comes is the head of a list, which holds LIST more. Of what
//           comes later only the first MAX_POINTS runs
//           are kept, in a row, by one rule: at each place the earlier run stays and the later
//           one moves on. So a row ends the same in whatever order runs come. What is kept of a
//           voxel lies at its owner's number: that of the point that claimed its slot of the
//           table first (CUDA), or the slot's own (OpenCL).
//   number  counts for each run the points of its voxel before it. A run without any begins a
//           voxel, and the number of these before it is the voxel's number.
//   copy    copies each point to its place. The table and what else must begin as zeros is zeros
//           again behind it.
//
//   MAX_POINTS    points of a voxel at most
//   COORDINATES   numbers of a voxel's coordinates: 3, or 4 with the number of its cloud in front
//   ORDER_XYZ     1 where they are x, y, z, and 0 for z, y, x
//   LIST          runs of a list beside its head (CUDA)
//   POINT_BITS    of the 64 of a key, for the number of the point that claimed it (CUDA)
//   HARD_LANES    lanes of a block

#define NOBODY 0xFFFFFFFFu
// Runs that are read together: more of them cost registers, and so blocks that run at a time.
#define LIST_STEP (LIST > 32 ? 16 : 4)
#define VOXEL_FLOATS (MAX_POINTS * STRIDE)

// What is kept between the steps. Points are numbered through all clouds.
#if CUDA
typedef u64 cell_key_t;
typedef u64 run_t;
#else
typedef u32 cell_key_t;
typedef u32 run_t;
#endif

DEVICE u32 slot_of(u64 cell, u32 slots) {
    const u64 mixed = cell * 0x9E3779B97F4A7C15ul;
    return (u32)(((mixed >> 32) * slots) >> 32);
}

#if CUDA

// An earlier run is a larger number, and none is 0.
#define RUN_OF(warp, mask) ((u64)(0xFFFFFFFFu - (warp)) << 32 | (mask))
#define POINTS_OF(run) __popc((u32)(run))

// Finds the owner of a cell, for every lane that `wants` it: the point that claimed it. There are
// more slots than points. Lanes go step by step together, so that none waits for the memory of
// another. `slot` is where a lane became the owner.
DEVICE u32 owner_of(u64 *keys, u32 slots, u64 cell, u32 point, int wants, u32 *slot) {
    const u64 mine = (cell + 1) << POINT_BITS | point;
    u32 at = slot_of(cell, slots), owner = NOBODY;
    *slot = NOBODY;
    while (__any_sync(0xFFFFFFFFu, wants)) {
        if (!wants) continue;
        const u64 was = atomicCAS(keys + at, (u64)0, mine);
        if (was == 0) {
            owner = point;
            *slot = at;
            wants = 0;
        } else if (was >> POINT_BITS == cell + 1) {
            owner = (u32)was & ((1u << POINT_BITS) - 1);
            wants = 0;
        } else if (++at == slots) {
            at = 0;
        }
    }
    return owner;
}

// Puts a run into a row, for every lane that `wants` to. Places hold the earliest first and only
// become earlier, so what is seen to be earlier than a run stays so, and is passed over.
DEVICE void put(u64 *row, u64 run, int wants) {
    u32 place = 0;
    while (__any_sync(0xFFFFFFFFu, wants)) {
        if (!wants) continue;
        if (__ldcg(row + place) > run) {
            if (++place == MAX_POINTS) wants = 0;
            continue;
        }
        const u64 was = atomicMax(row + place, run);
        if (was < run) run = was;
        if (was == 0 || ++place == MAX_POINTS) wants = 0;
    }
}

#else

#define POINTS_OF(run) 1u
#define PEEK(at) (*(const volatile GLOBAL u32 *)(at))

// The owner of a cell is its slot here.
DEVICE u32 owner_of(GLOBAL u32 *keys, u32 slots, u64 cell) {
    const u32 mine = (u32)cell + 1;
    u32 at = slot_of(cell, slots);
    for (;;) {
        const u32 was = atomic_cmpxchg(keys + at, 0u, mine);
        if (was == 0 || was == mine) return at;
        if (++at == slots) at = 0;
    }
}

DEVICE void put(GLOBAL u32 *row, u32 run) {
    for (u32 place = 0; place < MAX_POINTS; place++) {
        if (PEEK(row + place) > run) continue;
        const u32 was = ATOMIC_MAX(row + place, run);
        if (was == 0) return;
        if (was < run) run = was;
    }
}

#endif

// Report: not finite, outside.
KERNEL void BOUNDS(HARD_LANES, 2048 / HARD_LANES)
    hard_insert(const GLOBAL float *points, const GLOBAL u64 *starts, GRID_ARGUMENTS,
                GLOBAL cell_key_t *keys, u32 slots, GLOBAL u32 *counters, GLOBAL run_t *heads,
                GLOBAL run_t *lists, GLOBAL run_t *rows, GLOBAL u32 *owners,
                GLOBAL u32 *claims, GLOBAL u32 *report) {
    const Grid grid = GRID;
    u64 begin, end;
    bounds(&grid, starts, BLOCK_Y, &begin, &end);
    const u64 number = (u64)BLOCK_X * LANES + LANE, point = begin + number;
    voxel_t cell = 0;
    int inside = 0, broken = 0;
    if (point < end) {
        const GLOBAL float *at = points + point * STRIDE;
        const float x = at[0], y = at[1], z = at[2];
        locate(&grid, x, y, z, &cell, &inside);
        if (!inside) broken = is_broken(x, y, z);
    }
#if CUDA
    const u32 lane = LANE & 31;
    const u32 same = __match_any_sync(0xFFFFFFFFu, inside ? cell : ~(voxel_t)0);
    const int leads = inside && (same & ((1u << lane) - 1)) == 0;
    let_next_start();
    u32 slot;
    u32 owner = owner_of(keys, slots, (u64)BLOCK_Y * grid.span + cell, (u32)point, leads, &slot);
    const u64 run = RUN_OF((u32)(number >> 5), same);
    const int joins = leads && slot == NOBODY;
    u32 place = 0;
    if (joins) place = atomicAdd(counters + owner, 1u);
    if (leads && !joins) heads[point] = run;
    if (joins && place < LIST) lists[(u64)owner * LIST + place] = run;
    put(rows + (u64)owner * MAX_POINTS, run, joins && place >= LIST);
    owner = __shfl_sync(0xFFFFFFFFu, owner, __ffs(same) - 1);
    if (point < end) {
        owners[point] = inside ? owner : NOBODY;
        claims[point] = slot;
    }
    const u32 lost = __syncthreads_count(broken);
    const u32 missed = __syncthreads_count(point < end && !inside);
    if (LANE == 0) {
        report[(BLOCK_Y * BLOCKS_X + BLOCK_X) * 2] = lost;
        report[(BLOCK_Y * BLOCKS_X + BLOCK_X) * 2 + 1] = missed - lost;
    }
#else
    SHARED u32 tally;
    u32 owner = NOBODY;
    if (inside) {
        owner = owner_of(keys, slots, cell);
        put(rows + (u64)owner * MAX_POINTS, ~(u32)number);
    }
    if (point < end) owners[point] = owner;
    const u32 lost = broken, missed = point < end && !inside && !broken;
    REPORT(report, 0, 2, tally, lost)
    BARRIER();
    REPORT(report, 1, 2, tally, missed)
#endif
}

DEVICE void write_coordinates(const Grid *grid, const GLOBAL float *at, u32 cloud, GLOBAL int *to) {
    const int x = (int)cell_along(grid, at[0], 0), y = (int)cell_along(grid, at[1], 1),
              z = (int)cell_along(grid, at[2], 2);
#if COORDINATES == 4
    *to++ = (int)cloud;
#endif
#if ORDER_XYZ
    to[0] = x, to[1] = y, to[2] = z;
#else
    to[0] = z, to[1] = y, to[2] = x;
#endif
}

// Zeroes floats, which begin anywhere in an array that is aligned to four of them.
DEVICE void zero_floats(GLOBAL float *array, u64 start, u32 floats) {
    GLOBAL float *to = array + start;
#if CUDA
    u32 head = (u32)(-start & 3);
    if (head > floats) head = floats;
    if (LANE < head) to[LANE] = 0.0f;
    const u32 fours = (floats - head) / 4, tail = (floats - head) % 4;
    for (u32 at = LANE; at < fours; at += HARD_LANES)
        ((float4 *)(to + head))[at] = make_float4(0, 0, 0, 0);
    if (LANE < tail) to[floats - tail + LANE] = 0.0f;
#else
    for (u32 at = LANE; at < floats; at += LANES) to[at] = 0.0f;
#endif
}

#if CUDA

// Adds up the points of runs, and of those before a run. A list ends with its last run, or with 0.
DEVICE void add_runs(const u64 *runs, u32 count, u64 run, u32 *before, u32 *sum) {
    for (u32 start = 0; start < count; start += LIST_STEP) {
        u64 some[LIST_STEP];
#pragma unroll
        for (u32 k = 0; k < LIST_STEP; k++) some[k] = start + k < count ? runs[start + k] : 0;
#pragma unroll
        for (u32 k = 0; k < LIST_STEP; k++) {
            *sum += POINTS_OF(some[k]);
            *before += some[k] > run ? POINTS_OF(some[k]) : 0;
        }
        if (some[LIST_STEP - 1] == 0) return;
    }
}

// The points of a run's voxel that are before the run; `all` is how many the voxel has.
DEVICE u32 points_before(const u32 *counters, const u64 *heads, const u64 *lists, const u64 *rows,
                         u32 owner, u64 run, u32 *all) {
    const u32 others = counters[owner];
    u32 before = 0, sum = POINTS_OF(run);
    if (others) {
        const u64 head = heads[owner];
        sum = POINTS_OF(head);
        before = head > run ? sum : 0;
        add_runs(lists + (u64)owner * LIST, others < LIST ? others : LIST, run, &before, &sum);
        if (others > LIST) add_runs(rows + (u64)owner * MAX_POINTS, MAX_POINTS, run, &before, &sum);
    }
    *all = sum < MAX_POINTS ? sum : MAX_POINTS;
    return before;
}

// What blocks tell each other is a number that is not 0.
DEVICE u32 hear(const u32 *at) {
    u32 word;
    do word = *(const volatile u32 *)at;
    while (word == 0);
    return word - 1;
}

// The sum of what each lane has, for all lanes.
DEVICE u32 sum_of_block(u32 own, u32 *shared) {
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(0xFFFFFFFFu, own, step);
    if ((LANE & 31) == 0) shared[LANE >> 5] = own;
    __syncthreads();
    own = 0;
#pragma unroll
    for (u32 warp = 0; warp < HARD_LANES / 32; warp++) own += shared[warp];
    __syncthreads();
    return own;
}

#if LIST > 32
#define NUMBER_BOUNDS
#else
#define NUMBER_BOUNDS BOUNDS(HARD_LANES, 2048 / HARD_LANES)
#endif

// `status` has a word for each block and one for each cloud, and `totals` a number for each cloud
// and the sum of all. `first_cloud` is the number of the first cloud for the coordinates.
KERNEL void NUMBER_BOUNDS
    hard_number(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
                u64 *keys, u32 *claims, u32 *counters, u64 *heads, u64 *lists, u64 *rows,
                u32 *owners, u32 *status, u32 *state, u32 max_voxels, u32 first_cloud, u32 *ranks,
                u32 *numbers, float *voxels, int *coordinates, int *counts, int *totals) {
    __shared__ u32 warps[HARD_LANES / 32], shared[HARD_LANES / 32], ticket;
    const Grid grid = GRID;
    // A block waits for those before it. Numbered as they start, they run.
    if (LANE == 0) ticket = atomicAdd(state, 1u);
    __syncthreads();
    const u32 across = BLOCKS_X, cloud = ticket / across, block = ticket % across;
    u64 begin, end;
    bounds(&grid, starts, cloud, &begin, &end);
    const u64 length = end - begin;
    const u32 blocks = length ? (u32)((length + HARD_LANES - 1) / HARD_LANES) : 1;
    wait_for_last();
    let_next_start();
    if (block >= blocks) return;
    const u32 number = block * HARD_LANES + LANE, lane = LANE & 31;
    const u32 owner = number < length ? owners[begin + number] : NOBODY;
    const u32 same = __match_any_sync(0xFFFFFFFFu, owner);
    const int leads = owner != NOBODY && (same & ((1u << lane) - 1)) == 0;
    u32 before = 0, all = 0;
    if (leads)
        before = points_before(counters, heads, lists, rows, owner, RUN_OF(number >> 5, same),
                               &all);
    const u32 begins = __ballot_sync(0xFFFFFFFFu, leads && before == 0);
    if (lane == 0) warps[LANE >> 5] = __popc(begins);
    before = __shfl_sync(0xFFFFFFFFu, before, __ffs(same) - 1);
    const u32 rank = before + __popc(same & ((1u << lane) - 1));
    __syncthreads();
    u32 count = 0, own = __popc(begins & ((1u << lane) - 1));
#pragma unroll
    for (u32 warp = 0; warp < HARD_LANES / 32; warp++) {
        if (warp == LANE >> 5) own += count;
        count += warps[warp];
    }
    if (LANE == 0) *(volatile u32 *)(status + cloud * across + block) = count + 1;
    if (number < length) {
        ranks[begin + number] = rank < MAX_POINTS ? rank : NOBODY;
        // While others count: the table is not needed any more.
        const u32 claim = claims[begin + number];
        if (claim != NOBODY) keys[claim] = 0;
    }
    u32 earlier = 0;
    for (u32 other = LANE; other < block; other += HARD_LANES)
        earlier += hear(status + cloud * across + other);
    earlier = sum_of_block(earlier, shared);
    u32 *of_clouds = status + (u64)across * grid.clouds;
    const u32 full = earlier + count < max_voxels ? earlier + count : max_voxels;
    if (block == blocks - 1 && LANE == 0) {
        *(volatile u32 *)(of_clouds + cloud) = full + 1;
        totals[cloud] = (int)full;
    }
    u32 base = 0;
    if (cloud) {
        for (u32 other = LANE; other < cloud; other += HARD_LANES) base += hear(of_clouds + other);
        base = sum_of_block(base, shared);
    }
    if (block == blocks - 1 && cloud == grid.clouds - 1 && LANE == 0)
        totals[grid.clouds] = (int)(base + full);
    const u32 room = earlier < max_voxels ? max_voxels - earlier : 0;
    const u32 some = count < room ? count : room;
    if (begins >> lane & 1) {
        const u64 voxel = (u64)base + earlier + own;
        numbers[owner] = own < some ? (u32)voxel : NOBODY;
        if (own < some) {
            counts[voxel] = (int)all;
            write_coordinates(&grid, points + (begin + number) * STRIDE, first_cloud + cloud,
                              coordinates + voxel * COORDINATES);
        }
    }
    zero_floats(voxels, ((u64)base + earlier) * VOXEL_FLOATS, some * VOXEL_FLOATS);
}

#else

// How many voxels each block of points begins: `sums` makes of these how many begin before it.
KERNEL void hard_count(const GLOBAL u32 *rows, const GLOBAL u32 *owners, u32 points,
                       GLOBAL u32 *status) {
    SHARED u32 tally;
    const u32 number = BLOCK_X * HARD_LANES + LANE;
    const u32 owner = number < points ? owners[number] : NOBODY;
    const u32 first = owner != NOBODY && rows[(u64)owner * MAX_POINTS] == ~number;
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
            if (row[all] == ~number) rank = all;
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
            write_coordinates(&grid, points + (u64)number * STRIDE, cloud,
                              coordinates + (u64)voxel * COORDINATES);
        }
    }
    zero_floats(voxels, (u64)earlier * VOXEL_FLOATS, some * VOXEL_FLOATS);
}

#endif

KERNEL void BOUNDS(HARD_LANES, 2048 / HARD_LANES)
    hard_copy(const GLOBAL float *points, const GLOBAL u64 *starts, GRID_ARGUMENTS,
              const GLOBAL u32 *owners, const GLOBAL u32 *ranks, const GLOBAL u32 *numbers,
              GLOBAL u32 *counters, GLOBAL run_t *rows, GLOBAL u32 *status, u32 statuses, GLOBAL u32 *state,
              GLOBAL float *voxels) {
    const Grid grid = GRID;
    u64 begin, end;
    bounds(&grid, starts, BLOCK_Y, &begin, &end);
    const u64 point = begin + (u64)BLOCK_X * LANES + LANE;
#if CUDA
    wait_for_last();
#endif
    const u32 owner = point < end ? owners[point] : NOBODY;
    const u32 rank = point < end ? ranks[point] : NOBODY;
    const u32 voxel = owner != NOBODY && rank != NOBODY ? numbers[owner] : NOBODY;
#if CUDA
    const u64 to = voxel == NOBODY ? ~(u64)0 : (u64)voxel * MAX_POINTS + rank;
#if STRIDE == 4
    if (voxel != NOBODY) ((float4 *)voxels)[to] = __ldg((const float4 *)points + point);
#else
    // The floats of a warp's points, in their order: neighbours go to one place mostly.
    const u64 warp = point - (LANE & 31);
#pragma unroll
    for (u32 k = 0; k < STRIDE; k++) {
        const u32 at = 32 * k + (LANE & 31), other = at / STRIDE, column = at % STRIDE;
        const u64 place = __shfl_sync(0xFFFFFFFFu, to, other);
        if (place != ~(u64)0)
            voxels[place * STRIDE + column] = points[(warp + other) * STRIDE + column];
    }
#endif
    // A voxel's runs are counted at its owner.
    const u32 others = point < end ? counters[point] : 0;
    if (others) counters[point] = 0;
    if (others > LIST)
        for (u32 k = 0; k < MAX_POINTS; k++) rows[point * MAX_POINTS + k] = 0;
    const u64 worker = ((u64)BLOCK_Y * BLOCKS_X + BLOCK_X) * LANES + LANE;
    for (u64 at = worker; at < statuses; at += (u64)BLOCKS_X * BLOCKS_Y * LANES) status[at] = 0;
    if (worker == 0) state[0] = 0;
#else
    if (voxel != NOBODY)
        for (u32 k = 0; k < STRIDE; k++)
            voxels[((u64)voxel * MAX_POINTS + rank) * STRIDE + k] = points[point * STRIDE + k];
#endif
}
