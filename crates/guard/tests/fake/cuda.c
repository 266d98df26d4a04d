// A simulated CUDA driver without a device. It keeps its own count (books.h), so that the tests can
// see what was ever allocated at once, whatever the guard counts. It is as strict as the real one:
// NULL, unknown and stale handles are errors. FAKE_FAIL=name:n makes the nth call of a function
// fail with code 999.
//
// FAKE_DEVICES, FAKE_TOTAL, FAKE_CONTEXT, FAKE_MODULE, FAKE_LAUNCH, FAKE_INTEGRATED and
// FAKE_VERSION say what it simulates; FAKE_SLOW_TAKE and FAKE_SLOW_LAUNCH how long it waits, in
// microseconds, before it allocates and before a graph does. FAKE_MEMINFO is a file to which it
// writes what the system has available, of FAKE_AVAILABLE bytes. Compiled with NVML it is
// libnvidia-ml instead.
#include "books.h"
#include <dlfcn.h>
#include <pthread.h>

#define API __attribute__((visibility("default")))
typedef void *handle;

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
    sweep();
    for (int i = 0; i < PROCESSES; i++) {
        u64 used = S->processes[i].used[(int)(uintptr_t)device - 1];
        if (S->processes[i].state == FREE || !used) continue;
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

static int is_integrated(void) { return getenv("FAKE_INTEGRATED") != 0; }

// On an integrated device it takes the system's memory.
static void tell_system(void) {
    const char *path = getenv("FAKE_MEMINFO");
    if (!path) return;
    char beside[600];
    snprintf(beside, sizeof beside, "%s.new", path);
    FILE *f = fopen(beside, "w");
    if (!f) abort();
    u64 all = number("FAKE_AVAILABLE", 0), used = sum(0);
    fprintf(f, "MemTotal: 99999999 kB\nMemAvailable: %llu kB\n", (all > used ? all - used : 0) >> 10);
    fclose(f);
    if (rename(beside, path)) abort();
}

static int take(int device, u64 bytes) {
    if (bytes) wait_us(number("FAKE_SLOW_TAKE", 0));
    lock();
    S->calls++;
    u64 all = number("FAKE_TOTAL", 64ull << 30), now = sum(device);
    // Looks for dead processes where they could matter, and waits for those that are ending: what a
    // process held is freed a moment after its first locks are released.
    if (now > mine()->used[device] && (now + bytes > all || now + bytes > S->most[device])) { wait_us(100); now = in_use(device); }
    if (now + bytes > all) { unlock(); return OUT_OF_MEMORY; }
    mine()->used[device] += bytes;
    if (now + bytes > S->most[device]) S->most[device] = now + bytes;
    tell_system();
    unlock();
    return OK;
}
static void give(int device, u64 bytes) {
    lock();
    struct process *p = mine();
    if (p->used[device] < bytes) abort();
    p->used[device] -= bytes;
    tell_system();
    unlock();
}
// Which device host memory counts for: an integrated one, whose memory it is.
static int place_of(int location, int device) { return location == 1 ? device : is_integrated() ? 0 : -1; }
static int take_at(int device, u64 bytes) { return device < 0 ? OK : take(device, bytes); }
static void give_at(int device, u64 bytes) { if (device >= 0) give(device, bytes); }

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

// What this process has allocated: every kind in one list.
enum kind { LINEAR = 1, ARRAY, PHYSICAL, MAPPING, POOLED, POOL, GRAPH, EXEC, MODULE, IMPORTED, PINNED, REGISTERED };
struct thing { enum kind kind; u64 key, bytes, used, reserved; int device, refs; struct thing *of; struct context *context; };
static struct thing things[1 << 17];
static int thing_count;
static struct thing *pools[DEVICES];
static u64 graph_reserved[DEVICES], graph_used[DEVICES];
static pthread_mutex_t guard;

// A process starts with nothing, and so does a child of fork: what its parent has stays with the
// parent, and so does a lock that a thread of the parent held.
static void begin(void) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_settype(&how, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&guard, &how);
    thing_count = 0;
    memset(pools, 0, sizeof pools);
    memset(graph_reserved, 0, sizeof graph_reserved);
    memset(graph_used, 0, sizeof graph_used);
    for (int i = 0; i < 64; i++) contexts[i].cost = 0;
    for (int i = 0; i < DEVICES; i++) primary[i].cost = 0;
    own->known = 1;
}
static void hold(void) {
    start();
    if (!own->known) begin();
    pthread_mutex_lock(&guard);
}
static void let_go(void) { pthread_mutex_unlock(&guard); }
__attribute__((constructor)) static void loaded(void) { hold(); mine(); let_go(); }

