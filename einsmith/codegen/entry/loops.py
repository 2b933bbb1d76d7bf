"""Emit the loops of the native entry as LLVM IR text: how a loop's pointers are placed and moved.

`at` is the loop's record in the table (see entry_program.STEP_WORDS). A loop places its pointers from their bases each
time it begins, so nothing has to be restored when it ends, and a base may itself be moved by the loop around it.
"""

from __future__ import annotations

LOOPS = """
; Puts a loop's pointers at its first turn: 0, or the step to go on with where it has no turn.
define internal i64 @loop_begin(ptr %at) #0 {
entry:
  %p1 = getelementptr i64, ptr %at, i64 1
  %p2 = getelementptr i64, ptr %at, i64 2
  %p3 = getelementptr i64, ptr %at, i64 3
  %p4 = getelementptr i64, ptr %at, i64 4
  %p5 = getelementptr i64, ptr %at, i64 5
  %p6 = getelementptr i64, ptr %at, i64 6
  %p7 = getelementptr i64, ptr %at, i64 7
  %stop_at = load ptr, ptr %p1, align 8
  %wanted = load i64, ptr %stop_at, align 8
  %most = load i64, ptr %p2, align 8
  %fits = icmp slt i64 %wanted, %most
  %stop = select i1 %fits, i64 %wanted, i64 %most
  %start_at = load ptr, ptr %p5, align 8
  %given = icmp ne ptr %start_at, null
  br i1 %given, label %later, label %count
later:
  %told = load i64, ptr %start_at, align 8
  %positive = icmp sgt i64 %told, 0
  %late = select i1 %positive, i64 %told, i64 0
  br label %count
count:
  %start = phi i64 [ 0, %entry ], [ %late, %later ]
  %trips = sub i64 %stop, %start
  store i64 %trips, ptr %p7, align 8
  %some = icmp sgt i64 %trips, 0
  br i1 %some, label %place, label %skip
skip:
  %after = load i64, ptr %p6, align 8
  ret i64 %after
place:
  %moves = load ptr, ptr %p3, align 8
  %n = load i64, ptr %p4, align 8
  %kind = load i64, ptr %at, align 8
  %down = icmp eq i64 %kind, 6
  %last = sub i64 %stop, 1
  %first = select i1 %down, i64 %last, i64 %start
  br label %head
head:
  %k = phi i64 [ 0, %place ], [ %k1, %put ]
  %more = icmp ult i64 %k, %n
  br i1 %more, label %move, label %out
move:
  %bytes = mul i64 %k, {move_bytes}
  %m0 = getelementptr i8, ptr %moves, i64 %bytes
  %m1 = getelementptr i64, ptr %m0, i64 1
  %m2 = getelementptr i64, ptr %m0, i64 2
  %m3 = getelementptr i64, ptr %m0, i64 3
  %target = load ptr, ptr %m0, align 8
  %base = load ptr, ptr %m1, align 8
  %offset = load i64, ptr %m2, align 8
  %m4 = getelementptr i64, ptr %m0, i64 4
  %m5 = getelementptr i64, ptr %m0, i64 5
  %delta = load i64, ptr %m3, align 8
  %ring = load i64, ptr %m4, align 8
  %begin = load i64, ptr %m5, align 8
  %from = load i64, ptr %base, align 8
  %a = add i64 %from, %offset
  %gone = mul i64 %delta, %first
  %far = add i64 %begin, %gone
  %circular = icmp ne i64 %ring, 0
  br i1 %circular, label %wrap, label %put
wrap:
  %wrapped = urem i64 %far, %ring
  br label %put
put:
  %way = phi i64 [ %far, %move ], [ %wrapped, %wrap ]
  %b = add i64 %a, %way
  store i64 %b, ptr %target, align 8
  %k1 = add i64 %k, 1
  br label %head
out:
  ret i64 0
}

; Ends a turn of the loop that begins with this record: whether there is another, with its pointers put there.
define internal i1 @loop_turn(ptr %at) #0 {
entry:
  %p3 = getelementptr i64, ptr %at, i64 3
  %p4 = getelementptr i64, ptr %at, i64 4
  %p7 = getelementptr i64, ptr %at, i64 7
  %before = load i64, ptr %p7, align 8
  %left = sub i64 %before, 1
  store i64 %left, ptr %p7, align 8
  %more_turns = icmp sgt i64 %left, 0
  br i1 %more_turns, label %again, label %over
over:
  ret i1 0
again:
  %moves = load ptr, ptr %p3, align 8
  %n = load i64, ptr %p4, align 8
  %kind = load i64, ptr %at, align 8
  %down = icmp eq i64 %kind, 6
  %direction = select i1 %down, i64 -1, i64 1
  br label %head
head:
  %k = phi i64 [ 0, %again ], [ %k1, %put ]
  %more = icmp ult i64 %k, %n
  br i1 %more, label %move, label %out
move:
  %bytes = mul i64 %k, {move_bytes}
  %m0 = getelementptr i8, ptr %moves, i64 %bytes
  %m3 = getelementptr i64, ptr %m0, i64 3
  %target = load ptr, ptr %m0, align 8
  %m4 = getelementptr i64, ptr %m0, i64 4
  %delta = load i64, ptr %m3, align 8
  %ring = load i64, ptr %m4, align 8
  %step = mul i64 %delta, %direction
  %now = load i64, ptr %target, align 8
  %then = add i64 %now, %step
  %circular = icmp ne i64 %ring, 0
  br i1 %circular, label %wrap, label %put
wrap:
  %m1 = getelementptr i64, ptr %m0, i64 1
  %m2 = getelementptr i64, ptr %m0, i64 2
  %base = load ptr, ptr %m1, align 8
  %from = load i64, ptr %base, align 8
  %offset = load i64, ptr %m2, align 8
  %low = add i64 %from, %offset
  %way = sub i64 %then, %low
  %before_low = icmp slt i64 %way, 0
  %past_high = icmp sge i64 %way, %ring
  %up = add i64 %then, %ring
  %back = sub i64 %then, %ring
  %lower = select i1 %past_high, i64 %back, i64 %then
  %wrapped = select i1 %before_low, i64 %up, i64 %lower
  br label %put
put:
  %value = phi i64 [ %then, %move ], [ %wrapped, %wrap ]
  store i64 %value, ptr %target, align 8
  %k1 = add i64 %k, 1
  br label %head
out:
  ret i1 1
}
"""
