// Hard voxelization on CUDA: two kernels, one lane for each point in both.
//
//   insert  finds the cell of each run of points in a table, and enters the run there, in any
//           order. A run is a row of neighbours in one cell and one warp. A cell has a list of
//           runs. Of what comes later only the first MAX_POINTS runs are kept, in a row, by one
//           rule: at each place the earlier run stays and the later one moves on. So a row ends
//           the same in whatever order runs come.
//   fill    counts for each run the points of its cell before it. A run without any begins a
//           voxel, and the number of these before it is the voxel's number, which it tells the
//           others. Its warp writes the voxel's first run and zeros behind all runs; the other
//           warps copy their points to their places.
//
// A random access to memory that is not in the cache costs more than all else here. So a slot has
// a cell's first two runs beside it, and voxels are written by whole rows where they can be.
//
// There are two tables, used in turn. A launch uses one and clears the other, which the launch
// before used: that launch cannot know when its last reader is done.
//
//   LIST          runs of a list behind the first two: a multiple of 4
//   FILL_BLOCKS   blocks of `fill` that run on a processor at a time
//   SLOTS_OF_FOUR slots of the table for four points: 8, unless a benchmark tries others

#if CUDA

#ifndef SLOTS_OF_FOUR
#define SLOTS_OF_FOUR 8
#endif
#define SLOTS_BEFORE(point) ((u32)((u64)(point)*SLOTS_OF_FOUR / 4))

#define COUNT_BITS 27 // of a slot, for runs; the cell is above them
#define COUNT_MASK ((1u << COUNT_BITS) - 1)
#define RUNS (LIST + 2)
#define ROW (MAX_POINTS + 1) // runs, and how many have read them
#define FOLLOWS 0xFFFFFFFEu  // of a point in a voxel that leads no run
#define WARPS (HARD_LANES / 32)
#define EVERY 0xFFFFFFFFu

// A run as a number: the earlier is the larger, and none is 0.
#define RUN_OF(start, points) (~((start) << 5 | ((points)-1)))
#define POINTS_OF(run) ((~(run)&31) + 1)

// Puts a run into a row. Places hold the earliest first and only become earlier, so what is seen
// to be earlier than a run stays so, and is passed over.
DEVICE void put(u32 *row, u32 run) {
    if (__ldcg(row + MAX_POINTS - 1) > run) return;
    for (u32 place = 0; place < MAX_POINTS; place++) {
        if (__ldcg(row + place) > run) continue;
        const u32 was = atomicMax(row + place, run);
        if (was == 0) return;
        if (was < run) run = was;
    }
}

// The cell and how many runs it has; in the end the voxel's number instead of the cell. Then the
// first two runs.
typedef struct {
    u64 word;
    u32 runs[2];
} Slot;

#define NUMBERED ((u64)1 << 63)

// Enters a run; gives its slot, one of `size` from `start` on. A cloud has more slots than points,
// so one is always free.
DEVICE u32 enter(Slot *slots, u32 *lists, u32 *rows, u32 start, u32 size, u64 cell, u32 run) {
    const u64 mine = (cell + 1) << COUNT_BITS;
    u32 at = slot_of(cell, size);
    u64 was;
    for (;;) {
        was = atomicCAS(&slots[start + at].word, (u64)0, mine | 1);
        if (was == 0 || (was ^ mine) <= COUNT_MASK) break;
        if (++at == size) at = 0;
    }
    const u32 slot = start + at;
    const u32 place = was ? (u32)atomicAdd(&slots[slot].word, (u64)1) & COUNT_MASK : 0;
    if (place < 2) {
        slots[slot].runs[place] = run;
    } else if (place < RUNS) {
        if (place == 2) fetch_soon(lists + (u64)slot * LIST);
        lists[(u64)slot * LIST + place - 2] = run;
    } else {
        put(rows + (u64)slot * ROW, run);
    }
    return slot;
}

