/* The runtime of an exported library: memory, threads, files, and the bookkeeping of a training step. The data of the
   library (`struct library` and what it points to) and its public functions follow in the same file. */

enum {
    OK, NOT_FINITE, NO_MEMORY, NO_THREADS, UNREADABLE, UNWRITABLE, FOREIGN_FILE, SCHEDULE_ENDED, UNKNOWN_NAME,
    BAD_NUMBER,
    LACKING = 1000,  /* + the number of a feature that the processor lacks */
    VIOLATED = 2000, /* + the number of a check of the data that failed */
    MISSING = 10000  /* + the number of a tensor that a file lacks */
};

/* Regions of memory to which words of a program's table point: see `place`. Tensors follow, a region each. */
enum { TABLE, FUNCTIONS, SPARE, ARENA, CONSTANTS, RESULTS, TENSORS };

/* A word of a table that holds an offset into a region; the region's address is added to the word. */
struct relocation {
    uint32_t word, region;
};

/* A word of a table that becomes the address of an argument plus `offset` bytes. */
struct patch {
    uint32_t word, argument;
    uint64_t offset;
};

/* The place of a result: in a region, or in argument -1 - `region` if `region` is negative. */
struct result {
    int32_t region;
    uint64_t offset, bytes;
};

enum { COUNT, UPDATES, SETTING, DRAW, WEIGHT, BEGINS, SAMPLES };

/* A number that is set before each training step. `which`: the index of the setting (SETTING) or the parameter group
   (UPDATES). */
struct number {
    int32_t kind, which, region;
};

struct program {
    const uint64_t *words;
    size_t size; /* in words */
    uint64_t steps;
    const struct relocation *relocations;
    size_t relocated;
    const struct patch *patches;
    size_t patched;
    const struct result *results;
    size_t outputs;
    uint64_t scratch, stride; /* bytes: start of scratch in the arena, distance between threads */
    const int32_t *groups;    /* the groups of the updated parameters */
    size_t updated;
    int64_t samples;
};

/* A tensor that lives as long as the model. Its text in a file's header is `entry`, then `place`; NULL if the tensor is
   in no file. */
struct tensor {
    const char *name, *entry, *place, *missing;
    size_t bytes;
};

/* A setting of the optimizer or of the step. `table`: the values at the steps 1 .. count, if it is scheduled. */
struct setting {
    const char *name;
    const double *table;
    int64_t count;
};

/* A feature that a processor may lack. On x86-64 `place` is EAX, EBX, ECX or EDX of a leaf of CPUID, or SAVED, which tests
   whether the system saves the registers whose bits in XCR0 are those of `leaf`. On AArch64 `leaf` is a key of the auxiliary vector. */
struct feature {
    const char *missing;
    uint32_t leaf, subleaf, place, bit;
};

enum { SAVED = 4 };

struct library {
    const struct feature *features;
    size_t featured;
    const char *const *violations;
    size_t checks;
    const struct tensor *tensors;
    size_t count;
    uint64_t header; /* bytes of a file's header */
    const struct program *programs;
    size_t kinds;
    void (*const *functions)(void **, void *, int64_t);
    const void *constants;
    size_t result_bytes, pool; /* bytes of RESULTS and of the thread pool */
    int threads;
    const struct number *numbers;
    size_t numbered;
    const struct setting *settings;
    size_t set;
    int64_t accumulate;
    size_t reported;
    uint32_t steps, gathered, gathered_samples, updates, values, reports; /* tensors: see training.c */
    int64_t (*run)(void *);
    void (*worker)(void *, int64_t, int64_t);
    void (*stop)(void *);
};

struct worker {
    pthread_t thread;
    const struct library *library;
    void *pool;
    int64_t number;
};

struct model {
    const struct library *library;
    pthread_mutex_t lock; /* held in each call: one program runs at a time */
    void **places;        /* of TENSORS and the regions before them */
    uint64_t **tables;
    void *pool;
    struct worker *workers;
    int threads, started;
    pid_t owner; /* the process of the threads; a forked child has no threads */
};

/* ---- the processor */

#if defined(__x86_64__)
#include <cpuid.h>

