/* The records of the native run time that others write or read: entry_program.py takes numbers and names from this file,
   and exported libraries have a copy. Addresses have 64 bits on every machine. */
#ifndef EINSMITH_RECORDS_H
#define EINSMITH_RECORDS_H
#include <stdint.h>

#define INTERRUPTED -1           /* status of a run that was stopped by a signal's handler */
#define INTERVAL 50000000        /* nanoseconds between two calls of the handler of signals */

/* A run: the table of steps and their number, the pool's state (or 0), threads, scratch of the first thread, bytes from
   one thread's scratch to the next one's, and where nanoseconds are added up by step (or 0). A run on a team also has
   OpenMP's functions that open a region and return a thread's number, the pool's generation at its start, its status,
   and the nanoseconds of the steps (span) and of waiting for the team before and after them. handle: the handler of
   signals (0: nobody checks for them); commit: the step from which on signals wait. clocks: two words for each thread
   of each step (or 0), see clock_in and clock_add in pool.c. */
struct run {
    uint64_t steps, count, pool, threads, scratch, stride, times, fork, number, generation, status, span, waited;
    uint64_t handle, commit, clocks;
};

/* Kinds of steps. What the words of a step are:
   LAUNCH         function, tasks, pointer to the pointers
   CHECK_*        checked pointer, -, -, code of the failure
   LOOP, _DOWN    pointer to the turn at which it stops, most turns, pointer to the moves, their number, pointer to the
                  first turn (or 0), the step after the loop's end, turns left
   LOOP_END       number of the loop's first step
   TOGETHER       number of the launches that follow and run as one, the tasks of all of them
   NOTIFY         pointer to a byte, descriptor of the pipe to which it is written
   AWAIT          -, descriptor of the pipe from which a byte is read
   APART          number of the records that follow, loops among them that run at the same time, records of each loop,
                  -, number of this step */
enum kind {
    LAUNCH, CHECK_ZERO, CHECK_F32, CHECK_F64, LOOP, LOOP_END, LOOP_DOWN, TOGETHER, NOTIFY, AWAIT, APART
};

struct step {
    uint64_t kind, what, tasks, pointers, code, start, after, left;
};

/* A move of a loop. In turn t from 0 on, the word at target is that at base + offset + start + delta * t, the last two
   modulo ring where it is not 0. A loop downward begins with its last turn. */
struct move {
    uint64_t target, base, offset, delta, ring, start;
};

/* The words that watch for signals (watch.c): the handler, or 0; the thread that may call it; when it is due; the
   floating-point control register of the thread that runs the program; whether the run is stopped; whether the handler
   is running; the pool whose workers take part (or 0), and the number of threads; nanoseconds between two calls. */
struct watch {
    uint64_t handle, thread, due, control, stopped, handling, pool, threads, interval;
};
#endif
