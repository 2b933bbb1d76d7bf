/* A run on the threads of an OpenMP runtime. A process should have one set of threads that spin. The threads of a loaded
   runtime (PyTorch's, say) watch for work after each of its parallel regions, and additional workers of the pool would
   share their processors. So the whole program is one parallel region: thread 0 of the team runs it, the others are its
   workers until it ends. */

static void team_member(struct run *run) {
    struct pool *pool = POINTER(run->pool);
    const int32_t me = ((int32_t(*)(void))(uintptr_t)run->number)();
    if (me) {
        einsmith_worker(pool, me, (int64_t)run->generation);
        return;
    }
    const int64_t begun = now();
    run->status = (uint64_t)einsmith_run(run);
    run->span = (uint64_t)(now() - begun);
    einsmith_stop(pool);
}

/* einsmith_run on a team. The runtime returns when all its threads have left team_member: none is late for the next. */
int64_t einsmith_run_team(struct run *run) {
    typedef void fork(void (*function)(struct run *), struct run *argument, int32_t threads, int32_t flags);
    struct pool *pool = POINTER(run->pool);
    STORE(&pool->stop, (uint32_t)0, SEQ_CST);
    run->generation = LOAD(&pool->generation, SEQ_CST);
    const int64_t begun = now();
    ((fork *)(uintptr_t)run->fork)(team_member, run, (int32_t)run->threads, 0);
    run->waited = (uint64_t)(now() - begun) - run->span;
    return (int64_t)run->status;
}
