// A CUDA driver that has no device: it keeps books. What every process holds is kept in one
// shared file (FAKE_CUDA_STATE), so that the tests can see what was ever handed out at once,
// whatever the guard believes. It is strict where the real one is: NULL, foreign and stale
// handles are errors. FAKE_FAIL=name:n makes the nth call of a function fail with code 999.
//
// FAKE_DEVICES, FAKE_TOTAL, FAKE_CONTEXT, FAKE_MODULE, FAKE_LAUNCH, FAKE_INTEGRATED and
// FAKE_VERSION say what it pretends to be. Compiled with NVML it is libnvidia-ml instead.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef unsigned long long u64;
typedef void *handle;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
enum { DEVICES = 4, PROCESSES = 256, MIB = 1 << 20 };

struct process { _Atomic int pid; u64 used[DEVICES]; };
struct state {
    _Atomic int lock;             // the pid that holds it
    _Atomic u64 next;             // the next address to hand out
    _Atomic u64 calls;            // allocation calls that reached the driver
    u64 most[DEVICES];            // the most that was ever held at once
    struct process processes[PROCESSES];
};
static struct state *S;

static u64 number(const char *name, u64 otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, 0, 0) : otherwise;
}

static void start(void) {
    if (S) return;
    const char *path = getenv("FAKE_CUDA_STATE");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, sizeof *S)) abort();
    int kind = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    S = mmap(0, sizeof *S, PROT_READ | PROT_WRITE, kind, fd, 0);
    if (fd >= 0) close(fd);
}

static int is_gone(int pid) {
    if (kill(pid, 0) && errno == ESRCH) return 1;
    char path[64], text[256] = {0};
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return 1;
    if (!fgets(text, sizeof text, f)) text[0] = 0;
    fclose(f);
    char *end = strrchr(text, ')');
    return end && end[1] && (end[2] == 'Z' || end[2] == 'X');
}

static void lock(void) {
    start();
    int me = getpid(), zero = 0;
    while (!atomic_compare_exchange_strong(&S->lock, &zero, me)) {
        if (zero != me && is_gone(zero)) atomic_compare_exchange_strong(&S->lock, &zero, 0);
        zero = 0;
        sched_yield();
    }
}
static void unlock(void) { atomic_store(&S->lock, 0); }

static struct process *mine(void) {
    int me = getpid();
    for (int i = 0; i < PROCESSES; i++)
        if (S->processes[i].pid == me) return &S->processes[i];
    for (int i = 0; i < PROCESSES; i++) {
        struct process *p = &S->processes[i];
        if (p->pid == 0 || is_gone(p->pid)) {
            memset(p->used, 0, sizeof p->used);
            p->pid = me;
            return p;
        }
    }
    abort();
}

static u64 in_use(int device) {
    u64 sum = 0;
    for (int i = 0; i < PROCESSES; i++)
        if (S->processes[i].pid && S->processes[i].used[device]) {
            if (is_gone(S->processes[i].pid)) memset(S->processes[i].used, 0, sizeof S->processes[i].used);
            sum += S->processes[i].used[device];
        }
    return sum;
}

static int take(int device, u64 bytes) {
    lock();
    S->calls++;
    u64 now = in_use(device);
    if (now + bytes > number("FAKE_TOTAL", 64ull << 30)) { unlock(); return OUT_OF_MEMORY; }
    mine()->used[device] += bytes;
    if (now + bytes > S->most[device]) S->most[device] = now + bytes;
    unlock();
    return OK;
}
static void give(int device, u64 bytes) {
    lock();
    struct process *p = mine();
    if (p->used[device] < bytes) abort();
    p->used[device] -= bytes;
    unlock();
}

