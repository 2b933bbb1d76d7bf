/* Checks for signals in a long run. Python handles signals between its own instructions, and there are none during a
   native run. A run that may be long is therefore given a function that handles pending signals. The thread that began
   the run calls it every INTERVAL: between steps, between tasks, and inside long tasks (`checks_signals` of
   codegen.loopnest.nest.Function). The other threads check whether the run has been stopped. Tasks then end early, and
   the run ends with status INTERRUPTED. The checks end at the first step that stores into parameters or state
   (`commit`): from there the run finishes as if there were no signals. Programs of other threads are not affected: only
   the thread that began the run and the workers of its pool stop. */
extern struct watch einsmith_watch;

/* Begins to watch a run of this thread, whose control register was `control`, and of the workers of its pool. */
static void watch_begin(const struct run *run, uint64_t control) {
    struct watch *w = &einsmith_watch;
    STORE(&w->thread, thread_id(), RELAXED);
    w->due = (uint64_t)roughly_now() + w->interval;
    w->control = control;
    STORE(&w->pool, run->pool, RELAXED);
    STORE(&w->threads, run->threads, RELAXED);
    STORE(&w->stopped, (uint64_t)0, RELAXED);
    STORE(&w->handle, run->handle, RELEASE);
}

static void watch_end(void) {
    STORE(&einsmith_watch.handle, (uint64_t)0, RELAXED);
}

/* Whether this thread takes part in the watched run. (Out of line, so that kernels' looks save no registers.) */
__attribute__((noinline)) static int is_watched(void) {
    const struct watch *w = &einsmith_watch;
    const uint64_t me = thread_id(), threads = LOAD(&w->threads, RELAXED);
    if (me == LOAD(&w->thread, RELAXED))
        return 1;
    struct pool *pool = POINTER(LOAD(&w->pool, RELAXED));
    for (uint64_t n = 1; pool && n < threads; n++)
        if (LOAD(&pool->shares[n].identity, RELAXED) == me)
            return 1;
    return 0;
}

/* Calls the handler where it is due in this thread; whether that has raised an exception, which stops the run. */
__attribute__((noinline)) static int32_t call_handler(uint64_t handle) {
    struct watch *w = &einsmith_watch;
    if (LOAD(&w->thread, RELAXED) != thread_id() || roughly_now() < (int64_t)w->due)
        return 0;
    /* What handles a signal may run programs itself, which are not watched. */
    STORE(&w->handle, (uint64_t)0, RELAXED);
    w->handling = 1;
    einsmith_fp_leave(w->control);
    const int32_t is_raised = ((int32_t(*)(void))(uintptr_t)handle)();
    einsmith_fp_enter();
    w->handling = 0;
    w->due = (uint64_t)roughly_now() + w->interval;
    STORE(&w->handle, handle, RELAXED);
    if (is_raised)
        STORE(&w->stopped, (uint64_t)1, RELEASE);
    return is_raised != 0;
}

/* Whether the run is stopped, for whoever is about to go on with it. */
int32_t einsmith_look(void) {
    if (LOAD(&einsmith_watch.stopped, ACQUIRE))
        return is_watched();
    const uint64_t handle = LOAD(&einsmith_watch.handle, ACQUIRE);
    return handle ? call_handler(handle) : 0;
}

/* Looks, and returns whether the watched run of this thread is stopped. */
static int is_stopped(void) {
    einsmith_look();
    return LOAD(&einsmith_watch.stopped, RELAXED) != 0;
}
