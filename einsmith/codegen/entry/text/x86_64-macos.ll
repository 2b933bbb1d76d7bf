%struct.watch = type { i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.duration = type { i64, i64 }
%struct.share = type { i64, i64, [48 x i8] }
%struct.polled = type { i32, i16, i16 }
%struct.step = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.move = type { i64, i64, i64, i64, i64, i64 }
@einsmith_watch = external global %struct.watch, align 8
@__const.park.nap = private constant %struct.duration { i64 0, i64 50000 }, align 8
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
  %1 = tail call ptr @pthread_self()
  %2 = ptrtoint ptr %1 to i64
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
  %2 = alloca %struct.duration, align 8
  %3 = alloca i32, align 4
  %4 = alloca i32, align 4
  %5 = alloca i32, align 4
  %6 = alloca %struct.duration, align 8
  %7 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  %8 = tail call ptr @pthread_self()
  %9 = ptrtoint ptr %8 to i64
  %10 = icmp eq i64 %7, %9
  br i1 %10, label %11, label %39
11:
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %12 = call i32 @clock_gettime(i32 5, ptr nonnull %6)
  %13 = load i64, ptr %6, align 8
  %14 = mul nsw i64 %13, 1000000000
  %15 = getelementptr inbounds i8, ptr %6, i64 8
  %16 = load i64, ptr %15, align 8
  %17 = add nsw i64 %14, %16
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %18 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  %19 = icmp slt i64 %17, %18
  br i1 %19, label %39, label %20
20:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  store i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  %21 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %22 = trunc i64 %21 to i32
  store i32 %22, ptr %5, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %5)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %23 = inttoptr i64 %0 to ptr
  %24 = call i32 %23()
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.x86.sse.stmxcsr(ptr nonnull %3)
  %25 = load i32, ptr %3, align 4
  %26 = or i32 %25, 32832
  store i32 %26, ptr %4, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %4)
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  store i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %27 = call i32 @clock_gettime(i32 5, ptr nonnull %2)
  %28 = load i64, ptr %2, align 8
  %29 = mul nsw i64 %28, 1000000000
  %30 = getelementptr inbounds i8, ptr %2, i64 8
  %31 = load i64, ptr %30, align 8
  %32 = add nsw i64 %29, %31
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %33 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %34 = add i64 %32, %33
  store i64 %34, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store atomic i64 %0, ptr @einsmith_watch monotonic, align 8
  %35 = icmp ne i32 %24, 0
  br i1 %35, label %36, label %37
36:
  store atomic i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) release, align 8
  br label %37
37:
  %38 = zext i1 %35 to i32
  br label %39
39:
  %40 = phi i32 [ %38, %37 ], [ 0, %11 ], [ 0, %1 ]
  ret i32 %40
}
define void @einsmith_worker(ptr %0, i64 %1, i64 %2) nounwind {
  %4 = alloca i32, align 4
  %5 = alloca %struct.duration, align 8
  %6 = alloca %struct.duration, align 8
  %7 = alloca %struct.duration, align 8
  %8 = alloca i32, align 4
  %9 = alloca i32, align 4
  call void @llvm.lifetime.start.p0(ptr nonnull %8)
  call void @llvm.lifetime.start.p0(ptr nonnull %9)
  call void @llvm.x86.sse.stmxcsr(ptr nonnull %8)
  %10 = load i32, ptr %8, align 4
  %11 = or i32 %10, 32832
  store i32 %11, ptr %9, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %9)
  call void @llvm.lifetime.end.p0(ptr nonnull %8)
  call void @llvm.lifetime.end.p0(ptr nonnull %9)
  %12 = trunc i64 %2 to i32
  %13 = getelementptr %struct.share, ptr %0, i64 %1
  %14 = getelementptr i8, ptr %13, i64 456
  %15 = call ptr @pthread_self()
  %16 = ptrtoint ptr %15 to i64
  store atomic i64 %16, ptr %14 monotonic, align 8
  %17 = getelementptr inbounds i8, ptr %7, i64 8
  %18 = getelementptr inbounds i8, ptr %6, i64 8
  %19 = getelementptr inbounds i8, ptr %0, i64 64
  %20 = getelementptr inbounds i8, ptr %0, i64 256
  br label %21
21:
  %22 = phi i32 [ %12, %3 ], [ %55, %58 ]
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  %23 = call i32 @clock_gettime(i32 6, ptr nonnull %7)
  %24 = load i64, ptr %7, align 8
  %25 = load i64, ptr %17, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  br label %26
26:
  %27 = phi i32 [ 0, %21 ], [ %34, %33 ]
  %28 = load atomic i32, ptr %0 acquire, align 4
  %29 = icmp eq i32 %28, %22
  br i1 %29, label %30, label %54
30:
  call void @llvm.x86.sse2.pause()
  %31 = add nuw nsw i32 %27, 1
  %32 = icmp eq i32 %31, 32
  br i1 %32, label %35, label %33
33:
  %34 = phi i32 [ %31, %30 ], [ 0, %46 ], [ 0, %44 ]
  br label %26
