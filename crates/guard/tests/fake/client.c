// A program that uses the simulated driver: the first argument says what it does; it prints what it
// finds, one line each.
#include "driver.h"

static void fill(void) {
    static u64 held[1 << 16];
    size_t total = 0, whole = 0, limit = 0;
    cuMemGetInfo(&whole, &total);
    cuDeviceTotalMem(&limit, 0);
    int count = 0, code;
    while (!(code = cuMemAlloc(&held[count], 64 * MIB))) count++;
    printf("total %zu %zu count %d code %d left %zu\n", total / MIB, limit / MIB, count, code, left());
    while (count) if (cuMemFree(held[--count])) printf("free failed\n");
    printf("after %d\n", left() == whole / MIB);
}

// Tries a kind of memory: within the limit, above it, and given back.
#define KIND(name, make, too_much, drop) do { \
        size_t before = left(); \
        int one = make; size_t with = left(); int two = too_much; int three = one ? 0 : drop; \
        cuStreamSynchronize(0); \
        printf("%s %d %d %d took %zu back %d\n", name, one, two, three, before - with, left() == before); \
    } while (0)

static void kinds(void) {
    u64 p = 0, q = 0; size_t pitch; handle a = 0, b = 0, pool, graph, exec;
    size_t n = 256 * MIB, far = 8192 * MIB;
    KIND("linear", cuMemAlloc(&p, n), cuMemAlloc(&q, far), cuMemFree(p));
    KIND("managed", cuMemAllocManaged(&p, n, 1), cuMemAllocManaged(&q, far, 1), cuMemFree(p));
    KIND("pitch", cuMemAllocPitch(&p, &pitch, 1000, n / 1024, 4), cuMemAllocPitch(&q, &pitch, 1000, far / 1024, 4), cuMemFree(p));
    struct shape s = {8192, 2048, 0x20, 4}, big = {65536, 65536, 0x20, 4};
    KIND("array", cuArrayCreate(&a, &s), cuArrayCreate(&b, &big), cuArrayDestroy(a));
    struct shape3 s3 = {512, 512, 64, 0x20, 4, 0}, big3 = {4096, 4096, 64, 0x20, 4, 0};
    KIND("array3", cuArray3DCreate(&a, &s3), cuArray3DCreate(&b, &big3), cuArrayDestroy(a));
    struct shape3 m = {4096, 4096, 1, 0x20, 4, 0}, bigm = {65536, 65536, 1, 0x20, 4, 0};
    KIND("mipmap", cuMipmappedArrayCreate(&a, &m, 3), cuMipmappedArrayCreate(&b, &bigm, 3), cuMipmappedArrayDestroy(a));
    struct properties device = {1, 0, 1, 0, {0}}, host = {1, 0, 2, 0, {0}};
    KIND("physical", cuMemCreate(&p, n, &device, 0), cuMemCreate(&q, far, &device, 0), cuMemRelease(p));
    KIND("on-host", cuMemCreate(&p, n, &host, 0), cuMemCreate(&q, far, &host, 0), cuMemRelease(p) + cuMemRelease(q));
    KIND("stream", cuMemAllocAsync(&p, n, 0), cuMemAllocAsync(&q, far, 0), cuMemFreeAsync(p, 0));
    cuMemPoolCreate(&pool, &device);
    KIND("pool", cuMemAllocFromPoolAsync(&p, n, pool, 0), cuMemAllocFromPoolAsync(&q, far, pool, 0), cuMemFreeAsync(p, 0));
    cuMemPoolDestroy(pool);
    cuMemPoolCreate(&pool, &host);
    KIND("host-pool", cuMemAllocFromPoolAsync(&p, n, pool, 0), cuMemAllocFromPoolAsync(&q, far, pool, 0), cuMemFreeAsync(p, 0) + cuMemFreeAsync(q, 0));
    cuMemPoolDestroy(pool);
    struct node_params node = {.bytes = n}, much = {.bytes = far};
    cuGraphCreate(&graph, 0); cuGraphAddMemAllocNode(&a, graph, 0, 0, &node); cuGraphInstantiate(&exec, graph, 0);
    handle graph2, exec2; cuGraphCreate(&graph2, 0); cuGraphAddMemAllocNode(&a, graph2, 0, 0, &much); cuGraphInstantiate(&exec2, graph2, 0);
    KIND("graph", cuGraphLaunch(exec, 0), cuGraphLaunch(exec2, 0), cuDeviceGraphMemTrim(0));
    cuStreamBeginCapture(0, 0);
    int inside = cuMemAllocAsync(&p, n, 0), never = cuMemAllocAsync(&q, far, 0);
    cuStreamEndCapture(0, &graph); cuGraphInstantiate(&exec, graph, 0);
    printf("captured %d %d\n", inside, never);
    KIND("capture", cuGraphLaunch(exec, 0), 2, cuDeviceGraphMemTrim(0));
    KIND("imported", cuIpcOpenMemHandle(&p, 1, 0), 2, cuIpcCloseMemHandle(p));
    KIND("imported-handle", cuMemImportFromShareableHandle(&p, 0, 1), 2, cuMemRelease(p));
    size_t before = left();
    cuModuleLoadData(&a, "code"); size_t loaded = left();
    cuLaunchKernel((handle)0x77, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0); size_t launched = left();
    cuLaunchKernel((handle)0x77, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    size_t again = left(); cuModuleUnload(a);
    printf("module %zu launch %zu again %zu unload %zu\n", before - loaded, loaded - launched, launched - again, left() - again);
}

// Physical memory exists while a handle or a mapping does.
static void mappings(void) {
    struct properties device = {1, 0, 1, 0, {0}};
    u64 h, again, at = 0x500000000000ull; size_t n = 256 * MIB, before = left();
    cuMemCreate(&h, n, &device, 0); cuMemMap(at, n, 0, h, 0); cuMemRelease(h);
    printf("released %zu\n", before - left());
    cuMemRetainAllocationHandle(&again, at); cuMemUnmap(at, n);
    printf("unmapped %zu\n", before - left());
    cuMemRelease(again);
    printf("gone %zu\n", before - left());
    u64 two[2];
    for (int i = 0; i < 2; i++) { cuMemCreate(&two[i], n, &device, 0); cuMemMap(at + i * n, n, 0, two[i], 0); cuMemRelease(two[i]); }
    printf("two %zu", before - left()); cuMemUnmap(at, 2 * n); printf(" none %zu\n", before - left());
    // Memory of another allocation before this one, and a range without an end.
    cuMemCreate(&h, n, &device, 0); cuMemMap(at + 4096 * n, n, 0, h, 0); cuMemRelease(h);
    int code = cuMemUnmap(at, (size_t)1 << 62); printf("endless %d %zu", code, before - left());
    cuMemUnmap(at + 4096 * n, n); printf(" none %zu\n", before - left());
}

// Calls everything with nulls: the driver's own errors must come back.
static void nulls(void) {
    printf("%d %d %d %d %d %d %d\n", cuMemAlloc(0, 1), cuMemAllocManaged(0, 1, 1), cuMemAllocPitch(0, 0, 1, 1, 4), cuArrayCreate(0, 0), cuArray3DCreate(0, 0), cuMipmappedArrayCreate(0, 0, 1), cuMemCreate(0, 1, 0, 0));
    u64 p; handle h; struct shape s = {1, 1, 0x20, 1}; struct properties d = {1, 0, 1, 0, {0}};
    printf("%d %d %d %d %d %d\n", cuMemAlloc(&p, 0), cuArrayCreate(&h, 0), cuArrayCreate(0, &s), cuMemCreate(&p, 2 * MIB, 0, 0), cuMemCreate(0, 2 * MIB, &d, 0), cuMemCreate(&p, 3, &d, 0));
    printf("%d %d %d %d %d %d\n", cuMemAllocAsync(0, 1, 0), cuMemAllocFromPoolAsync(&p, 1, 0, 0), cuMemAllocFromPoolAsync(&p, 1, (handle)5, 0), cuMemPoolCreate(0, 0), cuMemPoolDestroy(0), cuMemFreeAsync(0, 0));
    printf("%d %d %d %d %d\n", cuMemFree(0), cuMemFree(12345), cuArrayDestroy(0), cuMemRelease(99), cuMemUnmap(4096, 4096));
    printf("%d %d %d %d\n", cuMemGetInfo(0, 0), cuDeviceTotalMem(0, 0), cuGraphInstantiate(0, 0, 0), cuGraphLaunch(0, 0));
    printf("%d %d %d %d\n", cuDevicePrimaryCtxRetain(0, 0), cuCtxCreate(0, 0, 0), cuModuleLoadData(0, 0), cuModuleUnload((handle)3));
    cuCtxSetCurrent(0);
    printf("%d %d %d %d\n", cuMemAlloc(&p, 1), cuMemFree(1), cuMemGetInfo(0, 0), cuMemAllocAsync(&p, 1, 0));
}

static double until;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *racer(void *context) {
    enum { HELD = 64 };
    u64 held[HELD] = {0}; unsigned seed = (unsigned)(size_t)&held ^ getpid(); long granted = 0, refused = 0;
    cuCtxSetCurrent(context);
    while (now() < until) {
        int at = rand_r(&seed) % HELD;
        if (held[at]) { if (cuMemFree(held[at])) abort(); held[at] = 0; continue; }
        size_t bytes = (1 + rand_r(&seed) % 64) * MIB - rand_r(&seed) % 4096;
        int code = seed % 5 ? cuMemAlloc(&held[at], bytes) : cuMemAllocAsync(&held[at], bytes, 0);
        if (code == 2) { held[at] = 0; refused++; } else if (code) { printf("code %d\n", code); abort(); } else granted++;
    }
    for (int i = 0; i < HELD; i++) if (held[i] && cuMemFree(held[i])) abort();
    return (void *)(granted && refused);
}
static void race(int threads, double seconds) {
    pthread_t ids[64]; handle context = 0; int tried = 0; void *result;
    cuDevicePrimaryCtxRetain(&context, 0);
    until = now() + seconds;
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], 0, racer, context);
    for (int i = 0; i < threads; i++) { pthread_join(ids[i], &result); tried += result != 0; }
    cuStreamSynchronize(0);
    printf("raced %d\n", tried > 0);
}

