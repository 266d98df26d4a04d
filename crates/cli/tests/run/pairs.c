/* Allocates and frees as often as its argument says. */
#include <dlfcn.h>
#include <stdlib.h>
int main(int count, char **words) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = 0;
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*take)(unsigned long long *, unsigned long) = dlsym(driver, "cuMemAlloc_v2");
    int (*give)(unsigned long long) = dlsym(driver, "cuMemFree_v2");
    if (init(0) || retain(&context, 0) || set(context)) return 9;
    for (int left = atoi(words[1]); left; left--) {
        unsigned long long at = 0;
        if (take(&at, 1 << 20) || give(at)) return 8;
    }
    return 0;
}
