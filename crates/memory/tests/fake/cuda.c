/* A driver for tests: a front with knobs, and behind it either an emulation on system
 * memory or, with -DREAL, NVIDIA's own driver. The same tests run on both.
 *
 * At compile time: -DDEVICES=n, -DVERSION=n, -DcuSomething=gone (that function is missing);
 * -DIMAGE='"sm_90"': only code with that word in it is loaded, and it has functions of every
 * name, which do nothing.
 * At run time: the knobs of knobs.h.
 *
 * The emulation is strict where a caller of ours could be wrong: no current context, sizes
 * that are no multiple of a page, memory that is still mapped. Streams run at once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "knobs.h"

#ifndef DEVICES
#define DEVICES 2
#endif
#ifndef VERSION
#define VERSION 12080
#endif
#ifndef TOTAL
#define TOTAL ((size_t)1 << 30)
#endif
#ifdef IMAGE
enum { idle = 1 };
#else
enum { idle = 0 };
#define IMAGE ".version"
#endif
#define IDLE 99
/* The last kernel of hard voxels: it tells that there are three. */
#define HARD_FILL 98
#define PAGE ((size_t)2 << 20)

typedef unsigned long long u64;
enum { OK, INVALID_VALUE = 1, NO_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, NO_BINARY = 209, NOT_FOUND = 500, NOT_SUPPORTED = 801,
       CAPTURE_UNSUPPORTED = 900 };

struct graph;

