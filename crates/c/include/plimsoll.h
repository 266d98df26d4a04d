/* Voxels for detection networks: see docs/guide/points.md. Made by cbindgen; a test keeps it in step. */

#ifndef PLIMSOLL_H
#define PLIMSOLL_H

#include <stdint.h>

// What a call came to.
typedef enum PlimsollStatus {
  // It is done, or queued.
  PlimsollStatus_Ok = 0,
  // An argument is wrong, or there is too little room, some of which may be written.
  PlimsollStatus_BadArgument = 2,
  // A driver or the system refused.
  PlimsollStatus_Failed = 3,
  // There is no such device, driver or compiler here.
  PlimsollStatus_Unavailable = 4,
  // There is no memory for it.
  PlimsollStatus_OutOfMemory = 5,
} PlimsollStatus;

// In which order a voxel's coordinates are written.
typedef enum PlimsollOrder {
  // z, y, x: that of mmcv, OpenPCDet and spconv.
  PlimsollOrder_Zyx = 0,
  // x, y, z.
  PlimsollOrder_Xyz = 1,
} PlimsollOrder;

// Hard voxelization on a CUDA device.
typedef struct PlimsollCudaHard PlimsollCudaHard;

// Voxels of points, features of pillars and images from above on a CUDA device.
typedef struct PlimsollCudaPillars PlimsollCudaPillars;

// Scatters on a CUDA device.
typedef struct PlimsollCudaScatter PlimsollCudaScatter;

// Hard voxelization: at most `max_points` points of each of at most `max_voxels` voxels.
typedef struct PlimsollHardSpec {
  // The size of a voxel along x, y and z.
  float voxel_size[3];
  // The range: x, y and z of its first corner, then of its last.
  float range[6];
  // Points of a voxel at most.
  uint32_t max_points;
  // Voxels of a cloud at most.
  uint32_t max_voxels;
  // One of `PlimsollOrder`.
  uint32_t order;
  // 1 to have the number of the cloud in front of the coordinates, otherwise 0.
  uint32_t batch_index;
} PlimsollHardSpec;

// Addresses of the caller's memory on the device.
typedef struct PlimsollCudaBuffers {
  // Points, and `columns` floats of each; aligned to 16 bytes.
  const float *points;
  // [voxels, max_points, columns], for min(points, max_voxels) voxels of each cloud; aligned to
  // 16 bytes.
  float *voxels;
  // Three numbers of each voxel, or four with a batch index.
  int32_t *coordinates;
  // Points of each voxel.
  int32_t *num_points;
  // The voxels of each cloud, then of all. In pinned memory of the host, the host sees them before
  // the voxels are written.
  int32_t *totals;
} PlimsollCudaBuffers;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What was wrong in the last call of this thread that did not return `Ok`. The text lives until
// the thread's next such call.
const char *plimsoll_last_error(void);

// Makes hard voxels of clouds that follow each other in memory: `lengths` has the points of each
// cloud, and a point has `columns` floats.
//
// `voxels` ([voxels, max_points, columns]), `coordinates` (3 or 4 of a voxel) and `num_points`
// have room for `capacity` voxels; a batch needs at most min(points, max_voxels) of each cloud.
// `totals` gets the voxels of each cloud, then of all. Voxels of the clouds follow each other.
//
// # Safety
//
// All pointers lead to as much memory as is said above.
enum PlimsollStatus plimsoll_hard_voxelize(const struct PlimsollHardSpec *spec,
                                           const float *points,
                                           uint32_t columns,
                                           const uint64_t *lengths,
                                           uint32_t cloud_count,
                                           uint64_t capacity,
                                           float *voxels,
                                           int32_t *coordinates,
                                           int32_t *num_points,
                                           int32_t *totals);

// The coordinates of every point's voxel, or −1: [points, 3], or 4 with a batch index.
//
// # Safety
//
// As [`plimsoll_hard_voxelize`].
enum PlimsollStatus plimsoll_dynamic_coordinates(const struct PlimsollHardSpec *spec,
                                                 const float *points,
                                                 uint32_t columns,
                                                 const uint64_t *lengths,
                                                 uint32_t cloud_count,
                                                 int32_t *coordinates);

