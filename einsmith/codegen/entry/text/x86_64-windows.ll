%struct.watch = type { i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.share = type { i64, i64, [48 x i8] }
%struct.step = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.move = type { i64, i64, i64, i64, i64, i64 }
@einsmith_watch = external global %struct.watch, align 8
define i64 @einsmith_fp_enter() nounwind {
  %1 = alloca i32, align 4
  %2 = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr nonnull %1)
  %3 = load i32, ptr %1, align 4
  %4 = or i32 %3, 32832
  store i32 %4, ptr %2, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %2)
  %5 = zext i32 %3 to i64
  ret i64 %5
}
declare void @llvm.lifetime.start.p0(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.lifetime.end.p0(ptr)
define void @einsmith_fp_leave(i64 %0) nounwind {
  %2 = alloca i32, align 4
  %3 = trunc i64 %0 to i32
  store i32 %3, ptr %2, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %2)
  ret void
}
define i32 @einsmith_look() nounwind {
  %1 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %2 = icmp eq i64 %1, 0
  br i1 %2, label %5, label %3
3:
  %4 = tail call fastcc i32 @is_watched()
  br label %10
5:
  %6 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %7 = icmp eq i64 %6, 0
  br i1 %7, label %10, label %8
8:
  %9 = tail call fastcc i32 @call_handler(i64 %6)
  br label %10
10:
  %11 = phi i32 [ %4, %3 ], [ %9, %8 ], [ 0, %5 ]
  ret i32 %11
}
define internal fastcc i32 @is_watched() nounwind {
  %1 = tail call i32 @GetCurrentThreadId()
  %2 = zext i32 %1 to i64
  %3 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 56) monotonic, align 8
  %4 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  %5 = icmp eq i64 %4, %2
  br i1 %5, label %21, label %6
6:
  %7 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 48) monotonic, align 8
  %8 = inttoptr i64 %7 to ptr
  %9 = icmp ne i64 %7, 0
  %10 = icmp ugt i64 %3, 1
  %11 = select i1 %9, i1 %10, i1 false
  br i1 %11, label %15, label %21
12:
  %13 = add nuw i64 %16, 1
  %14 = icmp ult i64 %13, %3
  br i1 %14, label %15, label %21
15:
  %16 = phi i64 [ %13, %12 ], [ 1, %6 ]
  %17 = getelementptr inbounds %struct.share, ptr %8, i64 %16
  %18 = getelementptr inbounds i8, ptr %17, i64 456
  %19 = load atomic i64, ptr %18 monotonic, align 8
  %20 = icmp eq i64 %19, %2
  br i1 %20, label %21, label %12
21:
  %22 = phi i32 [ 1, %0 ], [ 0, %6 ], [ 1, %15 ], [ 0, %12 ]
  ret i32 %22
}
define internal fastcc i32 @call_handler(i64 %0) nounwind {
  %2 = alloca i32, align 4
  %3 = alloca i32, align 4
  %4 = alloca i32, align 4
  %5 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  %6 = tail call i32 @GetCurrentThreadId()
  %7 = zext i32 %6 to i64
  %8 = icmp eq i64 %5, %7
  br i1 %8, label %9, label %29
9:
  %10 = tail call i64 @GetTickCount64()
  %11 = mul i64 %10, 1000000
  %12 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  %13 = icmp slt i64 %11, %12
  br i1 %13, label %29, label %14
14:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  store i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  %15 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  %16 = trunc i64 %15 to i32
  store i32 %16, ptr %4, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %4)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %17 = inttoptr i64 %0 to ptr
  %18 = call i32 %17()
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  call void @llvm.x86.sse.stmxcsr(ptr nonnull %2)
  %19 = load i32, ptr %2, align 4
  %20 = or i32 %19, 32832
  store i32 %20, ptr %3, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %3)
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  store i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  %21 = call i64 @GetTickCount64()
  %22 = mul i64 %21, 1000000
  %23 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %24 = add i64 %22, %23
  store i64 %24, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store atomic i64 %0, ptr @einsmith_watch monotonic, align 8
  %25 = icmp ne i32 %18, 0
  br i1 %25, label %26, label %27
26:
  store atomic i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) release, align 8
  br label %27
27:
  %28 = zext i1 %25 to i32
  br label %29
29:
  %30 = phi i32 [ %28, %27 ], [ 0, %9 ], [ 0, %1 ]
  ret i32 %30
}
define void @einsmith_worker(ptr %0, i64 %1, i64 %2) nounwind {
  %4 = alloca i32, align 4
  %5 = alloca i32, align 4
  %6 = alloca i32, align 4
  %7 = alloca i32, align 4
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  call void @llvm.x86.sse.stmxcsr(ptr nonnull %6)
  %8 = load i32, ptr %6, align 4
  %9 = or i32 %8, 32832
  store i32 %9, ptr %7, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %7)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  %10 = trunc i64 %2 to i32
  %11 = getelementptr %struct.share, ptr %0, i64 %1
  %12 = getelementptr i8, ptr %11, i64 456
  %13 = call i32 @GetCurrentThreadId()
  %14 = zext i32 %13 to i64
  store atomic i64 %14, ptr %12 monotonic, align 8
  %15 = getelementptr inbounds i8, ptr %0, i64 64
  %16 = getelementptr inbounds i8, ptr %0, i64 256
  br label %17
17:
  %18 = phi i32 [ %10, %3 ], [ %28, %31 ]
  %19 = call fastcc i32 @spin(ptr nonnull %0, i32 %18, i32 0)
  %20 = icmp eq i32 %19, 0
  br i1 %20, label %21, label %27
21:
  %22 = atomicrmw add ptr %15, i32 1 seq_cst, align 64
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  store i32 %18, ptr %5, align 4
  %23 = call i32 @WaitOnAddress(ptr nonnull %0, ptr nonnull %5, i64 4, i32 -1)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %24 = atomicrmw sub ptr %15, i32 1 seq_cst, align 64
  %25 = load atomic i32, ptr %0 acquire, align 64
  %26 = icmp eq i32 %25, %18
  br i1 %26, label %21, label %27
27:
  %28 = load atomic i32, ptr %0 acquire, align 64
  %29 = load atomic i32, ptr %16 acquire, align 64
  %30 = icmp eq i32 %29, 0
  br i1 %30, label %31, label %32
31:
  call fastcc void @drain(ptr nonnull %0, i64 %1)
  br label %17
32:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  store i32 %8, ptr %4, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %4)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  ret void
}
define internal fastcc void @drain(ptr %0, i64 %1) nounwind {
  %3 = alloca i64, align 8
  %4 = alloca i64, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = getelementptr inbounds i8, ptr %0, i64 320
  %8 = getelementptr inbounds i8, ptr %0, i64 352
  %9 = load atomic i64, ptr %8 monotonic, align 8
  %10 = icmp ult i64 %1, %9
  br i1 %10, label %11, label %142
11:
  %12 = getelementptr inbounds i8, ptr %0, i64 448
  %13 = getelementptr inbounds i8, ptr %0, i64 328
  %14 = getelementptr inbounds i8, ptr %0, i64 336
  %15 = getelementptr inbounds i8, ptr %0, i64 344
  %16 = getelementptr inbounds i8, ptr %0, i64 360
  %17 = getelementptr inbounds i8, ptr %0, i64 368
  %18 = getelementptr inbounds i8, ptr %0, i64 376
  %19 = shl i64 %1, 4
  br label %20
20:
  %21 = phi i64 [ %9, %11 ], [ %114, %113 ]
  %22 = phi i64 [ 0, %11 ], [ %94, %113 ]
  %23 = phi i32 [ 0, %11 ], [ %68, %113 ]
  %24 = phi i64 [ 0, %11 ], [ %26, %113 ]
  br label %25
25:
  %26 = phi i64 [ %24, %20 ], [ %60, %59 ]
  %27 = phi i64 [ %21, %20 ], [ %61, %59 ]
  %28 = icmp ult i64 %26, %27
  br i1 %28, label %29, label %63
29:
  %30 = add i64 %26, %1
  %31 = icmp ult i64 %30, %27
  %32 = select i1 %31, i64 0, i64 %27
  %33 = sub i64 %30, %32
  %34 = getelementptr inbounds %struct.share, ptr %12, i64 %33
  %35 = load atomic i64, ptr %34 acquire, align 64
  %36 = load atomic i64, ptr %13 monotonic, align 8
  %37 = load atomic i64, ptr %14 monotonic, align 8
  %38 = load atomic i64, ptr %15 monotonic, align 8
  %39 = load atomic i64, ptr %8 monotonic, align 8
  %40 = load atomic i64, ptr %16 monotonic, align 8
  %41 = load atomic i64, ptr %17 monotonic, align 8
  fence acquire
  %42 = load atomic i64, ptr %7 monotonic, align 8
  %43 = lshr i64 %35, 32
  %44 = icmp eq i64 %42, %43
  %45 = icmp eq i64 %39, %27
  %46 = select i1 %44, i1 %45, i1 false
  br i1 %46, label %47, label %63
47:
  %48 = and i64 %35, 4294967295
  %49 = add i64 %33, 1
  %50 = mul i64 %38, %49
  %51 = udiv i64 %50, %27
  %52 = icmp ult i64 %48, %51
  br i1 %52, label %55, label %53
53:
  %54 = add nuw i64 %26, 1
  br label %59
55:
  %56 = add i64 %35, 1
  %57 = cmpxchg ptr %34, i64 %35, i64 %56 acq_rel monotonic, align 64
  %58 = extractvalue { i64, i1 } %57, 1
  br i1 %58, label %67, label %59
59:
  %60 = phi i64 [ %26, %55 ], [ %54, %53 ]
  %61 = load atomic i64, ptr %8 monotonic, align 8
  %62 = icmp ult i64 %1, %61
  br i1 %62, label %25, label %63
63:
  %64 = phi i32 [ %23, %29 ], [ %23, %59 ], [ %23, %25 ], [ %68, %113 ]
  %65 = phi i64 [ %22, %29 ], [ %22, %59 ], [ %22, %25 ], [ %94, %113 ]
  %66 = icmp eq i32 %64, 0
  br i1 %66, label %142, label %116
67:
  %68 = add i32 %23, 1
  %69 = icmp eq i32 %23, 0
  br i1 %69, label %70, label %93
70:
  %71 = load atomic i64, ptr %18 monotonic, align 8
  %72 = icmp eq i64 %71, 0
  br i1 %72, label %93, label %73
73:
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %74 = call i32 @QueryPerformanceCounter(ptr nonnull %5)
  %75 = call i32 @QueryPerformanceFrequency(ptr nonnull %6)
  %76 = load i64, ptr %5, align 8
  %77 = load i64, ptr %6, align 8
  %78 = udiv i64 %76, %77
  %79 = mul i64 %78, 1000000000
  %80 = urem i64 %76, %77
  %81 = mul i64 %80, 1000000000
  %82 = udiv i64 %81, %77
  %83 = add i64 %82, %79
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %84 = inttoptr i64 %71 to ptr
  %85 = getelementptr inbounds i8, ptr %84, i64 %19
  %86 = load i64, ptr %85, align 8
  %87 = icmp eq i64 %86, 0
  br i1 %87, label %88, label %89
88:
  store i64 %83, ptr %85, align 8
  br label %89
89:
  %90 = getelementptr inbounds i8, ptr %85, i64 8
  %91 = load i64, ptr %90, align 8
  %92 = sub nsw i64 %91, %83
  store i64 %92, ptr %90, align 8
  br label %93
93:
  %94 = phi i64 [ %22, %67 ], [ %71, %89 ], [ 0, %70 ]
  %95 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %96 = icmp eq i64 %95, 0
  br i1 %96, label %99, label %97
97:
  %98 = call fastcc i32 @is_watched()
  br label %104
99:
  %100 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %101 = icmp eq i64 %100, 0
  br i1 %101, label %107, label %102
102:
  %103 = call fastcc i32 @call_handler(i64 %100)
  br label %104
104:
  %105 = phi i32 [ %98, %97 ], [ %103, %102 ]
  %106 = icmp eq i32 %105, 0
  br i1 %106, label %107, label %113
107:
  %108 = inttoptr i64 %36 to ptr
  %109 = inttoptr i64 %37 to ptr
  %110 = mul i64 %41, %1
  %111 = add i64 %110, %40
  %112 = inttoptr i64 %111 to ptr
  call void %108(ptr %109, ptr %112, i64 %48)
  br label %113
113:
  %114 = load atomic i64, ptr %8 monotonic, align 8
  %115 = icmp ult i64 %1, %114
  br i1 %115, label %20, label %63
116:
  %117 = icmp eq i64 %65, 0
  br i1 %117, label %135, label %118
118:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  %119 = call i32 @QueryPerformanceCounter(ptr nonnull %3)
  %120 = call i32 @QueryPerformanceFrequency(ptr nonnull %4)
  %121 = load i64, ptr %3, align 8
  %122 = load i64, ptr %4, align 8
  %123 = udiv i64 %121, %122
  %124 = mul i64 %123, 1000000000
  %125 = urem i64 %121, %122
  %126 = mul i64 %125, 1000000000
  %127 = udiv i64 %126, %122
  %128 = add i64 %127, %124
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %129 = inttoptr i64 %65 to ptr
  %130 = shl i64 %1, 4
  %131 = getelementptr inbounds i8, ptr %129, i64 %130
  %132 = getelementptr inbounds i8, ptr %131, i64 8
  %133 = load i64, ptr %132, align 8
  %134 = add nsw i64 %128, %133
  store i64 %134, ptr %132, align 8
  br label %135
135:
  %136 = getelementptr inbounds i8, ptr %0, i64 128
  %137 = atomicrmw add ptr %136, i32 %64 seq_cst, align 64
  %138 = getelementptr inbounds i8, ptr %0, i64 192
  %139 = load atomic i32, ptr %138 seq_cst, align 64
  %140 = icmp eq i32 %139, 0
  br i1 %140, label %142, label %141
141:
  call void @WakeByAddressAll(ptr nonnull %136)
  br label %142
142:
  ret void
}
define void @einsmith_stop(ptr %0) nounwind {
  %2 = getelementptr inbounds i8, ptr %0, i64 256
  store atomic i32 1, ptr %2 seq_cst, align 64
  %3 = atomicrmw add ptr %0, i32 1 seq_cst, align 64
  %4 = getelementptr inbounds i8, ptr %0, i64 64
  %5 = load atomic i32, ptr %4 seq_cst, align 64
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %8, label %7
7:
  tail call void @WakeByAddressAll(ptr nonnull %0)
  br label %8
8:
  ret void
}
define i64 @einsmith_run(ptr readonly %0) nounwind {
  %2 = alloca i32, align 4
  %3 = alloca i64, align 8
  %4 = alloca i64, align 8
  %5 = alloca i32, align 4
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  %8 = alloca i64, align 8
  %9 = alloca i32, align 4
  %10 = alloca i32, align 4
  call void @llvm.lifetime.start.p0(ptr nonnull %9)
  call void @llvm.lifetime.start.p0(ptr nonnull %10)
  call void @llvm.x86.sse.stmxcsr(ptr nonnull %9)
  %11 = load i32, ptr %9, align 4
  %12 = or i32 %11, 32832
  store i32 %12, ptr %10, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %10)
  call void @llvm.lifetime.end.p0(ptr nonnull %9)
  call void @llvm.lifetime.end.p0(ptr nonnull %10)
  %13 = getelementptr inbounds i8, ptr %0, i64 104
  %14 = load i64, ptr %13, align 8
  %15 = icmp eq i64 %14, 0
  br i1 %15, label %29, label %16