35:
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %36 = call i32 @clock_gettime(i32 6, ptr nonnull %6)
  %37 = load i64, ptr %6, align 8
  %38 = load i64, ptr %18, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %39 = sub i64 %37, %24
  %40 = mul i64 %39, 1000000000
  %41 = sub i64 %38, %25
  %42 = add i64 %41, %40
  %43 = icmp slt i64 %42, 50001
  br i1 %43, label %44, label %48
44:
  %45 = icmp sgt i64 %42, 5000
  br i1 %45, label %46, label %33
46:
  %47 = call i32 @sched_yield()
  br label %33
48:
  %49 = atomicrmw add ptr %19, i32 1 seq_cst, align 16
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  call void @llvm.memcpy.p0.p0.i64(ptr nonnull align 8 dereferenceable(16) %5, ptr nonnull align 8 dereferenceable(16) @__const.park.nap, i64 16, i1 false)
  %50 = call i32 @nanosleep(ptr nonnull %5, ptr null)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %51 = atomicrmw sub ptr %19, i32 1 seq_cst, align 16
  %52 = load atomic i32, ptr %0 acquire, align 16
  %53 = icmp eq i32 %52, %22
  br i1 %53, label %48, label %54
54:
  %55 = load atomic i32, ptr %0 acquire, align 16
  %56 = load atomic i32, ptr %20 acquire, align 16
  %57 = icmp eq i32 %56, 0
  br i1 %57, label %58, label %59
58:
  call fastcc void @drain(ptr nonnull %0, i64 %1)
  br label %21
59:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  store i32 %10, ptr %4, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %4)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  ret void
}
define internal fastcc void @drain(ptr %0, i64 %1) nounwind {
  %3 = alloca %struct.duration, align 8
  %4 = alloca %struct.duration, align 8
  %5 = getelementptr inbounds i8, ptr %0, i64 320
  %6 = getelementptr inbounds i8, ptr %0, i64 352
  %7 = load atomic i64, ptr %6 monotonic, align 8
  %8 = icmp ult i64 %1, %7
  br i1 %8, label %9, label %130
9:
  %10 = getelementptr inbounds i8, ptr %0, i64 448
  %11 = getelementptr inbounds i8, ptr %0, i64 328
  %12 = getelementptr inbounds i8, ptr %0, i64 336
  %13 = getelementptr inbounds i8, ptr %0, i64 344
  %14 = getelementptr inbounds i8, ptr %0, i64 360
  %15 = getelementptr inbounds i8, ptr %0, i64 368
  %16 = getelementptr inbounds i8, ptr %0, i64 376
  %17 = getelementptr inbounds i8, ptr %4, i64 8
  %18 = shl i64 %1, 4
  br label %19
19:
  %20 = phi i64 [ %7, %9 ], [ %108, %107 ]
  %21 = phi i64 [ 0, %9 ], [ %88, %107 ]
  %22 = phi i32 [ 0, %9 ], [ %67, %107 ]
  %23 = phi i64 [ 0, %9 ], [ %25, %107 ]
  br label %24
24:
  %25 = phi i64 [ %23, %19 ], [ %59, %58 ]
  %26 = phi i64 [ %20, %19 ], [ %60, %58 ]
  %27 = icmp ult i64 %25, %26
  br i1 %27, label %28, label %62
28:
  %29 = add i64 %25, %1
  %30 = icmp ult i64 %29, %26
  %31 = select i1 %30, i64 0, i64 %26
  %32 = sub i64 %29, %31
  %33 = getelementptr inbounds %struct.share, ptr %10, i64 %32
  %34 = load atomic i64, ptr %33 acquire, align 16
  %35 = load atomic i64, ptr %11 monotonic, align 8
  %36 = load atomic i64, ptr %12 monotonic, align 8
  %37 = load atomic i64, ptr %13 monotonic, align 8
  %38 = load atomic i64, ptr %6 monotonic, align 8
  %39 = load atomic i64, ptr %14 monotonic, align 8
  %40 = load atomic i64, ptr %15 monotonic, align 8
  fence acquire
  %41 = load atomic i64, ptr %5 monotonic, align 8
  %42 = lshr i64 %34, 32
  %43 = icmp eq i64 %41, %42
  %44 = icmp eq i64 %38, %26
  %45 = select i1 %43, i1 %44, i1 false
  br i1 %45, label %46, label %62
46:
  %47 = and i64 %34, 4294967295
  %48 = add i64 %32, 1
  %49 = mul i64 %37, %48
  %50 = udiv i64 %49, %26
  %51 = icmp ult i64 %47, %50
  br i1 %51, label %54, label %52
52:
  %53 = add nuw i64 %25, 1
  br label %58
54:
  %55 = add i64 %34, 1
  %56 = cmpxchg ptr %33, i64 %34, i64 %55 acq_rel monotonic, align 16
  %57 = extractvalue { i64, i1 } %56, 1
  br i1 %57, label %66, label %58
58:
  %59 = phi i64 [ %25, %54 ], [ %53, %52 ]
  %60 = load atomic i64, ptr %6 monotonic, align 8
  %61 = icmp ult i64 %1, %60
  br i1 %61, label %24, label %62
62:
  %63 = phi i32 [ %22, %28 ], [ %22, %58 ], [ %22, %24 ], [ %67, %107 ]
  %64 = phi i64 [ %21, %28 ], [ %21, %58 ], [ %21, %24 ], [ %88, %107 ]
  %65 = icmp eq i32 %63, 0
  br i1 %65, label %130, label %110
66:
  %67 = add i32 %22, 1
  %68 = icmp eq i32 %22, 0
  br i1 %68, label %69, label %87
69:
  %70 = load atomic i64, ptr %16 monotonic, align 8
  %71 = icmp eq i64 %70, 0
  br i1 %71, label %87, label %72
72:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  %73 = call i32 @clock_gettime(i32 6, ptr nonnull %4)
  %74 = load i64, ptr %4, align 8
  %75 = mul nsw i64 %74, 1000000000
  %76 = load i64, ptr %17, align 8
  %77 = add nsw i64 %75, %76
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %78 = inttoptr i64 %70 to ptr
  %79 = getelementptr inbounds i8, ptr %78, i64 %18
  %80 = load i64, ptr %79, align 8
  %81 = icmp eq i64 %80, 0
  br i1 %81, label %82, label %83
82:
  store i64 %77, ptr %79, align 8
  br label %83
83:
  %84 = getelementptr inbounds i8, ptr %79, i64 8
  %85 = load i64, ptr %84, align 8
  %86 = sub nsw i64 %85, %77
  store i64 %86, ptr %84, align 8
  br label %87
87:
  %88 = phi i64 [ %21, %66 ], [ %70, %83 ], [ 0, %69 ]
  %89 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %90 = icmp eq i64 %89, 0
  br i1 %90, label %93, label %91
91:
  %92 = call fastcc i32 @is_watched()
  br label %98
93:
  %94 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %95 = icmp eq i64 %94, 0
  br i1 %95, label %101, label %96
96:
  %97 = call fastcc i32 @call_handler(i64 %94)
  br label %98
98:
  %99 = phi i32 [ %92, %91 ], [ %97, %96 ]
  %100 = icmp eq i32 %99, 0
  br i1 %100, label %101, label %107
101:
  %102 = inttoptr i64 %35 to ptr
  %103 = inttoptr i64 %36 to ptr
  %104 = mul i64 %40, %1
  %105 = add i64 %104, %39
  %106 = inttoptr i64 %105 to ptr
  call void %102(ptr %103, ptr %106, i64 %47)
  br label %107
107:
  %108 = load atomic i64, ptr %6 monotonic, align 8
  %109 = icmp ult i64 %1, %108
  br i1 %109, label %19, label %62
110:
  %111 = icmp eq i64 %64, 0
  br i1 %111, label %125, label %112
112:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %113 = call i32 @clock_gettime(i32 6, ptr nonnull %3)
  %114 = load i64, ptr %3, align 8
  %115 = mul nsw i64 %114, 1000000000
  %116 = getelementptr inbounds i8, ptr %3, i64 8
  %117 = load i64, ptr %116, align 8
  %118 = add nsw i64 %115, %117
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %119 = inttoptr i64 %64 to ptr
  %120 = shl i64 %1, 4
  %121 = getelementptr inbounds i8, ptr %119, i64 %120
  %122 = getelementptr inbounds i8, ptr %121, i64 8
  %123 = load i64, ptr %122, align 8
  %124 = add nsw i64 %118, %123
  store i64 %124, ptr %122, align 8
  br label %125
125:
  %126 = getelementptr inbounds i8, ptr %0, i64 128
  %127 = atomicrmw add ptr %126, i32 %63 seq_cst, align 16
  %128 = getelementptr inbounds i8, ptr %0, i64 192
  %129 = load atomic i32, ptr %128 seq_cst, align 16
  br label %130
130:
  ret void
}
define void @einsmith_stop(ptr %0) nounwind {
  %2 = getelementptr inbounds i8, ptr %0, i64 256
  store atomic i32 1, ptr %2 seq_cst, align 16
  %3 = atomicrmw add ptr %0, i32 1 seq_cst, align 16
  %4 = getelementptr inbounds i8, ptr %0, i64 64
  %5 = load atomic i32, ptr %4 seq_cst, align 16
  ret void
}
define i64 @einsmith_run(ptr readonly %0) nounwind {
  %2 = alloca i32, align 4
  %3 = alloca %struct.duration, align 8
  %4 = alloca %struct.polled, align 4
  %5 = alloca i64, align 8
  %6 = alloca %struct.duration, align 8
  %7 = alloca %struct.duration, align 8
  %8 = alloca i32, align 4
  %9 = alloca i32, align 4
  call void @llvm.lifetime.start.p0(ptr nonnull %8)
  call void @llvm.lifetime.start.p0(ptr nonnull %9)
  call void @llvm.x86.sse.stmxcsr(ptr nonnull %8)
  %10 = load i32, ptr %8, align 4
  %11 = or i32 %10, 32832
  store i32 %11, ptr %9, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %9)
  call void @llvm.lifetime.end.p0(ptr nonnull %8)
  call void @llvm.lifetime.end.p0(ptr nonnull %9)
  %12 = getelementptr inbounds i8, ptr %0, i64 104
  %13 = load i64, ptr %12, align 8
  %14 = icmp eq i64 %13, 0
  br i1 %14, label %32, label %15
