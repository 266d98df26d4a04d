// The kernels of pillars and images on the processor, as they are compiled for CUDA. Reads a Head,
// voxels, coordinates, counts and a row of values for each pillar; writes features of pillars and the
// image. Both begin as numbers that no kernel writes.
#include "cuda.h"

#include DIALECT
#include PLACE
#include FEATURES_OF_GRIDS
#include VOXEL_PLACE
#include NETWORK

struct Head {
    unsigned pillars, total, clouds, values;
    float origin[3], size[3];
    unsigned cells[3];
};

int main() {
    Head h;
    read_all(&h, 1);
    const u64 pillars = h.pillars, area = (u64)h.cells[0] * h.cells[1];
    float *voxels = device<float>(pillars * MAX_POINTS * STRIDE), *values = device<float>(pillars * h.values);
    int *coordinates = device<int>(pillars * COORDINATES), *counts = device<int>(pillars), *total = device<int>(1);
    read_all(voxels, pillars * MAX_POINTS * STRIDE);
    read_all(coordinates, pillars * COORDINATES);
    read_all(counts, pillars);
    read_all(values, pillars * h.values);
    *total = (int)h.total;
    const u64 floats = pillars * MAX_POINTS * FEATURES, pixels = h.clouds * h.values * area;
    float *features = device<float>(floats), *image = device<float>(pixels);
    u32 *map = device<u32>(h.clouds * area), *report = device<u32>(pillars);
    memset(features, 0x55, floats * 4), memset(image, 0x55, pixels * 4), memset(map, 0x55, h.clouds * area * 4);
#define GRID_OF_HEAD                                                                                         \
    h.origin[0], h.origin[1], h.origin[2], h.size[0], h.size[1], h.size[2], 1 / h.size[0], 1 / h.size[1],    \
        1 / h.size[2], h.cells[0], h.cells[1], h.cells[2], 0, area, 0, h.clouds
    launch((pillars + PILLARS - 1) / PILLARS, 1, [&] {
        pillar_features(voxels, coordinates, counts, GRID_OF_HEAD, pillars, total, features);
    });
    launch(2, 1, [&] { zeros(map, h.clouds * area); });
    launch((pillars + HARD_LANES - 1) / HARD_LANES, 1, [&] {
        birds_mark(coordinates, GRID_OF_HEAD, pillars, (const int *)0, map, report);
    });
    const unsigned groups = (h.values + TOGETHER_FEATURES - 1) / TOGETHER_FEATURES;
    launch((area + 4 * HARD_LANES - 1) / (4 * HARD_LANES), groups * h.clouds,
           [&] { birds_fill(map, values, area, h.values, image); });
    fwrite(features, 4, floats, stdout);
    fwrite(image, 4, pixels, stdout);
    return 0;
}