#ifdef NVML
struct memory { u64 total, free, used; };
struct memory2 { unsigned version; u64 total, reserved, free, used; };
API int nvmlInit_v2(void) { start(); return 0; }
API int nvmlShutdown(void) { return 0; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *out) { *out = (handle)(uintptr_t)(index + 1); return 0; }
API int nvmlDeviceGetUUID(handle device, char *text, unsigned size) {
    snprintf(text, size, "GPU-%02x000000-0000-0000-0000-0000000000fa", (unsigned)(uintptr_t)device);
    return 0;
}
API int nvmlDeviceGetHandleByUUID(const char *text, handle *out) {
    unsigned index;
    if (sscanf(text, "GPU-%02x000000-", &index) != 1) return 6;
    *out = (handle)(uintptr_t)index;
    return 0;
}
API int nvmlDeviceGetMemoryInfo(handle device, struct memory *info) {
    if (!info) return 2;
    if (getenv("FAKE_INTEGRATED")) return 3;
    lock();
    info->used = in_use((int)(uintptr_t)device - 1) + number("FAKE_OTHERS", 0);
    unlock();
    info->total = number("FAKE_TOTAL", 64ull << 30);
    info->free = info->total - info->used;
    return 0;
}
struct listed { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
API int nvmlDeviceGetComputeRunningProcesses_v3(handle device, unsigned *count, struct listed *out) {
    if (getenv("FAKE_NO_LIST")) return 3;
    unsigned found = 0;
    lock();
    for (int i = 0; i < PROCESSES; i++) {
        u64 used = S->processes[i].used[(int)(uintptr_t)device - 1];
        if (!S->processes[i].pid || !used) continue;
        if (found < *count) out[found] = (struct listed){S->processes[i].pid, getenv("FAKE_NO_FIGURE") ? ~0ull : used, ~0u, ~0u};
        found++;
    }
    unlock();
    int code = found > *count ? 7 : 0;
    *count = found;
    return code;
}
API int nvmlDeviceGetMemoryInfo_v2(handle device, struct memory2 *info) {
    struct memory one;
    int code = nvmlDeviceGetMemoryInfo(device, &one);
    if (!code) { info->total = one.total; info->free = one.free; info->used = one.used; info->reserved = MIB; }
    return code;
}
#else

static _Atomic int ready;
static __thread handle current;
struct context { int device, alive; u64 cost; int retained; };
static struct context contexts[64];
static _Atomic int context_count = 1;
static struct context primary[DEVICES];

static int failing(const char *name) {
    static _Atomic int calls;
    const char *wish = getenv("FAKE_FAIL");
    size_t size = strlen(name);
    if (!wish || strncmp(wish, name, size) || wish[size] != ':') return 0;
    return ++calls == atoi(wish + size + 1);
}
#define FAILING() if (failing(__func__)) return 999
#define NEED_CONTEXT() struct context *c = current; if (!ready) return NOT_INITIALIZED; if (!c || !c->alive) return INVALID_CONTEXT; FAILING()

// What this process has: every kind in one list.
enum kind { LINEAR = 1, ARRAY, PHYSICAL, MAPPING, POOLED, POOL, GRAPH, EXEC, MODULE, IMPORTED, NODE };
struct thing { enum kind kind; u64 key, bytes, used, reserved; int device, refs; struct thing *of; struct context *context; };
static struct thing things[1 << 17];
static int thing_count;
static pthread_mutex_t guard = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static struct thing *add(enum kind kind, u64 key, u64 bytes, int device) {
    pthread_mutex_lock(&guard);
    struct thing *t = 0;
    for (int i = 0; i < thing_count && !t; i++) if (!things[i].kind) t = &things[i];
    if (!t) t = &things[thing_count++];
    *t = (struct thing){.key = key, .bytes = bytes, .device = device, .refs = 1, .context = current};
    t->kind = kind;
    pthread_mutex_unlock(&guard);
    return t;
}
static struct thing *find(enum kind kind, u64 key) {
    struct thing *found = 0;
    pthread_mutex_lock(&guard);
    for (int i = 0; i < thing_count && !found; i++)
        if (things[i].kind == kind && things[i].key == key) found = &things[i];
    pthread_mutex_unlock(&guard);
    return found;
}
// Takes a thing out of the list: only one thread gets it.
static int remove_thing(enum kind kind, u64 key, struct thing *copy) {
    pthread_mutex_lock(&guard);
    for (int i = 0; i < thing_count; i++)
        if (things[i].kind == kind && things[i].key == key) {
            *copy = things[i];
            things[i].kind = 0;
            pthread_mutex_unlock(&guard);
            return 1;
        }
    pthread_mutex_unlock(&guard);
    return 0;
}
// Addresses are used again, as the real driver does.
static u64 address(void) { start(); return 0x7f0000000000ull + (atomic_fetch_add(&S->next, 1) % 4096) * 0x4000000ull + ((u64)getpid() << 44); }
static u64 fresh(void) { u64 at; do at = address(); while (find(LINEAR, at) || find(POOLED, at)); return at; }
// An address that nobody else is given before it is in the list.
static struct thing *add_fresh(enum kind kind, u64 *out, u64 bytes, int device) {
    pthread_mutex_lock(&guard);
    *out = fresh();
    struct thing *t = add(kind, *out, bytes, device);
    pthread_mutex_unlock(&guard);
    return t;
}

API int cuInit(unsigned flags) { start(); FAILING(); ready = 1; return OK; }
API int cuDriverGetVersion(int *out) { *out = (int)number("FAKE_VERSION", 13000); return OK; }
API int cuDeviceGetCount(int *out) { *out = (int)number("FAKE_DEVICES", 1); return OK; }
API int cuDeviceGet(int *out, int n) { if (n >= (int)number("FAKE_DEVICES", 1)) return 101; *out = n; return OK; }
API int cuDeviceGetUuid(unsigned char *out, int n) { memset(out, 0, 16); out[0] = n + 1; out[15] = 0xfa; return OK; }
API int cuDeviceGetAttribute(int *out, int which, int n) { *out = which == 18 && getenv("FAKE_INTEGRATED"); return OK; }
API int cuDeviceTotalMem_v2(size_t *out, int n) { if (!out) return INVALID_VALUE; *out = number("FAKE_TOTAL", 64ull << 30); return OK; }
API int cuMemGetInfo_v2(size_t *free_out, size_t *total_out) {
    NEED_CONTEXT();
    lock();
    u64 used = in_use(c->device);
    unlock();
    u64 total = number("FAKE_TOTAL", 64ull << 30);
    if (free_out) *free_out = total - used;
    if (total_out) *total_out = total;
    return OK;
}

// FAKE_STRANGER: somebody else (the first process of all) takes so much at that moment.
static void stranger(int device) {
    u64 bytes = number("FAKE_STRANGER", 0);
    if (!bytes) return;
    lock();
    struct process *p = &S->processes[PROCESSES - 1];
    p->pid = 1;
    p->used[device] += bytes;
    unlock();
}

static int open_context(struct context *c, int device) {
    c->cost = number("FAKE_CONTEXT", 0);
    int code = take(device, c->cost);
    if (code) return code;
    stranger(device);
    c->device = device;
    c->alive = 1;
    return OK;
}
API int cuCtxCreate_v2(handle *out, unsigned flags, int device) {
    if (!ready) return NOT_INITIALIZED;
    FAILING();
    if (!out) return INVALID_VALUE;
    struct context *c = &contexts[atomic_fetch_add(&context_count, 1)];
    int code = open_context(c, device);
    if (!code) *out = current = c;
    return code;
}
API int cuCtxCreate_v4(handle *out, void *how, unsigned flags, int device) { return cuCtxCreate_v2(out, flags, device); }
API int cuCtxGetCurrent(handle *out) { FAILING(); *out = current; return OK; }
API int cuCtxSetCurrent(handle c) { current = c; return OK; }
API int cuCtxGetDevice(int *out) { struct context *c = current; if (!c) return INVALID_CONTEXT; *out = c->device; return OK; }
static void close_context(struct context *c) {
    for (int i = 0; i < thing_count; i++)
        if ((things[i].kind == LINEAR || things[i].kind == ARRAY) && things[i].context == c) {
            give(things[i].device, things[i].bytes);
            things[i].kind = 0;
        }
    give(c->device, c->cost);
    c->alive = 0;
}
API int cuCtxDestroy_v2(handle context) { struct context *c = context; if (!c || !c->alive) return INVALID_CONTEXT; FAILING(); close_context(c); if (current == c) current = 0; return OK; }
API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = primary[device].alive; return OK; }
API int cuDevicePrimaryCtxRetain(handle *out, int device) {
    if (!ready) return NOT_INITIALIZED;
    FAILING();
    if (!out) return INVALID_VALUE;
    if (!primary[device].alive) { int code = open_context(&primary[device], device); if (code) return code; }
    primary[device].retained++;
    *out = &primary[device];
    return OK;
}
API int cuDevicePrimaryCtxRelease_v2(int device) {
    if (!primary[device].alive) return INVALID_CONTEXT;
    if (--primary[device].retained == 0) close_context(&primary[device]);
    return OK;
}
API int cuDevicePrimaryCtxReset_v2(int device) { if (primary[device].alive) close_context(&primary[device]); primary[device].retained = 0; return OK; }