// `status` has two words for each block and one for each cloud. Report: not finite, outside.
KERNEL void BOUNDS(HARD_LANES, 2048 / HARD_LANES)
    hard_insert(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
                Slot *tables, u64 table_slots, u32 *lists, u32 *rows, u32 *owners, u32 *status,
                const u32 *state, u32 *report) {
    const Grid grid = GRID;
    const u32 cloud = BLOCK_Y, block = cloud * BLOCKS_X + BLOCK_X;
    u64 begin, end;
    bounds(&grid, starts, cloud, &begin, &end);
    const u32 number = BLOCK_X * HARD_LANES + LANE, lane = LANE & 31;
    const u64 point = begin + number;
    // Loads that wait for nothing come first: a cold one takes longer than all that follows.
    float x = 0, y = 0, z = 0;
    if (point < end) {
        const float *at = points + point * STRIDE;
        x = at[0], y = at[1], z = at[2];
    }
    Slot *slots = tables + (state[1] ? table_slots : 0);
    // Four points have eight slots, a line of the cache.
    if (LANE < HARD_LANES / 4) {
        const u64 share = begin + BLOCK_X * HARD_LANES + 4 * LANE;
        if (share < end) fetch_soon(slots + SLOTS_BEFORE(share));
    }
    voxel_t cell = 0;
    int inside = 0;
    if (point < end) locate(&grid, x, y, z, &cell, &inside);
    const int broken = point < end && !inside && is_broken(x, y, z);
    let_next_start();
    const voxel_t left = __shfl_up_sync(EVERY, inside ? cell : ~(voxel_t)0, 1);
    const int leads = inside && (lane == 0 || left != cell);
    const u32 follow = __ballot_sync(EVERY, inside && !leads);
    u32 owner = inside ? FOLLOWS : NOBODY;
    if (leads) {
        const u32 run = RUN_OF(number, __ffs(~(follow >> 1 >> lane)));
        const u32 first = SLOTS_BEFORE(begin), room = SLOTS_BEFORE(end) - first;
        owner = enter(slots, lists, rows, first, room, cell, run);
    }
    if (point < end) owners[point] = owner;
    if (LANE == 0) {
        u32 *of_clouds = status + grid.clouds * BLOCKS_X;
        status[block] = 0, of_clouds[grid.clouds + block] = 0;
        if (BLOCK_X == 0) of_clouds[cloud] = 0;
    }
    const u32 lost = __syncthreads_count(broken);
    const u32 missed = __syncthreads_count(point < end && !inside);
    if (LANE == 0) {
        report[2 * block] = lost;
        report[2 * block + 1] = missed - lost;
    }
}

// Adds the points of a run: to those before `mine`, and to all.
DEVICE void add_run(u32 run, u32 mine, u32 *before, u32 *all) {
    const u32 points = POINTS_OF(run);
    *all += points;
    *before += run > mine ? points : 0;
}

// The points of a cell: all, and those before the run `mine`.
DEVICE u32 points_before(uint4 slot, const u32 *list, const u32 *row, u32 runs, u32 mine, u32 *all) {
    u32 before = 0;
    *all = 0;
    add_run(slot.z, mine, &before, all);
    if (runs > 1) add_run(slot.w, mine, &before, all);
    const u32 listed = min(runs, RUNS) - 2;
    if (runs > 2)
        for (u32 start = 0; start < listed; start += 16) {
            uint4 some[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++)
                if (start + 4 * k < listed) some[k] = __ldcg((const uint4 *)(list + start) + k);
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 at = start + 4 * k;
                if (at < listed) add_run(some[k].x, mine, &before, all);
                if (at + 1 < listed) add_run(some[k].y, mine, &before, all);
                if (at + 2 < listed) add_run(some[k].z, mine, &before, all);
                if (at + 3 < listed) add_run(some[k].w, mine, &before, all);
            }
        }
    if (runs > RUNS)
        for (u32 k = 0; k < MAX_POINTS; k++) {
            const u32 run = __ldcg(row + k);
            if (run == 0) break;
            add_run(run, mine, &before, all);
        }
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
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY, own, step);
    __syncthreads();
    if ((LANE & 31) == 0) shared[LANE >> 5] = own;
    __syncthreads();
    own = 0;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; warp++) own += shared[warp];
    return own;
}

// How many blocks before it a block adds up by itself.
#define WINDOW (4 * HARD_LANES)

