/* Runs programs of the native run time many times, for sanitizers: launches, loops, what runs together and apart, checks,
   notices, timed runs, runs that a handler stops. A wrong result ends the process with a message. */
#include "records.h"
#include "pool.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int64_t einsmith_run(const struct run *run);
void einsmith_worker(struct pool *pool, int64_t me, int64_t generation);
void einsmith_stop(struct pool *pool);

enum { THREADS = 4, TASKS = 13, ROUNDS = 3000, STEPS = 24 };
struct watch einsmith_watch = {.interval = 1};
static struct pool pool;
static int64_t scratch[THREADS][64], a[TASKS], b[TASKS], c[TASKS], ring[8];
static int pipe_ends[2];

static uint64_t at(const volatile void *place) {
    return (uint64_t)(uintptr_t)place;
}

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "wrong: %s\n", what);
        exit(3);
    }
}

/* Adds one to an element, by way of the thread's own scratch. */
static void increment(void *pointers, void *own, int64_t task) {
    int64_t *data = ((int64_t **)pointers)[0], *place = own;
    *place = data[task];
    data[task] = *place + 1;
}

/* b[task] = the sum of a: a task reads what all tasks of the launch before have written. */
static void sum(void *pointers, void *own, int64_t task) {
    int64_t **p = pointers, total = 0;
    (void)own;
    for (int k = 0; k < TASKS; k++)
        total += p[0][k];
    p[1][task] = total;
}

static int32_t raise_nothing(void) {
    return 0;
}

static int32_t raise_something(void) {
    return 1;
}

static void *work(void *number) {
    einsmith_worker(&pool, (int64_t)(intptr_t)number, 0);
    return 0;
}

static int64_t run(struct step *steps, uint64_t count, uint64_t threads, struct run more) {
    more.steps = at(steps), more.count = count, more.pool = threads > 1 ? at(&pool) : 0, more.threads = threads;
    more.scratch = at(scratch), more.stride = sizeof scratch[0];
    return einsmith_run(&more);
}

static void run_launches(uint64_t threads, struct run more) {
    uint64_t of_a[] = {at(a)}, of_both[] = {at(a), at(b)}, of_c[] = {at(c)}, zero = 0;
    double finite = 1.0;
    float infinite = 1.0f / (float)zero;
    struct step steps[] = {
        {LAUNCH, at((void *)increment), TASKS, at(of_a), 0, 0, 0, 0},
        {LAUNCH, at((void *)sum), TASKS, at(of_both), 0, 0, 0, 0},
        {CHECK_ZERO, at(&zero), 0, 0, 7, 0, 0, 0},
        {CHECK_F64, at(&finite), 0, 0, 8, 0, 0, 0},
        {TOGETHER, 2, 2 * TASKS, 0, 0, 0, 0, 0},
        {LAUNCH, at((void *)increment), TASKS, at(of_a), 0, 0, 0, 0},
        {LAUNCH, at((void *)increment), TASKS, at(of_c), 0, 0, 0, 0},
        {NOTIFY, at("x"), (uint64_t)pipe_ends[1], 0, 0, 0, 0, 0},
        {AWAIT, 0, (uint64_t)pipe_ends[0], 0, 0, 0, 0, 0},
        {CHECK_F32, at(&infinite), 0, 0, 9, 0, 0, 0},
    };
    memset(a, 0, sizeof a), memset(c, 0, sizeof c);
    require(run(steps, 10, threads, more) == 9, "the check that fails");
    for (int k = 0; k < TASKS; k++)
        require(a[k] == 2 && b[k] == TASKS && c[k] == 1, "launches");
}

/* Two loops at the same time, up and down, each over a ring: turn t adds to element t % 4 of its half. */
static void run_loops(uint64_t threads, struct run more) {
    uint64_t bases[] = {at(ring), at(ring + 4)}, pointers[2] = {0, 0}, turns = 6;
    struct move moves[2];
    struct step steps[7] = {{APART, 6, 2, 3, 0, 0, 0, 0}};
    memset(ring, 0, sizeof ring);
    for (uint64_t n = 0; n < 2; n++) {
        const uint64_t first = 1 + 3 * n;
        moves[n] = (struct move){at(&pointers[n]), at(&bases[n]), 0, 8, 32, 0};
        steps[first] = (struct step){n ? LOOP_DOWN : LOOP, at(&turns), 6, at(&moves[n]), 1, 0, first + 3, 0};
        steps[first + 1] = (struct step){LAUNCH, at((void *)increment), 1, at(&pointers[n]), 0, 0, 0, 0};
        steps[first + 2] = (struct step){LOOP_END, first, 0, 0, 0, 0, 0, 0};
    }
    require(run(steps, 7, threads, more) == 0, "status of loops");
    for (int k = 0; k < 8; k++)
        require(ring[k] == (k % 4 < 2 ? 2 : 1), "loops");
}

static void run_stopped(uint64_t threads) {
    uint64_t of_a[] = {at(a)};
    struct step steps[STEPS];
    for (int k = 0; k < STEPS; k++)
        steps[k] = (struct step){LAUNCH, at((void *)increment), TASKS, at(of_a), 0, 0, 0, 0};
    struct run quiet = {.handle = at((void *)raise_nothing), .commit = STEPS / 2};
    struct run stopped = {.handle = at((void *)raise_something), .commit = STEPS + 1};
    require(run(steps, STEPS, threads, quiet) == 0, "a run that is watched");
    while (run(steps, STEPS, threads, stopped) != INTERRUPTED) { /* its clock advances every few milliseconds */
    }
    require(run(steps, STEPS, threads, quiet) == 0, "a run after one that was stopped");
}

int main(void) {
    pthread_t threads[THREADS];
    static int64_t times[STEPS], clocks[STEPS * THREADS * 2];
    require(!pipe(pipe_ends), "a pipe");
    for (intptr_t n = 1; n < THREADS; n++)
        require(!pthread_create(&threads[n], 0, work, (void *)n), "a thread");
    for (int k = 0; k < ROUNDS; k++) {
        const uint64_t count = (uint64_t)(k % 3 ? THREADS : k % 2 + 1 == 1 ? 1 : THREADS);
        struct run more = {.times = k % 2 ? at(times) : 0, .clocks = k % 4 == 1 ? at(clocks) : 0};
        run_launches(count, more);
        run_loops(count, more);
        if (k % 100 == 0)
            run_stopped(count);
        if (k % 500 == 0)
            usleep(1000); /* the workers sleep */
    }
    einsmith_stop(&pool);
    for (int n = 1; n < THREADS; n++)
        pthread_join(threads[n], 0);
    puts("done");
    return 0;
}
