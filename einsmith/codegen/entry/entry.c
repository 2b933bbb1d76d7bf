/* The native entry, which runs a program, and its fork-join pool, as one translation unit. `make native` makes LLVM text
   of it for each system (the files of text/), which Python compiles for its machine: no C compiler is needed there. */
#include "records.h"
#include "pool.h"

#define POINTER(address) ((void *)(uintptr_t)(address))
#define LOAD(place, order) __atomic_load_n(place, order)
#define STORE(place, value, order) __atomic_store_n(place, value, order)
#define RELAXED __ATOMIC_RELAXED
#define ACQUIRE __ATOMIC_ACQUIRE
#define RELEASE __ATOMIC_RELEASE
#define ACQ_REL __ATOMIC_ACQ_REL
#define SEQ_CST __ATOMIC_SEQ_CST

#include "machine.c"
#include "system.c"
#include "places.c"
#include "watch.c"
#include "pool.c"
#include "loops.c"
#include "steps.c"
#include "team.c"
