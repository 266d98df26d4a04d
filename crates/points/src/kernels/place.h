// From a point to its voxel: floor((p - origin) / size) in IEEE single precision, each
// operation rounded to nearest, subnormals kept.
//

// DIVISION says how the host found that it can be done for these sizes and extents; every way
// gives the cell that an exact division gives, and the host has tried those that need trying.
//
//   0  the language's own division
//   1  one fused step: the product with the reciprocal, rounded down to a whole number
//   2  a quotient from the reciprocal, corrected once
//   3  corrected twice (Markstein): the correctly rounded quotient, wherever nothing on the
//      way leaves the normal range; differences near zero take the language's own
//
// The last three are CUDA's, whose fused steps are as quick as any other.

#if CUDA && DIVISION >= 2

DEVICE float quotient(float difference, float size, float inverse) {
    float q = __fmul_rn(difference, inverse);
    q = __fmaf_rn(__fmaf_rn(-size, q, difference), inverse, q);
#if DIVISION == 3
    q = __fmaf_rn(__fmaf_rn(-size, q, difference), inverse, q);
#endif
    return q;
}
#define NEAR_ORIGIN 8.67361738e-19f // 2^-60

#endif

// The cell of a difference along one axis; what lies outside becomes a number past every
// extent, which is at most 2^23.
DEVICE u32 cell_of(float difference, float size, float inverse) {
#if CUDA
    // Rounded down at 2^23, a sum has its whole part in the low bits. Below zero and past 2^23,
    // and for infinities and NaN, what is left is past every extent as an unsigned number.
#if DIVISION == 1
    const float sum = __fmaf_rd(difference, inverse, 8388608.0f);
#elif DIVISION == 0
    const float sum = __fadd_rd(__fdiv_rn(difference, size), 8388608.0f);
#else
    const float sum = __fadd_rd(quotient(difference, size, inverse), 8388608.0f);
#endif
    return __float_as_uint(sum) - 0x4B000000u;
#else
    const float cell = floor(difference / size);
    return cell >= 0.0f && cell < 8388608.0f ? (u32)cell : 0xFFFFFFFFu;
#endif
}

// The cell of a coordinate along one axis, or a number past every extent.
DEVICE u32 cell_along(const Grid *grid, float coordinate, int axis) {
    const float difference = coordinate - grid->origin[axis];
#if CUDA && DIVISION == 3
    if (fabsf(difference) < NEAR_ORIGIN) {
        const float exact = __fdiv_rn(difference, grid->size[axis]);
        return __float_as_uint(__fadd_rd(exact, 8388608.0f)) - 0x4B000000u;
    }
#endif
    return cell_of(difference, grid->size[axis], grid->inverse[axis]);
}

// 1 with the voxel's place in this piece, or 0 where the point is in none of its voxels;
// `inside` says whether it is in the grid at all.
DEVICE int locate(const Grid *grid, float x, float y, float z, voxel_t *at, int *inside) {
    const float dx = x - grid->origin[0], dy = y - grid->origin[1], dz = z - grid->origin[2];
    u32 cx = cell_of(dx, grid->size[0], grid->inverse[0]);
    u32 cy = cell_of(dy, grid->size[1], grid->inverse[1]);
    u32 cz = cell_of(dz, grid->size[2], grid->inverse[2]);
#if CUDA && DIVISION == 3
    if (fminf(fminf(fabsf(dx), fabsf(dy)), fabsf(dz)) < NEAR_ORIGIN) {
        cx = __float_as_uint(__fadd_rd(__fdiv_rn(dx, grid->size[0]), 8388608.0f)) - 0x4B000000u;
        cy = __float_as_uint(__fadd_rd(__fdiv_rn(dy, grid->size[1]), 8388608.0f)) - 0x4B000000u;
        cz = __float_as_uint(__fadd_rd(__fdiv_rn(dz, grid->size[2]), 8388608.0f)) - 0x4B000000u;
    }
#endif
    *inside = cx < grid->extent[0] && cy < grid->extent[1] && cz < grid->extent[2];
    const voxel_t voxel = ((voxel_t)cz * grid->extent[1] + cy) * grid->extent[0] + cx;
#if WHOLE
    *at = voxel;
    return *inside;
#else
    *at = voxel - (voxel_t)grid->first;
    return *inside && *at < (voxel_t)grid->span;
#endif
}