// The features of pillars of what [`plimsoll_hard_voxelize`] made: those of each point, its
// offset from the mean of the pillar's points and from the pillar's centre:
// [voxels, max_points, columns + 6]. Points of four columns so get OpenPCDet's ten.
//
// # Safety
//
// As [`plimsoll_hard_voxelize`].
enum PlimsollStatus plimsoll_pillar_features(const struct PlimsollHardSpec *spec,
                                             uint32_t columns,
                                             uint64_t voxel_count,
                                             const float *voxels,
                                             const int32_t *coordinates,
                                             const int32_t *num_points,
                                             float *features);

// The image from above: what a network made of each pillar (`values`, a row of `feature_count`
// floats each) at its place, and 0 elsewhere: [clouds, features, height, width].
//
// # Safety
//
// As [`plimsoll_hard_voxelize`].
enum PlimsollStatus plimsoll_birds_eye(const struct PlimsollHardSpec *spec,
                                       uint64_t voxel_count,
                                       const int32_t *coordinates,
                                       const float *values,
                                       uint32_t feature_count,
                                       uint32_t cloud_count,
                                       float *image);

// What the points of each voxel come to, column by column, in the order of points: `values` gets
// [voxels, columns]. `rule` is 0 for sums, 1 for means and 2 for maxima; `point_to_voxel` has the
// voxel of each point, or −1.
//
// # Safety
//
// As [`plimsoll_hard_voxelize`].
enum PlimsollStatus plimsoll_scatter_points(const float *features,
                                            uint32_t columns,
                                            const int32_t *point_to_voxel,
                                            uint64_t point_count,
                                            uint64_t voxel_count,
                                            uint32_t rule,
                                            float *values);

// Back from voxels to points: `features` gets the row of each point's voxel, and zeros for a point
// without one, [points, columns].
//
// # Safety
//
// As [`plimsoll_hard_voxelize`].
enum PlimsollStatus plimsoll_voxels_to_points(const float *values,
                                              uint64_t voxel_count,
                                              uint32_t columns,
                                              const int32_t *point_to_voxel,
                                              uint64_t point_count,
                                              float *features);

// Makes ready for launches of at most so many clouds, and so many points of all clouds together,
// on a device: compiles the kernels, and takes what they work in. It uses the device's primary
// context, as CUDA's runtime does. `ragged` is 1 for launches of clouds that differ in length.
//
// # Safety
//
// `spec` and `made` are null or lead to memory of their types.
enum PlimsollStatus plimsoll_cuda_hard_create(const struct PlimsollHardSpec *spec,
                                              uint32_t columns,
                                              uint32_t cloud_count,
                                              uint64_t points,
                                              uint32_t ragged,
                                              uint32_t device,
                                              struct PlimsollCudaHard **made);

// Queues hard voxelization of clouds of `points` points each on a stream (a `cudaStream_t`, or
// null for the default one), and returns at once. It can be captured in a graph. Launches of one
// value follow each other on one stream.
//
// # Safety
//
// `hard` was made by [`plimsoll_cuda_hard_create`]; the buffers are memory of its device, as large
// as they say, and live until the stream is past the launch; the stream outlives `hard`.
enum PlimsollStatus plimsoll_cuda_hard_launch(const struct PlimsollCudaHard *hard,
                                              void *stream,
                                              uint32_t cloud_count,
                                              uint64_t points,
                                              const struct PlimsollCudaBuffers *buffers);

// The same for clouds that differ in length: `starts` is memory of the device with one number
// more than there are clouds, where each begins and where the last ends, in points. `longest` is
// the points of the longest cloud, or more.
//
// # Safety
//
// As [`plimsoll_cuda_hard_launch`]; `starts` never decreases, and ends with no more points than
// `hard` was made for.
enum PlimsollStatus plimsoll_cuda_hard_launch_ragged(const struct PlimsollCudaHard *hard,
                                                     void *stream,
                                                     uint32_t cloud_count,
                                                     uint64_t longest,
                                                     const uint64_t *starts,
                                                     const struct PlimsollCudaBuffers *buffers);

// Waits for its work and gives back what it took; null is nothing.
//
// # Safety
//
// `hard` is null or was made by [`plimsoll_cuda_hard_create`], and is not used any more.
void plimsoll_cuda_hard_destroy(struct PlimsollCudaHard *hard);

