"""Emit a run on the threads of an OpenMP runtime, as LLVM IR text.

A process should have one set of threads that spin. The threads of a loaded runtime (PyTorch's, say) watch for work
after each of its parallel regions, and additional workers of the pool would share their processors. So the whole
program is one parallel region: thread 0 of the team runs it, the others are its workers until it ends.
"""

from __future__ import annotations

TEAM = """
define internal void @team_member(ptr %run) #0 {
entry:
  %r_pool = getelementptr i64, ptr %run, i64 2
  %r_number = getelementptr i64, ptr %run, i64 8
  %r_generation = getelementptr i64, ptr %run, i64 9
  %r_status = getelementptr i64, ptr %run, i64 10
  %r_span = getelementptr i64, ptr %run, i64 11
  %pool = load ptr, ptr %r_pool, align 8
  %number = load ptr, ptr %r_number, align 8
  %n = call i32 %number()
  %first = icmp eq i32 %n, 0
  br i1 %first, label %lead, label %follow
lead:
  %begun = call i64 @now()
  %status = call i64 @einsmith_run(ptr %run)
  %ended = call i64 @now()
  %span = sub i64 %ended, %begun
  store i64 %status, ptr %r_status, align 8
  store i64 %span, ptr %r_span, align 8
  call void @einsmith_stop(ptr %pool)
  br label %out
follow:
  %me = zext i32 %n to i64
  %g = load i64, ptr %r_generation, align 8
  call void @einsmith_worker(ptr %pool, i64 %me, i64 %g)
  br label %out
out:
  ret void
}

; `einsmith_run` on a team. The runtime returns when all its threads have left team_member: none is late for the next.
define i64 @einsmith_run_team(ptr %run) #0 {
entry:
  %r_pool = getelementptr i64, ptr %run, i64 2
  %r_threads = getelementptr i64, ptr %run, i64 3
  %r_fork = getelementptr i64, ptr %run, i64 7
  %r_generation = getelementptr i64, ptr %run, i64 9
  %r_status = getelementptr i64, ptr %run, i64 10
  %r_span = getelementptr i64, ptr %run, i64 11
  %r_waited = getelementptr i64, ptr %run, i64 12
  %pool = load ptr, ptr %r_pool, align 8
  %wide = load i64, ptr %r_threads, align 8
  %threads = trunc i64 %wide to i32
  %fork = load ptr, ptr %r_fork, align 8
  %stop = getelementptr i8, ptr %pool, i64 {stop}
  store atomic i32 0, ptr %stop seq_cst, align 4
  %g = load atomic i32, ptr %pool seq_cst, align 4
  %g64 = zext i32 %g to i64
  store i64 %g64, ptr %r_generation, align 8
  %begun = call i64 @now()
  call void %fork(ptr @team_member, ptr %run, i32 %threads, i32 0)
  %ended = call i64 @now()
  %whole = sub i64 %ended, %begun
  %span = load i64, ptr %r_span, align 8
  %waited = sub i64 %whole, %span
  store i64 %waited, ptr %r_waited, align 8
  %status = load i64, ptr %r_status, align 8
  ret i64 %status
}
"""
