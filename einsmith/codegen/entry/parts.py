"""Emit the tasks of launches and of loops that run at the same time in one launch, as LLVM IR text.

They follow a header (`entry_program.STEP_WORDS`). A loop is one task, with pointers and moves of its own, so that a
thread runs all its steps without waiting for the others.
"""

from __future__ import annotations

PARTS = """
; Runs a task of the launches that follow the header %at, counted through all of them.
define internal void @member(ptr %at, ptr %scratch, i64 %task) #0 {
entry:
  br label %look
look:
  %record = phi ptr [ %at, %entry ], [ %following, %past ]
  %left = phi i64 [ %task, %entry ], [ %rest, %past ]
  %following = getelementptr i8, ptr %record, i64 {step_bytes}
  %p2 = getelementptr i64, ptr %following, i64 2
  %tasks = load i64, ptr %p2, align 8
  %here = icmp ult i64 %left, %tasks
  br i1 %here, label %run, label %past
past:
  %rest = sub i64 %left, %tasks
  br label %look
run:
  %p1 = getelementptr i64, ptr %following, i64 1
  %p3 = getelementptr i64, ptr %following, i64 3
  %f = load ptr, ptr %p1, align 8
  %pointers = load ptr, ptr %p3, align 8
  call void %f(ptr %pointers, ptr %scratch, i64 %left)
  ret void
}

; Runs loop number %task of those that follow the header %at: its launches and inner loops, each launch alone.
define internal void @part(ptr %at, ptr %scratch, i64 %task) #0 {
entry:
  %h3 = getelementptr i64, ptr %at, i64 3
  %h5 = getelementptr i64, ptr %at, i64 5
  %length = load i64, ptr %h3, align 8
  %header = load i64, ptr %h5, align 8
  %before = mul i64 %header, {step_bytes}
  %back = sub i64 0, %before
  %steps = getelementptr i8, ptr %at, i64 %back
  %skipped = mul i64 %task, %length
  %own = add i64 %header, %skipped
  %begin = add i64 %own, 1
  %end = add i64 %begin, %length
  br label %head
head:
  %n = phi i64 [ %begin, %entry ], [ %l_next, %loop ], [ %e_next, %loop_end ], [ %n1, %next ]
  %more = icmp ult i64 %n, %end
  br i1 %more, label %step, label %out
step:
  %bytes = mul i64 %n, {step_bytes}
  %record = getelementptr i8, ptr %steps, i64 %bytes
  %p1 = getelementptr i64, ptr %record, i64 1
  %p2 = getelementptr i64, ptr %record, i64 2
  %p3 = getelementptr i64, ptr %record, i64 3
  %kind = load i64, ptr %record, align 8
  %what = load i64, ptr %p1, align 8
  %n1 = add i64 %n, 1
  switch i64 %kind, label %launch [ i64 4, label %loop
                                    i64 5, label %loop_end
                                    i64 6, label %loop ]
loop:
  %l_after = call i64 @loop_begin(ptr %record)
  %l_skip = icmp ne i64 %l_after, 0
  %l_next = select i1 %l_skip, i64 %l_after, i64 %n1
  br label %head
loop_end:
  %e_bytes = mul i64 %what, {step_bytes}
  %e_begin = getelementptr i8, ptr %steps, i64 %e_bytes
  %e_more = call i1 @loop_turn(ptr %e_begin)
  %e_first = add i64 %what, 1
  %e_next = select i1 %e_more, i64 %e_first, i64 %n1
  br label %head
launch:
  %tasks = load i64, ptr %p2, align 8
  %pointers = load ptr, ptr %p3, align 8
  %f = inttoptr i64 %what to ptr
  br label %turn
turn:
  %k = phi i64 [ 0, %launch ], [ %k1, %run ]
  %open = icmp ult i64 %k, %tasks
  br i1 %open, label %look, label %next
look:
  %stopped = call i32 @einsmith_look()
  %goes = icmp eq i32 %stopped, 0
  br i1 %goes, label %run, label %out
run:
  call void %f(ptr %pointers, ptr %scratch, i64 %k)
  %k1 = add i64 %k, 1
  br label %turn
next:
  br label %head
out:
  ret void
}
"""