static struct thing *add(enum kind kind, u64 key, u64 bytes, int device) {
    hold();
    struct thing *t = 0;
    for (int i = 0; i < thing_count && !t; i++) if (!things[i].kind) t = &things[i];
    if (!t) t = &things[thing_count++];
    *t = (struct thing){.key = key, .bytes = bytes, .device = device, .refs = 1, .context = current};
    t->kind = kind;
    let_go();
    return t;
}
static struct thing *find(enum kind kind, u64 key) {
    struct thing *found = 0;
    hold();
    for (int i = 0; i < thing_count && !found; i++)
        if (things[i].kind == kind && things[i].key == key) found = &things[i];
    let_go();
    return found;
}
// Takes an item out of the list: only one thread gets it.
static int remove_thing(enum kind kind, u64 key, struct thing *copy) {
    hold();
    for (int i = 0; i < thing_count; i++)
        if (things[i].kind == kind && things[i].key == key) {
            *copy = things[i];
            things[i].kind = 0;
            let_go();
            return 1;
        }
    let_go();
    return 0;
}
// Addresses are reused, as by the real driver.
static u64 address(void) { start(); return 0x7f0000000000ull + (atomic_fetch_add(&S->next, 1) % 4096) * 0x4000000ull; }
static u64 fresh(void) { u64 at; do at = address(); while (find(LINEAR, at) || find(POOLED, at)); return at; }
// An address that no other thread gets before it is in the list.
static struct thing *add_fresh(enum kind kind, u64 *out, u64 bytes, int device) {
    hold();
    *out = fresh();
    struct thing *t = add(kind, *out, bytes, device);
    let_go();
    return t;
}

API int cuInit(unsigned flags) { FAILING(); ready = 1; return OK; }
API int cuDriverGetVersion(int *out) { *out = (int)number("FAKE_VERSION", 13000); return OK; }
API int cuDeviceGetCount(int *out) { *out = (int)number("FAKE_DEVICES", 1); return OK; }
API int cuDeviceGet(int *out, int n) { if (n >= (int)number("FAKE_DEVICES", 1)) return 101; *out = n; return OK; }
// FAKE_FIRST is the device that this process knows as number 0, as CUDA_VISIBLE_DEVICES would say.
API int cuDeviceGetUuid(unsigned char *out, int n) { if (!ready) return NOT_INITIALIZED; memset(out, 0, 16); out[0] = n + 1 + number("FAKE_FIRST", 0); out[15] = 0xfa; return OK; }
API int cuDeviceGetAttribute(int *out, int which, int n) { *out = which == 18 && is_integrated(); return OK; }
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

