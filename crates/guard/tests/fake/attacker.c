// Programs that try to exceed the limit, or to be harmed by it. The first argument chooses one; it
// prints what it finds, one line each. Those that hold memory end when their input does.
#include "driver.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>

static void until_end_of_input(void) { char some[64]; while (read(0, some, sizeof some) > 0) {} }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }

// Holds blocks of the given size in MiB, for some seconds or until its input ends.
static void keep(size_t mib, int blocks, const char *seconds) {
    int granted = 0, refused = 0; u64 p;
    for (int i = 0; i < blocks; i++) if (cuMemAlloc(&p, mib * MIB)) refused++; else granted++;
    printf("keeps %d refused %d\n", granted, refused);
    if (seconds) usleep((unsigned)(atof(seconds) * 1e6)); else until_end_of_input();
}

// Holds a block and ends, while a child of fork goes on.
static void orphan(size_t mib) {
    u64 p; int code = cuMemAlloc(&p, mib * MIB);
    if (!fork()) { until_end_of_input(); _exit(0); }
    printf("took %d\n", code);
    _exit(0);
}

// The main thread ends. Another goes on, with what was allocated before, or allocates then.
static handle context; static int before;
static int main_has_ended(void) {
    char path[64], text[256] = {0};
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    FILE *f = fopen(path, "r");
    if (!f) return 1;
    if (!fgets(text, sizeof text, f)) text[0] = 0;
    fclose(f);
    char *end = strrchr(text, ')');
    return !end || end[2] == 'Z' || end[2] == 'X';
}
static void *survivor(void *unused) {
    u64 p; char go;
    while (!main_has_ended()) usleep(1000);
    cuCtxSetCurrent(context);
    printf("main ended\n");
    if (!before) { if (read(0, &go, 1) != 1) _exit(1); printf("took %d\n", cuMemAlloc(&p, 700 * MIB)); }
    until_end_of_input();
    _exit(0);
}
static void leader(const char *when) {
    u64 p; pthread_t id;
    before = !strcmp(when, "before");
    cuDevicePrimaryCtxRetain(&context, 0);
    if (before) printf("took %d\n", cuMemAlloc(&p, 700 * MIB));
    pthread_create(&id, 0, survivor, 0);
    pthread_exit(0);
}

// The driver refuses to unmap a range that begins where nothing is mapped, and all stays.
static void unmap(void) {
    struct properties device = {1, 0, 1, 0, {0}};
    u64 h, at = 0x500000000000ull; size_t n = 16 * MIB, start = left();
    for (int i = 0; i < 64; i++) { if (cuMemCreate(&h, n, &device, 0)) abort(); cuMemMap(at + i * n, n, 0, h, 0); cuMemRelease(h); }
    size_t held = start - left();
    int one = cuMemUnmap(at - 2 * MIB, 64 * n + 2 * MIB), two = cuMemUnmap(at, 64 * n + 2 * MIB), more = 0;
    printf("held %zu refused %d %d held %zu\n", held, one, two, start - left());
    while (more < 256 && !cuMemCreate(&h, n, &device, 0)) more++;
    printf("more %d unmapped %d\n", more, cuMemUnmap(at, 64 * n));
    printf("left %zu\n", left());
}

// A handle that was retained by an address inside of a mapping keeps the memory.
static void inside(void) {
    struct properties device = {1, 0, 1, 0, {0}};
    u64 h, again = 0, at = 0x500000000000ull; size_t n = 256 * MIB, start = left();
    cuMemCreate(&h, n, &device, 0); cuMemMap(at, n, 0, h, 0); cuMemRelease(h);
    int retained = cuMemRetainAllocationHandle(&again, at + 5 * MIB);
    int unmapped = cuMemUnmap(at, n); size_t held = start - left();
    int released = cuMemRelease(again);
    printf("%d %d held %zu released %d held %zu\n", retained, unmapped, held, released, start - left());
}