// What an allocation and its free cost: the minimum and the median.
static int less(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : 1; }
static void pairs(void) {
    enum { ROUNDS = 600, PAIRS = 1000 };
    static double each[ROUNDS]; u64 p;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (int i = 0; i < PAIRS; i++) { if (cuMemAlloc(&p, 4096)) abort(); cuMemFree(p); }
        each[round] = (now() - start) / PAIRS * 1e9;
    }
    qsort(each, ROUNDS, sizeof each[0], less);
    printf("%.1f %.1f\n", each[0], each[ROUNDS / 2]);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "fill";
    u64 p;
    setvbuf(stdout, 0, _IOLBF, 0);
    if (!strcmp(what, "absent")) { printf("absent %d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == 0 && dlerror()); return 0; }
    open_device(getenv("DEVICE") ? atoi(getenv("DEVICE")) : 0);
    if (!strcmp(what, "fill")) fill();
    else if (!strcmp(what, "kinds")) kinds();
    else if (!strcmp(what, "mappings")) mappings();
    else if (!strcmp(what, "nulls")) nulls();
    else if (!strcmp(what, "pairs")) pairs();
    else if (!strcmp(what, "race")) race(atoi(words[2]), atof(words[3]));
    else if (!strcmp(what, "hold")) { printf("holds %d\n", cuMemAlloc(&p, 1024 * MIB)); pause(); }
    else if (!strcmp(what, "exec")) { cuMemAlloc(&p, 1024 * MIB); execl(words[0], words[0], "fill", (char *)0); }
    else if (!strcmp(what, "fork")) {
        printf("parent %d\n", cuMemAlloc(&p, 1024 * MIB));
        if (!fork()) { u64 q; int one = cuMemAlloc(&q, 512 * MIB), two = cuMemAlloc(&q, 1024 * MIB); printf("child %d %d\n", one, two); _exit(0); }
        wait(0);
        int freed = cuMemFree(p);
        printf("parent %d left %zu\n", freed, left());
    } else if (!strcmp(what, "contexts")) {
        handle c; size_t before = left(); cuCtxCreate(&c, 0, 0); cuMemAlloc(&p, 256 * MIB); size_t with = left(); cuCtxDestroy(c);
        handle q; cuDevicePrimaryCtxRetain(&q, 0); cuCtxSetCurrent(q);
        printf("took %zu back %d\n", before - with, left() == before);
        cuMemAlloc(&p, 256 * MIB); cuDevicePrimaryCtxReset(0); cuDevicePrimaryCtxRetain(&q, 0); cuCtxSetCurrent(q);
        printf("reset %d\n", left() == before);
        // A second context outlives the primary one, with what is in it.
        cuCtxCreate(&c, 0, 0); cuMemAlloc(&p, 256 * MIB); size_t own = left(); cuDevicePrimaryCtxReset(0);
        printf("primary %zu\n", left() - own); cuCtxDestroy(c);
        // So does the code that was loaded into a context, and what its launches took.
        cuDevicePrimaryCtxRetain(&q, 0); cuCtxSetCurrent(q); before = left();
        for (int i = 0; i < 3; i++) {
            handle code; cuModuleLoadData(&code, "code"); cuLaunchKernel((handle)0x88, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
            size_t with = left(); cuDevicePrimaryCtxReset(0); cuDevicePrimaryCtxRetain(&q, 0); cuCtxSetCurrent(q);
            printf("code %zu back %d\n", before - with, left() == before);
        }
    } else if (!strcmp(what, "host-pool")) {
        struct properties host = {1, 0, 2, 0, {0}}; handle pool; size_t before = left();
        cuMemPoolCreate(&pool, &host); cuMemAllocFromPoolAsync(&p, 1024 * MIB, pool, 0); cuMemPoolTrimTo(pool, 0);
        size_t with = left(); cuMemPoolDestroy(pool);
        printf("took %zu after %zu\n", before - with, before - left());
    } else if (!strcmp(what, "errors")) {
        int first = cuMemAlloc(&p, 256 * MIB); size_t one = left(); int second = cuMemAlloc(&p, 256 * MIB); size_t two = left(); int third = cuMemFree(p), fourth = cuMemFree(p);
        printf("%d %d %d %d took %zu left %zu\n", first, second, third, fourth, one - two, left());
    }
    return 0;
}
