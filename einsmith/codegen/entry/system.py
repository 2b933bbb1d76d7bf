"""Emit the parts of the native entry that call the operating system, as LLVM IR text.

`now` reads a clock in nanoseconds; `roughly_now` reads a cheaper one that advances every few milliseconds. `thread_id`
identifies the thread; `yield` offers its processor to another one. `write_byte` and `read_byte` access a pipe;
`await_byte` waits for a byte for at most some milliseconds, and returns whether there is one. `park` sleeps while a
word has a value, `park_for` for at most some nanoseconds (less than a second); `wake` ends the sleep. `note_place`
records the processor on which a thread runs; `settle` also moves the thread away from a processor that it shares with a
thread of a lower number (Linux only).
"""

from __future__ import annotations

_POSIX = """
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i64 @write(i32, ptr, i64)
declare i64 @read(i32, ptr, i64)
declare i32 @poll(ptr, i64, i32)
declare ptr @pthread_self()

define internal i64 @read_clock(i32 %clock) #0 {
  %ts = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 %clock, ptr %ts)
  %s = load i64, ptr %ts, align 8
  %p = getelementptr i64, ptr %ts, i64 1
  %ns = load i64, ptr %p, align 8
  %m = mul i64 %s, 1000000000
  %t = add i64 %m, %ns
  ret i64 %t
}
define internal i64 @now() #0 {
  %t = call i64 @read_clock(i32 {clock})
  ret i64 %t
}
define internal i64 @roughly_now() #0 {
  %t = call i64 @read_clock(i32 {coarse})
  ret i64 %t
}
define internal i64 @thread_id() #0 {
  %self = call ptr @pthread_self()
  %id = ptrtoint ptr %self to i64
  ret i64 %id
}
define internal void @yield() #0 {
  %r = call i32 @sched_yield()
  ret void
}
define internal void @write_byte(i32 %descriptor, ptr %byte) #0 {
  %r = call i64 @write(i32 %descriptor, ptr %byte, i64 1)
  ret void
}
define internal void @read_byte(i32 %descriptor, ptr %byte) #0 {
  %r = call i64 @read(i32 %descriptor, ptr %byte, i64 1)
  ret void
}
define internal i1 @await_byte(i32 %descriptor, i32 %milliseconds) #0 {
  %polled = alloca i64, align 8
  %wide = zext i32 %descriptor to i64
  %word = or i64 %wide, 4294967296  ; the descriptor, then POLLIN
  store i64 %word, ptr %polled, align 8
  %count = call i32 @poll(ptr %polled, i64 1, i32 %milliseconds)
  %is = icmp sgt i32 %count, 0
  ret i1 %is
}
"""

