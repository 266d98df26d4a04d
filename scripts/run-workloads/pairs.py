"""What one allocation and free costs, by the driver's own calls in a C loop."""
import ctypes
import subprocess
import sys
import tempfile

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef unsigned long long u64;
int cuInit(unsigned); int cuDevicePrimaryCtxRetain(void **, int); int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(u64 *, unsigned long); int cuMemFree_v2(u64);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
static int less(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : 1; }
int main(void) {
    void *c; u64 p, hold; double each[20];
    cuInit(0); if (cuDevicePrimaryCtxRetain(&c, 0)) return 1; cuCtxSetCurrent(c);
    cuMemAlloc_v2(&hold, 4096);
    for (int round = 0; round < 20; round++) {
        double start = now();
        for (int i = 0; i < 20000; i++) { if (cuMemAlloc_v2(&p, 4096)) return 2; cuMemFree_v2(p); }
        each[round] = (now() - start) / 20000;
    }
    qsort(each, 20, sizeof each[0], less);
    printf("%.1f %.1f\n", each[0], each[10]);
    return 0;
}
"""
with tempfile.TemporaryDirectory() as folder:
    open(folder + "/pairs.c", "w").write(SOURCE)
    library = "/usr/local/cuda/lib64/stubs"
    subprocess.run(["gcc", "-O2", "-o", sys.argv[1], folder + "/pairs.c", "-L" + library, "-lcuda"], check=True)