// Starts many processes at once; each takes some MiB.
static void crowd(int count, size_t mib) {
    int said[2], go[2], granted = 0, refused = 0; char word; u64 p;
    if (pipe(said) || pipe(go)) abort();
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) abort();
        if (child) continue;
        close(go[1]); alarm(100);
        handle c; int code = cuDevicePrimaryCtxRetain(&c, 0);
        if (!code) { cuCtxSetCurrent(c); code = cuMemAlloc(&p, mib * MIB); }
        word = code == 0 ? 'g' : code == 2 ? 'r' : 'x';
        if (write(said[1], &word, 1) != 1 || read(go[0], &word, 1)) _exit(1);
        _exit(0);
    }
    close(said[1]);
    while (granted + refused < count && read(said[0], &word, 1) == 1) { if (word == 'g') granted++; else if (word == 'r') refused++; else break; }
    close(go[1]);
    while (wait(0) > 0) {}
    printf("granted %d refused %d\n", granted, refused);
}

// Forks children while other threads are anywhere in the guard; no child may wait forever for a
// thread that exists only in its parent.
static volatile int stop;
static void *pool_user(void *c) {
    u64 p, q;
    cuCtxSetCurrent(c);
    while (!stop) { if (!cuMemAllocAsync(&p, MIB, 0)) cuMemFreeAsync(p, 0); if (!cuMemAlloc(&q, MIB)) cuMemFree(q); }
    return 0;
}
static void forks(int count) {
    pthread_t ids[3]; int ended = 0, hung = 0, status;
    cuDevicePrimaryCtxRetain(&context, 0);
    for (int i = 0; i < 3; i++) pthread_create(&ids[i], 0, pool_user, context);
    for (int i = 0; i < count && hung < 3; i++) {
        pid_t child = fork();
        if (!child) { u64 q; alarm(60); int code = cuMemAllocAsync(&q, 4 * MIB, 0) + cuMemAlloc(&q, MIB); _exit(code ? 5 : 0); }
        waitpid(child, &status, 0);
        if (WIFEXITED(status) && !WEXITSTATUS(status)) ended++; else if (WIFSIGNALED(status)) hung++;
    }
    printf("ended %d hung %d\n", ended, hung);
    fflush(stdout);
    _exit(0);
}

// Threads that do the same at the same time.
static pthread_barrier_t together;
static handle exec_graph; static size_t ask_bytes;
static void *launcher(void *c) { cuCtxSetCurrent(c); pthread_barrier_wait(&together); return (void *)(size_t)cuGraphLaunch(exec_graph, 0); }
static void *asker(void *c) { u64 p; cuCtxSetCurrent(c); pthread_barrier_wait(&together); return (void *)(size_t)cuMemAlloc(&p, ask_bytes); }
static int at_once(int threads, void *(*what)(void *)) {
    pthread_t ids[16]; void *code; int granted = 0;
    cuDevicePrimaryCtxRetain(&context, 0);
    pthread_barrier_init(&together, 0, threads);
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], 0, what, context);
    for (int i = 0; i < threads; i++) { pthread_join(ids[i], &code); granted += code == 0; }
    return granted;
}
// A graph has left 1 GiB idle on the device; two threads want it.
static void launches(void) {
    handle graph, node; struct node_params params = {.bytes = 1024 * MIB}; u64 p;
    cuGraphCreate(&graph, 0); cuGraphAddMemAllocNode(&node, graph, 0, 0, &params); cuGraphInstantiate(&exec_graph, graph, 0);
    int first = cuGraphLaunch(exec_graph, 0), block = cuMemAlloc(&p, 512 * MIB);
    printf("first %d block %d", first, block);
    int granted = at_once(2, launcher);
    printf(" at once %d\n", granted > 0);
}
static void ask(size_t mib, int threads) {
    char go;
    ask_bytes = mib * MIB;
    printf("ready\n");
    if (read(0, &go, 1) != 1) _exit(1);
    int granted = at_once(threads, asker);
    printf("granted %d\n", granted);
    until_end_of_input();
}

