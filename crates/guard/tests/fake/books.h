// The count of the simulated driver: what every process holds, in one file that all of them map
// (FAKE_CUDA_STATE). Nothing here depends on PIDs, which mean other processes in another namespace.
// A process has a page of the file for as long as it holds the lock of an open file description on
// one byte of it, through a mapping that a child of fork does not get: the kernel releases it with
// the memory of the process, at its end or at exec, and anybody can test it. With FAKE_FILES, the
// path of a device file that the driver opens, a child of fork keeps its parent's page as the real
// driver keeps the memory: it has the parent's files.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
enum { DEVICES = 4, PROCESSES = 4096, MIB = 1 << 20, PAGE = 4096 };
enum { FREE = 0, PROCESS, STRANGER };
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1 };

struct process { _Atomic int state; int pid; u64 used[DEVICES]; };
struct state {
    _Atomic u64 lock;             // who holds it: a ticket, and a place below; 0 for nobody
    _Atomic u64 next;             // the next address to hand out
    _Atomic u64 calls;            // allocation calls that reached the driver
    u64 most[DEVICES];            // the most that was ever held at once
    _Atomic u64 tickets;
    _Atomic int waiting;          // for the lock, and those that were killed as they did
    _Atomic int high;             // places that were ever in use
    struct process processes[PROCESSES];
};
static struct state *S;
static char books[512];
// Zeroed in a child of fork: the page's number, from 1, or 0 before there is one.
static struct { _Atomic int place, known; } *own;

static u64 number(const char *name, u64 otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, 0, 0) : otherwise;
}
static void wait_us(u64 us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    if (us) nanosleep(&t, 0);
}

static int open_books(void) { return *books ? open(books, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1; }

static void start(void) {
    if (S) return;
    const char *path = getenv("FAKE_CUDA_STATE");
    if (path) snprintf(books, sizeof books, "%s", path);
    int fd = open_books();
    if (path && (fd < 0 || ftruncate(fd, sizeof *S))) abort();
    int kind = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    own = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED || madvise(own, PAGE, MADV_WIPEONFORK)) abort();
    S = mmap(0, sizeof *S, PROT_READ | PROT_WRITE, kind, fd, 0);
    if (S == MAP_FAILED) abort();
    if (fd >= 0) close(fd);
}

enum { LOCKS = 1 << 30 };
static struct flock byte_of(int place) { return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCKS + place, .l_len = 1}; }
static int is_held(int fd, int place) {
    struct flock lock = byte_of(place);
    return fd < 0 || fcntl(fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

// The mapping that holds a page lies as high as possible: when a process ends, the kernel removes
// its mappings from below and their files from above, so that the driver's count is right before
// any other process can know of the end.
static void keep_file(int fd) {
    void *kept = MAP_FAILED;
    for (uintptr_t at = 0x7fffffffd000; sizeof at == 8 && kept == MAP_FAILED && at > 0x7ffffffa0000; at -= 16 * PAGE) {
        kept = mmap((void *)at, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
        if (kept != MAP_FAILED && kept != (void *)at) { munmap(kept, PAGE); kept = MAP_FAILED; }
    }
    if (kept == MAP_FAILED) kept = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    const char *files = getenv("FAKE_FILES");
    if (kept == MAP_FAILED || (files ? open(files, O_RDWR | O_CREAT | O_CLOEXEC, 0600) < 0 : madvise(kept, PAGE, MADV_DONTFORK))) abort();
    close(fd);
}

// A page that was swept, or was never used: it holds nothing.
static void take_place(void) {
    int fd = open_books();
    for (int i = 0; i < PROCESSES - 1; i++) {
        struct flock lock = byte_of(i);
        if (S->processes[i].state != FREE || (fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock))) continue;
        if (S->processes[i].state == FREE) {
            S->processes[i].pid = getpid();
            S->processes[i].state = PROCESS;
            int high = S->high;
            while (high <= i && !atomic_compare_exchange_weak(&S->high, &high, i + 1)) {}
            if (fd >= 0) keep_file(fd);
            own->place = i + 1;
            return;
        }
        lock.l_type = F_UNLCK;
        fcntl(fd, F_OFD_SETLK, &lock);
    }
    abort();
}
static struct process *mine(void) {
    start();
    if (!own->place) take_place();
    return &S->processes[own->place - 1];
}

// A waiting process sleeps soon: a real-time thread that spun would keep the holder from running.
// It wakes up now and then by itself, as a holder that was killed wakes nobody.
static void futex(int what, int value, const struct timespec *most) { syscall(SYS_futex, &S->lock, what, value, most, 0, 0); }
static void lock(void) {
    mine();
    u64 me = atomic_fetch_add(&S->tickets, 1) << 16 | (u64)own->place, holder = 0;
    for (int tries = 0; !atomic_compare_exchange_strong(&S->lock, &holder, me); tries++, holder = 0) {
        if (tries < 4) { sched_yield(); continue; }
        struct timespec some = {0, 50000000};
        S->waiting++;
        futex(FUTEX_WAIT, (int)holder, &some);
        S->waiting--;
        int fd = S->lock == holder ? open_books() : -1;
        if (fd >= 0 && !is_held(fd, (int)(holder & 0xffff) - 1)) atomic_compare_exchange_strong(&S->lock, &holder, 0);
        if (fd >= 0) close(fd);
    }
}
static void unlock(void) {
    atomic_store(&S->lock, 0);
    if (S->waiting) futex(FUTEX_WAKE, 1, 0);
}

// Frees the pages of dead processes; called under the lock.
static void sweep(void) {
    int fd = open_books();
    for (int i = 0; i < S->high; i++)
        if (S->processes[i].state == PROCESS && !is_held(fd, i)) {
            memset(S->processes[i].used, 0, sizeof S->processes[i].used);
            S->processes[i].state = FREE;
        }
    if (fd >= 0) close(fd);
}
static u64 sum(int device) {
    u64 sum = S->processes[PROCESSES - 1].used[device];
    for (int i = 0; i < S->high; i++) sum += S->processes[i].used[device];
    return sum;
}
static u64 in_use(int device) { sweep(); return sum(device); }
