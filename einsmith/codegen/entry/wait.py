"""Emit how threads of the pool wait for each other, as LLVM IR text: they spin for a while, yield, then sleep."""

from __future__ import annotations

WAIT = """
; The generation once it is not `last`: watches it for a while, then sleeps.
define internal i32 @await_launch(ptr %pool, i32 %last) #0 {
entry:
  %sleepers = getelementptr i8, ptr %pool, i64 {sleepers}
  %start = call i64 @now()
  br label %round
round:
  br label %spin
spin:
  %k = phi i32 [ 0, %round ], [ %k1, %again ]
  %g = load atomic i32, ptr %pool acquire, align 4
  %new = icmp ne i32 %g, %last
  br i1 %new, label %out, label %again
again:
  call void @relax()
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, 32
  br i1 %more, label %spin, label %clock
clock:
  %t = call i64 @now()
  %spent = sub i64 %t, %start
  %long = icmp sgt i64 %spent, {spin}
  br i1 %long, label %sleep, label %share
share:
  %some = icmp sgt i64 %spent, {alone}
  br i1 %some, label %yield, label %round
yield:
  call void @yield()
  br label %round
sleep:
  %a = atomicrmw add ptr %sleepers, i32 1 seq_cst
  call void @park(ptr %pool, i32 %last)
  %b = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  %g2 = load atomic i32, ptr %pool acquire, align 4
  %new2 = icmp ne i32 %g2, %last
  br i1 %new2, label %out, label %sleep
out:
  %r = phi i32 [ %g, %spin ], [ %g2, %sleep ]
  ret i32 %r
}

; Returns when `done` is `tasks`.
define internal void @await_done(ptr %pool, i32 %tasks) #0 {
entry:
  %done = getelementptr i8, ptr %pool, i64 {done}
  %waiting = getelementptr i8, ptr %pool, i64 {waiting}
  br label %first
first:
  %j = phi i32 [ 0, %entry ], [ %j1, %wait ]
  %d0 = load atomic i32, ptr %done acquire, align 4
  %all0 = icmp eq i32 %d0, %tasks
  br i1 %all0, label %out, label %wait
wait:
  call void @relax()
  %j1 = add i32 %j, 1
  %few = icmp ult i32 %j1, 64
  br i1 %few, label %first, label %timed
timed:
  %start = call i64 @now()
  br label %round
round:
  br label %spin
spin:
  %k = phi i32 [ 0, %round ], [ %k1, %again ]
  %d = load atomic i32, ptr %done acquire, align 4
  %all = icmp eq i32 %d, %tasks
  br i1 %all, label %out, label %again
again:
  call void @relax()
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, 32
  br i1 %more, label %spin, label %clock
clock:
  %t = call i64 @now()
  %spent = sub i64 %t, %start
  %long = icmp sgt i64 %spent, {spin}
  br i1 %long, label %doze, label %share
share:
  %some = icmp sgt i64 %spent, {alone}
  br i1 %some, label %yield, label %round
yield:
  call void @yield()
  br label %round
doze:
  store atomic i32 1, ptr %waiting seq_cst, align 4
  br label %sleep
sleep:
  %d2 = load atomic i32, ptr %done seq_cst, align 4
  %all2 = icmp eq i32 %d2, %tasks
  br i1 %all2, label %up, label %nap
nap:
  call void @park_for(ptr %done, i32 %d2, i64 {interval})
  %l = call i32 @einsmith_look()
  br label %sleep
up:
  store atomic i32 0, ptr %waiting seq_cst, align 4
  br label %out
out:
  ret void
}
"""
