"""Emit the code that checks for signals in a long run, as LLVM IR text.

Python handles signals between its own instructions, and there are none during a native run. A run that may be long is
therefore given a function that handles pending signals. The thread that began the run calls it every INTERVAL: between
steps, between tasks, and inside long tasks (`codegen.loopnest.nest.Function.checks_signals`). The other threads check
whether the run has been stopped. Tasks then end early, and the run ends with status INTERRUPTED. The checks end at the
first step that stores into parameters or state (`commit`): from there the run finishes as if there were no signals.
Concurrent programs of other threads are not affected: only the thread that began the run and the workers of its pool
stop. Their identities are stored next to their tickets (entry/entry_program.py).

The words of @einsmith_watch: the function, or 0; the thread that may call it; when it is due; the control register of
the thread that runs the program; whether the run is stopped; whether the function is running; the pool whose workers
take part, or 0, and the number of threads; nanoseconds between two calls of the function (INTERVAL).
"""

from __future__ import annotations

INTERRUPTED = -1
"""The status of a run that was stopped."""
INTERVAL = 50_000_000
"""Nanoseconds between two calls of the handler."""
WATCH_WORDS = ("handle", "thread", "due", "register", "stopped", "handling", "pool", "threads", "interval")
LOOK, WATCH = "einsmith_look", "einsmith_watch"
"""The names of the function that kernels call, and of the words."""

WATCHED = """
; Begins to watch a run of this thread, whose control register was %fp, and of the workers of %pool.
define internal void @watch_begin(i64 %handle, i64 %fp, ptr %pool, i64 %threads) #0 {
  %me = call i64 @thread_id()
  %now = call i64 @roughly_now()
  %interval = load i64, ptr {interval}, align 8
  %due = add i64 %now, %interval
  store i64 %me, ptr {thread}, align 8
  store i64 %due, ptr {due}, align 8
  store i64 %fp, ptr {register}, align 8
  store ptr %pool, ptr {pool}, align 8
  store i64 %threads, ptr {threads}, align 8
  store atomic i64 0, ptr {stopped} monotonic, align 8
  store atomic i64 %handle, ptr {handle} release, align 8
  ret void
}

define internal void @watch_end() #0 {
  store atomic i64 0, ptr {handle} monotonic, align 8
  ret void
}

; After a run that was stopped: what comes next is not.
define internal void @watch_clear() #0 {
  store atomic i64 0, ptr {stopped} monotonic, align 8
  ret void
}

define internal i1 @watch_stopped() #0 {
  %stopped = load atomic i64, ptr {stopped} monotonic, align 8
  %is = icmp ne i64 %stopped, 0
  ret i1 %is
}

; Notes that this thread is worker %me of the pool.
define internal void @watch_join(ptr %pool, i64 %me) #0 {
  %self = call i64 @thread_id()
  %at = mul i64 %me, 64
  %offset = add i64 %at, {identities}
  %word = getelementptr i8, ptr %pool, i64 %offset
  store i64 %self, ptr %word, align 8
  ret void
}

; Whether this thread takes part in the watched run.
define internal i1 @watch_includes() #0 {
entry:
  %me = call i64 @thread_id()
  %thread = load i64, ptr {thread}, align 8
  %first = icmp eq i64 %me, %thread
  br i1 %first, label %yes, label %workers
workers:
  %pool = load ptr, ptr {pool}, align 8
  %threads = load i64, ptr {threads}, align 8
  %some = icmp ne ptr %pool, null
  br i1 %some, label %next, label %no
next:
  %n = phi i64 [ 1, %workers ], [ %n1, %other ]
  %more = icmp ult i64 %n, %threads
  br i1 %more, label %compare, label %no
compare:
  %at = mul i64 %n, 64
  %offset = add i64 %at, {identities}
  %word = getelementptr i8, ptr %pool, i64 %offset
  %worker = load i64, ptr %word, align 8
  %is = icmp eq i64 %worker, %me
  br i1 %is, label %yes, label %other
other:
  %n1 = add i64 %n, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether the run is stopped, for whoever is about to go on with it.
define i32 @einsmith_look() #0 {
entry:
  %before = load atomic i64, ptr {stopped} acquire, align 8
  %ended = icmp ne i64 %before, 0
  br i1 %ended, label %whose, label %watched
whose:
  %included = call i1 @watch_includes()
  br i1 %included, label %yes, label %no
watched:
  %handle = load atomic i64, ptr {handle} acquire, align 8
  %is = icmp ne i64 %handle, 0
  br i1 %is, label %mine, label %no
mine:
  %me = call i64 @thread_id()
  %thread = load i64, ptr {thread}, align 8
  %may = icmp eq i64 %me, %thread
  br i1 %may, label %clock, label %no
clock:
  %now = call i64 @roughly_now()
  %due = load i64, ptr {due}, align 8
  %early = icmp slt i64 %now, %due
  br i1 %early, label %no, label %call
call:
  ; What handles a signal may run programs itself, which are not watched.
  store atomic i64 0, ptr {handle} monotonic, align 8
  store i64 1, ptr {handling}, align 8
  %fp = load i64, ptr {register}, align 8
  call void @fp_leave(i64 %fp)
  %f = inttoptr i64 %handle to ptr
  %raised = call i32 %f()
  %ignored = call i64 @fp_enter()
  store i64 0, ptr {handling}, align 8
  %then = call i64 @roughly_now()
  %interval = load i64, ptr {interval}, align 8
  %next = add i64 %then, %interval
  store i64 %next, ptr {due}, align 8
  store atomic i64 %handle, ptr {handle} monotonic, align 8
  %stop = icmp ne i32 %raised, 0
  br i1 %stop, label %halt, label %no
halt:
  store atomic i64 1, ptr {stopped} release, align 8
  br label %yes
yes:
  ret i32 1
no:
  ret i32 0
}
"""

HANDLER = """
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
@einsmith_raised = external global [3 x ptr]

; Handles the signals that wait; 1 where that has raised what @einsmith_raised holds from then on.
define i32 @einsmith_handle() nounwind {
entry:
  %held = call i32 @PyGILState_Ensure()
  %status = call i32 @PyErr_CheckSignals()
  %raised = icmp ne i32 %status, 0
  br i1 %raised, label %fetch, label %out
fetch:
  %value = getelementptr ptr, ptr @einsmith_raised, i64 1
  %trace = getelementptr ptr, ptr @einsmith_raised, i64 2
  call void @PyErr_Fetch(ptr @einsmith_raised, ptr %value, ptr %trace)
  br label %out
out:
  call void @PyGILState_Release(i32 %held)
  %code = zext i1 %raised to i32
  ret i32 %code
}
"""
"""The handler of pending signals in native code. In Python's own code a signal could be handled before there is any
code to catch its exception."""
HANDLE, RAISED = "einsmith_handle", "einsmith_raised"


def watch_functions(own: bool) -> str:
    """Return the text of the functions that check for signals; own: with words of its own, which no code outside can
    reach."""
    text = WATCHED
    for n, name in enumerate(WATCH_WORDS):
        text = text.replace(f"{{{name}}}", f"getelementptr (i64, ptr @{WATCH}, i64 {n})")
    values = ", ".join(f"i64 {INTERVAL if name == 'interval' else 0}" for name in WATCH_WORDS)
    kind, value = ("internal global", f" [{values}]") if own else ("external global", "")
    return f"@{WATCH} = {kind} [{len(WATCH_WORDS)} x i64]{value}, align 64\n" + text