static int linear(u64 *out, u64 bytes) {
    struct context *c = current;
    int code = take(c->device, bytes);
    if (code) return code;
    add_fresh(LINEAR, out, bytes, c->device);
    return OK;
}
// FAKE_QUICK keeps no books of plain memory: what is left is what the guard costs.
static int quick(void) { static int known; if (!known) known = getenv("FAKE_QUICK") ? 2 : 1; return known == 2; }
API int cuMemAlloc_v2(u64 *out, size_t bytes) { if (quick()) { static u64 at = 0x7f0000000000ull; *out = at += 512; return OK; } NEED_CONTEXT(); if (!out || !bytes) return INVALID_VALUE; return linear(out, bytes); }
API int cuMemAllocManaged(u64 *out, size_t bytes, unsigned flags) { NEED_CONTEXT(); if (!out || !bytes) return INVALID_VALUE; return linear(out, bytes); }
API int cuMemAllocPitch_v2(u64 *out, size_t *pitch, size_t width, size_t height, unsigned element) {
    NEED_CONTEXT();
    if (!out || !pitch || !width || !height) return INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return linear(out, *pitch * height);
}
static void pooled_free(struct thing *t);
API int cuMemFree_v2(u64 at) {
    if (quick()) return OK;
    NEED_CONTEXT();
    struct thing t;
    if (!at) return OK;
    if (remove_thing(LINEAR, at, &t)) { give(t.device, t.bytes); return OK; }
    if (remove_thing(POOLED, at, &t)) { pooled_free(&t); return OK; }
    return INVALID_VALUE;
}

