// A program that uses the simulated driver as a training run does: weights, then steps with
// activations that grow until one is refused, after which it goes on with less. Its functions are
// exported, so that call stacks name them (link with -rdynamic).
#include "driver.h"

static u64 weights[16], cache[16], activations[64];

static void rest(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, 0);
}

__attribute__((noinline)) int load_layer(u64 *to, size_t size) { return cuMemAlloc(to, size); }

__attribute__((noinline)) int load_weights(void) {
    int bad = 0;
    for (int n = 0; n < 16; n++) { bad += load_layer(&weights[n], 96 * MIB); rest(8); }
    return bad;
}

__attribute__((noinline)) int grow_cache(int n) { return cuMemAlloc(&cache[n], 32 * MIB); }

__attribute__((noinline)) int attention(int n, size_t size) { return cuMemAlloc(&activations[n], size); }

__attribute__((noinline)) int mlp(int n, size_t size) { return cuMemAlloc(&activations[n], 2 * size); }

__attribute__((noinline)) int forward(int layers, size_t size) {
    for (int n = 0; n < layers; n++) {
        if (attention(2 * n, size) || mlp(2 * n + 1, size)) return 2;
        rest(3);
    }
    return 0;
}

__attribute__((noinline)) void backward(int layers) {
    for (int n = 2 * layers - 1; n >= 0; n--) {
        if (activations[n]) cuMemFree(activations[n]);
        activations[n] = 0;
        if (n % 2) rest(2);
    }
}

__attribute__((noinline)) int train(void) {
    size_t size = 8 * MIB;
    int refused = 0;
    for (int step = 0; step < 10; step++) {
        if (step < 6) grow_cache(step);
        if (forward(12, size)) { refused++; size = 24 * MIB; } else if (step < 5) size += 8 * MIB;
        backward(12);
        rest(5);
    }
    return refused;
}

int main(void) {
    open_device(0);
    int bad = load_weights(), refused = train();
    printf("weights %d refused %d\n", bad, refused);
    return 0;
}