static int has(const struct feature *f) {
    static const struct feature osxsave = {"", 1, 0, 2, 27};
    unsigned r[4] = {0, 0, 0, 0};
    uint32_t low, high;
    if (f->place == SAVED) {
        if (!has(&osxsave))
            return 0;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return (low & f->leaf) == f->leaf;
    }
    return __get_cpuid_count(f->leaf, f->subleaf, &r[0], &r[1], &r[2], &r[3]) && (r[f->place] >> f->bit & 1);
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static int has(const struct feature *f) {
    return (int)(getauxval(f->leaf) >> f->bit & 1);
}
#else /* whoever loads a module of WebAssembly compiles it, and refuses what it does not know */
static int has(const struct feature *f) {
    (void)f;
    return 1;
}
#endif

/* Checks the processor first: code that runs before uses only instructions of every processor of the family. */
static int check_processor(const struct library *l) {
    size_t n;
    for (n = 0; n < l->featured; n++)
        if (!has(&l->features[n]))
            return LACKING + (int)n;
    return OK;
}

/* ---- memory and threads */

static void *room(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 64))
        return NULL;
    return p;
}

static void *work(void *argument) {
    struct worker *w = argument;
    w->library->worker(w->pool, w->number, 0);
    return NULL;
}

static void destroy(struct model *m) {
    size_t n;
    int k;
    if (!m)
        return;
    if (m->started && m->owner == getpid()) {
        m->library->stop(m->pool);
        for (k = 0; k < m->started; k++)
            pthread_join(m->workers[k].thread, NULL);
    }
    for (n = 0; m->tables && n < m->library->kinds; n++)
        free(m->tables[n]);
    for (n = SPARE; m->places && n < TENSORS + m->library->count; n++)
        if (n != CONSTANTS)
            free(m->places[n]);
    free(m->tables);
    free(m->places);
    free(m->workers);
    free(m->pool);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* Returns the base address of a region. */
static uint64_t place(const struct model *m, size_t program, uint32_t region) {
    return (uint64_t)(uintptr_t)(region == TABLE ? m->tables[program] : m->places[region]);
}

static int make_programs(struct model *m) {
    const struct library *l = m->library;
    size_t n, k;
    for (n = 0; n < l->kinds; n++) {
        const struct program *p = &l->programs[n];
        uint64_t *table = m->tables[n] = room(8 * p->size);
        if (!table)
            return NO_MEMORY;
        memcpy(table, p->words, 8 * p->size);
        for (k = 0; k < p->relocated; k++) {
            const struct relocation *r = &p->relocations[k];
            if (r->region == FUNCTIONS)
                table[r->word] = (uint64_t)(uintptr_t)l->functions[table[r->word]];
            else
                table[r->word] += place(m, n, r->region);
        }
    }
    return OK;
}

/* Starts the worker threads, with all signals blocked so that other threads of the process handle them. */
static int start(struct model *m) {
    sigset_t all, before;
    int k, failed = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (k = 0; k < m->threads - 1 && !failed; k++) {
        struct worker *w = &m->workers[k];
        w->library = m->library;
        w->pool = m->pool;
        w->number = k + 1;
        failed = pthread_create(&w->thread, NULL, work, w);
        m->started += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? NO_THREADS : OK;
}

static int make(struct model *m, int threads) {
    const struct library *l = m->library;
    size_t n, arena = 0;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int status;
    m->owner = getpid();
    m->threads = threads ? threads : l->threads;
    if (!threads && online > 0 && online < m->threads)
        m->threads = (int)online;
    m->places = calloc(TENSORS + l->count, sizeof *m->places);
    m->tables = calloc(l->kinds, sizeof *m->tables);
    m->workers = calloc((size_t)m->threads, sizeof *m->workers);
    m->pool = room(l->pool);
    if (!m->places || !m->tables || !m->workers || !m->pool)
        return NO_MEMORY;
    memset(m->pool, 0, l->pool);
    for (n = 0; n < l->kinds; n++) {
        size_t end = l->programs[n].scratch + l->programs[n].stride * (size_t)m->threads;
        arena = end > arena ? end : arena;
    }
    m->places[SPARE] = room(64);
    m->places[ARENA] = room(arena);
    m->places[CONSTANTS] = (void *)(uintptr_t)l->constants;
    m->places[RESULTS] = room(l->result_bytes);
    for (n = 0; n < l->count; n++) {
        m->places[TENSORS + n] = room(l->tensors[n].bytes);
        if (m->places[TENSORS + n])
            memset(m->places[TENSORS + n], 0, l->tensors[n].bytes);
    }
    for (n = SPARE; n < TENSORS + l->count; n++)
        if (!m->places[n])
            return NO_MEMORY;
    status = make_programs(m);
    return status ? status : start(m);
}