struct shape { size_t width, height; int format; unsigned channels; };
struct shape3 { size_t width, height, depth; int format; unsigned channels, flags; };
static u64 largest(u64 a) { return a ? a : 1; }
static int array(handle *out, u64 bytes) {
    struct context *c = current;
    int code = take(c->device, bytes);
    if (code) return code;
    u64 key = fresh();
    add(ARRAY, key, bytes, c->device);
    *out = (handle)(uintptr_t)key;
    return OK;
}
// Floats of so many channels, rows as long as they are.
API int cuArrayCreate_v2(handle *out, const struct shape *s) { NEED_CONTEXT(); if (!out || !s) return INVALID_VALUE; return array(out, s->width * largest(s->height) * 4 * s->channels); }
API int cuArray3DCreate_v2(handle *out, const struct shape3 *s) { NEED_CONTEXT(); if (!out || !s) return INVALID_VALUE; return array(out, s->width * largest(s->height) * largest(s->depth) * 4 * s->channels); }
API int cuArrayDestroy(handle a) { NEED_CONTEXT(); struct thing t; if (!remove_thing(ARRAY, (u64)(uintptr_t)a, &t)) return 400; give(t.device, t.bytes); return OK; }
API int cuMipmappedArrayCreate(handle *out, const struct shape3 *s, unsigned levels) {
    NEED_CONTEXT();
    if (!out || !s || !levels) return INVALID_VALUE;
    u64 bytes = 0;
    for (unsigned n = 0; n < levels; n++) bytes += largest(s->width >> n) * largest(s->height >> n) * largest(s->depth >> n) * 4 * s->channels;
    return array(out, bytes);
}
API int cuMipmappedArrayDestroy(handle a) { return cuArrayDestroy(a); }

