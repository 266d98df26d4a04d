/* A compiler for tests: its code is the name of the device that it was to be compiled for. */
#include <stdlib.h>
#include <string.h>

int nvrtcCreateProgram(char **program, const char *source, const char *name, int count,
                       const char *const *headers, const char *const *names) {
    *program = calloc(1, 64);
    return 0;
}
int nvrtcCompileProgram(char *program, int count, const char *const *options) {
    const char *target = strchr(options[0], '=');
    strcpy(program, "code for ");
    strncat(program, target ? target + 1 : "?", 32);
    return 0;
}
int nvrtcDestroyProgram(char **program) { return free(*program), 0; }
int nvrtcGetPTXSize(char *program, size_t *size) { return *size = strlen(program) + 1, 0; }
int nvrtcGetPTX(char *program, char *to) { return strcpy(to, program), 0; }
int nvrtcGetCUBINSize(char *program, size_t *size) { return nvrtcGetPTXSize(program, size); }
int nvrtcGetCUBIN(char *program, char *to) { return nvrtcGetPTX(program, to); }
int nvrtcGetProgramLogSize(char *program, size_t *size) { return *size = 1, 0; }
int nvrtcGetProgramLog(char *program, char *to) { return *to = 0; }
const char *nvrtcGetErrorString(int code) { return "wrong"; }
