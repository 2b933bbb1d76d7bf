/* Runs kernels of `einsmith_functions` (linked in) on the data of a job file, and writes the buffers back.

   The file is a list of words of 64 bits and of buffers' bytes: jobs; then per job: buffers, bytes of the workspace,
   launches; each launch's function, tasks and bytes of scratch; each buffer's size and bytes. Memory begins at
   multiples of 64 bytes and ends before a page that cannot be touched; what lies between is checked afterwards. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void (*kernel)(void **buffers, void *scratch, int64_t task);
extern const kernel einsmith_functions[];

struct area {
    uint8_t *at, *base;
    size_t size, room, mapped;
};

static FILE *source;

static int64_t word(void) {
    int64_t x;
    if (fread(&x, 8, 1, source) != 1) {
        fprintf(stderr, "the job file ends early\n");
        exit(3);
    }
    return x;
}

static struct area get(size_t size) {
    struct area a;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    a.size = size;
    a.room = (size + 63) / 64 * 64;
    a.mapped = (a.room + page - 1) / page * page + page;
    a.base = mmap(NULL, a.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a.base == MAP_FAILED || mprotect(a.base + a.mapped - page, page, PROT_NONE)) {
        perror("mmap");
        exit(3);
    }
    a.at = a.base + (a.mapped - page - a.room);
    memset(a.base, 0xA5, a.mapped - page);
    memset(a.at, 0xFF, size);
    return a;
}

static void give(struct area *a, const char *what, int64_t job, int64_t n) {
    uint8_t *p;
    for (p = a->base; p < a->at + a->room; p++)
        if ((p < a->at || p >= a->at + a->size) && *p != 0xA5) {
            fprintf(stderr, "job %ld wrote beside %s %ld, at byte %ld\n", (long)job, what, (long)n,
                    (long)(p - a->at));
            exit(4);
        }
    munmap(a->base, a->mapped);
}

int main(int argc, char **argv) {
    FILE *sink;
    int64_t jobs, job, n, task;
    if (argc != 3 || !(source = fopen(argv[1], "rb")) || !(sink = fopen(argv[2], "wb"))) {
        fprintf(stderr, "usage: main JOBS RESULTS\n");
        return 2;
    }
    jobs = word();
    for (job = 0; job < jobs; job++) {
        int64_t buffers = word(), workspace = word(), launches = word();
        int64_t *launch = malloc((size_t)(24 * launches + 1));
        struct area *areas = malloc(sizeof(struct area) * (size_t)(buffers + 1));
        void **pointers = malloc(sizeof(void *) * (size_t)(buffers + 1));
        for (n = 0; n < 3 * launches; n++)
            launch[n] = word();
        for (n = 0; n < buffers; n++) {
            size_t size = (size_t)word();
            areas[n] = get(size);
            if (size && fread(areas[n].at, 1, size, source) != size)
                return 3;
        }
        areas[buffers] = get((size_t)workspace);
        for (n = 0; n <= buffers; n++)
            pointers[n] = areas[n].at;
        for (n = 0; n < launches; n++)
            for (task = launch[3 * n + 1] - 1; task >= 0; task--) {
                struct area scratch = get((size_t)launch[3 * n + 2]);
                einsmith_functions[launch[3 * n]](pointers, scratch.at, task);
                give(&scratch, "the scratch of launch", job, n);
            }
        for (n = 0; n < buffers; n++)
            fwrite(areas[n].at, 1, areas[n].size, sink);
        for (n = 0; n <= buffers; n++)
            give(&areas[n], "buffer", job, n);
        free(launch);
        free(areas);
        free(pointers);
    }
    return fclose(sink) ? 3 : 0;
}
