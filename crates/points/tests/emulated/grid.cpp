// Blocks of a GPU on the processor: each block is a process, so that what a kernel calls shared
// is the block's own, and each lane a thread; the device's memory is shared by all processes.
// The kernel's text is KERNELS, as it is compiled for a GPU; only the gate is another, which
// yields while it waits. Every launch but the first finds shared memory as the last left it.
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

struct float4 { float x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
struct Place { unsigned x = 0, y = 0; };
static thread_local Place threadIdx;
static Place blockIdx, blockDim, gridDim;
static pthread_barrier_t lanes_meet, warps_meet[32];
static unsigned shuffled[32][32], any;
static uint4 exchange_vectors[1 << 14];

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
using std::isfinite;
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class T> static T __ldg(const T *from) { return *from; }
template <class T> static T __ldcg(const T *from) { return *from; }
static unsigned atomicAdd(unsigned *at, unsigned more) { return __atomic_fetch_add(at, more, __ATOMIC_RELAXED); }
static unsigned atomicOr(unsigned *at, unsigned bits) { return __atomic_fetch_or(at, bits, __ATOMIC_RELAXED); }
static void __syncthreads() { pthread_barrier_wait(&lanes_meet); }
static int __syncthreads_or(int value) {
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    if (value) atomicOr(&any, 1);
    __syncthreads();
    const int all = (int)any;
    __syncthreads();
    return all;
}
static unsigned __shfl_sync(unsigned, unsigned value, unsigned from) {
    const unsigned warp = threadIdx.x / 32;
    shuffled[warp][threadIdx.x % 32] = value;
    pthread_barrier_wait(&warps_meet[warp]);
    const unsigned got = shuffled[warp][from];
    pthread_barrier_wait(&warps_meet[warp]);
    return got;
}
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
template <class F> static float down(F of) {
    fesetround(FE_DOWNWARD);
    volatile float value = of();
    fesetround(FE_TONEAREST);
    return value;
}
static float __fmaf_rd(float a, float b, float c) { return down([=] { volatile float x = a; return fmaf(x, b, c); }); }
static float __fadd_rd(float a, float b) { return down([=] { volatile float x = a; return x + b; }); }
static float __fdiv_rn(float a, float b) { return a / b; }

#include DIALECT
#include PLACE
static void meet(u32 *gate, u32 turn) {
    __syncthreads();
    if (LANE == 0) {
        __atomic_fetch_add(gate, BLOCK_X == 0 ? 0x80000000u - (BLOCKS_X - 1) : 1, __ATOMIC_RELEASE);
        while (!((__atomic_load_n(gate, __ATOMIC_ACQUIRE) ^ turn) >> 31)) sched_yield();
    }
    __syncthreads();
}
#include EXCHANGE

struct Head {
    unsigned points, cells[3], blocks, lanes, slab_bits, vector_bits, launches;
    float origin[3], size[3];
};

template <class T> static T *device(size_t many, int fill) {
    void *at = mmap(nullptr, many * sizeof(T) + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) _exit(3);
    return (T *)memset(at, fill, many * sizeof(T));
}

int main() {
    Head h;
    if (fread(&h, sizeof h, 1, stdin) != 1) return 2;
    const u64 voxels = (u64)h.cells[0] * h.cells[1] * h.cells[2];
    float *points = device<float>((size_t)h.points * STRIDE, 0);
    if (fread(points, 4 * STRIDE, h.points, stdin) != h.points) return 2;
    out_t *out = device<out_t>(voxels, 0x77);
    uint4 *left = device<uint4>((size_t)h.blocks * h.blocks << h.vector_bits, 0x77);
    u32 *gate = device<u32>(1, 0), *report = device<u32>(2 * h.blocks, 0x77), *over = device<u32>(1, 0);
    if (((size_t)h.blocks << h.vector_bits) + ((size_t)1 << h.slab_bits) / 16 > sizeof exchange_vectors / sizeof *exchange_vectors) return 4;
    gridDim.x = h.blocks;
    blockDim.x = h.lanes;
    for (unsigned block = 0; block < h.blocks; block++) {
        if (fork()) continue;
        blockIdx.x = block;
        memset(exchange_vectors, 0x77, sizeof exchange_vectors);
        pthread_barrier_init(&lanes_meet, nullptr, h.lanes);
        for (unsigned warp = 0; warp < h.lanes / 32; warp++) pthread_barrier_init(&warps_meet[warp], nullptr, 32);
        for (unsigned launch = 1; launch <= h.launches; launch++) {
            std::vector<std::thread> lanes;
            for (unsigned lane = 0; lane < h.lanes; lane++)
                lanes.emplace_back([&, lane] {
                    threadIdx.x = lane;
                    exchange(points, nullptr, h.origin[0], h.origin[1], h.origin[2], h.size[0], h.size[1], h.size[2],
                             1 / h.size[0], 1 / h.size[1], 1 / h.size[2], h.cells[0], h.cells[1], h.cells[2], 0, voxels,
                             h.points, 1, h.slab_bits, h.vector_bits, left, gate, out, report);
                });
            for (auto &lane : lanes) lane.join();
            // The next launch begins when this one is over.
            __atomic_fetch_add(over, 1, __ATOMIC_ACQ_REL);
            while (__atomic_load_n(over, __ATOMIC_ACQUIRE) < launch * h.blocks) sched_yield();
        }
        _exit(0);
    }
    int status = 0, worst = 0;
    while (wait(&status) > 0) worst |= status;
    if (worst) return 5;
    fwrite(gate, 4, 1, stdout);
    fwrite(report, 8, h.blocks, stdout);
    fwrite(out, sizeof *out, voxels, stdout);
    return 0;
}
