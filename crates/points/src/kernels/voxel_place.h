// The coordinates of a voxel, as networks take them.
//
//   COORDINATES   numbers of a voxel: 3, or 4 with the number of its cloud in front
//   ORDER_XYZ     1 where they are x, y, z, and 0 for z, y, x

DEVICE void write_place(int x, int y, int z, u32 cloud, GLOBAL int *to) {
#if COORDINATES == 4
    *to++ = (int)cloud;
#endif
#if ORDER_XYZ
    to[0] = x, to[1] = y, to[2] = z;
#else
    to[0] = z, to[1] = y, to[2] = x;
#endif
}

typedef struct {
    int cloud, x, y, z;
} VoxelPlace;

DEVICE VoxelPlace read_place(const GLOBAL int *from) {
    VoxelPlace place;
    place.cloud = 0;
#if COORDINATES == 4
    place.cloud = *from++;
#endif
#if ORDER_XYZ
    place.x = from[0], place.y = from[1], place.z = from[2];
#else
    place.z = from[0], place.y = from[1], place.x = from[2];
#endif
    return place;
}
