"""What the native entry does differently from machine to machine, as LLVM IR text.

`fp_enter` flushes denormal numbers to zero in this thread and gives the control register's old value, which `fp_leave`
puts back; `relax` is a pause in a loop that watches memory; `park` sleeps while a word has a value, `wake` ends that.
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
    # Other machines have no such mode that is known here: denormals are computed with.
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
define internal void @wake(ptr %word) #0 {
  ret void
}
"""
