// What kernels for CUDA use, on the processor: each block is a process, so that what a kernel calls
// shared is the block's own, and each lane a thread; the device's memory is shared by all processes.
#pragma once
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

struct float4 { float x, y, z, w; };
struct float2 { float x, y; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct Place { unsigned x = 0, y = 0; };
static thread_local Place threadIdx;
static Place blockIdx, blockDim, gridDim;
static pthread_barrier_t lanes_meet, warps_meet[32];
static unsigned long long told[32][32];
static unsigned counted;

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __restrict__
#define __launch_bounds__(...)
using std::isfinite;
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static T __ldg(const T *from) { return *from; }
template <class T> static T __ldcg(const T *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
static uint4 __ldcg(const uint4 *from) {
    const unsigned *at = (const unsigned *)from;
    return {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2), __ldcg(at + 3)};
}
static void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static unsigned atomicAdd(unsigned *at, unsigned more) { return __atomic_fetch_add(at, more, __ATOMIC_RELAXED); }
static unsigned long long atomicAdd(unsigned long long *at, unsigned long long more) { return __atomic_fetch_add(at, more, __ATOMIC_RELAXED); }
static unsigned long long atomicCAS(unsigned long long *at, unsigned long long was, unsigned long long now) {
    __atomic_compare_exchange_n(at, &was, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return was;
}
template <class T> static T atomicMax(T *at, T value) {
    T was = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (was < value && !__atomic_compare_exchange_n(at, &was, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return was;
}
static void __syncthreads() { pthread_barrier_wait(&lanes_meet); }
static int __syncthreads_count(int value) {
    if (threadIdx.x == 0) counted = 0;
    __syncthreads();
    if (value) atomicAdd(&counted, 1);
    __syncthreads();
    const int all = (int)counted;
    __syncthreads();
    return all;
}
// What each lane of a warp has, to every lane of it.
template <class F> static auto among(unsigned long long value, F of) {
    const unsigned warp = threadIdx.x / 32;
    told[warp][threadIdx.x % 32] = value;
    pthread_barrier_wait(&warps_meet[warp]);
    const auto found = of(told[warp]);
    pthread_barrier_wait(&warps_meet[warp]);
    return found;
}
template <class T> static T __shfl_sync(unsigned, T value, unsigned from) {
    return (T)among(value, [=](unsigned long long *all) { return all[from]; });
}
template <class T> static T __shfl_up_sync(unsigned, T value, unsigned step) {
    const unsigned lane = threadIdx.x % 32, from = lane < step ? lane : lane - step;
    return (T)among(value, [=](unsigned long long *all) { return all[from]; });
}
static void __syncwarp() { pthread_barrier_wait(&warps_meet[threadIdx.x / 32]); }
static unsigned __shfl_xor_sync(unsigned, unsigned value, int step) {
    const unsigned from = threadIdx.x % 32 ^ step;
    return (unsigned)among(value, [=](unsigned long long *all) { return all[from]; });
}
static unsigned __ballot_sync(unsigned, int value) {
    return among(value != 0, [](unsigned long long *all) {
        unsigned bits = 0;
        for (int lane = 0; lane < 32; lane++) bits |= (unsigned)all[lane] << lane;
        return bits;
    });
}
static int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }
static int __clz(unsigned bits) { return __builtin_clz(bits); }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static float __fdiv_rn(float a, float b) { return a / b; }
static float __fadd_rd(float a, float b) {
    fesetround(FE_DOWNWARD);
    volatile float x = a, sum = x + b;
    fesetround(FE_TONEAREST);
    return sum;
}
// Launches follow each other without overlap here.
static void let_next_start() {}
static void wait_for_last() {}
static void fetch_soon(const void *) {}

template <class T> static T *device(size_t many) {
    const size_t bytes = many * sizeof(T) + 4096;
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) _exit(3);
    return (T *)at;
}

static void launch(unsigned across, unsigned down, const std::function<void()> &kernel) {
    std::vector<pid_t> blocks;
    gridDim.x = across, gridDim.y = down, blockDim.x = HARD_LANES;
    for (unsigned block = 0; block < across * down; block++) {
        const pid_t child = fork();
        if (child < 0) _exit(4);
        if (child == 0) {
            blockIdx.x = block % across, blockIdx.y = block / across;
            pthread_barrier_init(&lanes_meet, nullptr, HARD_LANES);
            for (auto &warp : warps_meet) pthread_barrier_init(&warp, nullptr, 32);
            std::vector<std::thread> lanes;
            for (unsigned lane = 0; lane < HARD_LANES; lane++)
                lanes.emplace_back([&, lane] { threadIdx.x = lane; kernel(); });
            for (auto &lane : lanes) lane.join();
            _exit(0);
        }
        blocks.push_back(child);
    }
    for (const pid_t block : blocks) {
        int status = 0;
        waitpid(block, &status, 0);
        if (status) _exit(5);
    }
}

template <class T> static void read_all(T *to, size_t many) {
    if (many && fread(to, sizeof(T), many, stdin) != many) _exit(2);
}