15:
  %16 = zext i32 %10 to i64
  %17 = call ptr @pthread_self()
  %18 = ptrtoint ptr %17 to i64
  store atomic i64 %18, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  %19 = call i32 @clock_gettime(i32 5, ptr nonnull %7)
  %20 = load i64, ptr %7, align 8
  %21 = mul nsw i64 %20, 1000000000
  %22 = getelementptr inbounds i8, ptr %7, i64 8
  %23 = load i64, ptr %22, align 8
  %24 = add nsw i64 %21, %23
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  %25 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %26 = add i64 %24, %25
  store i64 %26, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store i64 %16, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  %27 = getelementptr inbounds i8, ptr %0, i64 16
  %28 = load i64, ptr %27, align 8
  store atomic i64 %28, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 48) monotonic, align 8
  %29 = getelementptr inbounds i8, ptr %0, i64 24
  %30 = load i64, ptr %29, align 8
  store atomic i64 %30, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 56) monotonic, align 8
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %31 = load i64, ptr %12, align 8
  store atomic i64 %31, ptr @einsmith_watch release, align 8
  br label %32
32:
  %33 = phi i64 [ %31, %15 ], [ 0, %1 ]
  %34 = load i64, ptr %0, align 8
  %35 = inttoptr i64 %34 to ptr
  %36 = getelementptr inbounds i8, ptr %0, i64 112
  %37 = getelementptr inbounds i8, ptr %0, i64 8
  %38 = getelementptr inbounds i8, ptr %0, i64 120
  %39 = getelementptr inbounds i8, ptr %0, i64 24
  %40 = getelementptr inbounds i8, ptr %0, i64 48
  %41 = getelementptr inbounds i8, ptr %6, i64 8
  %42 = getelementptr inbounds i8, ptr %4, i64 4
  %43 = getelementptr inbounds i8, ptr %4, i64 6
  %44 = getelementptr inbounds i8, ptr %0, i64 32
  %45 = getelementptr inbounds i8, ptr %3, i64 8
  br label %46
46:
  %47 = phi i64 [ %33, %32 ], [ %248, %246 ]
  %48 = phi i64 [ 0, %32 ], [ %247, %246 ]
  %49 = icmp eq i64 %47, 0
  br i1 %49, label %68, label %50
50:
  %51 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %52 = icmp eq i64 %51, 0
  br i1 %52, label %55, label %53
53:
  %54 = call fastcc i32 @is_watched()
  br label %60
55:
  %56 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %57 = icmp eq i64 %56, 0
  br i1 %57, label %60, label %58
58:
  %59 = call fastcc i32 @call_handler(i64 %56)
  br label %60
60:
  %61 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %62 = icmp eq i64 %61, 0
  br i1 %62, label %64, label %63
63:
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %249
64:
  %65 = load i64, ptr %36, align 8
  %66 = icmp ult i64 %48, %65
  br i1 %66, label %68, label %67
67:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %68
68:
  %69 = load i64, ptr %37, align 8
  %70 = icmp ult i64 %48, %69
  br i1 %70, label %71, label %249
71:
  %72 = load i64, ptr %38, align 8
  %73 = icmp eq i64 %72, 0
  br i1 %73, label %79, label %74
74:
  %75 = load i64, ptr %39, align 8
  %76 = shl i64 %48, 4
  %77 = mul i64 %76, %75
  %78 = add i64 %77, %72
  br label %79
79:
  %80 = phi i64 [ %78, %74 ], [ 0, %71 ]
  %81 = load i64, ptr %40, align 8
  %82 = icmp eq i64 %81, 0
  br i1 %82, label %98, label %83
83:
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %84 = call i32 @clock_gettime(i32 6, ptr nonnull %6)
  %85 = load i64, ptr %6, align 8
  %86 = mul nsw i64 %85, 1000000000
  %87 = load i64, ptr %41, align 8
  %88 = add nsw i64 %86, %87
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %89 = load i64, ptr %40, align 8
  %90 = icmp ne i64 %89, 0
  %91 = icmp ne i64 %80, 0
  %92 = select i1 %90, i1 %91, i1 false
  br i1 %92, label %93, label %98
93:
  %94 = inttoptr i64 %80 to ptr
  %95 = load i64, ptr %94, align 8
  %96 = icmp eq i64 %95, 0
  br i1 %96, label %97, label %98
97:
  store i64 %88, ptr %94, align 8
  br label %98
