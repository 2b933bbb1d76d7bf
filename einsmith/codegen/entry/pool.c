/* The fork-join pool. A launch's tasks are cut into one contiguous share per thread, so that data stays in the same
   core's cache from launch to launch. A thread that has finished its share steals from the others'. A task is claimed
   by compare-and-swap on a ticket. A late worker may still see the previous launch. The ticket therefore carries the
   epoch, and the launch's fields are trusted only if their epoch, read after them, equals the ticket's (it is written
   before them). A claim can then succeed only while its launch still has that task open, so the fields cannot have
   changed. */

#define SPIN 50000 /* nanoseconds for which a thread without work spins before it sleeps */
/* Nanoseconds of spinning after which a thread yields its core: the thread it waits for may need this very core. */
#define ALONE 5000

typedef void kernel(void *pointers, void *scratch, int64_t task);

/* Notes that thread `me` takes its first task of a launch, or that the calling thread begins a step. */
static void clock_in(uint64_t clocks, uint64_t me, int64_t time) {
    int64_t *first = (int64_t *)POINTER(clocks) + 2 * me;
    if (!*first)
        *first = time;
}

/* Adds nanoseconds to those for which thread `me` was at work. */
static void clock_add(uint64_t clocks, uint64_t me, int64_t more) {
    ((int64_t *)POINTER(clocks))[2 * me + 1] += more;
}

/* Claims a task of the open launch: thread `me`'s share first, from `turn` shares further on. Copies what the launch
   runs to `open`; returns the task, or -1 where none is left. */
static int64_t claim(struct pool *pool, uint64_t me, uint64_t *turn, struct launch *open) {
    struct launch *launch = &pool->launch;
    for (;;) {
        const uint64_t threads = LOAD(&launch->threads, RELAXED);
        if (me >= threads || *turn >= threads)
            return -1;
        const uint64_t sum = me + *turn, whose = sum >= threads ? sum - threads : sum;
        uint64_t ticket = LOAD(&pool->shares[whose].ticket, ACQUIRE);
        open->function = LOAD(&launch->function, RELAXED);
        open->pointers = LOAD(&launch->pointers, RELAXED);
        open->tasks = LOAD(&launch->tasks, RELAXED);
        open->threads = LOAD(&launch->threads, RELAXED);
        open->scratch = LOAD(&launch->scratch, RELAXED);
        open->stride = LOAD(&launch->stride, RELAXED);
        __atomic_thread_fence(ACQUIRE);
        if (LOAD(&launch->epoch, RELAXED) != ticket >> 32 || open->threads != threads)
            return -1;
        const uint64_t task = ticket & UINT32_MAX;
        if (task >= (whose + 1) * open->tasks / threads)
            ++*turn;
        else if (__atomic_compare_exchange_n(&pool->shares[whose].ticket, &ticket, ticket + 1, 0, ACQ_REL, RELAXED))
            return (int64_t)task;
    }
}

/* Runs tasks of the open launch until none is left to claim. */
static void drain(struct pool *pool, uint64_t me) {
    uint64_t turn = 0, clocks = 0;
    uint32_t count = 0;
    struct launch open;
    for (int64_t task; (task = claim(pool, me, &turn, &open)) >= 0;) {
        if (!count++) { /* with a task in hand: the launch cannot end, and its fields cannot change */
            clocks = LOAD(&pool->launch.clocks, RELAXED);
            if (clocks) {
                const int64_t time = now();
                clock_in(clocks, me, time);
                clock_add(clocks, me, -time);
            }
        }
        if (!einsmith_look())
            ((kernel *)(uintptr_t)open.function)(POINTER(open.pointers), POINTER(open.scratch + me * open.stride), task);
    }
    if (!count)
        return;
    if (clocks)
        clock_add(clocks, me, now());
    __atomic_fetch_add(&pool->done, count, SEQ_CST);
    if (LOAD(&pool->waiting, SEQ_CST))
        wake(&pool->done);
}

/* Spins until a word is (is_equal) or is no longer (!is_equal) a value; returns whether that came before it is time to
   sleep. */