16:
  %17 = zext i32 %11 to i64
  %18 = call i32 @GetCurrentThreadId()
  %19 = zext i32 %18 to i64
  store atomic i64 %19, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  %20 = call i64 @GetTickCount64()
  %21 = mul i64 %20, 1000000
  %22 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %23 = add i64 %21, %22
  store i64 %23, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store i64 %17, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  %24 = getelementptr inbounds i8, ptr %0, i64 16
  %25 = load i64, ptr %24, align 8
  store atomic i64 %25, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 48) monotonic, align 8
  %26 = getelementptr inbounds i8, ptr %0, i64 24
  %27 = load i64, ptr %26, align 8
  store atomic i64 %27, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 56) monotonic, align 8
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %28 = load i64, ptr %13, align 8
  store atomic i64 %28, ptr @einsmith_watch release, align 8
  br label %29
29:
  %30 = phi i64 [ %28, %16 ], [ 0, %1 ]
  %31 = load i64, ptr %0, align 8
  %32 = inttoptr i64 %31 to ptr
  %33 = getelementptr inbounds i8, ptr %0, i64 112
  %34 = getelementptr inbounds i8, ptr %0, i64 8
  %35 = getelementptr inbounds i8, ptr %0, i64 120
  %36 = getelementptr inbounds i8, ptr %0, i64 24
  %37 = getelementptr inbounds i8, ptr %0, i64 48
  %38 = getelementptr inbounds i8, ptr %0, i64 32
  br label %39
39:
  %40 = phi i64 [ %30, %29 ], [ %274, %272 ]
  %41 = phi i64 [ 0, %29 ], [ %273, %272 ]
  %42 = icmp eq i64 %40, 0
  br i1 %42, label %61, label %43
43:
  %44 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %45 = icmp eq i64 %44, 0
  br i1 %45, label %48, label %46
46:
  %47 = call fastcc i32 @is_watched()
  br label %53
48:
  %49 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %50 = icmp eq i64 %49, 0
  br i1 %50, label %53, label %51
51:
  %52 = call fastcc i32 @call_handler(i64 %49)
  br label %53
53:
  %54 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %55 = icmp eq i64 %54, 0
  br i1 %55, label %57, label %56
56:
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %275
57:
  %58 = load i64, ptr %33, align 8
  %59 = icmp ult i64 %41, %58
  br i1 %59, label %61, label %60
60:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %61
61:
  %62 = load i64, ptr %34, align 8
  %63 = icmp ult i64 %41, %62
  br i1 %63, label %64, label %275
64:
  %65 = load i64, ptr %35, align 8
  %66 = icmp eq i64 %65, 0
  br i1 %66, label %72, label %67
67:
  %68 = load i64, ptr %36, align 8
  %69 = shl i64 %41, 4
  %70 = mul i64 %69, %68
  %71 = add i64 %70, %65
  br label %72
72:
  %73 = phi i64 [ %71, %67 ], [ 0, %64 ]
  %74 = load i64, ptr %37, align 8
  %75 = icmp eq i64 %74, 0
  br i1 %75, label %96, label %76
76:
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  call void @llvm.lifetime.start.p0(ptr nonnull %8)
  %77 = call i32 @QueryPerformanceCounter(ptr nonnull %7)
  %78 = call i32 @QueryPerformanceFrequency(ptr nonnull %8)
  %79 = load i64, ptr %7, align 8
  %80 = load i64, ptr %8, align 8
  %81 = udiv i64 %79, %80
  %82 = mul i64 %81, 1000000000
  %83 = urem i64 %79, %80
  %84 = mul i64 %83, 1000000000
  %85 = udiv i64 %84, %80
  %86 = add i64 %85, %82
  call void @llvm.lifetime.end.p0(ptr nonnull %8)
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  %87 = load i64, ptr %37, align 8
  %88 = icmp ne i64 %87, 0
  %89 = icmp ne i64 %73, 0
  %90 = select i1 %88, i1 %89, i1 false
  br i1 %90, label %91, label %96
91:
  %92 = inttoptr i64 %73 to ptr
  %93 = load i64, ptr %92, align 8
  %94 = icmp eq i64 %93, 0
  br i1 %94, label %95, label %96
95:
  store i64 %86, ptr %92, align 8
  br label %96
96:
  %97 = phi i64 [ %86, %76 ], [ %86, %95 ], [ %86, %91 ], [ 0, %72 ]
  %98 = getelementptr inbounds %struct.step, ptr %32, i64 %41
  %99 = add nuw i64 %41, 1
  %100 = load i64, ptr %98, align 8
  switch i64 %100, label %182 [
    i64 1, label %101
    i64 2, label %101
    i64 3, label %101
    i64 4, label %120
    i64 6, label %120
    i64 5, label %120
    i64 8, label %122
    i64 9, label %130
  ]