// The voxels of blocks before this one. `status` says of each block how many it has, and `sums`
// how many all have up to it.
DEVICE u32 voxels_before(const u32 *status, const u32 *sums, u32 block, u32 *shared) {
    const u32 low = block > WINDOW ? block - WINDOW : 0;
    u32 own = LANE == 0 && low ? hear(sums + low - 1) : 0;
    for (u32 other = low + LANE; other < block; other += HARD_LANES) own += hear(status + other);
    return sum_of_block(own, shared);
}

DEVICE void write_cell(const Grid *grid, u64 cell, u32 cloud, int *to) {
    const voxel_t row = (voxel_t)cell / grid->extent[0];
    write_place((int)((voxel_t)cell - row * grid->extent[0]), (int)(row % grid->extent[1]),
                (int)(row / grid->extent[1]), cloud, to);
}

#define VOXEL_FLOATS (MAX_POINTS * STRIDE)
#if VOXEL_FLOATS % 4 == 0
#define VECTOR 4
#elif VOXEL_FLOATS % 2 == 0
#define VECTOR 2
#else
#define VECTOR 1
#endif

// A voxel that begins in a warp: the point of the warp that begins it and the points of its run, in
// one number; and the points of all its runs.
typedef struct {
    u32 run, points;
} Beginning;

#define BEGINNING(lane, points) ((lane) << 8 | (points))
#define VECTORS (VOXEL_FLOATS / VECTOR)
// Voxels that a warp writes at a time.
#define TOGETHER (VECTORS > 16 ? 1 : 32 / VECTORS)

// Writes one vector of a voxel, which begins with the float `from`: points of the run that begins
// it, or zeros behind all its points. What is between them, others write.
DEVICE void write_vector(const float *points, Beginning voxel, u32 from, float *to) {
    const u32 own = (voxel.run & 255) * STRIDE, filled = voxel.points * STRIDE;
    const float *source = points + (voxel.run >> 8) * STRIDE + from;
    float some[VECTOR];
#pragma unroll
    for (u32 k = 0; k < VECTOR; k++) some[k] = from + k < own ? source[k] : 0.0f;
    if (own == filled || from + VECTOR <= own || from >= filled) {
#if VECTOR == 4
        *(float4 *)to = make_float4(some[0], some[1], some[2], some[3]);
#elif VECTOR == 2
        *(float2 *)to = make_float2(some[0], some[1]);
#else
        *to = some[0];
#endif
    } else {
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++)
            if (from + k < own || from + k >= filled) to[k] = some[k];
    }
}

// Writes voxels that follow each other, a warp together: a lane has the same place in each.
DEVICE void write_voxels(const float *points, float *to, u32 voxels, const Beginning *begins) {
    const u32 lane = LANE & 31, among = TOGETHER > 1 ? lane / VECTORS : 0;
    if (among >= TOGETHER) return;
#pragma unroll 4
    for (u32 voxel = among; voxel < voxels; voxel += TOGETHER)
        for (u32 at = TOGETHER > 1 ? lane % VECTORS : lane; at < VECTORS; at += 32)
            write_vector(points, begins[voxel], at * VECTOR,
                         to + (u64)voxel * VOXEL_FLOATS + at * VECTOR);
}

// Points of few floats are kept from the start on: fetched when they are written, they would be
// waited for.
#define KEPT (STRIDE <= 8)
// The float of a warp's points that is a lane's `k`th: its own point's, or one of every 32.
#define FLOAT_AT(k, lane) (STRIDE == 4 ? 4 * (lane) + (k) : 32 * (k) + (lane))

// The floats of a warp's points that are a lane's, of `floats` that there are.
DEVICE void take_points(const float *__restrict__ from, u32 floats, float *mine) {
    const u32 lane = LANE & 31;
#if STRIDE == 4
    float4 own = make_float4(0, 0, 0, 0);
    if (4 * lane < floats) own = __ldg((const float4 *)from + lane);
    mine[0] = own.x, mine[1] = own.y, mine[2] = own.z, mine[3] = own.w;
#else
#pragma unroll
    for (u32 k = 0; k < STRIDE; k++)
        mine[k] = FLOAT_AT(k, lane) < floats ? __ldg(from + FLOAT_AT(k, lane)) : 0.0f;
#endif
}

