// Hard voxels of three points: on the host, and on a CUDA device where it is built with CUDA.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "plimsoll.h"

#ifdef PLIMSOLL_CUDA
#include <cuda_runtime.h>
#endif

static const std::vector<float> points = {
    0.1f, 0.1f, 0.9f, 7.0f, // x, y, z and intensity
    0.6f, 0.1f, 0.1f, 8.0f, //
    0.2f, 0.2f, 0.8f, 9.0f,
};

static bool ok(PlimsollStatus status) {
    if (status != PlimsollStatus_Ok) std::fprintf(stderr, "%s\n", plimsoll_last_error());
    return status == PlimsollStatus_Ok;
}

static void show(int voxels, const std::vector<int32_t> &coordinates, const std::vector<int32_t> &counts) {
    std::printf("%d voxels\n", voxels);
    for (int voxel = 0; voxel < voxels; voxel++) {
        const int32_t *at = &coordinates[3 * voxel];
        std::printf("voxel %d at z %d, y %d, x %d has %d points\n", voxel, at[0], at[1], at[2], counts[voxel]);
    }
}

#ifdef PLIMSOLL_CUDA
static bool on_device(const PlimsollHardSpec &spec) {
    PlimsollCudaHard *hard = nullptr;
    if (!ok(plimsoll_cuda_hard_create(&spec, 4, 1, 1000, 0, 0, &hard))) return false;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    PlimsollCudaBuffers on;
    cudaMalloc((void **)&on.points, 1000 * 4 * sizeof(float));
    cudaMalloc((void **)&on.voxels, 10 * 2 * 4 * sizeof(float));
    cudaMalloc((void **)&on.coordinates, 10 * 3 * sizeof(int32_t));
    cudaMalloc((void **)&on.num_points, 10 * sizeof(int32_t));
    cudaMalloc((void **)&on.totals, 2 * sizeof(int32_t));
    cudaMemcpyAsync((void *)on.points, points.data(), points.size() * sizeof(float), cudaMemcpyDefault, stream);
    const bool queued = ok(plimsoll_cuda_hard_launch(hard, stream, 1, 3, &on));
    std::vector<int32_t> coordinates(30), counts(10), totals(2);
    cudaMemcpyAsync(coordinates.data(), on.coordinates, 30 * sizeof(int32_t), cudaMemcpyDefault, stream);
    cudaMemcpyAsync(counts.data(), on.num_points, 10 * sizeof(int32_t), cudaMemcpyDefault, stream);
    cudaMemcpyAsync(totals.data(), on.totals, 2 * sizeof(int32_t), cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    std::printf("on the device: ");
    show(totals[1], coordinates, counts);
    plimsoll_cuda_hard_destroy(hard);
    cudaStreamDestroy(stream);
    return queued;
}
#endif

int main() {
    PlimsollHardSpec spec = {{0.5f, 0.5f, 0.5f}, {0, 0, 0, 1, 1, 1}, 2, 10, PlimsollOrder_Zyx, 0};
    const uint64_t lengths[] = {3};
    std::vector<float> voxels(10 * 2 * 4);
    std::vector<int32_t> coordinates(30), counts(10), totals(2);
    if (!ok(plimsoll_hard_voxelize(&spec, points.data(), 4, lengths, 1, 10, voxels.data(), coordinates.data(),
                                   counts.data(), totals.data())))
        return 1;
    show(totals[1], coordinates, counts);
    std::vector<float> features(totals[1] * 2 * 10);
    if (!ok(plimsoll_pillar_features(&spec, 4, totals[1], voxels.data(), coordinates.data(), counts.data(),
                                     features.data())))
        return 1;
#ifdef PLIMSOLL_CUDA
    if (!on_device(spec)) return 1;
#endif
    spec.max_points = 0;
    if (plimsoll_hard_voxelize(&spec, points.data(), 4, lengths, 1, 10, voxels.data(), coordinates.data(),
                               counts.data(), totals.data()) != PlimsollStatus_BadArgument)
        return 1;
    std::printf("bad arguments are refused: %s\n", plimsoll_last_error());
    return 0;
}
