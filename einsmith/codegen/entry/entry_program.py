"""Emit the native entry that runs a program, and its fork-join pool, as LLVM IR text.

Functions: `einsmith_run` executes a table of steps (launches, checks, loops) that a record of RUN_WORDS describes;
`einsmith_worker` is the main loop of a worker thread; `einsmith_stop` ends all workers; `einsmith_run_team` runs on the
threads of an OpenMP runtime; `einsmith_look` checks for signals (entry/watch.py). The shared state is a block of
memory. Each of its words has a cache line of its own:

    generation   incremented by every parallel launch; idle workers watch it, and sleep on it (futex)
    sleepers     number of sleeping workers, so that waking costs a system call only if there is one
    done         tasks finished in this launch; waiting: the caller sleeps on it
    stop         workers leave
    launch       epoch, function, pointers, tasks, threads, scratch, stride of scratch, the threads' clocks (or 0)
    tickets      one word a thread: epoch << 32 | next task of that thread's share; next to it the worker's identity
    places       four bytes a thread: the processor on which it was seen last

A launch's tasks are cut into one contiguous share per thread, so that data stays in the same core's cache from launch
to launch. A thread that has finished its share steals from the others'. A task is claimed by compare-and-swap on a
ticket. A late worker may still see the previous launch. The ticket therefore carries the epoch, and the launch's fields
are trusted only if their epoch, read after them, equals the ticket's (it is written before them). A claim can then
succeed only while its launch still has that task open, so the fields cannot have changed.

Denormal numbers are flushed to zero in every thread; the control register is restored before the caller continues.
"""

from __future__ import annotations

from einsmith.codegen.entry.loops import LOOPS
from einsmith.codegen.entry.machine import FLUSH
from einsmith.codegen.entry.parts import PARTS
from einsmith.codegen.entry.system import system_functions
from einsmith.codegen.entry.team import TEAM
from einsmith.codegen.entry.wait import WAIT
from einsmith.codegen.entry.watch import INTERRUPTED, INTERVAL, LOOK, watch_functions
from einsmith.cost.facts import LINE, MAX_THREADS

WORDS = {"generation": 0, "sleepers": 64, "done": 128, "waiting": 192, "stop": 256, "launch": 320, "tickets": 448}
WORDS["places"] = WORDS["tickets"] + MAX_THREADS * LINE
STATE_BYTES = WORDS["places"] + MAX_THREADS * 4

RUN_WORDS = (
    "steps", "count", "pool", "threads", "scratch", "stride", "times", "fork", "number", "generation", "status", "span",
    "waited", "handle", "commit", "clocks",
)  # fmt: skip
"""Words of the record that describes a run: the table of steps and their number, the pool's state (or 0), threads,
scratch of the first thread, bytes from one thread's scratch to the next one's, and where nanoseconds are added up by
step (or 0). A run on a team (entry/team.py) also has OpenMP's functions that open a region and return a thread's
number. The four words after them are the team's own, among them the nanoseconds of the last run: `span` of the steps,
`waited` for the team before and after them. Then come the handler of signals (entry/watch.py; 0: no thread checks for
them), and the step from which on signals wait. Last comes the address of two i64 for each thread of each step (or 0),
where a timed run notes the time at which the thread first took a task of the step (the calling thread: began the step),
and adds up the nanoseconds from a launch's first task to the end of the last one that the thread had."""