101:
  %102 = icmp eq i64 %100, 3
  %103 = getelementptr inbounds i8, ptr %98, i64 8
  %104 = load i64, ptr %103, align 8
  %105 = inttoptr i64 %104 to ptr
  br i1 %102, label %106, label %110
106:
  %107 = load i64, ptr %105, align 8
  %108 = and i64 %107, 9218868437227405312
  %109 = icmp eq i64 %108, 9218868437227405312
  br i1 %109, label %117, label %251
110:
  %111 = load i32, ptr %105, align 4
  %112 = icmp eq i64 %100, 2
  %113 = and i32 %111, 2139095040
  %114 = icmp eq i32 %113, 2139095040
  %115 = icmp ne i32 %111, 0
  %116 = select i1 %112, i1 %114, i1 %115
  br i1 %116, label %117, label %251
117:
  %118 = getelementptr inbounds i8, ptr %98, i64 32
  %119 = load i64, ptr %118, align 8
  br label %275
120:
  %121 = call fastcc i64 @after_loop_step(ptr nonnull %32, i64 %41)
  br label %272
122:
  %123 = getelementptr inbounds i8, ptr %98, i64 16
  %124 = load i64, ptr %123, align 8
  %125 = trunc i64 %124 to i32
  %126 = getelementptr inbounds i8, ptr %98, i64 8
  %127 = load i64, ptr %126, align 8
  %128 = inttoptr i64 %127 to ptr
  %129 = call i32 @_write(i32 %125, ptr %128, i32 1)
  br label %251
130:
  %131 = getelementptr inbounds i8, ptr %98, i64 16
  %132 = load i64, ptr %131, align 8
  %133 = trunc i64 %132 to i32
  %134 = load i64, ptr %13, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %135 = call i64 @_get_osfhandle(i32 %133)
  %136 = call i64 @GetTickCount64()
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  store i32 0, ptr %5, align 4
  %137 = call i32 @PeekNamedPipe(i64 %135, ptr null, i32 0, ptr null, ptr nonnull %5, ptr null)
  %138 = icmp eq i32 %137, 0
  %139 = load i32, ptr %5, align 4
  %140 = icmp ne i32 %139, 0
  %141 = select i1 %138, i1 true, i1 %140
  br i1 %141, label %179, label %142
142:
  %143 = icmp eq i64 %134, 0
  br label %144
144:
  %145 = phi i64 [ %136, %142 ], [ %173, %171 ]
  %146 = phi i64 [ %135, %142 ], [ %172, %171 ]
  br label %147
147:
  %148 = call i64 @GetTickCount64()
  %149 = sub i64 %148, %145
  %150 = icmp ugt i64 %149, 49
  br i1 %150, label %157, label %151
151:
  call void @Sleep(i32 1)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  store i32 0, ptr %5, align 4
  %152 = call i32 @PeekNamedPipe(i64 %146, ptr null, i32 0, ptr null, ptr nonnull %5, ptr null)
  %153 = icmp eq i32 %152, 0
  %154 = load i32, ptr %5, align 4
  %155 = icmp ne i32 %154, 0
  %156 = select i1 %153, i1 true, i1 %155
  br i1 %156, label %179, label %147
157:
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  br i1 %143, label %171, label %158
158:
  %159 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %160 = icmp eq i64 %159, 0
  br i1 %160, label %163, label %161
161:
  %162 = call fastcc i32 @is_watched()
  br label %168
163:
  %164 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %165 = icmp eq i64 %164, 0
  br i1 %165, label %168, label %166
166:
  %167 = call fastcc i32 @call_handler(i64 %164)
  br label %168
168:
  %169 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %170 = icmp eq i64 %169, 0
  br i1 %170, label %171, label %181
171:
  %172 = call i64 @_get_osfhandle(i32 %133)
  %173 = call i64 @GetTickCount64()
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  store i32 0, ptr %5, align 4
  %174 = call i32 @PeekNamedPipe(i64 %172, ptr null, i32 0, ptr null, ptr nonnull %5, ptr null)
  %175 = icmp eq i32 %174, 0
  %176 = load i32, ptr %5, align 4
  %177 = icmp ne i32 %176, 0
  %178 = select i1 %175, i1 true, i1 %177
  br i1 %178, label %179, label %144
179:
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %180 = call i32 @_read(i32 %133, ptr nonnull %6, i32 1)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  br label %251
181:
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %275
182:
  %183 = load i64, ptr %36, align 8
  %184 = icmp ugt i64 %183, 1
  switch i64 %100, label %207 [
    i64 7, label %185
    i64 10, label %194
  ]
185:
  br i1 %184, label %186, label %248
186:
  %187 = getelementptr inbounds i8, ptr %98, i64 16
  %188 = load i64, ptr %187, align 8
  %189 = icmp ult i64 %188, 2
  br i1 %189, label %248, label %190
190:
  %191 = ptrtoint ptr %98 to i64
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @member to i64), i64 %191, i64 %188, i64 %73)
  %192 = getelementptr inbounds i8, ptr %98, i64 8
  %193 = load i64, ptr %192, align 8
  br label %248
194:
  br i1 %184, label %195, label %248
195:
  %196 = load i64, ptr %37, align 8
  %197 = icmp eq i64 %196, 0
  br i1 %197, label %201, label %198
198:
  %199 = load i64, ptr %35, align 8
  %200 = icmp eq i64 %199, 0
  br i1 %200, label %248, label %201
201:
  %202 = ptrtoint ptr %98 to i64
  %203 = getelementptr inbounds i8, ptr %98, i64 16
  %204 = load i64, ptr %203, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @part to i64), i64 %202, i64 %204, i64 %73)
  %205 = getelementptr inbounds i8, ptr %98, i64 8
  %206 = load i64, ptr %205, align 8
  br label %248
207:
  %208 = getelementptr inbounds i8, ptr %98, i64 16
  %209 = load i64, ptr %208, align 8
  %210 = icmp ugt i64 %209, 1
  %211 = select i1 %184, i1 %210, i1 false
  br i1 %211, label %212, label %217
212:
  %213 = getelementptr inbounds i8, ptr %98, i64 8
  %214 = load i64, ptr %213, align 8
  %215 = getelementptr inbounds i8, ptr %98, i64 24
  %216 = load i64, ptr %215, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 %214, i64 %216, i64 %209, i64 %73)
  br label %248
217:
  %218 = icmp eq i64 %209, 0
  br i1 %218, label %248, label %219
219:
  %220 = load i64, ptr %13, align 8
  %221 = load i64, ptr %38, align 8
  %222 = getelementptr inbounds i8, ptr %98, i64 24
  %223 = load i64, ptr %222, align 8
  %224 = getelementptr inbounds i8, ptr %98, i64 8
  %225 = load i64, ptr %224, align 8
  %226 = icmp eq i64 %220, 0
  %227 = inttoptr i64 %221 to ptr
  %228 = inttoptr i64 %225 to ptr
  %229 = inttoptr i64 %223 to ptr
  br label %230