struct properties { int type, handles, location, device; };
API int cuMemCreate(u64 *out, size_t bytes, const struct properties *p, u64 flags) {
    if (!ready) return NOT_INITIALIZED;
    FAILING();
    if (!out || !p || bytes % (2 * MIB)) return INVALID_VALUE;
    if (p->location == 1) { int code = take(p->device, bytes); if (code) return code; }
    *out = fresh() | 1;
    add(PHYSICAL, *out, bytes, p->location == 1 ? p->device : -1);
    return OK;
}
static void unref(struct thing *t) { if (--t->refs == 0) { if (t->device >= 0) give(t->device, t->bytes); t->kind = 0; } }
API int cuMemRelease(u64 h) { FAILING(); struct thing *t = find(PHYSICAL, h); if (!t) return INVALID_VALUE; unref(t); return OK; }
API int cuMemMap(u64 at, size_t bytes, size_t offset, u64 h, u64 flags) { FAILING(); struct thing *t = find(PHYSICAL, h); if (!t) return INVALID_VALUE; t->refs++; add(MAPPING, at, bytes, t->device)->of = t; return OK; }
API int cuMemUnmap(u64 at, size_t bytes) {
    FAILING();
    u64 end = at + bytes;
    struct thing t;
    while (at < end) { if (!remove_thing(MAPPING, at, &t)) return INVALID_VALUE; unref(t.of); at += t.bytes; }
    return OK;
}
API int cuMemRetainAllocationHandle(u64 *out, void *at) { struct thing *m = find(MAPPING, (u64)(uintptr_t)at); if (!out || !m) return INVALID_VALUE; m->of->refs++; *out = m->of->key; return OK; }
API int cuMemImportFromShareableHandle(u64 *out, void *h, int kind) { *out = fresh() | 2; add(PHYSICAL, *out, 0, -1); return OK; }
API int cuIpcOpenMemHandle_v2(u64 *out, u64 a, unsigned flags) { NEED_CONTEXT(); *out = fresh(); add(IMPORTED, *out, 0, -1); return OK; }
API int cuIpcCloseMemHandle(u64 at) { struct thing t; return remove_thing(IMPORTED, at, &t) ? OK : INVALID_VALUE; }