98:
  %99 = phi i64 [ %88, %83 ], [ %88, %97 ], [ %88, %93 ], [ 0, %79 ]
  %100 = getelementptr inbounds %struct.step, ptr %35, i64 %48
  %101 = add nuw i64 %48, 1
  %102 = load i64, ptr %100, align 8
  switch i64 %102, label %161 [
    i64 1, label %103
    i64 2, label %103
    i64 3, label %103
    i64 4, label %122
    i64 6, label %122
    i64 5, label %122
    i64 8, label %124
    i64 9, label %132
  ]
103:
  %104 = icmp eq i64 %102, 3
  %105 = getelementptr inbounds i8, ptr %100, i64 8
  %106 = load i64, ptr %105, align 8
  %107 = inttoptr i64 %106 to ptr
  br i1 %104, label %108, label %112
108:
  %109 = load i64, ptr %107, align 8
  %110 = and i64 %109, 9218868437227405312
  %111 = icmp eq i64 %110, 9218868437227405312
  br i1 %111, label %119, label %230
112:
  %113 = load i32, ptr %107, align 4
  %114 = icmp eq i64 %102, 2
  %115 = and i32 %113, 2139095040
  %116 = icmp eq i32 %115, 2139095040
  %117 = icmp ne i32 %113, 0
  %118 = select i1 %114, i1 %116, i1 %117
  br i1 %118, label %119, label %230
119:
  %120 = getelementptr inbounds i8, ptr %100, i64 32
  %121 = load i64, ptr %120, align 8
  br label %249
122:
  %123 = call fastcc i64 @after_loop_step(ptr nonnull %35, i64 %48)
  br label %246
124:
  %125 = getelementptr inbounds i8, ptr %100, i64 16
  %126 = load i64, ptr %125, align 8
  %127 = trunc i64 %126 to i32
  %128 = getelementptr inbounds i8, ptr %100, i64 8
  %129 = load i64, ptr %128, align 8
  %130 = inttoptr i64 %129 to ptr
  %131 = call i64 @write(i32 %127, ptr %130, i64 1)
  br label %230
132:
  %133 = getelementptr inbounds i8, ptr %100, i64 16
  %134 = load i64, ptr %133, align 8
  %135 = trunc i64 %134 to i32
  %136 = load i64, ptr %12, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  store i32 %135, ptr %4, align 4
  store i16 1, ptr %42, align 4
  store i16 0, ptr %43, align 2
  %137 = call i32 @poll(ptr nonnull %4, i64 1, i32 50)
  %138 = icmp slt i32 %137, 1
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  br i1 %138, label %139, label %158
139:
  %140 = icmp eq i64 %136, 0
  br label %141
141:
  br i1 %140, label %155, label %142
142:
  %143 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %144 = icmp eq i64 %143, 0
  br i1 %144, label %147, label %145
145:
  %146 = call fastcc i32 @is_watched()
  br label %152
147:
  %148 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %149 = icmp eq i64 %148, 0
  br i1 %149, label %152, label %150
150:
  %151 = call fastcc i32 @call_handler(i64 %148)
  br label %152
152:
  %153 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %154 = icmp eq i64 %153, 0
  br i1 %154, label %155, label %160
155:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  store i32 %135, ptr %4, align 4
  store i16 1, ptr %42, align 4
  store i16 0, ptr %43, align 2
  %156 = call i32 @poll(ptr nonnull %4, i64 1, i32 50)
  %157 = icmp slt i32 %156, 1
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  br i1 %157, label %141, label %158
158:
  %159 = call i64 @read(i32 %135, ptr nonnull %5, i64 1)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  br label %230
160:
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %249
161:
  %162 = load i64, ptr %39, align 8
  %163 = icmp ugt i64 %162, 1
  switch i64 %102, label %186 [
    i64 7, label %164
    i64 10, label %173
  ]
164:
  br i1 %163, label %165, label %227
165:
  %166 = getelementptr inbounds i8, ptr %100, i64 16
  %167 = load i64, ptr %166, align 8
  %168 = icmp ult i64 %167, 2
  br i1 %168, label %227, label %169
169:
  %170 = ptrtoint ptr %100 to i64
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @member to i64), i64 %170, i64 %167, i64 %80)
  %171 = getelementptr inbounds i8, ptr %100, i64 8
  %172 = load i64, ptr %171, align 8
  br label %227
173:
  br i1 %163, label %174, label %227
174:
  %175 = load i64, ptr %40, align 8
  %176 = icmp eq i64 %175, 0
  br i1 %176, label %180, label %177
177:
  %178 = load i64, ptr %38, align 8
  %179 = icmp eq i64 %178, 0
  br i1 %179, label %227, label %180
180:
  %181 = ptrtoint ptr %100 to i64
  %182 = getelementptr inbounds i8, ptr %100, i64 16
  %183 = load i64, ptr %182, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @part to i64), i64 %181, i64 %183, i64 %80)
  %184 = getelementptr inbounds i8, ptr %100, i64 8
  %185 = load i64, ptr %184, align 8
  br label %227
186:
  %187 = getelementptr inbounds i8, ptr %100, i64 16
  %188 = load i64, ptr %187, align 8
  %189 = icmp ugt i64 %188, 1
  %190 = select i1 %163, i1 %189, i1 false
  br i1 %190, label %191, label %196
