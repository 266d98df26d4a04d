// Plans that the product does not use: `scripts/bench-voxelize-gpu` measures them beside those
// that it does. It appends this to the kernels of crates/points/src/kernels, whose names it uses.
// What is kept moves there; what is not goes.
//
//   nothing  what a launch costs by itself.

#if CUDA

KERNEL void nothing(u32 *report) {
    if (report == 0) *report = 1;
}

#endif