// Pools: taken in steps, kept until a stream is waited for.
enum { STEP = 32 * MIB };
static struct thing *pool_of(int device) { 
    static struct thing *pools[DEVICES];
    pthread_mutex_lock(&guard);
    if (!pools[device]) pools[device] = add(POOL, 0x900000 + device, 0, device);
    pthread_mutex_unlock(&guard);
    return pools[device];
}
static __thread int capturing;
static struct thing *captured;
API int cuDeviceGetMemPool(handle *out, int device) { *out = (handle)(uintptr_t)pool_of(device)->key; return OK; }
API int cuMemPoolCreate(handle *out, const struct properties *p) { if (!out || !p) return INVALID_VALUE; u64 key = fresh(); add(POOL, key, 0, p->location == 1 ? p->device : -1); *out = (handle)(uintptr_t)key; return OK; }
static void shrink(struct thing *p, u64 keep) {
    pthread_mutex_lock(&guard);
    u64 want = (p->used + STEP - 1) / STEP * STEP;
    if (want < keep) want = keep;
    u64 back = p->reserved > want ? p->reserved - want : 0;
    p->reserved -= back;
    pthread_mutex_unlock(&guard);
    if (back && p->device >= 0) give(p->device, back);
}
API int cuMemPoolDestroy(handle h) { struct thing *p = find(POOL, (u64)(uintptr_t)h); if (!p) return INVALID_VALUE; p->used = 0; shrink(p, 0); p->kind = 0; return OK; }
API int cuMemPoolTrimTo(handle h, size_t keep) { struct thing *p = find(POOL, (u64)(uintptr_t)h); if (!p) return INVALID_VALUE; shrink(p, keep); return OK; }
API int cuMemPoolGetAttribute(handle h, int which, u64 *out) {
    FAILING();
    struct thing *p = find(POOL, (u64)(uintptr_t)h);
    if (!p) return INVALID_VALUE;
    *out = which == 5 ? p->reserved : which == 7 ? p->used : 0;
    return OK;
}
static int from_pool(u64 *out, u64 bytes, struct thing *p) {
    pthread_mutex_lock(&guard);
    u64 need = p->used + bytes > p->reserved ? (p->used + bytes - p->reserved + STEP - 1) / STEP * STEP : 0;
    p->reserved += need;
    p->used += bytes;
    pthread_mutex_unlock(&guard);
    int code = need && p->device >= 0 ? take(p->device, need) : OK;
    if (code) { pthread_mutex_lock(&guard); p->reserved -= need; p->used -= bytes; pthread_mutex_unlock(&guard); return code; }
    add_fresh(POOLED, out, bytes, p->device)->of = p;
    return OK;
}
static void pooled_free(struct thing *t) { pthread_mutex_lock(&guard); t->of->used -= t->bytes; pthread_mutex_unlock(&guard); }
API int cuMemAllocAsync(u64 *out, size_t bytes, handle stream) {
    NEED_CONTEXT();
    if (!out || !bytes) return INVALID_VALUE;
    if (capturing) { *out = fresh(); captured->bytes += bytes; return OK; }
    return from_pool(out, bytes, pool_of(c->device));
}
API int cuMemAllocAsync_ptsz(u64 *out, size_t bytes, handle stream) { return cuMemAllocAsync(out, bytes, stream); }
API int cuMemAllocFromPoolAsync(u64 *out, size_t bytes, handle h, handle stream) { NEED_CONTEXT(); struct thing *p = find(POOL, (u64)(uintptr_t)h); if (!out || !p || !bytes) return INVALID_VALUE; return from_pool(out, bytes, p); }
API int cuMemAllocFromPoolAsync_ptsz(u64 *out, size_t bytes, handle h, handle stream) { return cuMemAllocFromPoolAsync(out, bytes, h, stream); }
API int cuMemFreeAsync(u64 at, handle stream) { return cuMemFree_v2(at); }
API int cuMemFreeAsync_ptsz(u64 at, handle stream) { return cuMemFree_v2(at); }
API int cuStreamSynchronize(handle stream) { for (int i = 0; i < thing_count; i++) if (things[i].kind == POOL) shrink(&things[i], 0); return OK; }
API int cuStreamSynchronize_ptsz(handle stream) { return cuStreamSynchronize(stream); }
API int cuCtxSynchronize(void) { return cuStreamSynchronize(0); }
API int cuThreadExchangeStreamCaptureMode(int *mode) { static __thread int now; int before = now; now = *mode; *mode = before; return OK; }
API int cuStreamIsCapturing(handle stream, int *out) { *out = capturing; return OK; }
API int cuStreamBeginCapture_v2(handle stream, int mode) { captured = add(GRAPH, fresh(), 0, 0); capturing = 1; return OK; }
API int cuStreamEndCapture(handle stream, handle *out) { capturing = 0; *out = captured; return OK; }

