/* A library in the place of NVIDIA's: three GPUs, of which the first tells everything, the
 * second shares the system's memory and tells little, and the third has fallen off its bus.
 * The layouts are those of nvml.h: structures that carry a version are refused with another. */
#include <stdint.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, SMALL = 7, LOST = 15, MISMATCH = 25 };
typedef struct gpu *handle;

struct memory2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned instance, compute; };
struct use { unsigned gpu, memory; };

static unsigned at(handle gpu) { return (unsigned)(uintptr_t)gpu - 1; }
static int of_first(handle gpu, unsigned *out, unsigned value) {
    if (at(gpu) != 0) return NOT_SUPPORTED;
    *out = value;
    return OK;
}

API int nvmlInit_v2(void) { return OK; }
API int nvmlShutdown(void) { return OK; }
API const char *nvmlErrorString(int code) { (void)code; return "a fault"; }
API int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return OK; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *out) {
    if (index == 2) return LOST;
    *out = (handle)(uintptr_t)(index + 1);
    return index < 2 ? OK : INVALID;
}
API int nvmlDeviceGetName(handle gpu, char *name, unsigned size) {
    if (size < 32) return SMALL;
    strcpy(name, at(gpu) == 0 ? "NVIDIA Pretend 80GB" : "NVIDIA Thor");
    return OK;
}
API int nvmlDeviceGetMemoryInfo_v2(handle gpu, struct memory2 *info) {
    if (info->version != (sizeof *info | 2u << 24)) return MISMATCH;
    if (at(gpu) != 0) return NOT_SUPPORTED;
    unsigned long long gib = 1ull << 30;
    info->total = 80 * gib;
    info->reserved = gib / 2;
    info->used = 20 * gib;
    info->free = info->total - info->reserved - info->used;
    return OK;
}
/* What a busy driver does, where it is asked for. */
API int nvmlDeviceGetUtilizationRates(handle gpu, struct use *out) {
    const char *delay = getenv("FAKE_NVML_DELAY_MS");
    if (at(gpu) == 0 && delay) usleep(1000 * (unsigned)atoi(delay));
    if (at(gpu) != 0) return NOT_SUPPORTED;
    *out = (struct use){ 97, 41 };
    return OK;
}
/* Graphics, SM, memory, video. */
API int nvmlDeviceGetClockInfo(handle gpu, int kind, unsigned *mhz) {
    unsigned clocks[] = { 1700, 1755, 2619, 1500 };
    if (at(gpu) == 1) { *mhz = 1575; return kind == 1 ? OK : NOT_SUPPORTED; }
    return of_first(gpu, mhz, clocks[kind & 3]);
}
API int nvmlDeviceGetMaxClockInfo(handle gpu, int kind, unsigned *mhz) {
    return of_first(gpu, mhz, kind == 1 ? 1980 : 2619);
}
API int nvmlDeviceGetPowerUsage(handle gpu, unsigned *mw) { return of_first(gpu, mw, 412345); }
API int nvmlDeviceGetEnforcedPowerLimit(handle gpu, unsigned *mw) { return of_first(gpu, mw, 700000); }
API int nvmlDeviceGetTemperature(handle gpu, int sensor, unsigned *celsius) {
    return sensor == 0 ? of_first(gpu, celsius, 64) : INVALID;
}
/* Idle and set clocks hold nothing down; a power cap does, and so does a reason of a future driver. */
API int nvmlDeviceGetCurrentClocksThrottleReasons(handle gpu, unsigned long long *reasons) {
    if (at(gpu) != 0) return NOT_SUPPORTED;
    *reasons = 1ull | 2ull | 4ull | 0x40ull | 1ull << 40;
    return OK;
}
static int list(unsigned *count, struct process *out, const struct process *known, unsigned n) {
    unsigned room = *count;
    *count = n;
    if (room < n) return SMALL;
    memcpy(out, known, n * sizeof *known);
    return OK;
}
/* The process that asks, with its memory, and one whose memory the driver does not tell. */
API int nvmlDeviceGetComputeRunningProcesses_v3(handle gpu, unsigned *count, struct process *out) {
    const char *own = getenv("FAKE_NVML_PID");
    struct process all[] = {
        { own ? (unsigned)atoi(own) : 1, 19ull << 30, ~0u, ~0u },
        { 4194000, ~0ull, ~0u, ~0u },
    };
    return list(count, out, all, at(gpu) == 0 ? 2 : 1);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(handle gpu, unsigned *count, struct process *out) {
    if (at(gpu) != 0) return NOT_SUPPORTED;
    const char *own = getenv("FAKE_NVML_PID");
    struct process all[] = { { own ? (unsigned)atoi(own) : 1, 19ull << 30, ~0u, ~0u } };
    return list(count, out, all, 1);
}
