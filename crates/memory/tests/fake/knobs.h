/* Knobs of a pretend driver: fake_fail(name, skip, times, code) makes calls of a function fail,
 * fake_calls(name) tells how many there were. The lock is the driver's own, too. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char name[48]; int skip, times, code; unsigned calls; } knobs[128];

static int knob_of(const char *name) {
    for (int i = 0; i < 128; i++) {
        if (!knobs[i].name[0]) strncpy(knobs[i].name, name, sizeof knobs[i].name - 1);
        if (!strcmp(knobs[i].name, name)) return i;
    }
    abort();
}

static int enter(const char *name) {
    pthread_mutex_lock(&lock);
    int i = knob_of(name), code = 0;
    knobs[i].calls++;
    if (knobs[i].times > 0 && knobs[i].skip-- <= 0) { knobs[i].times--; code = knobs[i].code; }
    pthread_mutex_unlock(&lock);
    return code;
}

void fake_fail(const char *name, int skip, int times, int code) {
    pthread_mutex_lock(&lock);
    int i = knob_of(name);
    knobs[i].skip = skip, knobs[i].times = times, knobs[i].code = code;
    pthread_mutex_unlock(&lock);
}

unsigned fake_calls(const char *name) {
    pthread_mutex_lock(&lock);
    unsigned calls = knobs[knob_of(name)].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}
