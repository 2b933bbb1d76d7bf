/* Where threads run. Threads that wait for each other on one processor hand it back and forth, and none of them looks
   idle or starved: the system may leave them there for seconds. So a worker that meets a thread of a lower number moves
   itself, not again for a while, and may be moved by the system as it likes (Linux only). */
#if defined(__linux__)

/* Fewest nanoseconds between two moves of a worker to another processor. (A number of launches would not do: a worker
   that the caller keeps from its processor takes part in few of them.) */
#define SETTLED 1000000

#define PROCESSORS 1024 /* the size of glibc's cpu_set_t (bits) */

int32_t sched_getcpu(void);
int32_t sched_getaffinity(int32_t thread, uint64_t bytes, uint64_t *mask);
int32_t sched_setaffinity(int32_t thread, uint64_t bytes, const uint64_t *mask);

/* Records the processor on which thread `me` runs, and returns it. */
static int32_t note_place(struct pool *pool, uint64_t me) {
    const int32_t cpu = sched_getcpu();
    if (LOAD(&pool->places[me], RELAXED) != cpu)
        STORE(&pool->places[me], cpu, RELAXED);
    return cpu;
}

/* Moves worker `me` away from a processor that it shares, where its last move was long ago; returns the last move's
   time. */
static int64_t settle(struct pool *pool, uint64_t me, int64_t last) {
    const int32_t cpu = note_place(pool, me);
    uint64_t other = 0, all[PROCESSORS / 64], free[PROCESSORS / 64];
    while (other < me && LOAD(&pool->places[other], RELAXED) != cpu)
        other++;
    if (other == me)
        return last;
    const int64_t time = now();
    if (time - last < SETTLED || sched_getaffinity(0, sizeof all, all))
        return last;
    for (int k = 0; k < PROCESSORS / 64; k++)
        free[k] = all[k];
    for (other = 0; other < me; other++) {
        const uint32_t used = (uint32_t)LOAD(&pool->places[other], RELAXED);
        if (used < PROCESSORS)
            free[used / 64] &= ~((uint64_t)1 << used % 64);
    }
    sched_setaffinity(0, sizeof free, free); /* refused where no processor is left */
    sched_setaffinity(0, sizeof all, all);
    note_place(pool, me);
    return time;
}

#else

static int32_t note_place(struct pool *pool, uint64_t me) {
    (void)pool, (void)me;
    return -1;
}

static int64_t settle(struct pool *pool, uint64_t me, int64_t last) {
    (void)pool, (void)me;
    return last;
}

#endif