// The points of a cloud: from `begin` to `end`, counted from the first of the batch.
DEVICE void bounds(const Grid *grid, const GLOBAL u64 *starts, u64 cloud, u64 *begin, u64 *end) {
#if RAGGED
    *begin = starts[cloud];
    *end = starts[cloud + 1];
#else
    *begin = cloud * grid->points;
    *end = *begin + grid->points;
#endif
}

#if CUDA && STRIDE == 3

// Four points, as three aligned vectors.
typedef struct {
    float4 a, b, c;
} Four;

DEVICE Four read_four(const Four *from) {
    const float4 *vectors = (const float4 *)from;
    const Four four = {__ldg(vectors), __ldg(vectors + 1), __ldg(vectors + 2)};
    return four;
}

#endif

// Calls VISIT(x, y, z, index) for the points that are this worker's among `workers`.
// Triples are read four at a time, as three aligned vectors.
#if CUDA && STRIDE == 3
#define EACH_POINT(points, begin, end, worker, workers, VISIT)                                 \
    {                                                                                          \
        u64 head_ = begin + ((4 - (begin & 3)) & 3);                                           \
        if (head_ > end) head_ = end;                                                          \
        const u64 quads_ = (end - head_) / 4;                                                  \
        for (u64 i_ = begin + worker; i_ < head_; i_ += workers)                               \
            VISIT(points[3 * i_], points[3 * i_ + 1], points[3 * i_ + 2], i_)                  \
        const float4 *vector_ = (const float4 *)(points + 3 * head_) + 3 * worker;             \
        for (u64 i_ = worker; i_ < quads_; i_ += workers, vector_ += 3 * workers) {            \
            const float4 a_ = vector_[0], b_ = vector_[1], c_ = vector_[2];                    \
            VISIT(a_.x, a_.y, a_.z, head_ + 4 * i_)                                            \
            VISIT(a_.w, b_.x, b_.y, head_ + 4 * i_ + 1)                                        \
            VISIT(b_.z, b_.w, c_.x, head_ + 4 * i_ + 2)                                        \
            VISIT(c_.y, c_.z, c_.w, head_ + 4 * i_ + 3)                                        \
        }                                                                                      \
        for (u64 i_ = head_ + 4 * quads_ + worker; i_ < end; i_ += workers)                    \
            VISIT(points[3 * i_], points[3 * i_ + 1], points[3 * i_ + 2], i_)                  \
    }
#elif CUDA && STRIDE == 4
#define EACH_POINT(points, begin, end, worker, workers, VISIT)                                 \
    for (u64 i_ = begin + worker; i_ < end; i_ += workers) {                                   \
        const float4 a_ = ((const float4 *)points)[i_];                                        \
        VISIT(a_.x, a_.y, a_.z, i_)                                                            \
    }
#else
#define EACH_POINT(points, begin, end, worker, workers, VISIT)                                 \
    for (u64 i_ = begin + worker; i_ < end; i_ += workers)                                     \
        VISIT(points[STRIDE * i_], points[STRIDE * i_ + 1], points[STRIDE * i_ + 2], i_)
#endif

// Adds what each lane counted, and leaves the sum in the block's own place of the report:
// no atomics on it, nothing to clear before. The host adds the blocks up.
#define REPORT(report, slot, slots, tally, value)                                              \
    {                                                                                          \
        if (LANE == 0) tally = 0;                                                              \
        BARRIER();                                                                             \
        if (value) ATOMIC_ADD(&tally, value);                                                  \
        BARRIER();                                                                             \
        if (LANE == 0) report[(BLOCK_Y * BLOCKS_X + BLOCK_X) * slots + slot] = tally;          \
    }

DEVICE int is_broken(float x, float y, float z) {
    return !(IS_FINITE(x) && IS_FINITE(y) && IS_FINITE(z));
}

// Does HIT (which has no commas but in parentheses) with the place `at` of a point, or counts why it has none.
#define FIND(x, y, z, HIT)                                                                     \
    {                                                                                          \
        voxel_t at;                                                                            \
        int inside;                                                                            \
        if (locate(&grid, x, y, z, &at, &inside)) {                                            \
            HIT;                                                                               \
        } else if (!inside) {                                                                  \
            if (is_broken(x, y, z)) broken++;                                                  \
            else outside++;                                                                    \
        }                                                                                      \
    }