STEP_WORDS = 8
"""Words of a step in the table. A launch: kind, function, tasks, pointer to the pointers. A check: kind, checked
pointer, 2 unused, code. The beginning of a loop: kind, pointer to the turn at which it stops (an i64), most turns,
pointer to the moves, their number, pointer to the first turn (or 0), the step after the loop's end, turns left. The
end of a loop: kind, the loop's beginning. A header of launches that run together, which are the next records: kind,
their number, the tasks of all of them. A notice: kind, pointer to a byte, descriptor of the pipe to which the byte is
written. A wait: kind, unused, descriptor of the pipe from which a byte is read. A header of loops that run at the same
time, which are the next records: kind, their number, the loops, the records of each, unused, the header's number.

A move of a loop: target, base, offset, delta, ring, start. In turn t from 0 on, the word at `target` is that at `base`
+ offset + start + delta * t, the last two modulo `ring` where it is not 0. A loop downward begins with its last turn.
"""
LAUNCH, CHECK_ZERO, CHECK_F32, CHECK_F64, LOOP, LOOP_END, LOOP_DOWN, TOGETHER, NOTIFY, AWAIT, APART = range(11)
MOVE_WORDS = 6

SPIN_NANOSECONDS = 50_000
"""Nanoseconds for which a thread without work spins before it sleeps."""
ALONE_NANOSECONDS = 5_000
"""Nanoseconds of spinning after which a thread yields its core: the thread it waits for may need this very core."""
SETTLED_NANOSECONDS = 1_000_000
"""Fewest nanoseconds between two moves of a worker to another processor. (A number of launches would not do: a worker
that the caller keeps from its processor takes part in few of them.)"""
AWAIT_MILLISECONDS = 50
"""Milliseconds of a wait for another thread after which signals are looked for, as often as within long kernels."""
NAMES = ("einsmith_run", "einsmith_worker", "einsmith_stop", "einsmith_run_team", LOOK)

