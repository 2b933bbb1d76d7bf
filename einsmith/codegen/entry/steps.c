/* Runs the steps of a program. */

/* Milliseconds of a wait for another thread after which signals are looked for, as often as within long kernels. */
#define AWAIT_MILLISECONDS 50

static void run_task(const struct step *launch, void *scratch, uint64_t task) {
    ((kernel *)(uintptr_t)launch->what)(POINTER(launch->pointers), scratch, (int64_t)task);
}

/* A task of the launches that follow a header (TOGETHER), counted through all of them. */
static void member(void *header, void *scratch, int64_t task) {
    const struct step *launch = (const struct step *)header + 1;
    uint64_t left = (uint64_t)task;
    for (; left >= launch->tasks; launch++)
        left -= launch->tasks;
    run_task(launch, scratch, left);
}

/* Loop number `task` of those that follow a header (APART), with pointers and moves of its own: its thread runs all its
   steps without waiting for the others. */
static void part(void *header, void *scratch, int64_t task) {
    const struct step *apart = header;
    struct step *steps = (struct step *)header - apart->start;
    uint64_t n = apart->start + 1 + (uint64_t)task * apart->pointers;
    for (const uint64_t end = n + apart->pointers; n < end;) {
        const struct step *step = &steps[n];
        if (step->kind == LOOP || step->kind == LOOP_DOWN || step->kind == LOOP_END) {
            n = after_loop_step(steps, n);
            continue;
        }
        for (uint64_t k = 0; k < step->tasks; k++) {
            if (einsmith_look())
                return;
            run_task(step, scratch, k);
        }
        n++;
    }
}

/* Whether what a step checks is a code that is not zero, or a number that is not finite. */
static int fails(const struct step *check) {
    const uint64_t f64 = 0x7ff0000000000000, f32 = 0x7f800000;
    if (check->kind == CHECK_F64)
        return (*word(check->what) & f64) == f64;
    const uint32_t value = *(const uint32_t *)POINTER(check->what);
    return check->kind == CHECK_F32 ? (value & f32) == f32 : value != 0;
}

/* Waits for a byte of a pipe, and reads it; whether the run is stopped before. */
static int read_notice(int32_t descriptor, int watched) {
    uint64_t byte;
    while (!await_byte(descriptor, AWAIT_MILLISECONDS))
        if (watched && is_stopped())
            return 1;
    read_byte(descriptor, &byte);
    return 0;
}

/* Runs a launch, or what follows a header as one, on all threads. A header is passed over where one thread runs what
   follows, or its steps are timed one by one; returns the number of records that this step has run after its own. */
static uint64_t run_launch(const struct run *run, const struct step *step, uint64_t clocks) {
    const int alone = run->threads <= 1;
    if (step->kind == TOGETHER) {
        if (alone || step->tasks <= 1)
            return 0;
        fork_join(run, (uint64_t)(uintptr_t)member, (uint64_t)(uintptr_t)step, step->tasks, clocks);
        return step->what;
    }
    if (step->kind == APART) {
        if (alone || (run->times && !run->clocks))
            return 0;
        fork_join(run, (uint64_t)(uintptr_t)part, (uint64_t)(uintptr_t)step, step->tasks, clocks);
        return step->what;
    }
    if (!alone && step->tasks > 1) {
        fork_join(run, step->what, step->pointers, step->tasks, clocks);
        return 0;
    }
    /* In registers: the compiler must assume that kernels write to the records. */
    const struct step launch = *step;
    const uint64_t scratch = run->scratch, is_watched = run->handle;
    for (uint64_t k = 0; k < launch.tasks && !(is_watched && einsmith_look()); k++)
        run_task(&launch, POINTER(scratch), k);
    return 0;
}

static int64_t run_steps(const struct run *run) {
    struct step *steps = POINTER(run->steps);
    uint64_t following;
    for (uint64_t n = 0;; n = following) {
        if (run->handle) {
            if (is_stopped()) {
                STORE(&einsmith_watch.stopped, (uint64_t)0, RELAXED); /* what comes next is not */
                return INTERRUPTED;
            }
            if (n >= run->commit)
                watch_end();
        }
        if (n >= run->count)
            return 0;
        const uint64_t clocks = run->clocks ? run->clocks + n * run->threads * 16 : 0;
        const int64_t begun = run->times ? now() : 0;
        if (run->times && clocks)
            clock_in(clocks, 0, begun);
        const struct step *step = &steps[n];
        following = n + 1;
        switch (step->kind) {
        case CHECK_ZERO:
        case CHECK_F32:
        case CHECK_F64:
            if (fails(step))
                return (int64_t)step->code;
            break;
        case LOOP:
        case LOOP_DOWN:
        case LOOP_END:
            following = after_loop_step(steps, n);
            continue;
        case NOTIFY:
            write_byte((int32_t)step->tasks, POINTER(step->what));
            break;
        case AWAIT:
            if (read_notice((int32_t)step->tasks, run->handle != 0)) {
                STORE(&einsmith_watch.stopped, (uint64_t)0, RELAXED);
                return INTERRUPTED;
            }
            break;
        default:
            following += run_launch(run, step, clocks);
        }
        if (run->times)
            word(run->times)[n] += (uint64_t)(now() - begun);
    }
}

/* Runs the steps in order; 0, or the code of the first check that fails, or INTERRUPTED. Where times is not 0,
   nanoseconds are added up by step. */
int64_t einsmith_run(const struct run *run) {
    const uint64_t control = einsmith_fp_enter();
    if (run->handle)
        watch_begin(run, control);
    const int64_t status = run_steps(run);
    if (run->handle)
        watch_end();
    einsmith_fp_leave(control);
    return status;
}