// What an array of 4096 x 4096 points takes in each format, in MiB.
static void formats(void) {
    static const int all[][2] = {
        {0x01, 1}, {0x01, 2}, {0x01, 4}, {0x02, 1}, {0x02, 2}, {0x02, 4}, {0x03, 1}, {0x03, 2}, {0x03, 4}, {0x08, 1}, {0x08, 4}, {0x09, 1}, {0x09, 4}, {0x0a, 1}, {0x0a, 4}, {0x10, 1}, {0x10, 2}, {0x10, 4}, {0x20, 1}, {0x20, 2}, {0x20, 4},
        {0x50, 4}, {0x91, 4}, {0x92, 4}, {0x93, 4}, {0x94, 4}, {0x95, 4}, {0x96, 4}, {0x97, 1}, {0x98, 1}, {0x99, 2}, {0x9a, 2}, {0x9b, 3}, {0x9c, 3}, {0x9d, 4}, {0x9e, 4},
        {0x9f, 3}, {0xa1, 3}, {0xa2, 3}, {0xa3, 3}, {0xa4, 3}, {0xa5, 3}, {0xa6, 3}, {0xa7, 3}, {0xa8, 4}, {0xa9, 4}, {0xb0, 3}, {0xb1, 4}, {0xb2, 3}, {0xb3, 3}, {0xb4, 3}, {0xb5, 3},
        {0xc0, 1}, {0xc1, 2}, {0xc2, 4}, {0xc3, 1}, {0xc4, 2}, {0xc5, 4}, {0xc6, 1}, {0xc7, 2}, {0xc8, 4}, {0xc9, 1}, {0xca, 2}, {0xcb, 4},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct shape flat = {4096, 4096, all[i][0], all[i][1]}; struct shape3 deep = {512, 512, 64, all[i][0], all[i][1], 0};
        handle a = 0, b = 0, m = 0; size_t start = left();
        int one = cuArrayCreate(&a, &flat); size_t first = left();
        int two = cuArray3DCreate(&b, &deep); size_t second = left();
        deep.width = deep.height = 4096; deep.depth = 1;
        int three = cuMipmappedArrayCreate(&m, &deep, 2); size_t third = left();
        cuArrayDestroy(a); cuArrayDestroy(b); cuMipmappedArrayDestroy(m);
        printf("%02x x %d: %d %d %d took %zu %zu %zu back %d\n", all[i][0], all[i][1], one, two, three, start - first, first - second, second - third, left() == start);
    }
}

// Pinned host memory, one line for each call: within the limit, above it, given back.
static void host(void) {
    size_t n = 256 * MIB, far = 8192 * MIB; void *p = 0, *q = 0, *place = (void *)0x600000000000ull; u64 h, g; handle pool;
#define TRY(name, make, too_much, drop, drop_too_much) do { \
        size_t start = left(); int one = make; size_t with = left(); int two = too_much; int three = one ? 0 : drop; if (!two) drop_too_much; \
        cuStreamSynchronize(0); \
        printf("%s %d %d %d took %zu back %d\n", name, one, two, three, start - with, left() == start); \
    } while (0)
    TRY("pinned", cuMemHostAlloc(&p, n, 0), cuMemHostAlloc(&q, far, 0), cuMemFreeHost(p), cuMemFreeHost(q));
    TRY("allocated", cuMemAllocHost(&p, n), cuMemAllocHost(&q, far), cuMemFreeHost(p), cuMemFreeHost(q));
    TRY("registered", cuMemHostRegister(place, n, 0), cuMemHostRegister((char *)place + far, far, 0), cuMemHostUnregister(place), cuMemHostUnregister((char *)place + far));
    for (int location = 2; location <= 4; location++) {
        struct properties how = {1, 0, location, 0, {0}}; char name[32];
        snprintf(name, sizeof name, "physical-%d", location);
        TRY(name, cuMemCreate(&h, n, &how, 0), cuMemCreate(&g, far, &how, 0), cuMemRelease(h), cuMemRelease(g));
        snprintf(name, sizeof name, "pool-%d", location);
        cuMemPoolCreate(&pool, &how);
        TRY(name, cuMemAllocFromPoolAsync(&h, n, pool, 0), cuMemAllocFromPoolAsync(&g, far, pool, 0), cuMemFreeAsync(h, 0), cuMemFreeAsync(g, 0));
        cuMemPoolDestroy(pool);
    }
}