_BODY = """
; Notes that thread %me takes its first task of a launch, or that the calling thread begins a step.
define internal void @clock_in(i64 %clocks, i64 %me, i64 %time) #0 {
entry:
  %at = mul i64 %me, 16
  %address = add i64 %clocks, %at
  %first = inttoptr i64 %address to ptr
  %before = load i64, ptr %first, align 8
  %new = icmp eq i64 %before, 0
  %kept = select i1 %new, i64 %time, i64 %before
  store i64 %kept, ptr %first, align 8
  ret void
}

; Adds nanoseconds to those for which thread %me was at work.
define internal void @clock_add(i64 %clocks, i64 %me, i64 %more) #0 {
entry:
  %at = mul i64 %me, 16
  %address = add i64 %clocks, %at
  %first = inttoptr i64 %address to ptr
  %busy = getelementptr i64, ptr %first, i64 1
  %before = load i64, ptr %busy, align 8
  %after = add i64 %before, %more
  store i64 %after, ptr %busy, align 8
  ret void
}

; Runs tasks of the open launch, thread %me's share first, until none is left to claim.
define internal void @drain(ptr %pool, i64 %me) #0 {
entry:
  %launch = getelementptr i8, ptr %pool, i64 {launch}
  %p_fn = getelementptr i64, ptr %launch, i64 1
  %p_pointers = getelementptr i64, ptr %launch, i64 2
  %p_tasks = getelementptr i64, ptr %launch, i64 3
  %p_threads = getelementptr i64, ptr %launch, i64 4
  %p_scratch = getelementptr i64, ptr %launch, i64 5
  %p_stride = getelementptr i64, ptr %launch, i64 6
  %p_clocks = getelementptr i64, ptr %launch, i64 7
  %tickets = getelementptr i8, ptr %pool, i64 {tickets}
  %done = getelementptr i8, ptr %pool, i64 {done}
  %waiting = getelementptr i8, ptr %pool, i64 {waiting}
  br label %share
share:
  %turn = phi i64 [ 0, %entry ], [ %turn1, %next_share ]
  %count = phi i32 [ 0, %entry ], [ %n0, %next_share ]
  br label %try
try:
  %n0 = phi i32 [ %count, %share ], [ %n0, %retry ], [ %n1, %run ], [ %n1, %skipped ]
  %threads0 = load atomic i64, ptr %p_threads monotonic, align 8
  %in = icmp ult i64 %me, %threads0
  %left = icmp ult i64 %turn, %threads0
  %ok = and i1 %in, %left
  br i1 %ok, label %look, label %finish
look:
  %sum = add i64 %me, %turn
  %over = icmp uge i64 %sum, %threads0
  %wrapped = sub i64 %sum, %threads0
  %whose = select i1 %over, i64 %wrapped, i64 %sum
  %at = mul i64 %whose, 64
  %ticket = getelementptr i8, ptr %tickets, i64 %at
  %old = load atomic i64, ptr %ticket acquire, align 8
  %fn = load atomic i64, ptr %p_fn monotonic, align 8
  %pointers = load atomic i64, ptr %p_pointers monotonic, align 8
  %tasks = load atomic i64, ptr %p_tasks monotonic, align 8
  %threads = load atomic i64, ptr %p_threads monotonic, align 8
  %scratch = load atomic i64, ptr %p_scratch monotonic, align 8
  %stride = load atomic i64, ptr %p_stride monotonic, align 8
  fence acquire
  %epoch = load atomic i64, ptr %launch monotonic, align 8
  %theirs = lshr i64 %old, 32
  %current = icmp eq i64 %epoch, %theirs
  %stable = icmp eq i64 %threads, %threads0
  %believed = and i1 %current, %stable
  br i1 %believed, label %read, label %finish
read:
  %task = and i64 %old, 4294967295
  %upper = add i64 %whose, 1
  %scaled = mul i64 %upper, %tasks
  %end = udiv i64 %scaled, %threads
  %open = icmp ult i64 %task, %end
  br i1 %open, label %claim, label %next_share
claim:
  %bumped = add i64 %old, 1
  %swap = cmpxchg ptr %ticket, i64 %old, i64 %bumped acq_rel monotonic
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %ran, label %retry
retry:
  br label %try
ran:
  %n1 = add i32 %n0, 1
  %arrives = icmp eq i32 %n0, 0
  br i1 %arrives, label %arrive, label %claimed
arrive:  ; with a task in hand: the launch cannot end, and its fields cannot change
  %clocks = load atomic i64, ptr %p_clocks monotonic, align 8
  %clocked = icmp ne i64 %clocks, 0
  br i1 %clocked, label %begin, label %claimed
begin:
  %begun = call i64 @now()
  call void @clock_in(i64 %clocks, i64 %me, i64 %begun)
  %minus = sub i64 0, %begun
  call void @clock_add(i64 %clocks, i64 %me, i64 %minus)
  br label %claimed
claimed:
  %stopped = call i32 @einsmith_look()
  %goes = icmp eq i32 %stopped, 0
  br i1 %goes, label %run, label %skipped
skipped:
  br label %try
run:
  %f = inttoptr i64 %fn to ptr
  %b = inttoptr i64 %pointers to ptr
  %off = mul i64 %me, %stride
  %sa = add i64 %scratch, %off
  %s = inttoptr i64 %sa to ptr
  call void %f(ptr %b, ptr %s, i64 %task)
  br label %try
next_share:
  %turn1 = add i64 %turn, 1
  br label %share
finish:
  %some = icmp ne i32 %n0, 0
  br i1 %some, label %report, label %out
report:
  %clocks_then = load atomic i64, ptr %p_clocks monotonic, align 8
  %clocked_then = icmp ne i64 %clocks_then, 0
  br i1 %clocked_then, label %leave, label %count_up
leave:
  %left_at = call i64 @now()
  call void @clock_add(i64 %clocks_then, i64 %me, i64 %left_at)
  br label %count_up
count_up:
  %before = atomicrmw add ptr %done, i32 %n0 seq_cst
  %w = load atomic i32, ptr %waiting seq_cst, align 4
  %asleep = icmp ne i32 %w, 0
  br i1 %asleep, label %rouse, label %out
rouse:
  call void @wake(ptr %done)
  br label %out
out:
  ret void
}

define void @einsmith_worker(ptr %pool, i64 %me, i64 %generation) #0 {
entry:
  %fp = call i64 @fp_enter()
  call void @watch_join(ptr %pool, i64 %me)
  %stop = getelementptr i8, ptr %pool, i64 {stop}
  %g0 = trunc i64 %generation to i32
  br label %idle
idle:
  %last = phi i32 [ %g0, %entry ], [ %g, %work ]
  %moved = phi i64 [ 0, %entry ], [ %moved1, %work ]
  %g = call i32 @await_launch(ptr %pool, i32 %last)
  %end = load atomic i32, ptr %stop acquire, align 4
  %ended = icmp ne i32 %end, 0
  br i1 %ended, label %out, label %work
work:
  %moved1 = call i64 @settle(ptr %pool, i64 %me, i64 %moved)
  call void @drain(ptr %pool, i64 %me)
  br label %idle
out:
  call void @fp_leave(i64 %fp)
  ret void
}

; Tells the workers that there is something new: those that watch see it, those that sleep are woken.
define internal void @announce(ptr %pool) #0 {
entry:
  %sleepers = getelementptr i8, ptr %pool, i64 {sleepers}
  %a = atomicrmw add ptr %pool, i32 1 seq_cst
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp ne i32 %asleep, 0
  br i1 %any, label %rouse, label %out
rouse:
  call void @wake(ptr %pool)
  br label %out
out:
  ret void
}

define void @einsmith_stop(ptr %pool) #0 {
  %stop = getelementptr i8, ptr %pool, i64 {stop}
  store atomic i32 1, ptr %stop seq_cst, align 4
  call void @announce(ptr %pool)
  ret void
}

; Opens a launch to all threads, takes part, and returns when it is done.
define internal void @fork_join(ptr %pool, i64 %fn, i64 %pointers, i64 %tasks, i64 %threads, i64 %scratch,
                                i64 %stride, i64 %clocks) #0 {
entry:
  %launch = getelementptr i8, ptr %pool, i64 {launch}
  %done = getelementptr i8, ptr %pool, i64 {done}
  %tickets = getelementptr i8, ptr %pool, i64 {tickets}
  %before = load atomic i64, ptr %launch monotonic, align 8
  %grown = add i64 %before, 1
  %epoch = and i64 %grown, 4294967295
  store atomic i64 %epoch, ptr %launch monotonic, align 8
  fence release
  %p_fn = getelementptr i64, ptr %launch, i64 1
  %p_pointers = getelementptr i64, ptr %launch, i64 2
  %p_tasks = getelementptr i64, ptr %launch, i64 3
  %p_threads = getelementptr i64, ptr %launch, i64 4
  %p_scratch = getelementptr i64, ptr %launch, i64 5
  %p_stride = getelementptr i64, ptr %launch, i64 6
  %p_clocks = getelementptr i64, ptr %launch, i64 7
  store atomic i64 %fn, ptr %p_fn monotonic, align 8
  store atomic i64 %pointers, ptr %p_pointers monotonic, align 8
  store atomic i64 %tasks, ptr %p_tasks monotonic, align 8
  store atomic i64 %threads, ptr %p_threads monotonic, align 8
  store atomic i64 %scratch, ptr %p_scratch monotonic, align 8
  store atomic i64 %stride, ptr %p_stride monotonic, align 8
  store atomic i64 %clocks, ptr %p_clocks monotonic, align 8
  store atomic i32 0, ptr %done monotonic, align 4
  %high = shl i64 %epoch, 32
  br label %deal
deal:
  %t = phi i64 [ 0, %entry ], [ %t1, %deal ]
  %scaled = mul i64 %t, %tasks
  %first = udiv i64 %scaled, %threads
  %value = or i64 %high, %first
  %at = mul i64 %t, 64
  %ticket = getelementptr i8, ptr %tickets, i64 %at
  store atomic i64 %value, ptr %ticket release, align 8
  %t1 = add i64 %t, 1
  %more = icmp ult i64 %t1, %threads
  br i1 %more, label %deal, label %go
go:
  %place = call i32 @note_place(ptr %pool, i64 0)
  call void @announce(ptr %pool)
  call void @drain(ptr %pool, i64 0)
  %count = trunc i64 %tasks to i32
  call void @await_done(ptr %pool, i32 %count)
  ret void
}

; Runs the steps in order; 0, or the code of the first check that fails. Where times is given, nanoseconds are added
; up by step.
define i64 @einsmith_run(ptr %run) #0 {
entry:
  %answer = alloca i64, align 8
  %r_count = getelementptr i64, ptr %run, i64 1
  %r_pool = getelementptr i64, ptr %run, i64 2
  %r_threads = getelementptr i64, ptr %run, i64 3
  %r_scratch = getelementptr i64, ptr %run, i64 4
  %r_stride = getelementptr i64, ptr %run, i64 5
  %r_times = getelementptr i64, ptr %run, i64 6
  %steps = load ptr, ptr %run, align 8
  %count = load i64, ptr %r_count, align 8
  %pool = load ptr, ptr %r_pool, align 8
  %threads = load i64, ptr %r_threads, align 8
  %scratch = load ptr, ptr %r_scratch, align 8
  %stride = load i64, ptr %r_stride, align 8
  %times = load ptr, ptr %r_times, align 8
  %r_handle = getelementptr i64, ptr %run, i64 13
  %r_commit = getelementptr i64, ptr %run, i64 14
  %handle = load i64, ptr %r_handle, align 8
  %commit = load i64, ptr %r_commit, align 8
  %r_clocks = getelementptr i64, ptr %run, i64 15
  %all_clocks = load i64, ptr %r_clocks, align 8
  %clocks_bytes = mul i64 %threads, 16
  %fp = call i64 @fp_enter()
  %clocked = icmp ne i64 %all_clocks, 0
  %scratch_address = ptrtoint ptr %scratch to i64
  %timed = icmp ne ptr %times, null
  %watched = icmp ne i64 %handle, 0
  br i1 %watched, label %watch, label %head
watch:
  call void @watch_begin(i64 %handle, i64 %fp, ptr %pool, i64 %threads)
  br label %head
head:
  %n = phi i64 [ 0, %entry ], [ 0, %watch ], [ %following, %next ]
  br i1 %watched, label %look, label %look_at_end
look:
  %l = call i32 @einsmith_look()
  %halts = call i1 @watch_stopped()
  br i1 %halts, label %stopped, label %looked
looked:
  %stores = icmp uge i64 %n, %commit
  br i1 %stores, label %committed, label %look_at_end
committed:
  call void @watch_end()
  br label %look_at_end
look_at_end:
  %more = icmp ult i64 %n, %count
  br i1 %more, label %begin, label %out
begin:
  %clocks_before = mul i64 %n, %clocks_bytes
  %clocks_at = add i64 %all_clocks, %clocks_before
  %clocks = select i1 %clocked, i64 %clocks_at, i64 0
  br i1 %timed, label %stamp, label %step
stamp:
  %t0 = call i64 @now()
  br i1 %clocked, label %stamp_begin, label %step
stamp_begin:
  call void @clock_in(i64 %clocks, i64 0, i64 %t0)
  br label %step
step:
  %start = phi i64 [ 0, %begin ], [ %t0, %stamp ], [ %t0, %stamp_begin ]
  %record = mul i64 %n, {step_bytes}
  %at = getelementptr i8, ptr %steps, i64 %record
  %p1 = getelementptr i64, ptr %at, i64 1
  %p2 = getelementptr i64, ptr %at, i64 2
  %p3 = getelementptr i64, ptr %at, i64 3
  %p4 = getelementptr i64, ptr %at, i64 4
  %kind = load i64, ptr %at, align 8
  %what = load i64, ptr %p1, align 8
  %what_pointer = inttoptr i64 %what to ptr
  %code = load i64, ptr %p4, align 8
  switch i64 %kind, label %launch [ i64 1, label %zero
                                    i64 2, label %single
                                    i64 3, label %double
                                    i64 4, label %loop
                                    i64 5, label %loop_end
                                    i64 6, label %loop
                                    i64 7, label %together
                                    i64 8, label %notify
                                    i64 9, label %await
                                    i64 10, label %apart ]
zero:
  %z = load i32, ptr %what_pointer, align 4
  %bad_z = icmp ne i32 %z, 0
  br i1 %bad_z, label %failed, label %next_step
single:
  %f32 = load i32, ptr %what_pointer, align 4
  %e32 = and i32 %f32, 2139095040
  %bad_f = icmp eq i32 %e32, 2139095040
  br i1 %bad_f, label %failed, label %next_step
double:
  %f64 = load i64, ptr %what_pointer, align 8
  %e64 = and i64 %f64, 9218868437227405312
  %bad_d = icmp eq i64 %e64, 9218868437227405312
  br i1 %bad_d, label %failed, label %next_step
loop:
  %l_after = call i64 @loop_begin(ptr %at)
  %l_skip = icmp ne i64 %l_after, 0
  %l_n1 = add i64 %n, 1
  %l_next = select i1 %l_skip, i64 %l_after, i64 %l_n1
  br label %next
loop_end:
  %e_bytes = mul i64 %what, {step_bytes}
  %e_begin = getelementptr i8, ptr %steps, i64 %e_bytes
  %e_more = call i1 @loop_turn(ptr %e_begin)
  %e_first = add i64 %what, 1
  %e_n1 = add i64 %n, 1
  %e_next = select i1 %e_more, i64 %e_first, i64 %e_n1
  br label %next
together:
  %g_tasks = load i64, ptr %p2, align 8
  %g_few = icmp ule i64 %g_tasks, 1
  %g_alone = icmp ule i64 %threads, 1
  %g_inline = or i1 %g_few, %g_alone
  br i1 %g_inline, label %next_step, label %g_parallel
g_parallel:
  %g_at = ptrtoint ptr %at to i64
  call void @fork_join(ptr %pool, i64 ptrtoint (ptr @member to i64), i64 %g_at, i64 %g_tasks, i64 %threads,
                       i64 %scratch_address, i64 %stride, i64 %clocks)
  br label %next_step
apart:
  %parts = load i64, ptr %p2, align 8
  %one_part = icmp ule i64 %threads, 1
  %unclocked = xor i1 %clocked, true
  %each = and i1 %timed, %unclocked
  %in_order = or i1 %one_part, %each
  br i1 %in_order, label %next_step, label %a_parallel
a_parallel:
  %a_at = ptrtoint ptr %at to i64
  call void @fork_join(ptr %pool, i64 ptrtoint (ptr @part to i64), i64 %a_at, i64 %parts, i64 %threads,
                       i64 %scratch_address, i64 %stride, i64 %clocks)
  br label %next_step
notify:
  %pipe = load i64, ptr %p2, align 8
  %descriptor = trunc i64 %pipe to i32
  call void @write_byte(i32 %descriptor, ptr %what_pointer)
  br label %next_step
await:
  %a_pipe = load i64, ptr %p2, align 8
  %a_descriptor = trunc i64 %a_pipe to i32
  br label %a_wait
a_wait:
  %a_is = call i1 @await_byte(i32 %a_descriptor, i32 {await_milliseconds})
  br i1 %a_is, label %a_read, label %a_late
a_read:
  call void @read_byte(i32 %a_descriptor, ptr %answer)
  br label %next_step
a_late:
  br i1 %watched, label %a_look, label %a_wait
a_look:
  %a_l = call i32 @einsmith_look()
  %a_halts = call i1 @watch_stopped()
  br i1 %a_halts, label %stopped, label %a_wait
launch:
  %tasks = load i64, ptr %p2, align 8
  %pointers = load i64, ptr %p3, align 8
  %one_task = icmp ule i64 %tasks, 1
  %one_thread = icmp ule i64 %threads, 1
  %inline = or i1 %one_task, %one_thread
  br i1 %inline, label %serial, label %parallel
parallel:
  call void @fork_join(ptr %pool, i64 %what, i64 %pointers, i64 %tasks, i64 %threads, i64 %scratch_address, i64 %stride,
                       i64 %clocks)
  br label %next_step
serial:
  %buffers = inttoptr i64 %pointers to ptr
  br label %turn
turn:
  %k = phi i64 [ 0, %serial ], [ %k1, %task ]
  %go = icmp ult i64 %k, %tasks
  br i1 %go, label %do, label %next_step
do:
  br i1 %watched, label %look_first, label %task
look_first:
  %t_look = call i32 @einsmith_look()
  %t_halts = icmp ne i32 %t_look, 0
  br i1 %t_halts, label %next_step, label %task
task:
  call void %what_pointer(ptr %buffers, ptr %scratch, i64 %k)
  %k1 = add i64 %k, 1
  br label %turn
next_step:
  %passed = phi i64 [ %what, %g_parallel ], [ %what, %a_parallel ], [ 0, %zero ], [ 0, %single ], [ 0, %double ],
                    [ 0, %together ], [ 0, %apart ], [ 0, %notify ], [ 0, %a_read ], [ 0, %parallel ], [ 0, %turn ],
                    [ 0, %look_first ]
  %n0 = add i64 %n, %passed
  %n1 = add i64 %n0, 1
  br i1 %timed, label %note, label %next
note:
  %t1 = call i64 @now()
  %spent = sub i64 %t1, %start
  %slot = getelementptr i64, ptr %times, i64 %n
  %t_before = load i64, ptr %slot, align 8
  %t_after = add i64 %t_before, %spent
  store i64 %t_after, ptr %slot, align 8
  br label %next
next:
  %following = phi i64 [ %n1, %next_step ], [ %n1, %note ], [ %l_next, %loop ], [ %e_next, %loop_end ]
  br label %head
failed:
  br label %out
stopped:
  call void @watch_clear()
  br label %out
out:
  %status = phi i64 [ 0, %look_at_end ], [ %code, %failed ], [ {interrupted}, %stopped ]
  br i1 %watched, label %end_watch, label %leave
end_watch:
  call void @watch_end()
  br label %leave
leave:
  call void @fp_leave(i64 %fp)
  ret i64 %status
}

attributes #0 = { nounwind }
"""


def emit_entry(triple: str, own: bool = False) -> str:
    """Return the text for a triple such as x86_64-unknown-linux-gnu. own: define the words of entry/watch.py in the
    text, instead of referring to a definition elsewhere."""
    arch = triple.split("-")[0]
    family = "x86" if arch == "x86_64" else "aarch64" if arch in ("aarch64", "arm64") else "other"
    fields = {
        "spin": SPIN_NANOSECONDS,
        "alone": ALONE_NANOSECONDS,
        "step_bytes": 8 * STEP_WORDS,
        "await_milliseconds": AWAIT_MILLISECONDS,
        "move_bytes": 8 * MOVE_WORDS,
        "interval": INTERVAL,
        "interrupted": INTERRUPTED,
        "settled": SETTLED_NANOSECONDS,
        "identities": WORDS["tickets"] + 8,
        **WORDS,
    }
    parts = FLUSH[family], system_functions(triple), LOOPS, PARTS, TEAM, watch_functions(own), _BODY, WAIT
    text = f'target triple = "{triple}"\n' + "".join(parts)
    for name, value in fields.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