// FAKE_STRANGER: another program (the first process of all) allocates this much at that moment.
static void stranger(int device) {
    u64 bytes = number("FAKE_STRANGER", 0);
    if (!bytes) return;
    lock();
    struct process *p = &S->processes[PROCESSES - 1];
    p->pid = 1;
    p->state = STRANGER;
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
API int cuCtxCreate(handle *out, unsigned flags, int device) { return cuCtxCreate_v2(out, flags, device); }
API int cuCtxCreate_v3(handle *out, void *how, int count, unsigned flags, int device) { return cuCtxCreate_v2(out, flags, device); }
API int cuCtxCreate_v4(handle *out, void *how, unsigned flags, int device) { return cuCtxCreate_v2(out, flags, device); }
API int cuCtxGetCurrent(handle *out) { FAILING(); *out = current; return OK; }
API int cuCtxSetCurrent(handle c) { current = c; return OK; }
API int cuCtxGetDevice(int *out) { struct context *c = current; if (!c) return INVALID_CONTEXT; *out = c->device; return OK; }
// Functions whose code was loaded: what that took belongs to the context.
static handle launched[64];
static void close_context(struct context *c) {
    for (int i = 0; i < thing_count; i++)
        if ((things[i].kind == LINEAR || things[i].kind == ARRAY || things[i].kind == MODULE) && things[i].context == c) {
            give(things[i].device, things[i].bytes);
            things[i].kind = 0;
        }
    give(c->device, c->cost);
    c->alive = 0;
    memset(launched, 0, sizeof launched);
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
// FAKE_QUICK does not count plain memory: what remains is what the guard costs.
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
// What a point takes, in halves of a byte, by CUDA's list of formats (CUarray_format).
static u64 halves(int format, unsigned channels) {
    switch (format) {
    case 0x01: case 0x08: case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8: return 2 * channels;
    case 0x02: case 0x09: case 0x10: case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb: return 4 * channels;
    case 0x03: case 0x0a: case 0x20: return 8 * channels;
    case 0x50: return 8;                                                        // UNORM_INT_101010_2
    case 0x91: case 0x92: case 0x97: case 0x98: return 1;                       // BC1, BC4: 8 bytes for 4 x 4
    case 0x93: case 0x94: case 0x95: case 0x96: case 0x99: case 0x9a: case 0x9b: case 0x9c: case 0x9d: case 0x9e: return 2;
    case 0xb0: return 3;                                                        // NV12
    case 0x9f: case 0xa1: return 6;                                             // P010, P016
    case 0xa2: return 4;                                                        // NV16
    case 0xa3: case 0xa4: return 8;                                             // P210, P216
    case 0xa5: return 4;                                                        // YUY2
    case 0xa6: case 0xa7: case 0xa8: case 0xa9: return 8;                       // Y210, Y216, AYUV, Y410
    case 0xb1: return 16;                                                       // Y416
    case 0xb2: case 0xb4: return 6;                                             // Y444 of 8 bits, in planes
    case 0xb3: case 0xb5: return 12;                                            // and of 10
    default: return 0;
    }
}
static u64 points(const struct shape3 *s, unsigned level) {
    u64 width = largest(s->width >> level), height = largest(s->height >> level);
    if (s->format >= 0x91 && s->format <= 0x9e) { width = (width + 3) / 4 * 4; height = (height + 3) / 4 * 4; }
    return width * height * largest(s->depth >> level) * halves(s->format, s->channels) / 2;
}
enum { SPARSE = 0x40, DEFERRED = 0x80 };   // memory comes later, by mapping
static int shaped(handle *out, const struct shape3 *s, unsigned levels) {
    if (!halves(s->format, s->channels)) return INVALID_VALUE;
    u64 bytes = 0;
    for (unsigned n = 0; n < levels; n++) bytes += points(s, n);
    return array(out, s->flags & (SPARSE | DEFERRED) ? 0 : bytes);
}
API int cuArrayCreate_v2(handle *out, const struct shape *s) {
    NEED_CONTEXT();
    if (!out || !s) return INVALID_VALUE;
    struct shape3 flat = {s->width, s->height, 0, s->format, s->channels, 0};
    return shaped(out, &flat, 1);
}
API int cuArray3DCreate_v2(handle *out, const struct shape3 *s) { NEED_CONTEXT(); if (!out || !s) return INVALID_VALUE; return shaped(out, s, 1); }
API int cuArrayDestroy(handle a) { NEED_CONTEXT(); struct thing t; if (!remove_thing(ARRAY, (u64)(uintptr_t)a, &t)) return 400; give(t.device, t.bytes); return OK; }
API int cuMipmappedArrayCreate(handle *out, const struct shape3 *s, unsigned levels) { NEED_CONTEXT(); if (!out || !s || !levels) return INVALID_VALUE; return shaped(out, s, levels); }
API int cuMipmappedArrayDestroy(handle a) { return cuArrayDestroy(a); }

struct properties { int type, handles, location, device; };
API int cuMemCreate(u64 *out, size_t bytes, const struct properties *p, u64 flags) {
    if (!ready) return NOT_INITIALIZED;
    FAILING();
    if (!out || !p || bytes % (2 * MIB)) return INVALID_VALUE;
    if (p->location < 1 || p->location > 4) return INVALID_VALUE;
    int device = place_of(p->location, p->device), code = take_at(device, bytes);
    if (code) return code;
    *out = fresh() | 1;
    add(PHYSICAL, *out, bytes, device);
    return OK;
}
static void unref(struct thing *t) { if (--t->refs == 0) { give_at(t->device, t->bytes); t->kind = 0; } }
API int cuMemRelease(u64 h) { FAILING(); struct thing *t = find(PHYSICAL, h); if (!t) return INVALID_VALUE; unref(t); return OK; }
API int cuMemMap(u64 at, size_t bytes, size_t offset, u64 h, u64 flags) { FAILING(); struct thing *t = find(PHYSICAL, h); if (!t) return INVALID_VALUE; t->refs++; add(MAPPING, at, bytes, t->device)->of = t; return OK; }
// The whole range or nothing: it must begin and end with mappings, and have no holes.
API int cuMemUnmap(u64 at, size_t bytes) {
    FAILING();
    u64 end = at + bytes, step = at;
    struct thing *m = 0, t;
    hold();
    while (step < end && (m = find(MAPPING, step))) step += m->bytes;
    int whole = bytes && step == end;
    while (whole && at < end) { remove_thing(MAPPING, at, &t); unref(t.of); at += t.bytes; }
    let_go();
    return whole ? OK : INVALID_VALUE;
}
API int cuMemRetainAllocationHandle(u64 *out, void *address) {
    u64 at = (u64)(uintptr_t)address;
    struct thing *m = 0;
    hold();
    for (int i = 0; i < thing_count && !m; i++)
        if (things[i].kind == MAPPING && at >= things[i].key && at - things[i].key < things[i].bytes) m = &things[i];
    if (m) { m->of->refs++; if (out) *out = m->of->key; }
    let_go();
    return out && m ? OK : INVALID_VALUE;
}
API int cuMemImportFromShareableHandle(u64 *out, void *h, int kind) { *out = fresh() | 2; add(PHYSICAL, *out, 0, -1); return OK; }
API int cuIpcOpenMemHandle_v2(u64 *out, u64 a, unsigned flags) { NEED_CONTEXT(); *out = fresh(); add(IMPORTED, *out, 0, -1); return OK; }
API int cuIpcCloseMemHandle(u64 at) { struct thing t; return remove_thing(IMPORTED, at, &t) ? OK : INVALID_VALUE; }

// Pinned host memory: on an integrated device it is the same memory.
static int pinned(void **out, u64 bytes) {
    NEED_CONTEXT();
    if (!out || !bytes) return INVALID_VALUE;
    int device = place_of(2, 0), code = take_at(device, bytes);
    if (code) return code;
    u64 at;
    add_fresh(PINNED, &at, bytes, device);
    *out = (void *)(uintptr_t)at;
    return OK;
}
static int unpin(enum kind kind, void *at) {
    NEED_CONTEXT();
    struct thing t;
    if (!remove_thing(kind, (u64)(uintptr_t)at, &t)) return INVALID_VALUE;
    give_at(t.device, t.bytes);
    return OK;
}
API int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) { FAILING(); return pinned(out, bytes); }
API int cuMemAllocHost_v2(void **out, size_t bytes) { FAILING(); return pinned(out, bytes); }
API int cuMemFreeHost(void *at) { FAILING(); return unpin(PINNED, at); }
API int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    NEED_CONTEXT();
    if (!at || !bytes) return INVALID_VALUE;
    if (find(REGISTERED, (u64)(uintptr_t)at)) return 712;
    int device = place_of(2, 0), code = take_at(device, bytes);
    if (!code) add(REGISTERED, (u64)(uintptr_t)at, bytes, device);
    return code;
}
API int cuMemHostRegister(void *at, size_t bytes, unsigned flags) { return cuMemHostRegister_v2(at, bytes, flags); }
API int cuMemHostUnregister(void *at) { FAILING(); return unpin(REGISTERED, at); }

