// How a program reaches the simulated driver: WAY chooses the way, or it is linked when compiled
// with LINKED.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef void *handle;
struct shape { size_t width, height; int format; unsigned channels; };
struct shape3 { size_t width, height, depth; int format; unsigned channels, flags; };
struct properties { int type, handles, location, device; u64 rest[10]; };
struct node_params { struct properties pool; void *access; size_t count, bytes; u64 pointer; };
#define MIB ((size_t)1 << 20)

#define FUNCTIONS(F) \
    F(cuInit, , (unsigned)) \
    F(cuDevicePrimaryCtxRetain, , (handle *, int)) F(cuDevicePrimaryCtxRelease, _v2, (int)) F(cuDevicePrimaryCtxReset, _v2, (int)) \
    F(cuCtxSetCurrent, , (handle)) F(cuCtxCreate, _v2, (handle *, unsigned, int)) F(cuCtxDestroy, _v2, (handle)) \
    F(cuMemGetInfo, _v2, (size_t *, size_t *)) F(cuDeviceTotalMem, _v2, (size_t *, int)) \
    F(cuMemAlloc, _v2, (u64 *, size_t)) F(cuMemFree, _v2, (u64)) F(cuMemAllocManaged, , (u64 *, size_t, unsigned)) \
    F(cuMemAllocPitch, _v2, (u64 *, size_t *, size_t, size_t, unsigned)) \
    F(cuArrayCreate, _v2, (handle *, const struct shape *)) F(cuArray3DCreate, _v2, (handle *, const struct shape3 *)) F(cuArrayDestroy, , (handle)) \
    F(cuMipmappedArrayCreate, , (handle *, const struct shape3 *, unsigned)) F(cuMipmappedArrayDestroy, , (handle)) \
    F(cuMemCreate, , (u64 *, size_t, const struct properties *, u64)) F(cuMemRelease, , (u64)) \
    F(cuMemMap, , (u64, size_t, size_t, u64, u64)) F(cuMemUnmap, , (u64, size_t)) F(cuMemRetainAllocationHandle, , (u64 *, u64)) \
    F(cuMemImportFromShareableHandle, , (u64 *, void *, int)) F(cuIpcOpenMemHandle, _v2, (u64 *, u64, unsigned)) F(cuIpcCloseMemHandle, , (u64)) \
    F(cuMemAllocAsync, , (u64 *, size_t, handle)) F(cuMemAllocFromPoolAsync, , (u64 *, size_t, handle, handle)) F(cuMemFreeAsync, , (u64, handle)) \
    F(cuMemPoolCreate, , (handle *, const struct properties *)) F(cuMemPoolDestroy, , (handle)) F(cuMemPoolTrimTo, , (handle, size_t)) \
    F(cuStreamSynchronize, , (handle)) F(cuStreamBeginCapture, _v2, (handle, int)) F(cuStreamEndCapture, , (handle, handle *)) \
    F(cuGraphCreate, , (handle *, unsigned)) F(cuGraphAddMemAllocNode, , (handle *, handle, const handle *, size_t, struct node_params *)) \
    F(cuGraphInstantiate, WithFlags, (handle *, handle, u64)) F(cuGraphLaunch, , (handle, handle)) F(cuGraphExecDestroy, , (handle)) F(cuDeviceGraphMemTrim, , (int)) \
    F(cuMemHostAlloc, , (void **, size_t, unsigned)) F(cuMemAllocHost, _v2, (void **, size_t)) F(cuMemFreeHost, , (void *)) \
    F(cuMemHostRegister, _v2, (void *, size_t, unsigned)) F(cuMemHostUnregister, , (void *)) \
    F(cuModuleLoadData, , (handle *, const void *)) F(cuModuleUnload, , (handle)) \
    F(cuLaunchKernel, , (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **))

#ifdef LINKED
#define DECLARE(name, end, args) int linked_##name args __asm__(#name #end);
#define POINT(name, end, args) static int(*name) args __asm__("pointer_" #name);
#define FIND(name, end, args) name = linked_##name;
FUNCTIONS(DECLARE)
#else
#define POINT(name, end, args) static int(*name) args;
#define FIND(name, end, args) *(void **)&name = find(#name, #name #end);
#endif
FUNCTIONS(POINT)

#ifndef LINKED
static void *find(const char *base, const char *name) {
    static void *library;
    const char *way = getenv("WAY");
#ifdef __GLIBC__
    // Into a link namespace of its own, where no preloaded library is.
    if (!library && !strcmp(way, "dlmopen")) library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    // A library that finds functions in its own dependencies first.
    if (!library && !strcmp(way, "deepbind")) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
#endif
    // The loader's own function, from a handle of its library.
    void *(*raw)(void *, const char *) = 0;
    if (!strcmp(way, "libc")) raw = dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW | (!strcmp(way, "default") ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!library) { printf("no driver: %s\n", dlerror()); exit(9); }
    void *found = 0;
    u64 flags = !strcmp(way, "thread") ? 2 : 0;
    dlerror();
    if (raw) found = raw(library, name);
    else if (!strcmp(way, "dlsym") || !strcmp(way, "dlmopen") || !strcmp(way, "deepbind")) found = dlsym(library, name);
#ifdef __GLIBC__
    else if (!strcmp(way, "dlvsym")) found = dlvsym(library, name, "FAKE_1");
#endif
    else if (!strcmp(way, "default")) found = dlsym(RTLD_DEFAULT, name);
    else if (!strcmp(way, "old")) {
        int (*get)(const char *, void **, int, u64) = dlsym(library, "cuGetProcAddress");
        get(base, &found, 11080, flags);
    } else {
        // As the CUDA runtime does: the second version, which it looks up by itself.
        int (*get)(const char *, void **, int, u64, int *) = dlsym(library, "cuGetProcAddress_v2");
        int (*again)(const char *, void **, int, u64, int *) = 0;
        get("cuGetProcAddress", (void **)&again, 12000, flags, 0);
        again(base, &found, 12040, flags, 0);
    }
    if (!found || dlerror()) { printf("cannot find %s\n", name); exit(9); }
    return found;
}
#endif

static void open_device(int device) {
    handle context = 0;
    FUNCTIONS(FIND)
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, device)) { printf("no context\n"); exit(9); }
    cuCtxSetCurrent(context);
}

static size_t left(void) { size_t free_bytes = 0; cuMemGetInfo(&free_bytes, 0); return free_bytes / MIB; }
