"""Provide the handler of pending signals that a long run calls (watch.c), as LLVM IR text."""

from __future__ import annotations

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