230:
  %231 = phi i64 [ 0, %219 ], [ %246, %245 ]
  br i1 %226, label %245, label %232
232:
  %233 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %234 = icmp eq i64 %233, 0
  br i1 %234, label %237, label %235
235:
  %236 = call fastcc i32 @is_watched()
  br label %242
237:
  %238 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %239 = icmp eq i64 %238, 0
  br i1 %239, label %245, label %240
240:
  %241 = call fastcc i32 @call_handler(i64 %238)
  br label %242
242:
  %243 = phi i32 [ %236, %235 ], [ %241, %240 ]
  %244 = icmp eq i32 %243, 0
  br i1 %244, label %245, label %248
245:
  call void %228(ptr %229, ptr %227, i64 %231)
  %246 = add nuw i64 %231, 1
  %247 = icmp eq i64 %246, %209
  br i1 %247, label %248, label %230
248:
  %249 = phi i64 [ 0, %212 ], [ %193, %190 ], [ 0, %185 ], [ %206, %201 ], [ 0, %194 ], [ 0, %186 ], [ 0, %198 ], [ 0, %217 ], [ 0, %242 ], [ 0, %245 ]
  %250 = add i64 %249, %99
  br label %251
251:
  %252 = phi i64 [ %250, %248 ], [ %99, %110 ], [ %99, %122 ], [ %99, %179 ], [ %99, %106 ]
  %253 = load i64, ptr %37, align 8
  %254 = icmp eq i64 %253, 0
  br i1 %254, label %272, label %255
255:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  %256 = call i32 @QueryPerformanceCounter(ptr nonnull %3)
  %257 = call i32 @QueryPerformanceFrequency(ptr nonnull %4)
  %258 = load i64, ptr %3, align 8
  %259 = load i64, ptr %4, align 8
  %260 = udiv i64 %258, %259
  %261 = mul i64 %260, 1000000000
  %262 = urem i64 %258, %259
  %263 = mul i64 %262, 1000000000
  %264 = udiv i64 %263, %259
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %265 = load i64, ptr %37, align 8
  %266 = inttoptr i64 %265 to ptr
  %267 = getelementptr inbounds i64, ptr %266, i64 %41
  %268 = load i64, ptr %267, align 8
  %269 = sub i64 %261, %97
  %270 = add i64 %269, %264
  %271 = add i64 %270, %268
  store i64 %271, ptr %267, align 8
  br label %272
272:
  %273 = phi i64 [ %252, %251 ], [ %252, %255 ], [ %121, %120 ]
  %274 = load i64, ptr %13, align 8
  br label %39
275:
  %276 = phi i64 [ -1, %56 ], [ %119, %117 ], [ -1, %181 ], [ 0, %61 ]
  %277 = load i64, ptr %13, align 8
  %278 = icmp eq i64 %277, 0
  br i1 %278, label %280, label %279
279:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %280
280:
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  store i32 %11, ptr %2, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %2)
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  ret i64 %276
}
define i64 @einsmith_run_team(ptr %0) nounwind {
  %2 = alloca i64, align 8
  %3 = alloca i64, align 8
  %4 = alloca i64, align 8
  %5 = alloca i64, align 8
  %6 = getelementptr inbounds i8, ptr %0, i64 16
  %7 = load i64, ptr %6, align 8
  %8 = inttoptr i64 %7 to ptr
  %9 = getelementptr inbounds i8, ptr %8, i64 256
  store atomic i32 0, ptr %9 seq_cst, align 64
  %10 = load atomic i32, ptr %8 seq_cst, align 64
  %11 = zext i32 %10 to i64
  %12 = getelementptr inbounds i8, ptr %0, i64 72
  store i64 %11, ptr %12, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %13 = call i32 @QueryPerformanceCounter(ptr nonnull %4)
  %14 = call i32 @QueryPerformanceFrequency(ptr nonnull %5)
  %15 = load i64, ptr %4, align 8
  %16 = load i64, ptr %5, align 8
  %17 = udiv i64 %15, %16
  %18 = urem i64 %15, %16
  %19 = mul i64 %18, 1000000000
  %20 = udiv i64 %19, %16
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %21 = getelementptr inbounds i8, ptr %0, i64 56
  %22 = load i64, ptr %21, align 8
  %23 = inttoptr i64 %22 to ptr
  %24 = getelementptr inbounds i8, ptr %0, i64 24
  %25 = load i64, ptr %24, align 8
  %26 = trunc i64 %25 to i32
  call void %23(ptr nonnull @team_member, ptr %0, i32 %26, i32 0)
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %27 = call i32 @QueryPerformanceCounter(ptr nonnull %2)
  %28 = call i32 @QueryPerformanceFrequency(ptr nonnull %3)
  %29 = load i64, ptr %2, align 8
  %30 = load i64, ptr %3, align 8
  %31 = udiv i64 %29, %30
  %32 = urem i64 %29, %30
  %33 = mul i64 %32, 1000000000
  %34 = udiv i64 %33, %30
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %35 = getelementptr inbounds i8, ptr %0, i64 88
  %36 = load i64, ptr %35, align 8
  %37 = sub i64 %31, %17
  %38 = mul i64 %37, 1000000000
  %39 = add i64 %34, %38
  %40 = add i64 %20, %36
  %41 = sub i64 %39, %40
  %42 = getelementptr inbounds i8, ptr %0, i64 96
  store i64 %41, ptr %42, align 8
  %43 = getelementptr inbounds i8, ptr %0, i64 80
  %44 = load i64, ptr %43, align 8
  ret i64 %44
}
define internal void @team_member(ptr %0) nounwind {
  %2 = alloca i64, align 8
  %3 = alloca i64, align 8
  %4 = alloca i64, align 8
  %5 = alloca i64, align 8
  %6 = getelementptr inbounds i8, ptr %0, i64 16
  %7 = load i64, ptr %6, align 8
  %8 = inttoptr i64 %7 to ptr
  %9 = getelementptr inbounds i8, ptr %0, i64 64
  %10 = load i64, ptr %9, align 8
  %11 = inttoptr i64 %10 to ptr
  %12 = tail call i32 %11()
  %13 = icmp eq i32 %12, 0
  br i1 %13, label %18, label %14
14:
  %15 = sext i32 %12 to i64
  %16 = getelementptr inbounds i8, ptr %0, i64 72
  %17 = load i64, ptr %16, align 8
  tail call void @einsmith_worker(ptr %8, i64 %15, i64 %17)
  br label %48
18:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %19 = call i32 @QueryPerformanceCounter(ptr nonnull %4)
  %20 = call i32 @QueryPerformanceFrequency(ptr nonnull %5)
  %21 = load i64, ptr %4, align 8
  %22 = load i64, ptr %5, align 8
  %23 = udiv i64 %21, %22
  %24 = urem i64 %21, %22
  %25 = mul i64 %24, 1000000000
  %26 = udiv i64 %25, %22
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %27 = call i64 @einsmith_run(ptr nonnull %0)
  %28 = getelementptr inbounds i8, ptr %0, i64 80
  store i64 %27, ptr %28, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %29 = call i32 @QueryPerformanceCounter(ptr nonnull %2)
  %30 = call i32 @QueryPerformanceFrequency(ptr nonnull %3)
  %31 = load i64, ptr %2, align 8
  %32 = load i64, ptr %3, align 8
  %33 = udiv i64 %31, %32
  %34 = urem i64 %31, %32
  %35 = mul i64 %34, 1000000000
  %36 = udiv i64 %35, %32
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %37 = sub i64 %33, %23
  %38 = mul i64 %37, 1000000000
  %39 = sub i64 %36, %26
  %40 = add i64 %39, %38
  %41 = getelementptr inbounds i8, ptr %0, i64 88
  store i64 %40, ptr %41, align 8
  %42 = getelementptr inbounds i8, ptr %8, i64 256
  store atomic i32 1, ptr %42 seq_cst, align 64
  %43 = atomicrmw add ptr %8, i32 1 seq_cst, align 64
  %44 = getelementptr inbounds i8, ptr %8, i64 64
  %45 = load atomic i32, ptr %44 seq_cst, align 64
  %46 = icmp eq i32 %45, 0
  br i1 %46, label %48, label %47
47:
  call void @WakeByAddressAll(ptr nonnull %8)
  br label %48
48:
  ret void
}
declare i64 @GetTickCount64()
declare i32 @GetCurrentThreadId()
define internal fastcc i32 @spin(ptr readonly %0, i32 %1, i32 %2) nounwind {
  %4 = alloca i64, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  %8 = call i32 @QueryPerformanceCounter(ptr nonnull %6)
  %9 = call i32 @QueryPerformanceFrequency(ptr nonnull %7)
  %10 = load i64, ptr %6, align 8
  %11 = load i64, ptr %7, align 8
  %12 = udiv i64 %10, %11
  %13 = urem i64 %10, %11
  %14 = mul i64 %13, 1000000000
  %15 = udiv i64 %14, %11
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  br label %16
16:
  %17 = phi i32 [ 0, %3 ], [ %26, %25 ]
  %18 = load atomic i32, ptr %0 acquire, align 4
  %19 = icmp eq i32 %18, %1
  %20 = zext i1 %19 to i32
  %21 = icmp eq i32 %2, %20
  br i1 %21, label %45, label %22
22:
  call void @llvm.x86.sse2.pause()
  %23 = add nuw nsw i32 %17, 1
  %24 = icmp eq i32 %23, 32
  br i1 %24, label %27, label %25
25:
  %26 = phi i32 [ %23, %22 ], [ 0, %41 ], [ 0, %43 ]
  br label %16
27:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %28 = call i32 @QueryPerformanceCounter(ptr nonnull %4)
  %29 = call i32 @QueryPerformanceFrequency(ptr nonnull %5)
  %30 = load i64, ptr %4, align 8
  %31 = load i64, ptr %5, align 8
  %32 = udiv i64 %30, %31
  %33 = urem i64 %30, %31
  %34 = mul i64 %33, 1000000000
  %35 = udiv i64 %34, %31
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %36 = sub i64 %32, %12
  %37 = mul i64 %36, 1000000000
  %38 = sub i64 %35, %15
  %39 = add i64 %38, %37
  %40 = icmp slt i64 %39, 50001
  br i1 %40, label %41, label %45
41:
  %42 = icmp sgt i64 %39, 5000
  br i1 %42, label %43, label %25
43:
  %44 = call i32 @SwitchToThread()
  br label %25
45:
  %46 = phi i32 [ 1, %16 ], [ 0, %27 ]
  ret i32 %46
}
declare void @llvm.x86.sse2.pause()
declare i32 @SwitchToThread()
declare i32 @WaitOnAddress(ptr, ptr, i64, i32)
declare void @WakeByAddressAll(ptr)
define internal fastcc i64 @after_loop_step(ptr %0, i64 %1) nounwind {
  %3 = getelementptr inbounds %struct.step, ptr %0, i64 %1
  %4 = load i64, ptr %3, align 8
  %5 = icmp eq i64 %4, 5
  %6 = getelementptr inbounds i8, ptr %3, i64 8
  %7 = load i64, ptr %6, align 8
  br i1 %5, label %8, label %62
8:
  %9 = getelementptr inbounds %struct.step, ptr %0, i64 %7
  %10 = getelementptr inbounds i8, ptr %9, i64 56
  %11 = load i64, ptr %10, align 8
  %12 = add i64 %11, -1
  store i64 %12, ptr %10, align 8
  %13 = icmp slt i64 %12, 1
  br i1 %13, label %59, label %14
14:
  %15 = getelementptr inbounds i8, ptr %9, i64 24
  %16 = load i64, ptr %15, align 8
  %17 = inttoptr i64 %16 to ptr
  %18 = getelementptr inbounds i8, ptr %9, i64 32
  %19 = load i64, ptr %18, align 8
  %20 = icmp eq i64 %19, 0
  br i1 %20, label %59, label %21
21:
  %22 = phi i64 [ %54, %52 ], [ 0, %14 ]
  %23 = getelementptr inbounds %struct.move, ptr %17, i64 %22
  %24 = load i64, ptr %23, align 8
  %25 = inttoptr i64 %24 to ptr
  %26 = load i64, ptr %25, align 8
  %27 = load i64, ptr %9, align 8
  %28 = icmp eq i64 %27, 6
  %29 = getelementptr inbounds i8, ptr %23, i64 24
  %30 = load i64, ptr %29, align 8
  %31 = sub i64 0, %30
  %32 = select i1 %28, i64 %31, i64 %30
  %33 = add i64 %32, %26
  %34 = getelementptr inbounds i8, ptr %23, i64 32
  %35 = load i64, ptr %34, align 8
  %36 = icmp eq i64 %35, 0
  br i1 %36, label %52, label %37
37:
  %38 = getelementptr inbounds i8, ptr %23, i64 8
  %39 = load i64, ptr %38, align 8
  %40 = inttoptr i64 %39 to ptr
  %41 = load i64, ptr %40, align 8
  %42 = getelementptr inbounds i8, ptr %23, i64 16
  %43 = load i64, ptr %42, align 8
  %44 = add i64 %41, %43
  %45 = sub i64 %33, %44
  %46 = icmp slt i64 %45, 0
  %47 = icmp slt i64 %45, %35
  %48 = sub i64 0, %35
  %49 = select i1 %47, i64 0, i64 %48
  %50 = select i1 %46, i64 %35, i64 %49
  %51 = add i64 %50, %33
  br label %52
52:
  %53 = phi i64 [ %51, %37 ], [ %33, %21 ]
  store i64 %53, ptr %25, align 8
  %54 = add nuw i64 %22, 1
  %55 = load i64, ptr %18, align 8
  %56 = icmp ult i64 %54, %55
  br i1 %56, label %21, label %57
57:
  %58 = load i64, ptr %6, align 8
  br label %59
59:
  %60 = phi i64 [ %1, %8 ], [ %58, %57 ], [ %7, %14 ]
  %61 = add i64 %60, 1
  br label %128
62:
  %63 = inttoptr i64 %7 to ptr
  %64 = load i64, ptr %63, align 8
  %65 = getelementptr inbounds i8, ptr %3, i64 16
  %66 = load i64, ptr %65, align 8
  %67 = tail call i64 @llvm.smin.i64(i64 %64, i64 %66)
  %68 = getelementptr inbounds i8, ptr %3, i64 40
  %69 = load i64, ptr %68, align 8
  %70 = icmp eq i64 %69, 0
  br i1 %70, label %75, label %71
71:
  %72 = inttoptr i64 %69 to ptr
  %73 = load i64, ptr %72, align 8
  %74 = tail call i64 @llvm.smax.i64(i64 %73, i64 0)
  br label %75
75:
  %76 = phi i64 [ %74, %71 ], [ 0, %62 ]
  %77 = sub nsw i64 %67, %76
  %78 = getelementptr inbounds i8, ptr %3, i64 56
  store i64 %77, ptr %78, align 8
  %79 = icmp slt i64 %77, 1
  br i1 %79, label %121, label %80
80:
  %81 = add nsw i64 %67, -1
  %82 = icmp eq i64 %4, 6
  %83 = select i1 %82, i64 %81, i64 %76
  %84 = getelementptr inbounds i8, ptr %3, i64 24
  %85 = load i64, ptr %84, align 8
  %86 = inttoptr i64 %85 to ptr
  %87 = getelementptr inbounds i8, ptr %3, i64 32
  %88 = load i64, ptr %87, align 8
  %89 = icmp eq i64 %88, 0
  br i1 %89, label %119, label %90
90:
  %91 = phi i64 [ %116, %111 ], [ 0, %80 ]
  %92 = getelementptr inbounds %struct.move, ptr %86, i64 %91
  %93 = getelementptr inbounds i8, ptr %92, i64 40
  %94 = load i64, ptr %93, align 8
  %95 = getelementptr inbounds i8, ptr %92, i64 24
  %96 = load i64, ptr %95, align 8
  %97 = mul i64 %96, %83
  %98 = add i64 %97, %94
  %99 = getelementptr inbounds i8, ptr %92, i64 8
  %100 = load i64, ptr %99, align 8
  %101 = inttoptr i64 %100 to ptr
  %102 = load i64, ptr %101, align 8
  %103 = getelementptr inbounds i8, ptr %92, i64 16
  %104 = load i64, ptr %103, align 8
  %105 = add i64 %104, %102
  %106 = getelementptr inbounds i8, ptr %92, i64 32
  %107 = load i64, ptr %106, align 8
  %108 = icmp eq i64 %107, 0
  br i1 %108, label %111, label %109
109:
  %110 = urem i64 %98, %107
  br label %111
111:
  %112 = phi i64 [ %110, %109 ], [ %98, %90 ]
  %113 = add i64 %105, %112
  %114 = load i64, ptr %92, align 8
  %115 = inttoptr i64 %114 to ptr
  store i64 %113, ptr %115, align 8
  %116 = add nuw i64 %91, 1
  %117 = load i64, ptr %87, align 8
  %118 = icmp ult i64 %116, %117
  br i1 %118, label %90, label %119
119:
  %120 = add i64 %1, 1
  br label %128
121:
  %122 = getelementptr inbounds i8, ptr %3, i64 48
  %123 = load i64, ptr %122, align 8
  %124 = freeze i64 %123
  %125 = icmp eq i64 %124, 0
  %126 = add i64 %1, 1
  %127 = select i1 %125, i64 %126, i64 %124
  br label %128
128:
  %129 = phi i64 [ %61, %59 ], [ %127, %121 ], [ %120, %119 ]
  ret i64 %129
}
declare i32 @_write(i32, ptr, i32)
declare i64 @_get_osfhandle(i32)
declare i32 @PeekNamedPipe(i64, ptr, i32, ptr, ptr, ptr)
declare void @Sleep(i32)
declare i32 @_read(i32, ptr, i32)
define internal fastcc void @fork_join(ptr readonly %0, i64 %1, i64 %2, i64 %3, i64 %4) nounwind {
  %6 = alloca i32, align 4
  %7 = getelementptr inbounds i8, ptr %0, i64 16
  %8 = load i64, ptr %7, align 8
  %9 = inttoptr i64 %8 to ptr
  %10 = getelementptr inbounds i8, ptr %9, i64 320
  %11 = load atomic i64, ptr %10 monotonic, align 8
  %12 = add i64 %11, 1
  %13 = and i64 %12, 4294967295
  %14 = getelementptr inbounds i8, ptr %0, i64 24
  %15 = load i64, ptr %14, align 8
  store atomic i64 %13, ptr %10 monotonic, align 8
  fence release
  %16 = getelementptr inbounds i8, ptr %9, i64 328
  store atomic i64 %1, ptr %16 monotonic, align 8
  %17 = getelementptr inbounds i8, ptr %9, i64 336
  store atomic i64 %2, ptr %17 monotonic, align 8
  %18 = getelementptr inbounds i8, ptr %9, i64 344
  store atomic i64 %3, ptr %18 monotonic, align 8
  %19 = getelementptr inbounds i8, ptr %9, i64 352
  store atomic i64 %15, ptr %19 monotonic, align 8
  %20 = getelementptr inbounds i8, ptr %9, i64 360
  %21 = getelementptr inbounds i8, ptr %0, i64 32
  %22 = load i64, ptr %21, align 8
  store atomic i64 %22, ptr %20 monotonic, align 8
  %23 = getelementptr inbounds i8, ptr %9, i64 368
  %24 = getelementptr inbounds i8, ptr %0, i64 40
  %25 = load i64, ptr %24, align 8
  store atomic i64 %25, ptr %23 monotonic, align 8
  %26 = getelementptr inbounds i8, ptr %9, i64 376
  store atomic i64 %4, ptr %26 monotonic, align 8
  %27 = getelementptr inbounds i8, ptr %9, i64 128
  store atomic i32 0, ptr %27 monotonic, align 64
  %28 = icmp eq i64 %15, 0
  br i1 %28, label %32, label %29
29:
  %30 = getelementptr inbounds i8, ptr %9, i64 448
  %31 = shl nuw i64 %13, 32
  br label %71
32:
  %33 = atomicrmw add ptr %9, i32 1 seq_cst, align 64
  %34 = getelementptr inbounds i8, ptr %9, i64 64
  %35 = load atomic i32, ptr %34 seq_cst, align 64
  %36 = icmp eq i32 %35, 0
  br i1 %36, label %38, label %37
37:
  tail call void @WakeByAddressAll(ptr nonnull %9)
  br label %38
38:
  tail call fastcc void @drain(ptr nonnull %9, i64 0)
  %39 = trunc i64 %3 to i32
  br label %40
40:
  %41 = phi i32 [ 0, %38 ], [ %45, %44 ]
  %42 = load atomic i32, ptr %27 acquire, align 64
  %43 = icmp eq i32 %42, %39
  br i1 %43, label %70, label %44
44:
  tail call void @llvm.x86.sse2.pause()
  %45 = add nuw nsw i32 %41, 1
  %46 = icmp eq i32 %45, 64
  br i1 %46, label %47, label %40
47:
  %48 = tail call fastcc i32 @spin(ptr nonnull %27, i32 %39, i32 1)
  %49 = icmp eq i32 %48, 0
  br i1 %49, label %50, label %70
50:
  %51 = getelementptr inbounds i8, ptr %9, i64 192
  store atomic i32 1, ptr %51 seq_cst, align 64
  %52 = load atomic i32, ptr %27 seq_cst, align 64
  %53 = icmp eq i32 %52, %39
  br i1 %53, label %54, label %55
54:
  store atomic i32 0, ptr %51 seq_cst, align 64
  br label %70
55:
  %56 = phi i32 [ %68, %67 ], [ %52, %50 ]
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  store i32 %56, ptr %6, align 4
  %57 = call i32 @WaitOnAddress(ptr nonnull %27, ptr nonnull %6, i64 4, i32 51)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %58 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %59 = icmp eq i64 %58, 0
  br i1 %59, label %62, label %60
60:
  %61 = call fastcc i32 @is_watched()
  br label %67
62:
  %63 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %64 = icmp eq i64 %63, 0
  br i1 %64, label %67, label %65
65:
  %66 = call fastcc i32 @call_handler(i64 %63)
  br label %67
67:
  %68 = load atomic i32, ptr %27 seq_cst, align 64
  %69 = icmp eq i32 %68, %39
  br i1 %69, label %54, label %55
70:
  ret void
71:
  %72 = phi i64 [ 0, %29 ], [ %77, %71 ]
  %73 = mul i64 %72, %3
  %74 = udiv i64 %73, %15
  %75 = getelementptr inbounds %struct.share, ptr %30, i64 %72
  %76 = or i64 %74, %31
  store atomic i64 %76, ptr %75 release, align 64
  %77 = add nuw i64 %72, 1
  %78 = icmp eq i64 %77, %15
  br i1 %78, label %32, label %71
}
define internal void @member(ptr readonly %0, ptr %1, i64 %2) nounwind {
  %4 = getelementptr inbounds i8, ptr %0, i64 80
  %5 = load i64, ptr %4, align 8
  %6 = icmp ult i64 %2, %5
  br i1 %6, label %16, label %7
7:
  %8 = phi i64 [ %14, %7 ], [ %5, %3 ]
  %9 = phi i64 [ %12, %7 ], [ %2, %3 ]
  %10 = phi ptr [ %11, %7 ], [ %0, %3 ]
  %11 = getelementptr inbounds i8, ptr %10, i64 64
  %12 = sub nuw i64 %9, %8
  %13 = getelementptr inbounds i8, ptr %10, i64 144
  %14 = load i64, ptr %13, align 8
  %15 = icmp ult i64 %12, %14
  br i1 %15, label %16, label %7
16:
  %17 = phi ptr [ %0, %3 ], [ %11, %7 ]
  %18 = phi i64 [ %2, %3 ], [ %12, %7 ]
  %19 = getelementptr inbounds i8, ptr %17, i64 72
  %20 = load i64, ptr %19, align 8
  %21 = inttoptr i64 %20 to ptr
  %22 = getelementptr inbounds i8, ptr %17, i64 88
  %23 = load i64, ptr %22, align 8
  %24 = inttoptr i64 %23 to ptr
  tail call void %21(ptr %24, ptr %1, i64 %18)
  ret void
}
define internal void @part(ptr %0, ptr %1, i64 %2) nounwind {
  %4 = getelementptr inbounds i8, ptr %0, i64 40
  %5 = load i64, ptr %4, align 8
  %6 = sub i64 0, %5
  %7 = getelementptr inbounds %struct.step, ptr %0, i64 %6
  %8 = add i64 %5, 1
  %9 = getelementptr inbounds i8, ptr %0, i64 24
  %10 = load i64, ptr %9, align 8
  %11 = mul i64 %10, %2
  %12 = add i64 %8, %11
  %13 = add i64 %12, %10
  %14 = icmp ult i64 %12, %13
  br i1 %14, label %15, label %57
15:
  %16 = phi i64 [ %55, %54 ], [ %12, %3 ]
  %17 = getelementptr inbounds %struct.step, ptr %7, i64 %16
  %18 = load i64, ptr %17, align 8
  %19 = add i64 %18, -4
  %20 = icmp ult i64 %19, 3
  br i1 %20, label %28, label %21
21:
  %22 = getelementptr inbounds i8, ptr %17, i64 16
  %23 = load i64, ptr %22, align 8
  %24 = icmp eq i64 %23, 0
  br i1 %24, label %52, label %25
25:
  %26 = getelementptr inbounds i8, ptr %17, i64 8
  %27 = getelementptr inbounds i8, ptr %17, i64 24
  br label %30
28:
  %29 = tail call fastcc i64 @after_loop_step(ptr nonnull %7, i64 %16)
  br label %54
30:
  %31 = phi i64 [ 0, %25 ], [ %49, %44 ]
  %32 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %33 = icmp eq i64 %32, 0
  br i1 %33, label %36, label %34
34:
  %35 = tail call fastcc i32 @is_watched()
  br label %41
36:
  %37 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %38 = icmp eq i64 %37, 0
  br i1 %38, label %44, label %39
39:
  %40 = tail call fastcc i32 @call_handler(i64 %37)
  br label %41
41:
  %42 = phi i32 [ %35, %34 ], [ %40, %39 ]
  %43 = icmp eq i32 %42, 0
  br i1 %43, label %44, label %57
44:
  %45 = load i64, ptr %26, align 8
  %46 = inttoptr i64 %45 to ptr
  %47 = load i64, ptr %27, align 8
  %48 = inttoptr i64 %47 to ptr
  tail call void %46(ptr %48, ptr %1, i64 %31)
  %49 = add nuw i64 %31, 1
  %50 = load i64, ptr %22, align 8
  %51 = icmp ult i64 %49, %50
  br i1 %51, label %30, label %52
52:
  %53 = add i64 %16, 1
  br label %54
54:
  %55 = phi i64 [ %29, %28 ], [ %53, %52 ]
  %56 = icmp ult i64 %55, %13
  br i1 %56, label %15, label %57
57:
  ret void
}
declare i32 @QueryPerformanceCounter(ptr)
declare i32 @QueryPerformanceFrequency(ptr)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