static int spin(const uint32_t *word, uint32_t value, int is_equal) {
    const int64_t start = now();
    for (;;) {
        for (int k = 0; k < 32; k++) {
            if ((LOAD(word, ACQUIRE) == value) == is_equal)
                return 1;
            relax();
        }
        const int64_t spent = now() - start;
        if (spent > SPIN)
            return 0;
        if (spent > ALONE)
            yield();
    }
}

/* Returns the generation once it is not `last`. */
static uint32_t await_launch(struct pool *pool, uint32_t last) {
    if (!spin(&pool->generation, last, 0))
        do {
            __atomic_fetch_add(&pool->sleepers, 1, SEQ_CST);
            park(&pool->generation, last);
            __atomic_fetch_sub(&pool->sleepers, 1, SEQ_CST);
        } while (LOAD(&pool->generation, ACQUIRE) == last);
    return LOAD(&pool->generation, ACQUIRE);
}

/* Returns when all tasks have ended. The first looks need no clock: most launches end within them. */
static void await_done(struct pool *pool, uint32_t tasks) {
    for (int k = 0; k < 64; k++) {
        if (LOAD(&pool->done, ACQUIRE) == tasks)
            return;
        relax();
    }
    if (spin(&pool->done, tasks, 1))
        return;
    STORE(&pool->waiting, (uint32_t)1, SEQ_CST);
    for (uint32_t done; (done = LOAD(&pool->done, SEQ_CST)) != tasks;) {
        park_for(&pool->done, done, INTERVAL);
        einsmith_look();
    }
    STORE(&pool->waiting, (uint32_t)0, SEQ_CST);
}

/* The main loop of worker `me`; generation: the pool's when the worker was started. */
void einsmith_worker(struct pool *pool, int64_t me, int64_t generation) {
    const uint64_t control = einsmith_fp_enter();
    uint32_t last = (uint32_t)generation;
    int64_t moved = 0;
    STORE(&pool->shares[me].identity, thread_id(), RELAXED);
    for (;;) {
        last = await_launch(pool, last);
        if (LOAD(&pool->stop, ACQUIRE))
            break;
        moved = settle(pool, (uint64_t)me, moved);
        drain(pool, (uint64_t)me);
    }
    einsmith_fp_leave(control);
}

/* Tells the workers that there is something new: those that watch see it, those that sleep are woken. */
static void announce(struct pool *pool) {
    __atomic_fetch_add(&pool->generation, 1, SEQ_CST);
    if (LOAD(&pool->sleepers, SEQ_CST))
        wake(&pool->generation);
}

/* Ends all workers. */
void einsmith_stop(struct pool *pool) {
    STORE(&pool->stop, (uint32_t)1, SEQ_CST);
    announce(pool);
}

/* Opens a launch to all threads of a run, takes part, and returns when it is done. */
static void fork_join(const struct run *run, uint64_t function, uint64_t pointers, uint64_t tasks, uint64_t clocks) {
    struct pool *pool = POINTER(run->pool);
    struct launch *launch = &pool->launch;
    const uint64_t epoch = (LOAD(&launch->epoch, RELAXED) + 1) & UINT32_MAX, threads = run->threads;
    STORE(&launch->epoch, epoch, RELAXED);
    __atomic_thread_fence(RELEASE);
    STORE(&launch->function, function, RELAXED);
    STORE(&launch->pointers, pointers, RELAXED);
    STORE(&launch->tasks, tasks, RELAXED);
    STORE(&launch->threads, threads, RELAXED);
    STORE(&launch->scratch, run->scratch, RELAXED);
    STORE(&launch->stride, run->stride, RELAXED);
    STORE(&launch->clocks, clocks, RELAXED);
    STORE(&pool->done, (uint32_t)0, RELAXED);
    for (uint64_t t = 0; t < threads; t++) {
        const uint64_t first = t * tasks / threads;
        STORE(&pool->shares[t].ticket, epoch << 32 | first, RELEASE);
    }
    note_place(pool, 0);
    announce(pool);
    drain(pool, 0);
    await_done(pool, (uint32_t)tasks);
}
