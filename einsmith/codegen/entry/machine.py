"""Emit the parts of the native entry that differ from processor to processor, as LLVM IR text.

`fp_enter` flushes denormal numbers to zero in this thread and returns the control register's old value, which
`fp_leave` restores. `relax` is a pause in a loop that watches memory.
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