// Copies the points of a warp to their places: `to` is that of a lane's point.
DEVICE void copy_points(const float *__restrict__ from, const float *mine, u64 to, float *voxels) {
#if STRIDE == 4
    if (to != ~(u64)0) ((float4 *)voxels)[to] = make_float4(mine[0], mine[1], mine[2], mine[3]);
#else
    // Floats in their order: neighbours go to one place mostly.
#pragma unroll
    for (u32 k = 0; k < STRIDE; k++) {
        const u32 at = FLOAT_AT(k, LANE & 31);
        const u64 place = __shfl_sync(EVERY, to, at / STRIDE);
        if (place != ~(u64)0)
            voxels[place * STRIDE + at % STRIDE] = KEPT ? mine[k] : __ldg(from + at);
    }
#endif
}

// A block's share of it.
DEVICE void clear_table(Slot *table, u64 slots, u32 ticket) {
    const u64 lanes = (u64)BLOCKS_X * BLOCKS_Y * HARD_LANES;
    for (u64 at = (u64)ticket * HARD_LANES + LANE; at < slots; at += lanes)
        ((uint4 *)table)[at] = make_uint4(0, 0, 0, 0);
}

// `state` counts the blocks that have started, and says which table is in use; `totals` has a
// number for each cloud and the sum of all. `first_number` is the number of the first cloud for the
// coordinates.
KERNEL void BOUNDS(HARD_LANES, FILL_BLOCKS)
    hard_fill(const float *__restrict__ points, const u64 *__restrict__ starts, GRID_ARGUMENTS,
              Slot *tables, u64 table_slots, const u32 *lists, u32 *rows, const u32 *owners, u32 *status, u32 *state, u32 max_voxels, u32 first_number,
              float *voxels, int *coordinates, int *counts, int *totals) {
    __shared__ u32 warps[WARPS], shared[WARPS], ticket, turn;
    __shared__ Beginning beginnings[HARD_LANES];
    __shared__ float4 kept[KEPT ? HARD_LANES * STRIDE / 4 : 1];
    const Grid grid = GRID;
    // A block waits for those before it. Numbered as they start, they run.
    if (LANE == 0) {
        ticket = atomicAdd(state, 1u);
        turn = state[1];
    }
    __syncthreads();
    const u32 across = BLOCKS_X, cloud = ticket / across, block = ticket % across;
    u64 begin, end;
    bounds(&grid, starts, cloud, &begin, &end);
    const u32 length = (u32)(end - begin);
    const u32 blocks = length ? (length + HARD_LANES - 1) / HARD_LANES : 1;
    const u32 number = block * HARD_LANES + LANE, lane = LANE & 31, warp = LANE >> 5;
    const float *from = points + (begin + number - lane) * STRIDE;
    float mine[KEPT ? STRIDE : 1];
    if (KEPT && number - lane < length)
        take_points(from, min(length - (number - lane), 32) * STRIDE, mine);
    wait_for_last();
    // Nobody else starts.
    if (ticket == across * BLOCKS_Y - 1 && LANE == 0) state[0] = 0;
    Slot *table = tables + (turn ? table_slots : 0), *last = tables + (turn ? 0 : table_slots);
    if (block >= blocks) {
        clear_table(last, table_slots, ticket);
        return;
    }
    const u32 owner = number < length ? __ldcg(owners + begin + number) : NOBODY;
    Slot *slot = table + owner;
    u32 *row = rows + (u64)owner * ROW;
    const int leads = owner < FOLLOWS;
    u32 runs = 0, before = 0, all = 0;
    u64 word = 0;
    if (leads) {
        const uint4 all_of = __ldcg((const uint4 *)slot);
        word = (u64)all_of.y << 32 | all_of.x;
        runs = (u32)word & COUNT_MASK;
        before = points_before(all_of, lists + (u64)owner * LIST, row, runs, ~(number << 5), &all);
    }
    const u32 begins = __ballot_sync(EVERY, leads && before == 0);
    const int is_first = begins >> lane & 1;
    if (lane == 0) warps[warp] = __popc(begins);
    __syncthreads();
    u32 count = 0, own = __popc(begins & ((1u << lane) - 1)), in_warp = 0;
#pragma unroll
    for (u32 k = 0; k < WARPS; k++) {
        if (k == warp) in_warp = count;
        count += warps[k];
    }
    u32 *own_status = status + (u64)cloud * across, *of_clouds = status + (u64)across * grid.clouds;
    u32 *sums = of_clouds + grid.clouds + (u64)cloud * across;
    if (LANE == 0) *(volatile u32 *)(own_status + block) = count + 1;
    // While others count.
    clear_table(last, table_slots, ticket);
    float *own_floats = (float *)kept + (KEPT ? warp * 32 * STRIDE : 0);
    if (KEPT)
#pragma unroll
        for (u32 k = 0; k < STRIDE; k++) own_floats[FLOAT_AT(k, lane)] = mine[k];
    const u32 earlier = voxels_before(own_status, sums, block, shared);
    if (blocks > WINDOW && LANE == 0) *(volatile u32 *)(sums + block) = earlier + count + 1;
    const u32 full = min(earlier + count, max_voxels);
    if (block == blocks - 1 && LANE == 0) {
        *(volatile u32 *)(of_clouds + cloud) = full + 1;
        totals[cloud] = (int)full;
    }
    u32 base = 0;
    if (cloud) {
        for (u32 other = LANE; other < cloud; other += HARD_LANES) base += hear(of_clouds + other);
        base = sum_of_block(base, shared);
    }
    if (block == blocks - 1 && cloud == grid.clouds - 1 && LANE == 0) {
        totals[grid.clouds] = (int)(base + full);
        // All blocks have told their number, and so seen whose turn it is.
        state[1] = !turn;
    }
    const u32 start = earlier + in_warp, room = start < max_voxels ? max_voxels - start : 0;
    const u64 first_voxel = (u64)base + start;
    // How long a run is: up to the next lane that does not follow.
    const u32 follow = __ballot_sync(EVERY, owner == FOLLOWS);
    u32 voxel = NOBODY;
    if (is_first) {
        if (own < room) voxel = (u32)first_voxel + own;
        // The others of the voxel, who are behind, wait for this.
        if (runs > 1) *(volatile u64 *)&slot->word = NUMBERED | (u64)voxel << COUNT_BITS | runs;
        if (own < room) {
            const u32 points_in = min(all, MAX_POINTS);
            const u32 of_run = min(__ffs(~(follow >> 1 >> lane)), MAX_POINTS);
            counts[voxel] = (int)points_in;
            const Beginning beginning = {BEGINNING(lane, of_run), points_in};
            beginnings[32 * warp + own] = beginning;
            write_cell(&grid, (word >> COUNT_BITS) - 1, first_number + cloud,
                       coordinates + (u64)voxel * COORDINATES);
        }
    }
    __syncwarp();
    write_voxels(KEPT ? own_floats : from, voxels + first_voxel * VOXEL_FLOATS, min(__popc(begins), room),
                 beginnings + 32 * warp);
    if (leads && !is_first) {
        while (!(word & NUMBERED)) word = *(const volatile u64 *)&slot->word;
        voxel = (u32)(word >> COUNT_BITS);
    }
    // A point that leads no run has the place behind its neighbour's.
    const u32 heads = __ballot_sync(EVERY, leads) & EVERY >> (31 - lane);
    const u32 head = heads ? 31 - __clz(heads) : lane;
    voxel = __shfl_sync(EVERY, voxel, head);
    const u32 place = __shfl_sync(EVERY, before, head) + lane - head;
    const int is_kept = owner != NOBODY && voxel != NOBODY && place < MAX_POINTS &&
                        !(begins >> head & 1);
    copy_points(from, mine, is_kept ? (u64)voxel * MAX_POINTS + place : ~(u64)0, voxels);
    if (runs > RUNS) {
        __threadfence();
        if (atomicAdd(row + MAX_POINTS, 1u) == runs - 1)
            for (u32 k = 0; k < ROW; k++) row[k] = 0;
    }
}

#endif
