"""Loop nests to LLVM IR to object code, and workarounds for LLVM's faults."""