// The first versions, of 32 bits, which drivers still export: addresses below 4 GiB.
struct shape32 { unsigned width, height; int format; unsigned channels; };
struct shape32_3 { unsigned width, height, depth; int format; unsigned channels, flags; };
static int linear32(unsigned *out, u64 bytes) {
    NEED_CONTEXT();
    if (!out || !bytes) return INVALID_VALUE;
    int code = take(c->device, bytes);
    if (code) return code;
    hold();
    static unsigned next = 0x10000000;
    add(LINEAR, *out = next += 0x1000, bytes, c->device);
    let_go();
    return OK;
}
API int cuMemAlloc(unsigned *out, unsigned bytes) { return linear32(out, bytes); }
API int cuMemAllocPitch(unsigned *out, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    if (!pitch) return INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return linear32(out, (u64)*pitch * height);
}
API int cuMemFree(unsigned at) { return cuMemFree_v2(at); }
API int cuMemAllocHost(void **out, unsigned bytes) { return pinned(out, bytes); }
API int cuMemGetInfo(unsigned *free_out, unsigned *total_out) {
    size_t f, t;
    int code = cuMemGetInfo_v2(&f, &t);
    if (free_out && !code) *free_out = (unsigned)f;
    if (total_out && !code) *total_out = (unsigned)t;
    return code;
}
API int cuDeviceTotalMem(unsigned *out, int n) { size_t all; int code = cuDeviceTotalMem_v2(&all, n); if (out) *out = (unsigned)all; return code; }
API int cuArrayCreate(handle *out, const struct shape32 *s) { if (!s) return INVALID_VALUE; struct shape wide = {s->width, s->height, s->format, s->channels}; return cuArrayCreate_v2(out, &wide); }
API int cuArray3DCreate(handle *out, const struct shape32_3 *s) { if (!s) return INVALID_VALUE; struct shape3 wide = {s->width, s->height, s->depth, s->format, s->channels, s->flags}; return cuArray3DCreate_v2(out, &wide); }
API int cuCtxDestroy(handle context) { return cuCtxDestroy_v2(context); }