#ifdef REAL
static void *real(const char *name) {
    static void *library;
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) abort();
    return found;
}
#define FN(name, params, args, ...)                                                        \
    int name params {                                                                      \
        int knob = enter(#name);                                                           \
        return knob ? knob : ((int(*) params)real(#name)) args;                            \
    }
#else
#define FN(name, params, args, ...)                                                        \
    int name params {                                                                      \
        int knob = enter(#name);                                                           \
        if (knob) return knob;                                                             \
        __VA_ARGS__                                                                        \
    }
#endif

/* The version and the count are knobs on the real driver, too. */
int cuDriverGetVersion(int *version) { return *version = VERSION, enter("cuDriverGetVersion"); }

#if DEVICES == 0
int cuInit(unsigned flags) { return (void)flags, NO_DEVICE; }
#else
FN(cuInit, (unsigned flags), (flags), return flags ? INVALID_VALUE : OK;)
#endif

#ifndef REAL
static size_t used[DEVICES + 1];
static __thread long stack[8];
static __thread int depth;
static int retained[DEVICES + 1];
#define CURRENT (depth ? stack[depth - 1] : 0)
#define NEED_CONTEXT if (!CURRENT) return INVALID_CONTEXT;

static int take(int device, size_t size) {
    pthread_mutex_lock(&lock);
    int ok = size <= TOTAL - used[device];
    if (ok) used[device] += size;
    pthread_mutex_unlock(&lock);
    return ok;
}
static void give(int device, size_t size) {
    pthread_mutex_lock(&lock);
    used[device] -= size;
    pthread_mutex_unlock(&lock);
}

/* Handles: memory files, so that contents belong to physical memory. */
#define HANDLES 65536
/* mapped: at how many addresses. */
static struct { int fd, device; size_t size; unsigned mapped; } handles[HANDLES];
static struct { u64 address, handle; size_t size; } maps[HANDLES];

static u64 new_handle(int fd, int device, size_t size) {
    pthread_mutex_lock(&lock);
    u64 i = 1;
    while (handles[i].size) i++;
    handles[i].fd = fd, handles[i].device = device, handles[i].size = size, handles[i].mapped = 0;
    pthread_mutex_unlock(&lock);
    return i;
}

/* Code: a few functions are known by name. */
struct launch { long function; u64 args[6]; };
static struct graph { struct launch launches[64]; int count; } *capturing;
static long capturing_stream;
static const char *functions[] = { "fill", "check", "hold", "touch", NULL };

static void run(struct launch *l) {
    uint32_t *p = (uint32_t *)l->args[0], n = l->args[1], value = l->args[2];
    uint32_t *errors = (uint32_t *)l->args[3];
    if (l->function == 4) {
        for (uint32_t i = 0; i < n; i++) *(uint32_t *)(l->args[0] + (u64)i * value) = i;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (l->function == 1) p[i] = value;
        else if (p[i] != value) __atomic_fetch_add(errors, 1, __ATOMIC_RELAXED);
    }
}
#endif

FN(cuGetErrorName, (int code, const char **text), (code, text),
   *text = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL; return *text ? OK : 1;)
FN(cuGetErrorString, (int code, const char **text), (code, text),
   *text = code == NO_MEMORY ? "out of memory" : NULL; return *text ? OK : 1;)
FN(cuDeviceGetCount, (int *count), (count), *count = DEVICES; return OK;)
FN(cuDeviceGet, (int *device, int number), (device, number),
   if (number < 0 || number >= DEVICES) return INVALID_DEVICE; *device = number; return OK;)
FN(cuDeviceGetName, (char *name, int length, int device), (name, length, device),
   (void)device; strncpy(name, "Fake", length); return OK;)
FN(cuDeviceGetPCIBusId, (char *id, int length, int device), (id, length, device),
   (void)device; strncpy(id, "0000:01:00.0", length); return OK;)
FN(cuDeviceTotalMem_v2, (size_t *size, int device), (size, device),
   (void)device; *size = TOTAL; return OK;)
FN(cuDeviceGetAttribute, (int *value, int which, int device), (value, which, device),
   (void)device;
   switch (which) {
   case 16: *value = 4; return OK;
   case 18: *value = 0; return OK;
   case 75: *value = 9; return OK;
   case 76: *value = 0; return OK;
   case 102: *value = 1; return OK;
   default: return INVALID_VALUE;
   })
FN(cuDevicePrimaryCtxRetain, (long *context, int device), (context, device),
   __atomic_fetch_add(&retained[device], 1, __ATOMIC_RELAXED); *context = device + 1;
   return OK;)
FN(cuDevicePrimaryCtxRelease_v2, (int device), (device),
   return __atomic_fetch_sub(&retained[device], 1, __ATOMIC_RELAXED) > 0 ? OK
                                                                         : INVALID_CONTEXT;)
FN(cuCtxGetCurrent, (long *context), (context), *context = CURRENT; return OK;)
FN(cuCtxPushCurrent_v2, (long context), (context),
   if (depth == 8) return NO_MEMORY; stack[depth++] = context; return OK;)
FN(cuCtxPopCurrent_v2, (long *context), (context),
   NEED_CONTEXT *context = stack[--depth]; return OK;)
FN(cuCtxGetDevice, (int *device), (device), NEED_CONTEXT *device = CURRENT - 1; return OK;)
FN(cuMemGetInfo_v2, (size_t *free, size_t *total), (free, total),
   NEED_CONTEXT *total = TOTAL; *free = TOTAL - used[CURRENT - 1]; return OK;)

/* A plain block has its size and device before it. */
#ifndef REAL
static int plain(u64 *address, size_t size) {
    if (!size) return INVALID_VALUE;
    int device = CURRENT - 1;
    if (!take(device, size)) return NO_MEMORY;
    size_t *base =
        mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return give(device, size), NO_MEMORY;
    base[0] = size, base[1] = device;
    *address = (u64)base + 4096;
    return OK;
}
static int unplain(u64 address) {
    if (!address || address % 4096) return INVALID_VALUE;
    size_t *base = (size_t *)(address - 4096);
    give(base[1], base[0]);
    return munmap(base, base[0] + 4096) ? INVALID_VALUE : OK;
}
#endif
FN(cuMemAlloc_v2, (u64 *address, size_t size), (address, size),
   NEED_CONTEXT return plain(address, size);)
FN(cuMemFree_v2, (u64 address), (address), NEED_CONTEXT return unplain(address);)
FN(cuMemHostAlloc, (void **pointer, size_t size, unsigned flags), (pointer, size, flags),
   (void)flags; NEED_CONTEXT return plain((u64 *)pointer, size);)
FN(cuMemFreeHost, (void *pointer), (pointer), NEED_CONTEXT return unplain((u64)pointer);)
FN(cuMemAllocManaged, (u64 *address, size_t size, unsigned flags), (address, size, flags),
   NEED_CONTEXT return flags == 1 ? plain(address, size) : INVALID_VALUE;)
FN(cuMemcpyHtoD_v2, (u64 to, const void *from, size_t size), (to, from, size),
   NEED_CONTEXT memcpy((void *)to, from, size); return OK;)
FN(cuMemcpyDtoH_v2, (void *to, u64 from, size_t size), (to, from, size),
   NEED_CONTEXT memcpy(to, (void *)from, size); return OK;)
FN(cuMemcpyHtoDAsync_v2, (u64 to, const void *from, size_t size, long stream),
   (to, from, size, stream),
   (void)stream; NEED_CONTEXT memcpy((void *)to, from, size); return OK;)
FN(cuMemcpyDtoHAsync_v2, (void *to, u64 from, size_t size, long stream),
   (to, from, size, stream),
   (void)stream; NEED_CONTEXT memcpy(to, (void *)from, size); return OK;)
FN(cuMemcpyDtoDAsync_v2, (u64 to, u64 from, size_t size, long stream), (to, from, size, stream),
   (void)stream; NEED_CONTEXT memmove((void *)to, (void *)from, size); return OK;)
FN(cuMemsetD8Async, (u64 to, unsigned char byte, size_t size, long stream),
   (to, byte, size, stream),
   (void)stream; NEED_CONTEXT memset((void *)to, byte, size); return OK;)

FN(cuMemGetAllocationGranularity, (size_t *size, const int *prop, int option),
   (size, prop, option), (void)prop; (void)option; *size = PAGE; return OK;)
FN(cuMemAddressReserve, (u64 *address, size_t size, size_t alignment, u64 at, u64 flags),
   (address, size, alignment, at, flags),
   (void)alignment; (void)at; (void)flags;
   if (!size || size % PAGE) return INVALID_VALUE;
   void *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
   if (base == MAP_FAILED) return NO_MEMORY;
   *address = (u64)base; return OK;)
FN(cuMemAddressFree, (u64 address, size_t size), (address, size),
   return munmap((void *)address, size) ? INVALID_VALUE : OK;)
FN(cuMemCreate, (u64 *handle, size_t size, const int *prop, u64 flags),
   (handle, size, prop, flags),
   (void)flags;
   int device = prop[3];
   if (!size || size % PAGE || prop[2] != 1) return INVALID_VALUE;
   if (!take(device, size)) return NO_MEMORY;
   int fd = memfd_create("page", 0);
   if (fd < 0 || ftruncate(fd, size)) return give(device, size), NO_MEMORY;
   *handle = new_handle(fd, device, size); return OK;)
FN(cuMemRelease, (u64 handle), (handle),
   if (!handle || handle >= HANDLES || !handles[handle].size || handles[handle].mapped)
       return INVALID_VALUE;
   give(handles[handle].device, handles[handle].size); close(handles[handle].fd);
   handles[handle].size = 0; return OK;)
FN(cuMemMap, (u64 address, size_t size, size_t offset, u64 handle, u64 flags),
   (address, size, offset, handle, flags),
   (void)flags;
   if (handle >= HANDLES || handles[handle].size != size || offset) return INVALID_VALUE;
   if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handles[handle].fd, 0)
       == MAP_FAILED) return INVALID_VALUE;
   pthread_mutex_lock(&lock);
   u64 i = 0;
   while (maps[i].size) i++;
   maps[i].address = address, maps[i].handle = handle, maps[i].size = size;
   handles[handle].mapped++;
   pthread_mutex_unlock(&lock);
   return OK;)
FN(cuMemSetAccess, (u64 address, size_t size, const int *access, size_t count),
   (address, size, access, count),
   if (count != 1 || access[0] != 1 || access[2] != 3) return INVALID_VALUE;
   return mprotect((void *)address, size, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK;)
FN(cuMemUnmap, (u64 address, size_t size), (address, size),
   pthread_mutex_lock(&lock);
   u64 i = 0;
   while (i < HANDLES && (maps[i].address != address || maps[i].size != size)) i++;
   if (i < HANDLES) handles[maps[i].handle].mapped--, maps[i].size = 0;
   pthread_mutex_unlock(&lock);
   if (i == HANDLES) return INVALID_VALUE;
   return mmap((void *)address, size, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED
              ? INVALID_VALUE : OK;)
FN(cuMemExportToShareableHandle, (void *out, u64 handle, int type, u64 flags),
   (out, handle, type, flags),
   (void)flags;
   if (type != 1 || handle >= HANDLES || !handles[handle].size) return INVALID_VALUE;
   *(int *)out = dup(handles[handle].fd); return OK;)
FN(cuMemImportFromShareableHandle, (u64 *handle, void *in, int type), (handle, in, type),
   off_t size = lseek((int)(long)in, 0, SEEK_END);
   if (type != 1 || size <= 0) return INVALID_VALUE;
   if (!take(0, size)) return NO_MEMORY;
   *handle = new_handle(dup((int)(long)in), 0, size); return OK;)

FN(cuStreamCreate, (long *stream, unsigned flags), (stream, flags),
   (void)flags; NEED_CONTEXT static long next = 0x1000;
   *stream = __atomic_fetch_add(&next, 16, __ATOMIC_RELAXED); return OK;)
FN(cuStreamDestroy_v2, (long stream), (stream), NEED_CONTEXT return stream ? OK : INVALID_VALUE;)
FN(cuStreamSynchronize, (long stream), (stream),
   NEED_CONTEXT return capturing && stream == capturing_stream ? CAPTURE_UNSUPPORTED : OK;)
FN(cuStreamWaitEvent, (long stream, long event, unsigned flags), (stream, event, flags),
   (void)stream; (void)flags; return event ? OK : INVALID_VALUE;)
FN(cuEventCreate, (long *event, unsigned flags), (event, flags),
   (void)flags; NEED_CONTEXT static long next = 0x2000;
   *event = __atomic_fetch_add(&next, 16, __ATOMIC_RELAXED); return OK;)
FN(cuEventDestroy_v2, (long event), (event), return event ? OK : INVALID_VALUE;)
FN(cuEventRecord, (long event, long stream), (event, stream),
   (void)stream; NEED_CONTEXT return event ? OK : INVALID_VALUE;)
FN(cuEventQuery, (long event), (event), return event ? OK : INVALID_VALUE;)
FN(cuEventSynchronize, (long event), (event), return event ? OK : INVALID_VALUE;)

FN(cuModuleLoadData, (long *module, const char *image), (module, image),
   NEED_CONTEXT if (!strstr(image, IMAGE)) return NO_BINARY; *module = 0x3000;
   return OK;)
FN(cuModuleUnload, (long module), (module), return module ? OK : INVALID_VALUE;)
FN(cuModuleGetFunction, (long *function, long module, const char *name),
   (function, module, name),
   (void)module;
   for (int i = 0; functions[i]; i++)
       if (!strcmp(functions[i], name)) { *function = i + 1; return OK; }
   *function = strcmp(name, "hard_fill") ? IDLE : HARD_FILL; return idle ? OK : NOT_FOUND;)
FN(cuLaunchKernel,
   (long f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, long stream, void **args, void **extra),
   (f, gx, gy, gz, bx, by, bz, shared, stream, args, extra),
   (void)gy; (void)gz; (void)by; (void)bz; (void)shared; (void)extra;
   NEED_CONTEXT if (!f || !gx || !bx) return INVALID_VALUE;
   if (f == HARD_FILL) (*(uint32_t **)args[30])[1] = 3;
   if (f == IDLE || f == HARD_FILL) return OK;
   struct launch l = { f, { *(u64 *)args[0], *(uint32_t *)args[1], *(uint32_t *)args[2],
                            f == 1 || f == 4 ? 0 : *(u64 *)args[3] } };
   if (capturing && stream == capturing_stream) capturing->launches[capturing->count++] = l;
   else run(&l);
   return OK;)
struct config { unsigned grid[3], block[3], shared; long stream; void *attributes; unsigned count; };
FN(cuLaunchKernelEx, (const struct config *config, long f, void **args, void **extra),
   (config, f, args, extra),
   (void)extra; NEED_CONTEXT if (!f || !config->grid[0] || !config->block[0]) return INVALID_VALUE;
   if (f == HARD_FILL) (*(uint32_t **)args[30])[1] = 3;
   return f == IDLE || f == HARD_FILL ? OK : NOT_SUPPORTED;)
FN(cuStreamBeginCapture_v2, (long stream, int mode), (stream, mode),
   (void)mode; if (!stream) return CAPTURE_UNSUPPORTED;
   if (capturing) return INVALID_VALUE;
   capturing = calloc(1, sizeof *capturing); capturing_stream = stream; return OK;)
FN(cuStreamEndCapture, (long stream, struct graph **graph), (stream, graph),
   if (!capturing || stream != capturing_stream) return INVALID_VALUE;
   *graph = capturing; capturing = NULL; return OK;)
FN(cuGraphInstantiateWithFlags, (struct graph **exec, struct graph *graph, u64 flags),
   (exec, graph, flags),
   (void)flags; *exec = malloc(sizeof *graph); **exec = *graph; return OK;)
FN(cuGraphLaunch, (struct graph *exec, long stream), (exec, stream),
   (void)stream; for (int i = 0; i < exec->count; i++) run(&exec->launches[i]); return OK;)
FN(cuGraphExecDestroy, (struct graph *exec), (exec), free(exec); return OK;)
FN(cuGraphDestroy, (struct graph *graph), (graph), free(graph); return OK;)
