/* What differs from processor to processor. fp_enter flushes denormal numbers to zero in this thread and returns the
   control register's old value, which fp_leave restores; relax is a pause in a loop that watches memory. */
#if defined(__x86_64__)

uint64_t einsmith_fp_enter(void) {
    const uint32_t old = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(old | 0x8040); /* results, and inputs */
    return old;
}

void einsmith_fp_leave(uint64_t old) {
    __builtin_ia32_ldmxcsr((uint32_t)old);
}

static void relax(void) {
    __builtin_ia32_pause();
}

#elif defined(__aarch64__) && defined(__clang__)

uint64_t einsmith_fp_enter(void) {
    const uint64_t old = __builtin_arm_rsr64("fpcr");
    __builtin_arm_wsr64("fpcr", old | 1 << 24); /* inputs and results */
    return old;
}

void einsmith_fp_leave(uint64_t old) {
    __builtin_arm_wsr64("fpcr", old);
}

static void relax(void) {
    __builtin_arm_yield();
}

#else /* No such mode is known here for other machines, which compute with denormals. */

uint64_t einsmith_fp_enter(void) {
    return 0;
}

void einsmith_fp_leave(uint64_t old) {
    (void)old;
}

static void relax(void) {
}

#endif