// Pools grow in steps, and shrink when a stream is waited for.
enum { STEP = 32 * MIB };
static struct thing *pool_of(int device) {
    hold();
    if (!pools[device]) pools[device] = add(POOL, 0x900000 + device, 0, device);
    let_go();
    return pools[device];
}
static __thread int capturing;
static struct thing *captured;
API int cuDeviceGetMemPool(handle *out, int device) { *out = (handle)(uintptr_t)pool_of(device)->key; return OK; }
API int cuMemPoolCreate(handle *out, const struct properties *p) { if (!out || !p) return INVALID_VALUE; u64 key = fresh(); add(POOL, key, 0, place_of(p->location, p->device)); *out = (handle)(uintptr_t)key; return OK; }
static void shrink(struct thing *p, u64 keep) {
    hold();
    u64 want = (p->used + STEP - 1) / STEP * STEP;
    if (want < keep) want = keep;
    u64 back = p->reserved > want ? p->reserved - want : 0;
    p->reserved -= back;
    let_go();
    if (back) give_at(p->device, back);
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
    hold();
    u64 need = p->used + bytes > p->reserved ? (p->used + bytes - p->reserved + STEP - 1) / STEP * STEP : 0;
    p->reserved += need;
    p->used += bytes;
    let_go();
    int code = need ? take_at(p->device, need) : OK;
    if (code) { hold(); p->reserved -= need; p->used -= bytes; let_go(); return code; }
    add_fresh(POOLED, out, bytes, p->device)->of = p;
    return OK;
}
static void pooled_free(struct thing *t) { hold(); t->of->used -= t->bytes; let_go(); }
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