191:
  %192 = getelementptr inbounds i8, ptr %100, i64 8
  %193 = load i64, ptr %192, align 8
  %194 = getelementptr inbounds i8, ptr %100, i64 24
  %195 = load i64, ptr %194, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 %193, i64 %195, i64 %188, i64 %80)
  br label %227
196:
  %197 = icmp eq i64 %188, 0
  br i1 %197, label %227, label %198
198:
  %199 = load i64, ptr %12, align 8
  %200 = load i64, ptr %44, align 8
  %201 = getelementptr inbounds i8, ptr %100, i64 24
  %202 = load i64, ptr %201, align 8
  %203 = getelementptr inbounds i8, ptr %100, i64 8
  %204 = load i64, ptr %203, align 8
  %205 = icmp eq i64 %199, 0
  %206 = inttoptr i64 %200 to ptr
  %207 = inttoptr i64 %204 to ptr
  %208 = inttoptr i64 %202 to ptr
  br label %209
209:
  %210 = phi i64 [ 0, %198 ], [ %225, %224 ]
  br i1 %205, label %224, label %211
211:
  %212 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %213 = icmp eq i64 %212, 0
  br i1 %213, label %216, label %214
214:
  %215 = call fastcc i32 @is_watched()
  br label %221
216:
  %217 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %218 = icmp eq i64 %217, 0
  br i1 %218, label %224, label %219
219:
  %220 = call fastcc i32 @call_handler(i64 %217)
  br label %221
221:
  %222 = phi i32 [ %215, %214 ], [ %220, %219 ]
  %223 = icmp eq i32 %222, 0
  br i1 %223, label %224, label %227
224:
  call void %207(ptr %208, ptr %206, i64 %210)
  %225 = add nuw i64 %210, 1
  %226 = icmp eq i64 %225, %188
  br i1 %226, label %227, label %209
227:
  %228 = phi i64 [ 0, %191 ], [ %172, %169 ], [ 0, %164 ], [ %185, %180 ], [ 0, %173 ], [ 0, %165 ], [ 0, %177 ], [ 0, %196 ], [ 0, %221 ], [ 0, %224 ]
  %229 = add i64 %228, %101
  br label %230
230:
  %231 = phi i64 [ %229, %227 ], [ %101, %112 ], [ %101, %124 ], [ %101, %158 ], [ %101, %108 ]
  %232 = load i64, ptr %40, align 8
  %233 = icmp eq i64 %232, 0
  br i1 %233, label %246, label %234
234:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %235 = call i32 @clock_gettime(i32 6, ptr nonnull %3)
  %236 = load i64, ptr %3, align 8
  %237 = mul nsw i64 %236, 1000000000
  %238 = load i64, ptr %45, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %239 = load i64, ptr %40, align 8
  %240 = inttoptr i64 %239 to ptr
  %241 = getelementptr inbounds i64, ptr %240, i64 %48
  %242 = load i64, ptr %241, align 8
  %243 = sub i64 %238, %99
  %244 = add i64 %243, %237
  %245 = add i64 %244, %242
  store i64 %245, ptr %241, align 8
  br label %246
246:
  %247 = phi i64 [ %231, %230 ], [ %231, %234 ], [ %123, %122 ]
  %248 = load i64, ptr %12, align 8
  br label %46
249:
  %250 = phi i64 [ -1, %63 ], [ %121, %119 ], [ -1, %160 ], [ 0, %68 ]
  %251 = load i64, ptr %12, align 8
  %252 = icmp eq i64 %251, 0
  br i1 %252, label %254, label %253
253:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %254
254:
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  store i32 %10, ptr %2, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr nonnull %2)
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  ret i64 %250
}
define i64 @einsmith_run_team(ptr %0) nounwind {
  %2 = alloca %struct.duration, align 8
  %3 = alloca %struct.duration, align 8
  %4 = getelementptr inbounds i8, ptr %0, i64 16
  %5 = load i64, ptr %4, align 8
  %6 = inttoptr i64 %5 to ptr
  %7 = getelementptr inbounds i8, ptr %6, i64 256
  store atomic i32 0, ptr %7 seq_cst, align 16
  %8 = load atomic i32, ptr %6 seq_cst, align 16
  %9 = zext i32 %8 to i64
  %10 = getelementptr inbounds i8, ptr %0, i64 72
  store i64 %9, ptr %10, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %11 = call i32 @clock_gettime(i32 6, ptr nonnull %3)
  %12 = load i64, ptr %3, align 8
  %13 = getelementptr inbounds i8, ptr %3, i64 8
  %14 = load i64, ptr %13, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %15 = getelementptr inbounds i8, ptr %0, i64 56
  %16 = load i64, ptr %15, align 8
  %17 = inttoptr i64 %16 to ptr
  %18 = getelementptr inbounds i8, ptr %0, i64 24
  %19 = load i64, ptr %18, align 8
  %20 = trunc i64 %19 to i32
  call void %17(ptr nonnull @team_member, ptr %0, i32 %20, i32 0)
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %21 = call i32 @clock_gettime(i32 6, ptr nonnull %2)
  %22 = load i64, ptr %2, align 8
  %23 = getelementptr inbounds i8, ptr %2, i64 8
  %24 = load i64, ptr %23, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %25 = getelementptr inbounds i8, ptr %0, i64 88
  %26 = load i64, ptr %25, align 8
  %27 = sub i64 %22, %12
  %28 = mul i64 %27, 1000000000
  %29 = add i64 %24, %28
  %30 = add i64 %14, %26
  %31 = sub i64 %29, %30
  %32 = getelementptr inbounds i8, ptr %0, i64 96
  store i64 %31, ptr %32, align 8
  %33 = getelementptr inbounds i8, ptr %0, i64 80
  %34 = load i64, ptr %33, align 8
  ret i64 %34
}
define internal void @team_member(ptr %0) nounwind {
  %2 = alloca %struct.duration, align 8
  %3 = alloca %struct.duration, align 8
  %4 = getelementptr inbounds i8, ptr %0, i64 16
  %5 = load i64, ptr %4, align 8
  %6 = inttoptr i64 %5 to ptr
  %7 = getelementptr inbounds i8, ptr %0, i64 64
  %8 = load i64, ptr %7, align 8
  %9 = inttoptr i64 %8 to ptr
  %10 = tail call i32 %9()
  %11 = icmp eq i32 %10, 0
  br i1 %11, label %16, label %12
12:
  %13 = sext i32 %10 to i64
  %14 = getelementptr inbounds i8, ptr %0, i64 72
  %15 = load i64, ptr %14, align 8
  tail call void @einsmith_worker(ptr %6, i64 %13, i64 %15)
  br label %36
16:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %17 = call i32 @clock_gettime(i32 6, ptr nonnull %3)
  %18 = load i64, ptr %3, align 8
  %19 = getelementptr inbounds i8, ptr %3, i64 8
  %20 = load i64, ptr %19, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %21 = call i64 @einsmith_run(ptr nonnull %0)
  %22 = getelementptr inbounds i8, ptr %0, i64 80
  store i64 %21, ptr %22, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %23 = call i32 @clock_gettime(i32 6, ptr nonnull %2)
  %24 = load i64, ptr %2, align 8
  %25 = getelementptr inbounds i8, ptr %2, i64 8
  %26 = load i64, ptr %25, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %27 = sub i64 %24, %18
  %28 = mul i64 %27, 1000000000
  %29 = sub i64 %26, %20
  %30 = add i64 %29, %28
  %31 = getelementptr inbounds i8, ptr %0, i64 88
  store i64 %30, ptr %31, align 8
  %32 = getelementptr inbounds i8, ptr %6, i64 256
  store atomic i32 1, ptr %32 seq_cst, align 16
  %33 = atomicrmw add ptr %6, i32 1 seq_cst, align 16
  %34 = getelementptr inbounds i8, ptr %6, i64 64
  %35 = load atomic i32, ptr %34 seq_cst, align 16
  br label %36
36:
  ret void
}
declare i32 @clock_gettime(i32, ptr)
declare ptr @pthread_self()
declare void @llvm.x86.sse2.pause()
declare i32 @sched_yield()
declare void @llvm.memcpy.p0.p0.i64(ptr noalias writeonly, ptr noalias readonly, i64, i1 immarg)
declare i32 @nanosleep(ptr, ptr)
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
declare i64 @write(i32, ptr, i64)
declare i32 @poll(ptr, i64, i32)
declare i64 @read(i32, ptr, i64)
define internal fastcc void @fork_join(ptr readonly %0, i64 %1, i64 %2, i64 %3, i64 %4) nounwind {
  %6 = alloca %struct.duration, align 8
  %7 = alloca %struct.duration, align 8
  %8 = alloca %struct.duration, align 8
  %9 = getelementptr inbounds i8, ptr %0, i64 16
  %10 = load i64, ptr %9, align 8
  %11 = inttoptr i64 %10 to ptr
  %12 = getelementptr inbounds i8, ptr %11, i64 320
  %13 = load atomic i64, ptr %12 monotonic, align 8
  %14 = add i64 %13, 1
  %15 = and i64 %14, 4294967295
  %16 = getelementptr inbounds i8, ptr %0, i64 24
  %17 = load i64, ptr %16, align 8
  store atomic i64 %15, ptr %12 monotonic, align 8
  fence release
  %18 = getelementptr inbounds i8, ptr %11, i64 328
  store atomic i64 %1, ptr %18 monotonic, align 8
  %19 = getelementptr inbounds i8, ptr %11, i64 336
  store atomic i64 %2, ptr %19 monotonic, align 8
  %20 = getelementptr inbounds i8, ptr %11, i64 344
  store atomic i64 %3, ptr %20 monotonic, align 8
  %21 = getelementptr inbounds i8, ptr %11, i64 352
  store atomic i64 %17, ptr %21 monotonic, align 8
  %22 = getelementptr inbounds i8, ptr %11, i64 360
  %23 = getelementptr inbounds i8, ptr %0, i64 32
  %24 = load i64, ptr %23, align 8
  store atomic i64 %24, ptr %22 monotonic, align 8
  %25 = getelementptr inbounds i8, ptr %11, i64 368
  %26 = getelementptr inbounds i8, ptr %0, i64 40
  %27 = load i64, ptr %26, align 8
  store atomic i64 %27, ptr %25 monotonic, align 8
  %28 = getelementptr inbounds i8, ptr %11, i64 376
  store atomic i64 %4, ptr %28 monotonic, align 8
  %29 = getelementptr inbounds i8, ptr %11, i64 128
  store atomic i32 0, ptr %29 monotonic, align 16
  %30 = icmp eq i64 %17, 0
  br i1 %30, label %34, label %31
31:
  %32 = getelementptr inbounds i8, ptr %11, i64 448
  %33 = shl nuw i64 %15, 32
  br label %94
34:
  %35 = atomicrmw add ptr %11, i32 1 seq_cst, align 16
  %36 = getelementptr inbounds i8, ptr %11, i64 64
  %37 = load atomic i32, ptr %36 seq_cst, align 16
  tail call fastcc void @drain(ptr nonnull %11, i64 0)
  %38 = trunc i64 %3 to i32
  br label %39
39:
  %40 = phi i32 [ 0, %34 ], [ %44, %43 ]
  %41 = load atomic i32, ptr %29 acquire, align 16
  %42 = icmp eq i32 %41, %38
  br i1 %42, label %93, label %43
43:
  tail call void @llvm.x86.sse2.pause()
  %44 = add nuw nsw i32 %40, 1
  %45 = icmp eq i32 %44, 64
  br i1 %45, label %46, label %39
46:
  call void @llvm.lifetime.start.p0(ptr nonnull %8)
  %47 = call i32 @clock_gettime(i32 6, ptr nonnull %8)
  %48 = load i64, ptr %8, align 8
  %49 = getelementptr inbounds i8, ptr %8, i64 8
  %50 = load i64, ptr %49, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %8)
  %51 = getelementptr inbounds i8, ptr %7, i64 8
  br label %52
