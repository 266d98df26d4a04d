// From a point to its voxel: floor((p - origin) / size) in IEEE single precision, each
// operation rounded to nearest, subnormals kept.

#if CUDA && !defined(PLAIN_DIVISION)

// The quotient by Markstein's sequence: from a reciprocal that is itself correctly rounded,
// two steps give the correctly rounded quotient wherever nothing on the way leaves the normal
// range. Sizes within 2^-36..2^36 (the host sees to that, or defines PLAIN_DIVISION) and
// differences of at least 2^-60 keep it there; larger ones end outside every grid either way.
DEVICE float quotient(float difference, float size, float inverse) {
    float q = __fmul_rn(difference, inverse);
    q = __fmaf_rn(__fmaf_rn(-size, q, difference), inverse, q);
    return __fmaf_rn(__fmaf_rn(-size, q, difference), inverse, q);
}
#define NEAR_ORIGIN 8.67361738e-19f // 2^-60

#endif

// The cell of a quotient along one axis; what lies outside becomes a number past every extent.
DEVICE u32 cell_of(float quotient) {
#if CUDA
    // Rounding down at 2^23 leaves the floor in the low bits. Below zero and past 2^23, and
    // for infinities and NaN, the difference is past every extent as an unsigned number.
    return __float_as_uint(__fadd_rd(quotient, 8388608.0f)) - 0x4B000000u;
#else
    float cell = floor(quotient);
    return cell >= 0.0f && cell < 8388608.0f ? (u32)cell : 0xFFFFFFFFu;
#endif
}

// 1 with the voxel's place in this piece, or 0 where the point is in none of its voxels;
// `inside` says whether it is in the grid at all.
DEVICE int locate(const Grid *grid, float x, float y, float z, voxel_t *at, int *inside) {
    float dx = x - grid->origin[0], dy = y - grid->origin[1], dz = z - grid->origin[2];
    float qx, qy, qz;
#ifdef NEAR_ORIGIN
    if (fminf(fminf(fabsf(dx), fabsf(dy)), fabsf(dz)) >= NEAR_ORIGIN) {
        qx = quotient(dx, grid->size[0], grid->inverse[0]);
        qy = quotient(dy, grid->size[1], grid->inverse[1]);
        qz = quotient(dz, grid->size[2], grid->inverse[2]);
    } else
#endif
    {
        qx = dx / grid->size[0];
        qy = dy / grid->size[1];
        qz = dz / grid->size[2];
    }
    u32 cx = cell_of(qx), cy = cell_of(qy), cz = cell_of(qz);
    *inside = cx < grid->extent[0] && cy < grid->extent[1] && cz < grid->extent[2];
    voxel_t voxel = ((voxel_t)cz * grid->extent[1] + cy) * grid->extent[0] + cx;
    *at = voxel - (voxel_t)grid->first;
    return *inside && *at < (voxel_t)grid->span;
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
        const float4 *vectors_ = (const float4 *)(points + 3 * head_);                         \
        for (u64 i_ = worker; i_ < quads_; i_ += workers) {                                    \
            const float4 a_ = vectors_[3 * i_], b_ = vectors_[3 * i_ + 1],                     \
                         c_ = vectors_[3 * i_ + 2];                                            \
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
