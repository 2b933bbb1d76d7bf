/* The memory that the threads of a pool share. MAX_THREADS and LINE, the bytes of a cache line, come from the command
   line (einsmith/cost/facts.py). */
/* The launch that is open; clocks: 0, or those of its step. */
struct launch {
    uint64_t epoch, function, pointers, tasks, threads, scratch, stride, clocks;
};

/* A thread's share of a launch: epoch << 32 | its next task; and the thread's identity. */
struct share {
    _Alignas(LINE) uint64_t ticket;
    uint64_t identity;
};

/* The state that the threads of a pool share. Each group of words has a cache line of its own. */
struct pool {
    _Alignas(LINE) uint32_t generation; /* incremented by each launch; idle workers watch it, and sleep on it */
    _Alignas(LINE) uint32_t sleepers;   /* sleeping workers: waking costs a system call only if there are some */
    _Alignas(LINE) uint32_t done;       /* tasks of this launch that have ended */
    _Alignas(LINE) uint32_t waiting;    /* whether the caller sleeps on done */
    _Alignas(LINE) uint32_t stop;       /* whether workers leave */
    _Alignas(LINE) struct launch launch;
    _Alignas(LINE) uint64_t reserved[8];
    struct share shares[MAX_THREADS];
    int32_t places[MAX_THREADS];        /* the processor on which each thread was seen last */
};