52:
  %53 = phi i32 [ 0, %46 ], [ %60, %59 ]
  %54 = load atomic i32, ptr %29 acquire, align 4
  %55 = icmp eq i32 %54, %38
  br i1 %55, label %93, label %56
56:
  call void @llvm.x86.sse2.pause()
  %57 = add nuw nsw i32 %53, 1
  %58 = icmp eq i32 %57, 32
  br i1 %58, label %61, label %59
59:
  %60 = phi i32 [ %57, %56 ], [ 0, %72 ], [ 0, %70 ]
  br label %52
61:
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  %62 = call i32 @clock_gettime(i32 6, ptr nonnull %7)
  %63 = load i64, ptr %7, align 8
  %64 = load i64, ptr %51, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  %65 = sub i64 %63, %48
  %66 = mul i64 %65, 1000000000
  %67 = sub i64 %64, %50
  %68 = add i64 %67, %66
  %69 = icmp slt i64 %68, 50001
  br i1 %69, label %70, label %74
70:
  %71 = icmp sgt i64 %68, 5000
  br i1 %71, label %72, label %59
72:
  %73 = call i32 @sched_yield()
  br label %59
74:
  %75 = getelementptr inbounds i8, ptr %11, i64 192
  store atomic i32 1, ptr %75 seq_cst, align 16
  %76 = load atomic i32, ptr %29 seq_cst, align 16
  %77 = icmp eq i32 %76, %38
  br i1 %77, label %78, label %79
78:
  store atomic i32 0, ptr %75 seq_cst, align 16
  br label %93
79:
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  call void @llvm.memcpy.p0.p0.i64(ptr nonnull align 8 dereferenceable(16) %6, ptr nonnull align 8 dereferenceable(16) @__const.park.nap, i64 16, i1 false)
  %80 = call i32 @nanosleep(ptr nonnull %6, ptr null)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %81 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %82 = icmp eq i64 %81, 0
  br i1 %82, label %85, label %83
83:
  %84 = call fastcc i32 @is_watched()
  br label %90
85:
  %86 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %87 = icmp eq i64 %86, 0
  br i1 %87, label %90, label %88
88:
  %89 = call fastcc i32 @call_handler(i64 %86)
  br label %90
90:
  %91 = load atomic i32, ptr %29 seq_cst, align 16
  %92 = icmp eq i32 %91, %38
  br i1 %92, label %78, label %79
93:
  ret void
94:
  %95 = phi i64 [ 0, %31 ], [ %100, %94 ]
  %96 = mul i64 %95, %3
  %97 = udiv i64 %96, %17
  %98 = getelementptr inbounds %struct.share, ptr %32, i64 %95
  %99 = or i64 %97, %33
  store atomic i64 %99, ptr %98 release, align 16
  %100 = add nuw i64 %95, 1
  %101 = icmp eq i64 %100, %17
  br i1 %101, label %34, label %94
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
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
