// The kernels of hard voxelization on the processor, as they are compiled for CUDA. Reads a Head
// and points, writes the number of voxels of each cloud and of all, how many points each has, coordinates and points of the last launch,
// and how many words of the workspace are not zero after it, where all must be.
#include "cuda.h"

#include DIALECT
#include PLACE
#include VOXEL_PLACE
#include HARD
#include HARD_RUNS

struct Head {
    unsigned clouds, longest, max_voxels, launches;
    float origin[3], size[3];
    unsigned cells[3];
};

int main() {
    Head h;
    read_all(&h, 1);
    u64 *starts = device<u64>(h.clouds + 1);
    read_all(starts, h.clouds + 1);
    const u64 points = starts[h.clouds], span = (u64)h.cells[0] * h.cells[1] * h.cells[2];
    float *floats = device<float>(points * STRIDE);
    read_all(floats, points * STRIDE);
    const unsigned across = h.longest ? (h.longest + HARD_LANES - 1) / HARD_LANES : 1;
    const u64 statuses = (u64)(2 * across + 1) * h.clouds;
    const u64 in_table = 2 * points;
    Slot *tables = device<Slot>(2 * in_table);
    u32 *lists = device<u32>(in_table * LIST), *rows = device<u32>(in_table * ROW), *owners = device<u32>(points);
    u32 *status = device<u32>(statuses), *state = device<u32>(2), *report = device<u32>((u64)across * h.clouds * 2);
    float *voxels = device<float>(points * MAX_POINTS * STRIDE);
    int *coordinates = device<int>(points * COORDINATES), *counts = device<int>(points), *totals = device<int>(h.clouds + 1);
#define GRID_OF_HEAD                                                                                         \
    h.origin[0], h.origin[1], h.origin[2], h.size[0], h.size[1], h.size[2], 1 / h.size[0], 1 / h.size[1],    \
        1 / h.size[2], h.cells[0], h.cells[1], h.cells[2], 0, span, h.longest, h.clouds
    for (unsigned round = 0; round < h.launches; round++) {
        memset(voxels, 0x55, points * MAX_POINTS * STRIDE * sizeof(float));
        launch(across, h.clouds, [&] {
            hard_insert(floats, starts, GRID_OF_HEAD, tables, in_table, lists, rows, owners, status, state, report);
        });
        launch(across, h.clouds, [&] {
            hard_fill(floats, starts, GRID_OF_HEAD, tables, in_table, lists, rows, owners, status, state, h.max_voxels, 0,
                      voxels, coordinates, counts, totals);
        });
    }
    u32 left = state[0] != 0;
    for (u64 at = 0; at < in_table; at++) left += tables[at + state[1] * in_table].word != 0;
    for (u64 at = 0; at < in_table * ROW; at++) left += rows[at] != 0;
    const size_t made = totals[h.clouds];
    fwrite(&left, 4, 1, stdout);
    fwrite(totals, 4, h.clouds + 1, stdout);
    fwrite(counts, 4, made, stdout);
    fwrite(coordinates, 4, made * COORDINATES, stdout);
    fwrite(voxels, 4, made * MAX_POINTS * STRIDE, stdout);
    return 0;
}