// Makes ready for pillars of points of `columns` floats: at most so many pillars of all clouds, and
// images of at most so many clouds. Compiles the kernels, and takes four bytes for each place of an
// image.
//
// # Safety
//
// `spec` and `made` are null or lead to memory of their types.
enum PlimsollStatus plimsoll_cuda_pillars_create(const struct PlimsollHardSpec *spec,
                                                 uint32_t columns,
                                                 uint32_t cloud_count,
                                                 uint64_t pillar_count,
                                                 uint32_t device,
                                                 struct PlimsollCudaPillars **made);

// Queues the coordinates of every point's voxel, or −1: [points, 3], without a batch index.
//
// # Safety
//
// `pillars` was made by [`plimsoll_cuda_pillars_create`]; the pointers lead to memory of its device,
// as large as is said, that lives until the stream is past the launch; the stream outlives
// `pillars`.
enum PlimsollStatus plimsoll_cuda_dynamic_coordinates(const struct PlimsollCudaPillars *pillars,
                                                      void *stream,
                                                      const float *points,
                                                      uint64_t point_count,
                                                      int32_t *coordinates);

// Queues the features of pillars, as `plimsoll_pillar_features` makes them. `total` is null, or a
// number on the device that says how many of the `pillar_count` pillars there are: the last of
// `totals` of `plimsoll_cuda_hard_launch`.
//
// # Safety
//
// As [`plimsoll_cuda_dynamic_coordinates`].
enum PlimsollStatus plimsoll_cuda_pillar_features(const struct PlimsollCudaPillars *pillars,
                                                  void *stream,
                                                  uint64_t pillar_count,
                                                  const int32_t *total,
                                                  const float *voxels,
                                                  const int32_t *coordinates,
                                                  const int32_t *num_points,
                                                  float *features);

// Queues the image from above, as `plimsoll_birds_eye` makes it; pillars at places that there are
// not are left out. The image is aligned to 16 bytes. Launches of one value follow each other on one
// stream.
//
// # Safety
//
// As [`plimsoll_cuda_dynamic_coordinates`].
enum PlimsollStatus plimsoll_cuda_birds_eye(const struct PlimsollCudaPillars *pillars,
                                            void *stream,
                                            uint64_t pillar_count,
                                            const int32_t *total,
                                            const int32_t *coordinates,
                                            const float *values,
                                            uint32_t feature_count,
                                            uint32_t cloud_count,
                                            float *image);

// Waits for its work and gives back what it took; null is nothing.
//
// # Safety
//
// `pillars` is null or was made by [`plimsoll_cuda_pillars_create`], and is not used any more.
void plimsoll_cuda_pillars_destroy(struct PlimsollCudaPillars *pillars);

// Makes ready for scatters of at most so many points: compiles the kernels, and takes 16 bytes for
// each point.
//
// # Safety
//
// `made` is null or leads to memory of its type.
enum PlimsollStatus plimsoll_cuda_scatter_create(uint64_t point_count,
                                                 uint32_t device,
                                                 struct PlimsollCudaScatter **made);

// Queues what `plimsoll_scatter_points` makes; a point whose voxel there is not belongs to none.
// Launches of one value follow each other on one stream.
//
// # Safety
//
// `scatter` was made by [`plimsoll_cuda_scatter_create`]; the rest as
// [`plimsoll_cuda_dynamic_coordinates`].
enum PlimsollStatus plimsoll_cuda_scatter_points(const struct PlimsollCudaScatter *scatter,
                                                 void *stream,
                                                 const float *features,
                                                 uint32_t columns,
                                                 const int32_t *point_to_voxel,
                                                 uint64_t point_count,
                                                 uint32_t voxel_count,
                                                 uint32_t rule,
                                                 float *values);

// Queues what `plimsoll_voxels_to_points` makes; a point whose voxel there is not gets zeros.
//
// # Safety
//
// As [`plimsoll_cuda_scatter_points`].
enum PlimsollStatus plimsoll_cuda_voxels_to_points(const struct PlimsollCudaScatter *scatter,
                                                   void *stream,
                                                   const float *values,
                                                   uint32_t voxel_count,
                                                   uint32_t columns,
                                                   const int32_t *point_to_voxel,
                                                   uint64_t point_count,
                                                   float *features);

// Waits for its work and gives back what it took; null is nothing.
//
// # Safety
//
// `scatter` is null or was made by [`plimsoll_cuda_scatter_create`], and is not used any more.
void plimsoll_cuda_scatter_destroy(struct PlimsollCudaScatter *scatter);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PLIMSOLL_H */
