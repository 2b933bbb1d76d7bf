/* What calls the operating system; its functions are declared here, so that no system's headers are needed.
   now: a clock (ns); roughly_now: a cheaper one that advances every few milliseconds. await_byte waits for a byte of a
   pipe for at most some milliseconds and returns whether there is one. park sleeps while a word has a value, park_for
   for at most some nanoseconds (less than a second), and wake ends the sleep. */
#define SECOND 1000000000

#if defined(_WIN32)
/* Functions of kernel32, KernelBase and the C runtime, which every process of Windows has loaded. */
int32_t QueryPerformanceCounter(int64_t *ticks);
int32_t QueryPerformanceFrequency(int64_t *rate);
uint64_t GetTickCount64(void);
uint32_t GetCurrentThreadId(void);
int32_t SwitchToThread(void);
void Sleep(uint32_t milliseconds);
int32_t WaitOnAddress(const volatile void *word, const void *same, uint64_t bytes, uint32_t milliseconds);
void WakeByAddressAll(void *word);
int32_t PeekNamedPipe(int64_t pipe, void *to, uint32_t bytes, uint32_t *got, uint32_t *count, uint32_t *left);
int64_t _get_osfhandle(int32_t descriptor);
int32_t _write(int32_t descriptor, const void *from, uint32_t bytes);
int32_t _read(int32_t descriptor, void *to, uint32_t bytes);

/* Whole seconds apart from the rest: ticks times SECOND would overflow within the hour. */
static int64_t now(void) {
    int64_t ticks, rate;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&rate);
    const uint64_t t = (uint64_t)ticks, r = (uint64_t)rate;
    return (int64_t)(t / r * SECOND + t % r * SECOND / r);
}

static int64_t roughly_now(void) {
    return (int64_t)(GetTickCount64() * 1000000);
}

static uint64_t thread_id(void) {
    return GetCurrentThreadId();
}

static void yield(void) {
    SwitchToThread();
}

static void write_byte(int32_t descriptor, const void *byte) {
    _write(descriptor, byte, 1);
}

static void read_byte(int32_t descriptor, void *byte) {
    _read(descriptor, byte, 1);
}

/* Looks every millisecond. A closed pipe can be read at once, as one that has bytes. */
static int await_byte(int32_t descriptor, int32_t milliseconds) {
    const int64_t pipe = _get_osfhandle(descriptor);
    const uint64_t start = GetTickCount64();
    for (;;) {
        uint32_t count = 0;
        if (!PeekNamedPipe(pipe, 0, 0, 0, &count, 0) || count)
            return 1;
        if (GetTickCount64() - start >= (uint64_t)milliseconds)
            return 0;
        Sleep(1);
    }
}

static void park(uint32_t *word, uint32_t value) {
    WaitOnAddress(word, &value, sizeof value, UINT32_MAX);
}

static void park_for(uint32_t *word, uint32_t value, int64_t ns) {
    WaitOnAddress(word, &value, sizeof value, (uint32_t)(ns / 1000000 + 1));
}

static void wake(uint32_t *word) {
    WakeByAddressAll(word);
}

#elif defined(__wasm__)
/* One thread, without a system: nobody waits, and nothing is timed. */
static int64_t now(void) {
    return 0;
}

static int64_t roughly_now(void) {
    return 0;
}

static uint64_t thread_id(void) {
    return 1;
}

static void yield(void) {
}

static void write_byte(int32_t descriptor, const void *byte) {
    (void)descriptor, (void)byte;
}

static void read_byte(int32_t descriptor, void *byte) {
    (void)descriptor, (void)byte;
}

static int await_byte(int32_t descriptor, int32_t milliseconds) {
    (void)descriptor, (void)milliseconds;
    return 1;
}

static void park(uint32_t *word, uint32_t value) {
    (void)word, (void)value;
}

static void park_for(uint32_t *word, uint32_t value, int64_t ns) {
    (void)word, (void)value, (void)ns;
}

static void wake(uint32_t *word) {
    (void)word;
}

#else /* POSIX */
struct duration {
    int64_t seconds, nanoseconds; /* struct timespec, on machines of 64 bits */
};
struct polled {
    int32_t descriptor;
    int16_t events, returned; /* struct pollfd */
};
int32_t clock_gettime(int32_t clock, struct duration *time);
int32_t sched_yield(void);
int64_t write(int32_t descriptor, const void *from, uint64_t bytes);
int64_t read(int32_t descriptor, void *to, uint64_t bytes);
int32_t poll(struct polled *polled, uint64_t count, int32_t milliseconds);
void *pthread_self(void);

#if defined(__APPLE__)
enum { CLOCK = 6, COARSE_CLOCK = 5 }; /* CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW_APPROX */
#elif defined(__linux__)
enum { CLOCK = 1, COARSE_CLOCK = 6 }; /* CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE */
#elif defined(__FreeBSD__)
enum { CLOCK = 4, COARSE_CLOCK = 12 }; /* CLOCK_MONOTONIC, CLOCK_MONOTONIC_FAST */
#else
#error "the numbers of this system's clocks are unknown"
#endif

static int64_t read_clock(int32_t clock) {
    struct duration t;
    clock_gettime(clock, &t);
    return t.seconds * SECOND + t.nanoseconds;
}

static int64_t now(void) {
    return read_clock(CLOCK);
}

static int64_t roughly_now(void) {
    return read_clock(COARSE_CLOCK);
}

static uint64_t thread_id(void) {
    return (uint64_t)pthread_self();
}

static void yield(void) {
    sched_yield();
}

static void write_byte(int32_t descriptor, const void *byte) {
    (void)!write(descriptor, byte, 1);
}

static void read_byte(int32_t descriptor, void *byte) {
    (void)!read(descriptor, byte, 1);
}

static int await_byte(int32_t descriptor, int32_t milliseconds) {
    struct polled polled = {descriptor, 1, 0}; /* POLLIN */
    return poll(&polled, 1, milliseconds) > 0;
}

#if defined(__linux__)
int64_t syscall(int64_t number, ...);

#if defined(__x86_64__)
enum { FUTEX = 202 };
#else
enum { FUTEX = 98 };
#endif
enum { WAIT = 128, WAKE = 129 }; /* FUTEX_WAIT and FUTEX_WAKE within the process */

static void park(uint32_t *word, uint32_t value) {
    syscall(FUTEX, word, (int64_t)WAIT, value, (void *)0, (void *)0, (int64_t)0);
}

static void park_for(uint32_t *word, uint32_t value, int64_t ns) {
    const struct duration most = {0, ns};
    syscall(FUTEX, word, (int64_t)WAIT, value, &most, (void *)0, (int64_t)0);
}

static void wake(uint32_t *word) {
    syscall(FUTEX, word, (int64_t)WAKE, INT32_MAX, (void *)0, (void *)0, (int64_t)0);
}

#else /* Without futexes, a waiting thread looks again every 50 microseconds. */
int32_t nanosleep(const struct duration *time, struct duration *left);

static void park(uint32_t *word, uint32_t value) {
    (void)word, (void)value;
    const struct duration nap = {0, 50000};
    nanosleep(&nap, 0);
}

static void park_for(uint32_t *word, uint32_t value, int64_t ns) {
    (void)ns;
    park(word, value);
}

static void wake(uint32_t *word) {
    (void)word;
}
#endif
#endif