# Functions of kernel32, KernelBase and the C runtime, which every process of Windows has loaded.
_WINDOWS = """
declare i32 @QueryPerformanceCounter(ptr)
declare i32 @QueryPerformanceFrequency(ptr)
declare i64 @GetTickCount64()
declare i32 @GetCurrentThreadId()
declare i32 @SwitchToThread()
declare void @Sleep(i32)
declare i32 @WaitOnAddress(ptr, ptr, i64, i32)
declare void @WakeByAddressAll(ptr)
declare i32 @PeekNamedPipe(i64, ptr, i32, ptr, ptr, ptr)
declare i64 @_get_osfhandle(i32)
declare i32 @_write(i32, ptr, i32)
declare i32 @_read(i32, ptr, i32)

; Whole seconds apart from the rest: ticks times 1000000000 would overflow within the hour.
define internal i64 @now() #0 {
  %ticks_at = alloca i64, align 8
  %rate_at = alloca i64, align 8
  %r = call i32 @QueryPerformanceCounter(ptr %ticks_at)
  %q = call i32 @QueryPerformanceFrequency(ptr %rate_at)
  %ticks = load i64, ptr %ticks_at, align 8
  %rate = load i64, ptr %rate_at, align 8
  %s = udiv i64 %ticks, %rate
  %whole = mul i64 %s, 1000000000
  %left = urem i64 %ticks, %rate
  %scaled = mul i64 %left, 1000000000
  %ns = udiv i64 %scaled, %rate
  %t = add i64 %whole, %ns
  ret i64 %t
}
define internal i64 @roughly_now() #0 {
  %ms = call i64 @GetTickCount64()
  %t = mul i64 %ms, 1000000
  ret i64 %t
}
define internal i64 @thread_id() #0 {
  %self = call i32 @GetCurrentThreadId()
  %id = zext i32 %self to i64
  ret i64 %id
}
define internal void @yield() #0 {
  %r = call i32 @SwitchToThread()
  ret void
}
define internal void @write_byte(i32 %descriptor, ptr %byte) #0 {
  %r = call i32 @_write(i32 %descriptor, ptr %byte, i32 1)
  ret void
}
define internal void @read_byte(i32 %descriptor, ptr %byte) #0 {
  %r = call i32 @_read(i32 %descriptor, ptr %byte, i32 1)
  ret void
}
; Looks every millisecond. Of a closed pipe one can read at once, as of one that has bytes.
define internal i1 @await_byte(i32 %descriptor, i32 %milliseconds) #0 {
entry:
  %count_at = alloca i32, align 4
  store i32 0, ptr %count_at, align 4
  %handle = call i64 @_get_osfhandle(i32 %descriptor)
  %start = call i64 @GetTickCount64()
  %limit = zext i32 %milliseconds to i64
  br label %look
look:
  %told = call i32 @PeekNamedPipe(i64 %handle, ptr null, i32 0, ptr null, ptr %count_at, ptr null)
  %open = icmp ne i32 %told, 0
  br i1 %open, label %counted, label %yes
counted:
  %count = load i32, ptr %count_at, align 4
  %some = icmp ne i32 %count, 0
  br i1 %some, label %yes, label %none
none:
  %time = call i64 @GetTickCount64()
  %spent = sub i64 %time, %start
  %early = icmp ult i64 %spent, %limit
  br i1 %early, label %sleep, label %no
sleep:
  call void @Sleep(i32 1)
  br label %look
yes:
  ret i1 true
no:
  ret i1 false
}
define internal void @park(ptr %word, i32 %value) #0 {
  %same = alloca i32, align 4
  store i32 %value, ptr %same, align 4
  %r = call i32 @WaitOnAddress(ptr %word, ptr %same, i64 4, i32 -1)
  ret void
}
define internal void @park_for(ptr %word, i32 %value, i64 %ns) #0 {
  %same = alloca i32, align 4
  store i32 %value, ptr %same, align 4
  %ms = udiv i64 %ns, 1000000
  %more = add i64 %ms, 1
  %limit = trunc i64 %more to i32
  %r = call i32 @WaitOnAddress(ptr %word, ptr %same, i64 4, i32 %limit)
  ret void
}
define internal void @wake(ptr %word) #0 {
  call void @WakeByAddressAll(ptr %word)
  ret void
}
"""

_FUTEX = """
declare i64 @syscall(i64, ...)
define internal void @park(ptr %word, i32 %value) #0 {
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i64 128, i32 %value, ptr null, ptr null, i64 0)
  ret void
}
define internal void @park_for(ptr %word, i32 %value, i64 %ns) #0 {
  %ts = alloca [2 x i64], align 8
  %at = getelementptr i64, ptr %ts, i64 1
  store i64 0, ptr %ts, align 8
  store i64 %ns, ptr %at, align 8
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i64 128, i32 %value, ptr %ts, ptr null, i64 0)
  ret void
}
define internal void @wake(ptr %word) #0 {
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i64 129, i32 2147483647, ptr null, ptr null, i64 0)
  ret void
}
"""

# Without futexes, a waiting thread looks again every 50 microseconds.
_NAP = """
declare i32 @nanosleep(ptr, ptr)
define internal void @park(ptr %word, i32 %value) #0 {
  %ts = alloca [2 x i64], align 8
  %ns = getelementptr i64, ptr %ts, i64 1
  store i64 0, ptr %ts, align 8
  store i64 50000, ptr %ns, align 8
  %r = call i32 @nanosleep(ptr %ts, ptr null)
  ret void
}
define internal void @park_for(ptr %word, i32 %value, i64 %ns) #0 {
  call void @park(ptr %word, i32 %value)
  ret void
}
define internal void @wake(ptr %word) #0 {
  ret void
}
"""

# Threads that wait for each other on one processor hand it back and forth, and none of them looks idle or starved: the
# system may leave them there for seconds. So a thread that meets another one moves itself, not again for a while, and
# may be moved by the system as it likes.
_PLACES = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i32 @note_place(ptr %pool, i64 %me) #0 {
  %places = getelementptr i8, ptr %pool, i64 {places}
  %mine = getelementptr i32, ptr %places, i64 %me
  %cpu = call i32 @sched_getcpu()
  %old = load atomic i32, ptr %mine monotonic, align 4
  %same = icmp eq i32 %old, %cpu
  br i1 %same, label %out, label %note
note:
  store atomic i32 %cpu, ptr %mine monotonic, align 4
  br label %out
out:
  ret i32 %cpu
}

; When it has moved last, `last` being when it did before.
define internal i64 @settle(ptr %pool, i64 %me, i64 %last) #0 {
entry:
  %all = alloca [16 x i64], align 8
  %free = alloca [16 x i64], align 8
  %places = getelementptr i8, ptr %pool, i64 {places}
  %cpu = call i32 @note_place(ptr %pool, i64 %me)
  br label %look
