/* A program whose GPU memory grows with its batch, for the tests of `plimsoll fit`:
 *
 *   items BATCH plain         64 MiB and 8 MiB for each item; fails when it is refused memory
 *   items BATCH cache SHARE   keeps SHARE MiB more for each item, and frees that when it is refused
 *   items BATCH broken FROM   fails by itself from a batch on, without a refusal
 *   items BATCH slow FROM     does not end from a batch on, where HANG is set
 *   items BATCH deaf FROM     the same, and SIGTERM does not end it
 *   items BATCH idle          uses no GPU
 *
 * Appends its batch to the file that RUNS names, and "hangs" once it does not end. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long address;
static int (*take)(address *, size_t), (*give)(address);
static address cache[1 << 16];
static int cached;

static int allocate(size_t mib) {
    address at;
    int code = take(&at, mib << 20);
    if (code && cached) {
        while (cached) give(cache[--cached]);
        code = take(&at, mib << 20);
    }
    return code;
}

static void note(const char *text) {
    FILE *runs = getenv("RUNS") ? fopen(getenv("RUNS"), "a") : 0;
    if (runs) { fprintf(runs, "%s\n", text); fclose(runs); }
}

int main(int count, char **words) {
    int batch = atoi(words[1]), detail = count > 3 ? atoi(words[3]) : 0;
    const char *how = words[2];
    note(words[1]);
    if (!strcmp(how, "idle")) return 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = 0;
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
    take = dlsym(driver, "cuMemAlloc_v2");
    give = dlsym(driver, "cuMemFree_v2");
    if (init(0) || retain(&context, 0) || set(context)) return 9;
    printf("batch %d\n", batch);
    if (!strcmp(how, "broken") && batch >= detail) { fprintf(stderr, "no such file: data.bin\n"); return 7; }
    if (!strcmp(how, "deaf")) { signal(SIGTERM, SIG_IGN); how = "slow"; }
    if (!strcmp(how, "slow") && batch >= detail && getenv("HANG")) {
        fflush(stdout);
        note("hangs");
        for (;;) pause();
    }
    int code = allocate(64);
    for (int item = 0; item < batch && !code; item++) {
        if (!strcmp(how, "cache")) cached += !take(&cache[cached], (size_t)detail << 20);
        code = allocate(8);
    }
    if (code) { fprintf(stderr, "out of memory\n"); return 3; }
    return 0;
}
