"""Emit the parts of the native entry that differ from machine to machine, as LLVM IR text.

`fp_enter` flushes denormal numbers to zero in this thread and returns the control register's old value, which
`fp_leave` restores. `relax` is a pause in a loop that watches memory. `park` sleeps while a word has a value,
`park_for` sleeps for at most some nanoseconds (less than a second), `wake` ends the sleep. `note_place` remembers the
processor on which a thread runs; `settle` also moves the thread away from a processor that it shares with a thread of
a lower number.
"""

from __future__ import annotations

FLUSH = {
    # The register's bits: flush results to zero (0x8000), take inputs as zero (0x40).
    "x86": """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse2.pause()
define internal i64 @fp_enter() #0 {
  %slot = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %old = load volatile i32, ptr %slot, align 4
  %new = or i32 %old, 32832
  store volatile i32 %new, ptr %slot, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  %wide = zext i32 %old to i64
  ret i64 %wide
}
define internal void @fp_leave(i64 %old) #0 {
  %slot = alloca i32, align 4
  %narrow = trunc i64 %old to i32
  store volatile i32 %narrow, ptr %slot, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}
define internal void @relax() #0 {
  call void @llvm.x86.sse2.pause()
  ret void
}
""",
    # FPCR bit 24 flushes inputs and results.
    "aarch64": """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare void @llvm.aarch64.hint(i32)
define internal i64 @fp_enter() #0 {
  %old = call i64 @llvm.aarch64.get.fpcr()
  %new = or i64 %old, 16777216
  call void @llvm.aarch64.set.fpcr(i64 %new)
  ret i64 %old
}
define internal void @fp_leave(i64 %old) #0 {
  call void @llvm.aarch64.set.fpcr(i64 %old)
  ret void
}
define internal void @relax() #0 {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
""",
    # No such mode is known here for other machines, which compute with denormals.
    "other": """
define internal i64 @fp_enter() #0 {
  ret i64 0
}
define internal void @fp_leave(i64 %old) #0 {
  ret void
}
define internal void @relax() #0 {
  ret void
}
""",
}

FUTEX = """
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
POLL = """
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
PLACES = """
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

NO_PLACES = """
define internal i32 @note_place(ptr %pool, i64 %me) #0 {
  ret i32 -1
}
define internal i64 @settle(ptr %pool, i64 %me, i64 %last) #0 {
  ret i64 %last
}
"""