// Graphs: one node stands for all that was captured; memory is allocated at the launch.
API int cuGraphCreate(handle *out, unsigned flags) { *out = add(GRAPH, fresh(), 0, 0); return OK; }
struct node_params { struct { int type, handles, location, device; u64 rest[10]; } pool; void *access; size_t count, bytes; u64 pointer; };
API int cuGraphAddMemAllocNode(handle *node, handle graph, const handle *deps, size_t count, struct node_params *p) { struct thing *g = graph; g->bytes += p->bytes; p->pointer = fresh(); *node = g; return OK; }
API int cuGraphGetNodes(handle graph, handle *nodes, size_t *count) { struct thing *g = graph; if (!g) return INVALID_VALUE; if (nodes && *count) nodes[0] = g; *count = g->bytes > 0; return OK; }
API int cuGraphNodeGetType(handle node, int *out) { *out = 10; return OK; }
API int cuGraphMemAllocNodeGetParams(handle node, struct node_params *p) { memset(p, 0, sizeof *p); p->bytes = ((struct thing *)node)->bytes; return OK; }
API int cuGraphInstantiateWithFlags(handle *out, handle graph, u64 flags) { struct thing *g = graph; if (!out || !g) return INVALID_VALUE; FAILING(); *out = add(EXEC, fresh(), g->bytes, 0); return OK; }
// Graphs that run at the same time need memory each; what they used is kept for the next ones.
API int cuGraphLaunch(handle exec, handle stream) {
    NEED_CONTEXT();
    struct thing *e = exec;
    if (!e) return INVALID_VALUE;
    u64 slow = number("FAKE_SLOW_LAUNCH", 0);
    wait_us(slow);
    int code = OK;
    hold();
    u64 wanted = graph_used[c->device] + e->bytes, kept = graph_reserved[c->device];
    if (wanted > kept) code = take(c->device, wanted - kept);
    if (!code) { graph_used[c->device] = wanted; graph_reserved[c->device] = wanted > kept ? wanted : kept; }
    let_go();
    if (code) return code;
    wait_us(slow);
    hold();
    graph_used[c->device] -= e->bytes;
    let_go();
    return OK;
}
API int cuGraphLaunch_ptsz(handle exec, handle stream) { return cuGraphLaunch(exec, stream); }
API int cuGraphExecDestroy(handle exec) { struct thing *e = exec; if (!e) return INVALID_VALUE; e->kind = 0; return OK; }
API int cuDeviceGetGraphMemAttribute(int device, int which, u64 *out) { hold(); *out = which >= 2 ? graph_reserved[device] : graph_used[device]; let_go(); return OK; }
API int cuDeviceGraphMemTrim(int device) { hold(); give(device, graph_reserved[device] - graph_used[device]); graph_reserved[device] = graph_used[device]; let_go(); return OK; }

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
    for (int i = 0; i < 64; i++) {
        if (launched[i] == f) return OK;
        if (!launched[i]) {
            u64 cost = number("FAKE_LAUNCH", 0);
            int code = take(c->device, cost);
            if (!code) { launched[i] = f; c->cost += cost; }
            return code;
        }
    }
    return OK;
}
API int cuLaunchKernel_ptsz(handle f, unsigned a, unsigned b, unsigned g, unsigned d, unsigned e, unsigned h, unsigned shared, handle stream, void **args, void **extra) { return cuLaunchKernel(f, a, b, g, d, e, h, shared, stream, args, extra); }

static int address_of(const char *symbol, void **out, int version, u64 flags) {
    if (!symbol || !out) return INVALID_VALUE;
    static void *self;
    if (!self) { Dl_info info; dladdr((void *)address_of, &info); self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD); }
    // The newest function for that version; the first ones, of 32 bits, end with 3.1.
    const char *endings[] = {flags & 2 ? "_ptsz" : "", "_v2", "WithFlags", ""};
    for (int i = !(flags & 2); i < 4; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", symbol, endings[i]);
        if (i == 1 && version < (strcmp(symbol, "cuGetProcAddress") ? 3020 : 12000)) continue;
        if ((*out = dlsym(self, name))) return OK;
    }
    return NOT_FOUND;
}
API int cuGetProcAddress_v2(const char *symbol, void **out, int version, u64 flags, int *status) { int code = address_of(symbol, out, version, flags); if (status) *status = code ? 1 : 0; return code; }
API int cuGetProcAddress(const char *symbol, void **out, int version, u64 flags) { return address_of(symbol, out, version, flags); }
#endif
