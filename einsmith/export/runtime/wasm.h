/* The system under the run time of a module of WebAssembly: there is none. Memory grows and is never given back, as a
   module makes one model; there are no files, and the only thread is the caller's. */
#include <stddef.h>
#include <stdint.h>

#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define isnan(x) __builtin_isnan(x)

typedef int pthread_mutex_t, pthread_t, sigset_t, pid_t;
enum { SIG_SETMASK, _SC_NPROCESSORS_ONLN };
#define pthread_mutex_init(lock, kind) ((void)(lock), 0)
#define pthread_mutex_lock(lock) ((void)(lock))
#define pthread_mutex_unlock(lock) ((void)(lock))
#define pthread_mutex_destroy(lock) ((void)(lock))
#define pthread_create(thread, kind, function, argument) ((void)(function), (void)(argument), *(thread) = 1)
#define pthread_join(thread, result) ((void)(thread))
#define pthread_sigmask(how, set, before) ((void)(set), (void)(before))
#define sigfillset(set) ((void)(set))
#define sysconf(name) 1L
#define getpid() 0

extern unsigned char __heap_base; /* the linker's: where free memory begins */

static void *allocate(size_t bytes) {
    static uintptr_t end;
    const uintptr_t start = ((end ? end : (uintptr_t)&__heap_base) + 63) & ~(uintptr_t)63;
    const uintptr_t has = __builtin_wasm_memory_size(0) << 16;
    if (bytes > UINTPTR_MAX - 65535 - start)
        return NULL;
    if (start + bytes > has && __builtin_wasm_memory_grow(0, (start + bytes - has + 65535) >> 16) == SIZE_MAX)
        return NULL;
    end = start + bytes;
    return (void *)start;
}

static int posix_memalign(void **place, size_t alignment, size_t bytes) {
    (void)alignment;
    *place = allocate(bytes);
    return !*place;
}

/* Memory that is new is zero. */
static void *calloc(size_t count, size_t bytes) {
    return bytes && count > SIZE_MAX / bytes ? NULL : allocate(count * bytes);
}

static void free(void *place) {
    (void)place;
}

static int strcmp(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *(const unsigned char *)a - *(const unsigned char *)b;
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    unsigned char *t = to;
    const unsigned char *f = from;
    while (bytes--)
        *t++ = *f++;
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    unsigned char *t = to;
    while (bytes--)
        *t++ = (unsigned char)value;
    return to;
}
