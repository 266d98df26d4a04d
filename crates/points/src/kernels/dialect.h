// One text for CUDA and OpenCL. What differs between the two is named here; the kernels
// below use these names alone. The host defines, for each program that it compiles:
//
//   STRIDE   floats of a point: x, y, z and its features
//   WIDE     1 where a grid has 2^32 voxels or more
//   RAGGED   1 where clouds differ in length and `starts` says where each begins
//   DIVISION how quotients are had (place.h)
//   WHOLE    1 where a piece is all of a grid
//   OUT_U8   1 where occupancy is a byte a voxel, 0 where it is a float

#ifdef __OPENCL_VERSION__

#pragma OPENCL FP_CONTRACT OFF
typedef uchar u8;
typedef uint u32;
typedef ulong u64;
#define KERNEL __kernel
#define DEVICE static inline
#define GLOBAL __global
#define SHARED __local
#define IN_SHARED __local // what a pointer leads to
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
// Behind it, what other lanes of the block wrote to memory is written.
#define WRITTEN_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define BOUNDS(lanes, blocks)
#define LANE ((u32)get_local_id(0))
#define LANES ((u32)get_local_size(0))
#define BLOCK_X ((u32)get_group_id(0))
#define BLOCK_Y ((u32)get_group_id(1))
#define BLOCKS_X ((u32)get_num_groups(0))
#define BLOCKS_Y ((u32)get_num_groups(1))
#define ATOMIC_OR(at, value) atomic_or(at, value)
#define ATOMIC_ADD(at, value) atomic_add(at, value)
#define ATOMIC_MAX(at, value) atomic_max(at, value)
#define BITS_OF(value) as_uint(value)
#define FLOAT_OF(value) as_float(value)
#define IS_FINITE(value) isfinite(value)
#define POPULATION(value) popcount(value)

#else

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
#define CUDA 1
#define KERNEL extern "C" __global__
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define SHARED __shared__
#define IN_SHARED
#define BARRIER() __syncthreads()
#define WRITTEN_BARRIER() __syncthreads()
// Registers are shared out so that this many blocks of so many lanes run on a processor.
#define BOUNDS(lanes, blocks) __launch_bounds__(lanes, blocks)
#define LANE ((u32)threadIdx.x)
#define LANES ((u32)blockDim.x)
#define BLOCK_X ((u32)blockIdx.x)
#define BLOCK_Y ((u32)blockIdx.y)
#define BLOCKS_X ((u32)gridDim.x)
#define BLOCKS_Y ((u32)gridDim.y)
#define ATOMIC_OR(at, value) atomicOr(at, value)
#define ATOMIC_ADD(at, value) atomicAdd(at, value)
#define ATOMIC_MAX(at, value) atomicMax(at, value)
#define BITS_OF(value) __float_as_uint(value)
#define FLOAT_OF(value) __uint_as_float(value)
#define IS_FINITE(value) isfinite(value)
#define POPULATION(value) __popc(value)

#endif

#if WIDE
typedef u64 voxel_t;
#else
typedef u32 voxel_t;
#endif

#if OUT_U8
typedef u8 out_t;
#else
typedef float out_t;
#endif

// Which voxel a point belongs to, and which of them this launch makes.
typedef struct {
    float origin[3];
    float size[3];
    float inverse[3]; // 1 / size, rounded to nearest
    u32 extent[3];    // W, H, D: each at most 2^23
    u64 first;        // the voxels of this piece, in the order of the output
    u64 span;
    u64 points;       // of every cloud, where they are not ragged
    u64 clouds;
} Grid;

// How a kernel takes it: as plain numbers, which both languages pass in registers.
#define GRID_ARGUMENTS                                                                         \
    float ox, float oy, float oz, float sx, float sy, float sz, float ix, float iy, float iz,  \
        u32 width, u32 height, u32 depth, u64 first, u64 span, u64 points_each, u64 clouds
#define GRID                                                                                   \
    {                                                                                          \
        {ox, oy, oz}, {sx, sy, sz}, {ix, iy, iz}, {width, height, depth}, first, span,         \
            points_each, clouds                                                                \
    }