// Graphs: one node each that stands for all that was captured; memory comes at the launch.
static u64 graph_reserved[DEVICES];
API int cuGraphCreate(handle *out, unsigned flags) { *out = add(GRAPH, fresh(), 0, 0); return OK; }
struct node_params { struct { int type, handles, location, device; u64 rest[10]; } pool; void *access; size_t count, bytes; u64 pointer; };
API int cuGraphAddMemAllocNode(handle *node, handle graph, const handle *deps, size_t count, struct node_params *p) { struct thing *g = graph; g->bytes += p->bytes; p->pointer = fresh(); *node = g; return OK; }
API int cuGraphGetNodes(handle graph, handle *nodes, size_t *count) { struct thing *g = graph; if (!g) return INVALID_VALUE; if (nodes && *count) nodes[0] = g; *count = g->bytes > 0; return OK; }
API int cuGraphNodeGetType(handle node, int *out) { *out = 10; return OK; }
API int cuGraphMemAllocNodeGetParams(handle node, struct node_params *p) { memset(p, 0, sizeof *p); p->bytes = ((struct thing *)node)->bytes; return OK; }
API int cuGraphInstantiateWithFlags(handle *out, handle graph, u64 flags) { struct thing *g = graph; if (!out || !g) return INVALID_VALUE; FAILING(); *out = add(EXEC, fresh(), g->bytes, 0); return OK; }
API int cuGraphLaunch(handle exec, handle stream) {
    NEED_CONTEXT();
    struct thing *e = exec;
    if (!e) return INVALID_VALUE;
    u64 need = e->bytes > graph_reserved[c->device] ? e->bytes - graph_reserved[c->device] : 0;
    if (need) { int code = take(c->device, need); if (code) return code; }
    graph_reserved[c->device] += need;
    return OK;
}
API int cuGraphLaunch_ptsz(handle exec, handle stream) { return cuGraphLaunch(exec, stream); }
API int cuGraphExecDestroy(handle exec) { struct thing *e = exec; if (!e) return INVALID_VALUE; e->kind = 0; return OK; }
API int cuDeviceGetGraphMemAttribute(int device, int which, u64 *out) { *out = which == 2 ? graph_reserved[device] : 0; return OK; }
API int cuDeviceGraphMemTrim(int device) { give(device, graph_reserved[device]); graph_reserved[device] = 0; return OK; }

API int cuModuleLoadData(handle *out, const void *image) {
    NEED_CONTEXT();
    if (!out) return INVALID_VALUE;
    u64 cost = number("FAKE_MODULE", 0);
    int code = take(c->device, cost);
    if (code) return code;
    u64 key = fresh();
    add(MODULE, key, cost, c->device);
    *out = (handle)(uintptr_t)key;
    return OK;
}
API int cuModuleUnload(handle m) { struct thing t; if (!remove_thing(MODULE, (u64)(uintptr_t)m, &t)) return 400; give(t.device, t.bytes); return OK; }
API int cuLaunchKernel(handle f, unsigned a, unsigned b, unsigned g, unsigned d, unsigned e, unsigned h, unsigned shared, handle stream, void **args, void **extra) {
    NEED_CONTEXT();
    static handle seen[64];
    for (int i = 0; i < 64; i++) {
        if (seen[i] == f) return OK;
        if (!seen[i]) { seen[i] = f; return take(c->device, number("FAKE_LAUNCH", 0)); }
    }
    return OK;
}
API int cuLaunchKernel_ptsz(handle f, unsigned a, unsigned b, unsigned g, unsigned d, unsigned e, unsigned h, unsigned shared, handle stream, void **args, void **extra) { return cuLaunchKernel(f, a, b, g, d, e, h, shared, stream, args, extra); }

static int address_of(const char *symbol, void **out, int version, u64 flags) {
    if (!symbol || !out) return INVALID_VALUE;
    static void *self;
    if (!self) { Dl_info info; dladdr((void *)address_of, &info); self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD); }
    const char *endings[] = {flags & 2 ? "_ptsz" : "", "_v2", "WithFlags", ""};
    for (int i = 0; i < 4; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", symbol, endings[i]);
        if (!strcmp(name, "cuGetProcAddress") && version >= 12000) continue;
        if ((*out = dlsym(self, name))) return OK;
    }
    return NOT_FOUND;
}
API int cuGetProcAddress_v2(const char *symbol, void **out, int version, u64 flags, int *status) { int code = address_of(symbol, out, version, flags); if (status) *status = code ? 1 : 0; return code; }
API int cuGetProcAddress(const char *symbol, void **out, int version, u64 flags) { return address_of(symbol, out, version, flags); }
#endif
