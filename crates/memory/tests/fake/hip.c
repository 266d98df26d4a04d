/* A pretend libamdhip64 on system memory, for tests.
 *
 * At compile time: -DDEVICES=n, -DVERSION=n, -DhipSomething=gone (that function is missing).
 * At run time: the knobs of knobs.h.
 *
 * Strict where a caller of ours could be wrong: no device chosen, memory that is not its
 * own. Streams run at once. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "knobs.h"

#ifndef DEVICES
#define DEVICES 2
#endif
#ifndef VERSION
#define VERSION 60200000
#endif
#ifndef TOTAL
#define TOTAL ((size_t)1 << 30)
#endif

enum { OK, INVALID_VALUE = 1, NO_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_HANDLE = 400 };

static size_t used[DEVICES + 1];
static __thread int current;

#define FN(name, params, ...)                                                              \
    int name params {                                                                      \
        int knob = enter(#name);                                                           \
        if (knob) return knob;                                                             \
        __VA_ARGS__                                                                        \
    }
#define CHECK(which) if (which < 0 || which >= DEVICES) return INVALID_DEVICE;

/* A block knows its size and whose it is. */
struct block { uint64_t magic; size_t size; int device; char pad[232]; };
#define MAGIC 0x48495020626c6f63ull
static struct block *block_of(void *p) {
    struct block *b = (struct block *)p - 1;
    return b->magic == MAGIC ? b : NULL;
}

FN(hipRuntimeGetVersion, (int *version), *version = VERSION; return OK;)
FN(hipGetDeviceCount, (int *count), *count = DEVICES; return DEVICES ? OK : NO_DEVICE;)
FN(hipSetDevice, (int device), CHECK(device) current = device; return OK;)
FN(hipDeviceGetName, (char *name, int room, int device),
   CHECK(device) strncpy(name, "Pretend Instinct", room); return OK;)
FN(hipDeviceTotalMem, (size_t *bytes, int device), CHECK(device) *bytes = TOTAL; return OK;)
FN(hipDeviceGetAttribute, (int *value, int which, int device),
   CHECK(device) if (which != 16) return INVALID_VALUE; *value = device == 1; return OK;)
FN(hipMemGetInfo, (size_t *free, size_t *total),
   pthread_mutex_lock(&lock); *free = TOTAL - used[current]; *total = TOTAL;
   pthread_mutex_unlock(&lock); return OK;)
FN(hipMalloc, (void **p, size_t size),
   pthread_mutex_lock(&lock);
   int fits = size <= TOTAL - used[current];
   if (fits) used[current] += size;
   pthread_mutex_unlock(&lock);
   if (!fits) return NO_MEMORY;
   struct block *b = aligned_alloc(256, (sizeof *b + size + 255) / 256 * 256);
   if (!b) return NO_MEMORY;
   b->magic = MAGIC, b->size = size, b->device = current;
   *p = b + 1; return OK;)
FN(hipFree, (void *p),
   struct block *b = block_of(p);
   if (!b) return INVALID_VALUE;
   pthread_mutex_lock(&lock); used[b->device] -= b->size; pthread_mutex_unlock(&lock);
   b->magic = 0; free(b); return OK;)
FN(hipMemcpyHtoD, (void *to, const void *from, size_t size), memcpy(to, from, size); return OK;)
FN(hipMemcpyDtoH, (void *to, void *from, size_t size), memcpy(to, from, size); return OK;)
FN(hipStreamCreateWithFlags, (void **s, unsigned flags), *s = malloc(8); return OK;)
FN(hipStreamDestroy, (void *s), free(s); return OK;)
FN(hipStreamSynchronize, (void *s), return OK;)
FN(hipStreamWaitEvent, (void *s, void *e, unsigned flags), return e ? OK : INVALID_HANDLE;)
FN(hipEventCreateWithFlags, (void **e, unsigned flags), *e = malloc(8); return OK;)
FN(hipEventDestroy, (void *e), free(e); return OK;)
FN(hipEventRecord, (void *e, void *s), return e ? OK : INVALID_HANDLE;)
FN(hipEventQuery, (void *e), return e ? OK : INVALID_HANDLE;)
FN(hipEventSynchronize, (void *e), return e ? OK : INVALID_HANDLE;)
const char *hipGetErrorName(int code) {
    return code == NO_MEMORY ? "hipErrorOutOfMemory" : code == 719 ? "hipErrorLaunchFailure" : NULL;
}