look:
  %j = phi i64 [ 0, %entry ], [ %j1, %next ]
  %more = icmp ult i64 %j, %me
  br i1 %more, label %compare, label %stay
compare:
  %at = getelementptr i32, ptr %places, i64 %j
  %other = load atomic i32, ptr %at monotonic, align 4
  %met = icmp eq i32 %other, %cpu
  %j1 = add i64 %j, 1
  br i1 %met, label %ask, label %next
next:
  br label %look
ask:
  %time = call i64 @now()
  %settled = sub i64 %time, %last
  %may = icmp sge i64 %settled, {settled}
  br i1 %may, label %mask, label %stay
mask:
  %got = call i32 @sched_getaffinity(i32 0, i64 128, ptr %all)
  %ok = icmp eq i32 %got, 0
  br i1 %ok, label %copy, label %stay
copy:
  %k = phi i64 [ 0, %mask ], [ %k1, %copy ]
  %from = getelementptr i64, ptr %all, i64 %k
  %to = getelementptr i64, ptr %free, i64 %k
  %word = load i64, ptr %from, align 8
  store i64 %word, ptr %to, align 8
  %k1 = add i64 %k, 1
  %copying = icmp ult i64 %k1, 16
  br i1 %copying, label %copy, label %take
take:
  %n = phi i64 [ 0, %copy ], [ %n1, %taken ]
  %n_at = getelementptr i32, ptr %places, i64 %n
  %used = load atomic i32, ptr %n_at monotonic, align 4
  %known = icmp ult i32 %used, 1024
  br i1 %known, label %clear, label %taken
clear:
  %wide = zext i32 %used to i64
  %index = lshr i64 %wide, 6
  %bit = and i64 %wide, 63
  %one = shl i64 1, %bit
  %keep = xor i64 %one, -1
  %w_at = getelementptr i64, ptr %free, i64 %index
  %w = load i64, ptr %w_at, align 8
  %less = and i64 %w, %keep
  store i64 %less, ptr %w_at, align 8
  br label %taken
taken:
  %n1 = add i64 %n, 1
  %taking = icmp ult i64 %n1, %me
  br i1 %taking, label %take, label %move
move:
  ; Refused where no processor is left.
  %moved = call i32 @sched_setaffinity(i32 0, i64 128, ptr %free)
  %restored = call i32 @sched_setaffinity(i32 0, i64 128, ptr %all)
  %now = call i32 @note_place(ptr %pool, i64 %me)
  ret i64 %time
stay:
  ret i64 %last
}
"""

_NO_PLACES = """
define internal i32 @note_place(ptr %pool, i64 %me) #0 {
  ret i32 -1
}
define internal i64 @settle(ptr %pool, i64 %me, i64 %last) #0 {
  ret i64 %last
}
"""

_FUTEX_CALL = {"x86_64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98}
"""Number of Linux's system call futex(2), by architecture."""


# One thread, without a system: nobody waits, and nothing is timed.
_ALONE = """
define internal i64 @now() #0 {
  ret i64 0
}
define internal i64 @roughly_now() #0 {
  ret i64 0
}
define internal i64 @thread_id() #0 {
  ret i64 1
}
define internal void @yield() #0 {
  ret void
}
define internal void @write_byte(i32 %descriptor, ptr %byte) #0 {
  ret void
}
define internal void @read_byte(i32 %descriptor, ptr %byte) #0 {
  ret void
}
define internal i1 @await_byte(i32 %descriptor, i32 %milliseconds) #0 {
  ret i1 true
}
define internal void @park(ptr %word, i32 %value) #0 {
  ret void
}
define internal void @park_for(ptr %word, i32 %value, i64 %ns) #0 {
  ret void
}
define internal void @wake(ptr %word) #0 {
  ret void
}
"""


def system_functions(triple: str) -> str:
    """Return the text of the functions that call the system of a triple such as x86_64-unknown-linux-gnu.

    Systems other than Linux, macOS and Windows count as POSIX ones.
    """
    if "windows" in triple:
        return _WINDOWS + _NO_PLACES
    if triple.startswith("wasm"):
        return _ALONE + _NO_PLACES
    is_linux, is_mac = "linux" in triple, "darwin" in triple or "macos" in triple
    futex = _FUTEX_CALL.get(triple.split("-")[0]) if is_linux else None
    # CLOCK_MONOTONIC is 1 except on macOS. The coarse clocks: CLOCK_MONOTONIC_COARSE, CLOCK_MONOTONIC_RAW_APPROX.
    clock, coarse = (6, 5) if is_mac else (1, 6) if is_linux else (1, 1)
    text = _POSIX.replace("{clock}", str(clock)).replace("{coarse}", str(coarse))
    text += _NAP if futex is None else _FUTEX.replace("{number}", str(futex))
    return text + (_PLACES if is_linux else _NO_PLACES)