// The first versions of calls, by their own names or by asking for an old version.
struct shape32 { unsigned width, height; int format; unsigned channels; };
struct shape32_3 { unsigned width, height, depth; int format; unsigned channels, flags; };
static void *first_version(const char *name, int asked) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = 0;
    int (*get)(const char *, void **, int, u64) = dlsym(library, "cuGetProcAddress");
    if (!asked) return dlsym(library, name);
    return get(name, &found, 3010, 0) ? 0 : found;
}
static void old(int asked) {
    int (*alloc)(unsigned *, unsigned) = first_version("cuMemAlloc", asked), (*pitched)(unsigned *, unsigned *, unsigned, unsigned, unsigned) = first_version("cuMemAllocPitch", asked);
    int (*array)(handle *, const struct shape32 *) = first_version("cuArrayCreate", asked), (*array3)(handle *, const struct shape32_3 *) = first_version("cuArray3DCreate", asked);
    int (*drop)(unsigned) = first_version("cuMemFree", asked); handle h; unsigned p = 0, pitch, last = 0;
    struct shape32 flat = {4096, 1024, 0x20, 4}; struct shape32_3 deep = {1024, 1024, 4, 0x20, 4, 0};
    int counts[4] = {0};
    size_t start = left();
    while (counts[0] < 256 && !alloc(&p, 64 * MIB)) { counts[0]++; last = p; }
    int freed = drop(last), again = alloc(&p, 64 * MIB);
    // The others find no room, and must be refused.
    while (counts[1] < 256 && !pitched(&p, &pitch, 64 << 10, 1024, 4)) counts[1]++;
    while (counts[2] < 256 && !array(&h, &flat)) counts[2]++;
    while (counts[3] < 256 && !array3(&h, &deep)) counts[3]++;
    printf("alloc %d freed %d again %d pitch %d array %d array3 %d\n", counts[0], freed, again, counts[1], counts[2], counts[3]);
}

// A real-time thread on a machine that is bound to one processor: a thread that spins for a lock
// there spins until the kernel preempts it. Prints the most processor time that one call took, in
// milliseconds: a call that waits correctly takes none, however busy the machine is.
static double own_time(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *real_time(void *c) {
    struct sched_param how = {.sched_priority = 10}; u64 p, q; double longest = 0, until = now() + 2.5;
    cuCtxSetCurrent(c);
    if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &how)) { printf("not permitted\n"); fflush(stdout); _exit(0); }
    for (unsigned i = 0; now() < until; i++) {
        double start = own_time();
        if (!cuMemAlloc(&p, MIB)) cuMemFree(p);
        if (!cuMemAllocAsync(&q, MIB, 0)) cuMemFreeAsync(q, 0);
        double took = own_time() - start;
        if (took > longest) longest = took;
        usleep(20 + i * 7 % 60);
    }
    printf("most %.0f\n", longest * 1e3);
    fflush(stdout);
    _exit(0);
}
static void fifo(void) {
    cpu_set_t all, one; pthread_t id; int cpu = 0;
    sched_getaffinity(0, sizeof all, &all);
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_ZERO(&one); CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    alarm(20);
    cuDevicePrimaryCtxRetain(&context, 0);
    for (int i = 0; i < 3; i++) pthread_create(&id, 0, pool_user, context);
    pthread_create(&id, 0, real_time, context);
    pause();
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "keep";
    u64 p;
    setvbuf(stdout, 0, _IOLBF, 0);
    open_device(0);
    if (!strcmp(what, "orphan")) orphan(atoi(words[2]));
    else if (!strcmp(what, "keep")) keep(atoi(words[2]), count > 3 ? atoi(words[3]) : 1, count > 4 ? words[4] : 0);
    else if (!strcmp(what, "leader")) leader(words[2]);
    else if (!strcmp(what, "unmap")) unmap();
    else if (!strcmp(what, "inside")) inside();
    else if (!strcmp(what, "become")) { printf("took %d\n", cuMemAlloc(&p, 700 * MIB)); execlp("cat", "cat", (char *)0); }
    else if (!strcmp(what, "crowd")) crowd(atoi(words[2]), atoi(words[3]));
    else if (!strcmp(what, "forks")) forks(atoi(words[2]));
    else if (!strcmp(what, "launches")) launches();
    else if (!strcmp(what, "ask")) ask(atoi(words[2]), atoi(words[3]));
    else if (!strcmp(what, "formats")) formats();
    else if (!strcmp(what, "host")) host();
    else if (!strcmp(what, "old")) old(count > 2);
    else if (!strcmp(what, "fifo")) fifo();
    else return 2;
    return 0;
}
