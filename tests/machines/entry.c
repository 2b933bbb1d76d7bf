/* Runs the native entry with a pool of threads: two parallel launches and a check, many times, with denormal numbers.

   einsmith_functions[0] halves a block of buffer 0 into buffer 1, [1] adds buffer 1 to buffer 2. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*kernel)(void **buffers, void *scratch, int64_t task);
extern const kernel einsmith_functions[];
extern const int64_t einsmith_state_bytes, einsmith_run_words, einsmith_tasks, einsmith_block;

struct run {
    void *steps;
    int64_t count;
    void *pool;
    int64_t threads;
    void *scratch;
    int64_t stride, *times;
    int64_t more[9]; /* all zero: no team, no handler of signals, no clocks of threads */
};
int64_t einsmith_run(struct run *run);
void einsmith_worker(void *pool, int64_t me, int64_t generation);
void einsmith_stop(void *pool);

enum { THREADS = 3, ROUNDS = 50 };
static void *pool;

static uint64_t control(void) {
    uint64_t x;
    __asm__ volatile("mrs %0, fpcr" : "=r"(x));
    return x;
}

static void *work(void *me) {
    uint64_t before = control();
    einsmith_worker(pool, (int64_t)(intptr_t)me, 0);
    return (void *)(intptr_t)(control() != before);
}

static int fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(void) {
    int64_t n = einsmith_tasks * einsmith_block, i, times[3] = {-1, -1, -1};
    float *in = calloc((size_t)n, 4), *half = calloc((size_t)n, 4), *sum = calloc((size_t)n, 4), infinite;
    uint64_t table[3][8] = {{0}}, before = control();
    void *pointers[] = {in, half, sum}, *wrong;
    int32_t bits = 0x7f800000;
    pthread_t threads[THREADS];
    struct run run = {table, 3, NULL, THREADS, NULL, 0, times, {0}};
    int k;
    if (sizeof run != 8 * (size_t)einsmith_run_words)
        return fail("a run has other words");
    if (posix_memalign(&pool, 64, (size_t)einsmith_state_bytes))
        return fail("memory");
    memset(pool, 0, (size_t)einsmith_state_bytes);
    run.pool = pool;
    for (i = 0; i < n; i++)
        in[i] = (float)(i % 1000 + 1);
    in[5] = 1.5e-38f; /* half of it is denormal */
    for (k = 1; k < THREADS; k++)
        if (pthread_create(&threads[k], NULL, work, (void *)(intptr_t)k))
            return fail("threads");
    for (k = 0; k < 2; k++) {
        table[k][1] = (uint64_t)einsmith_functions[k];
        table[k][2] = (uint64_t)einsmith_tasks;
        table[k][3] = (uint64_t)pointers;
    }
    table[2][0] = 2; /* CHECK_F32 */
    table[2][1] = (uint64_t)&sum[7];
    table[2][4] = 77;
    for (k = 0; k < ROUNDS; k++, run.times = NULL)
        if (einsmith_run(&run))
            return fail("a check failed");
    if (times[0] < 0 || times[1] < 0 || times[2] < 0)
        return fail("no times were taken");
    if (control() != before)
        return fail("the control register was not restored");
    for (i = 0; i < n; i++)
        if (sum[i] != (i == 5 ? 0.0f : ROUNDS * 0.5f * in[i]))
            return fail(i == 5 ? "a denormal was not flushed" : "a sum is wrong");
    memcpy(&infinite, &bits, 4);
    in[7] = infinite;
    if (einsmith_run(&run) != 77)
        return fail("an infinite value passed the check");
    einsmith_stop(pool);
    for (k = 1; k < THREADS; k++) {
        pthread_join(threads[k], &wrong);
        if (wrong)
            return fail("a worker left the control register changed");
    }
    return 0;
}
