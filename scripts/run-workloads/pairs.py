"""What one allocation and free costs, by the driver's own calls in a C loop.

Run under the guard the program calls what it was linked to, which is the guard, and the driver's
own function past it, in turn: rounds of both within one process, so that a machine that changes
its speed changes both. Without the guard the two are the same, and their difference says how
exact this is. Prints the nanoseconds of a pair for each round, past the guard and by it.
"""
import subprocess
import sys
import tempfile

SOURCE = r"""
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
typedef unsigned long long u64;
int cuInit(unsigned); int cuDevicePrimaryCtxRetain(void **, int); int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(u64 *, unsigned long); int cuMemFree_v2(u64);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }

// The driver's own function of a name, as its library exports it.
static const char *wanted;
static void *found;
static int visit(struct dl_phdr_info *object, size_t size, void *data) {
    if (!strstr(object->dlpi_name, "libcuda.so")) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const char *names = 0;
        const ElfW(Sym) *symbols = 0;
        for (const ElfW(Dyn) *d = (void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr); d->d_tag; d++) {
            if (d->d_tag == DT_STRTAB) names = (char *)d->d_un.d_ptr;
            if (d->d_tag == DT_SYMTAB) symbols = (void *)d->d_un.d_ptr;
        }
        // The usual linkers put the names behind the symbols.
        for (const ElfW(Sym) *s = symbols + 1; (char *)s < names; s++)
            if (s->st_value && !strcmp(names + s->st_name, wanted)) found = (void *)(object->dlpi_addr + s->st_value);
    }
    return found != 0;
}
static void *past(const char *name) { wanted = name; found = 0; dl_iterate_phdr(visit, 0); return found; }

int main(void) {
    enum { ROUNDS = 60, PAIRS = 2000 };
    void *context; u64 p, hold; double each[2][ROUNDS];
    cuInit(0);
    if (cuDevicePrimaryCtxRetain(&context, 0)) return 1;
    cuCtxSetCurrent(context);
    int (*alloc[2])(u64 *, unsigned long) = {past("cuMemAlloc_v2"), cuMemAlloc_v2};
    int (*give[2])(u64) = {past("cuMemFree_v2"), cuMemFree_v2};
    if (!alloc[0] || !give[0]) return 3;
    alloc[0](&hold, 4096);
    for (int round = -2; round < ROUNDS; round++)
        for (int way = 0; way < 2; way++) {
            double start = now();
            for (int i = 0; i < PAIRS; i++) { if (alloc[way](&p, 4096)) return 2; give[way](p); }
            if (round >= 0) each[way][round] = (now() - start) / PAIRS;
        }
    for (int way = 0; way < 2; way++) for (int i = 0; i < ROUNDS; i++) printf("%.1f%c", each[way][i], i < ROUNDS - 1 ? ' ' : '\n');
    return 0;
}
"""
with tempfile.TemporaryDirectory() as folder:
    open(folder + "/pairs.c", "w").write(SOURCE)
    library = sys.argv[2] if len(sys.argv) > 2 else "/usr/local/cuda/lib64/stubs"
    subprocess.run(["gcc", "-O2", "-o", sys.argv[1], folder + "/pairs.c", "-L" + library, "-lcuda"], check=True)
