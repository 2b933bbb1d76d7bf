%struct.watch = type { i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.duration = type { i64, i64 }
%struct.share = type { i64, i64, [48 x i8] }
%struct.polled = type { i32, i16, i16 }
%struct.step = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.move = type { i64, i64, i64, i64, i64, i64 }
@einsmith_watch = external global %struct.watch, align 8
@__const.park.nap = private constant %struct.duration { i64 0, i64 50000 }, align 8
define i64 @einsmith_fp_enter() nounwind {
  %1 = tail call i64 @llvm.read_volatile_register.i64(metadata !3)
  %2 = or i64 %1, 16777216
  tail call void @llvm.write_register.i64(metadata !3, i64 %2)
  ret i64 %1
}
declare void @llvm.lifetime.start.p0(ptr)
declare i64 @llvm.read_volatile_register.i64(metadata)
declare void @llvm.write_register.i64(metadata, i64)
declare void @llvm.lifetime.end.p0(ptr)
define void @einsmith_fp_leave(i64 %0) nounwind {
  tail call void @llvm.write_register.i64(metadata !3, i64 %0)
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
  %3 = alloca %struct.duration, align 8
  %4 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  %5 = tail call ptr @pthread_self()
  %6 = ptrtoint ptr %5 to i64
  %7 = icmp eq i64 %4, %6
  br i1 %7, label %8, label %35
8:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %9 = call i32 @clock_gettime(i32 5, ptr nonnull %3)
  %10 = load i64, ptr %3, align 8
  %11 = mul nsw i64 %10, 1000000000
  %12 = getelementptr inbounds i8, ptr %3, i64 8
  %13 = load i64, ptr %12, align 8
  %14 = add nsw i64 %11, %13
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %15 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  %16 = icmp slt i64 %14, %15
  br i1 %16, label %35, label %17
17:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  store i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  %18 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  call void @llvm.write_register.i64(metadata !3, i64 %18)
  %19 = inttoptr i64 %0 to ptr
  %20 = call i32 %19()
  %21 = call i64 @llvm.read_volatile_register.i64(metadata !3)
  %22 = or i64 %21, 16777216
  call void @llvm.write_register.i64(metadata !3, i64 %22)
  store i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %23 = call i32 @clock_gettime(i32 5, ptr nonnull %2)
  %24 = load i64, ptr %2, align 8
  %25 = mul nsw i64 %24, 1000000000
  %26 = getelementptr inbounds i8, ptr %2, i64 8
  %27 = load i64, ptr %26, align 8
  %28 = add nsw i64 %25, %27
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %29 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %30 = add i64 %28, %29
  store i64 %30, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store atomic i64 %0, ptr @einsmith_watch monotonic, align 8
  %31 = icmp ne i32 %20, 0
  br i1 %31, label %32, label %33
32:
  store atomic i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) release, align 8
  br label %33
33:
  %34 = zext i1 %31 to i32
  br label %35
35:
  %36 = phi i32 [ %34, %33 ], [ 0, %8 ], [ 0, %1 ]
  ret i32 %36
}
define void @einsmith_worker(ptr %0, i64 %1, i64 %2) nounwind {
  %4 = alloca %struct.duration, align 8
  %5 = alloca %struct.duration, align 8
  %6 = alloca %struct.duration, align 8
  %7 = tail call i64 @llvm.read_volatile_register.i64(metadata !3)
  %8 = or i64 %7, 16777216
  tail call void @llvm.write_register.i64(metadata !3, i64 %8)
  %9 = trunc i64 %2 to i32
  %10 = getelementptr %struct.share, ptr %0, i64 %1
  %11 = getelementptr i8, ptr %10, i64 456
  %12 = tail call ptr @pthread_self()
  %13 = ptrtoint ptr %12 to i64
  store atomic i64 %13, ptr %11 monotonic, align 8
  %14 = getelementptr inbounds i8, ptr %6, i64 8
  %15 = getelementptr inbounds i8, ptr %5, i64 8
  %16 = getelementptr inbounds i8, ptr %0, i64 64
  %17 = getelementptr inbounds i8, ptr %0, i64 256
  br label %18
18:
  %19 = phi i32 [ %9, %3 ], [ %52, %55 ]
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %20 = call i32 @clock_gettime(i32 6, ptr nonnull %6)
  %21 = load i64, ptr %6, align 8
  %22 = load i64, ptr %14, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  br label %23
23:
  %24 = phi i32 [ 0, %18 ], [ %31, %30 ]
  %25 = load atomic i32, ptr %0 acquire, align 4
  %26 = icmp eq i32 %25, %19
  br i1 %26, label %27, label %51
27:
  call void @llvm.aarch64.hint(i32 1)
  %28 = add nuw nsw i32 %24, 1
  %29 = icmp eq i32 %28, 32
  br i1 %29, label %32, label %30
30:
  %31 = phi i32 [ %28, %27 ], [ 0, %43 ], [ 0, %41 ]
  br label %23
32:
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %33 = call i32 @clock_gettime(i32 6, ptr nonnull %5)
  %34 = load i64, ptr %5, align 8
  %35 = load i64, ptr %15, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %36 = sub i64 %34, %21
  %37 = mul i64 %36, 1000000000
  %38 = sub i64 %35, %22
  %39 = add i64 %38, %37
  %40 = icmp slt i64 %39, 50001
  br i1 %40, label %41, label %45
41:
  %42 = icmp sgt i64 %39, 5000
  br i1 %42, label %43, label %30
43:
  %44 = call i32 @sched_yield()
  br label %30
45:
  %46 = atomicrmw add ptr %16, i32 1 seq_cst, align 16
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.memcpy.p0.p0.i64(ptr nonnull align 8 dereferenceable(16) %4, ptr nonnull align 8 dereferenceable(16) @__const.park.nap, i64 16, i1 false)
  %47 = call i32 @nanosleep(ptr nonnull %4, ptr null)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %48 = atomicrmw sub ptr %16, i32 1 seq_cst, align 16
  %49 = load atomic i32, ptr %0 acquire, align 16
  %50 = icmp eq i32 %49, %19
  br i1 %50, label %45, label %51
51:
  %52 = load atomic i32, ptr %0 acquire, align 16
  %53 = load atomic i32, ptr %17 acquire, align 16
  %54 = icmp eq i32 %53, 0
  br i1 %54, label %55, label %56
55:
  call fastcc void @drain(ptr nonnull %0, i64 %1)
  br label %18
56:
  call void @llvm.write_register.i64(metadata !3, i64 %7)
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
  %2 = alloca %struct.duration, align 8
  %3 = alloca %struct.polled, align 4
  %4 = alloca i64, align 8
  %5 = alloca %struct.duration, align 8
  %6 = alloca %struct.duration, align 8
  %7 = tail call i64 @llvm.read_volatile_register.i64(metadata !3)
  %8 = or i64 %7, 16777216
  tail call void @llvm.write_register.i64(metadata !3, i64 %8)
  %9 = getelementptr inbounds i8, ptr %0, i64 104
  %10 = load i64, ptr %9, align 8
  %11 = icmp eq i64 %10, 0
  br i1 %11, label %28, label %12
12:
  %13 = tail call ptr @pthread_self()
  %14 = ptrtoint ptr %13 to i64
  store atomic i64 %14, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %15 = call i32 @clock_gettime(i32 5, ptr nonnull %6)
  %16 = load i64, ptr %6, align 8
  %17 = mul nsw i64 %16, 1000000000
  %18 = getelementptr inbounds i8, ptr %6, i64 8
  %19 = load i64, ptr %18, align 8
  %20 = add nsw i64 %17, %19
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %21 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %22 = add i64 %20, %21
  store i64 %22, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store i64 %7, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  %23 = getelementptr inbounds i8, ptr %0, i64 16
  %24 = load i64, ptr %23, align 8
  store atomic i64 %24, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 48) monotonic, align 8
  %25 = getelementptr inbounds i8, ptr %0, i64 24
  %26 = load i64, ptr %25, align 8
  store atomic i64 %26, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 56) monotonic, align 8
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %27 = load i64, ptr %9, align 8
  store atomic i64 %27, ptr @einsmith_watch release, align 8
  br label %28
28:
  %29 = phi i64 [ %27, %12 ], [ 0, %1 ]
  %30 = load i64, ptr %0, align 8
  %31 = inttoptr i64 %30 to ptr
  %32 = getelementptr inbounds i8, ptr %0, i64 112
  %33 = getelementptr inbounds i8, ptr %0, i64 8
  %34 = getelementptr inbounds i8, ptr %0, i64 120
  %35 = getelementptr inbounds i8, ptr %0, i64 24
  %36 = getelementptr inbounds i8, ptr %0, i64 48
  %37 = getelementptr inbounds i8, ptr %5, i64 8
  %38 = getelementptr inbounds i8, ptr %3, i64 4
  %39 = getelementptr inbounds i8, ptr %3, i64 6
  %40 = getelementptr inbounds i8, ptr %0, i64 32
  %41 = getelementptr inbounds i8, ptr %2, i64 8
  br label %42
42:
  %43 = phi i64 [ %29, %28 ], [ %244, %242 ]
  %44 = phi i64 [ 0, %28 ], [ %243, %242 ]
  %45 = icmp eq i64 %43, 0
  br i1 %45, label %64, label %46
46:
  %47 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %48 = icmp eq i64 %47, 0
  br i1 %48, label %51, label %49
49:
  %50 = call fastcc i32 @is_watched()
  br label %56
51:
  %52 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %53 = icmp eq i64 %52, 0
  br i1 %53, label %56, label %54
54:
  %55 = call fastcc i32 @call_handler(i64 %52)
  br label %56
56:
  %57 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %58 = icmp eq i64 %57, 0
  br i1 %58, label %60, label %59
59:
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %245
60:
  %61 = load i64, ptr %32, align 8
  %62 = icmp ult i64 %44, %61
  br i1 %62, label %64, label %63
63:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %64
64:
  %65 = load i64, ptr %33, align 8
  %66 = icmp ult i64 %44, %65
  br i1 %66, label %67, label %245
67:
  %68 = load i64, ptr %34, align 8
  %69 = icmp eq i64 %68, 0
  br i1 %69, label %75, label %70
70:
  %71 = load i64, ptr %35, align 8
  %72 = shl i64 %44, 4
  %73 = mul i64 %72, %71
  %74 = add i64 %73, %68
  br label %75
75:
  %76 = phi i64 [ %74, %70 ], [ 0, %67 ]
  %77 = load i64, ptr %36, align 8
  %78 = icmp eq i64 %77, 0
  br i1 %78, label %94, label %79
79:
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %80 = call i32 @clock_gettime(i32 6, ptr nonnull %5)
  %81 = load i64, ptr %5, align 8
  %82 = mul nsw i64 %81, 1000000000
  %83 = load i64, ptr %37, align 8
  %84 = add nsw i64 %82, %83
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %85 = load i64, ptr %36, align 8
  %86 = icmp ne i64 %85, 0
  %87 = icmp ne i64 %76, 0
  %88 = select i1 %86, i1 %87, i1 false
  br i1 %88, label %89, label %94
89:
  %90 = inttoptr i64 %76 to ptr
  %91 = load i64, ptr %90, align 8
  %92 = icmp eq i64 %91, 0
  br i1 %92, label %93, label %94
93:
  store i64 %84, ptr %90, align 8
  br label %94
94:
  %95 = phi i64 [ %84, %79 ], [ %84, %93 ], [ %84, %89 ], [ 0, %75 ]
  %96 = getelementptr inbounds %struct.step, ptr %31, i64 %44
  %97 = add nuw i64 %44, 1
  %98 = load i64, ptr %96, align 8
  switch i64 %98, label %157 [
    i64 1, label %99
    i64 2, label %99
    i64 3, label %99
    i64 4, label %118
    i64 6, label %118
    i64 5, label %118
    i64 8, label %120
    i64 9, label %128
  ]
99:
  %100 = icmp eq i64 %98, 3
  %101 = getelementptr inbounds i8, ptr %96, i64 8
  %102 = load i64, ptr %101, align 8
  %103 = inttoptr i64 %102 to ptr
  br i1 %100, label %104, label %108
104:
  %105 = load i64, ptr %103, align 8
  %106 = and i64 %105, 9218868437227405312
  %107 = icmp eq i64 %106, 9218868437227405312
  br i1 %107, label %115, label %226
108:
  %109 = load i32, ptr %103, align 4
  %110 = icmp eq i64 %98, 2
  %111 = and i32 %109, 2139095040
  %112 = icmp eq i32 %111, 2139095040
  %113 = icmp ne i32 %109, 0
  %114 = select i1 %110, i1 %112, i1 %113
  br i1 %114, label %115, label %226
115:
  %116 = getelementptr inbounds i8, ptr %96, i64 32
  %117 = load i64, ptr %116, align 8
  br label %245
118:
  %119 = call fastcc i64 @after_loop_step(ptr nonnull %31, i64 %44)
  br label %242
120:
  %121 = getelementptr inbounds i8, ptr %96, i64 16
  %122 = load i64, ptr %121, align 8
  %123 = trunc i64 %122 to i32
  %124 = getelementptr inbounds i8, ptr %96, i64 8
  %125 = load i64, ptr %124, align 8
  %126 = inttoptr i64 %125 to ptr
  %127 = call i64 @write(i32 %123, ptr %126, i64 1)
  br label %226
128:
  %129 = getelementptr inbounds i8, ptr %96, i64 16
  %130 = load i64, ptr %129, align 8
  %131 = trunc i64 %130 to i32
  %132 = load i64, ptr %9, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  store i32 %131, ptr %3, align 4
  store i16 1, ptr %38, align 4
  store i16 0, ptr %39, align 2
  %133 = call i32 @poll(ptr nonnull %3, i64 1, i32 50)
  %134 = icmp slt i32 %133, 1
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  br i1 %134, label %135, label %154
135:
  %136 = icmp eq i64 %132, 0
  br label %137
137:
  br i1 %136, label %151, label %138
138:
  %139 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %140 = icmp eq i64 %139, 0
  br i1 %140, label %143, label %141
141:
  %142 = call fastcc i32 @is_watched()
  br label %148
143:
  %144 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %145 = icmp eq i64 %144, 0
  br i1 %145, label %148, label %146
146:
  %147 = call fastcc i32 @call_handler(i64 %144)
  br label %148
148:
  %149 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %150 = icmp eq i64 %149, 0
  br i1 %150, label %151, label %156
151:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  store i32 %131, ptr %3, align 4
  store i16 1, ptr %38, align 4
  store i16 0, ptr %39, align 2
  %152 = call i32 @poll(ptr nonnull %3, i64 1, i32 50)
  %153 = icmp slt i32 %152, 1
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  br i1 %153, label %137, label %154
154:
  %155 = call i64 @read(i32 %131, ptr nonnull %4, i64 1)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  br label %226
156:
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %245
157:
  %158 = load i64, ptr %35, align 8
  %159 = icmp ugt i64 %158, 1
  switch i64 %98, label %182 [
    i64 7, label %160
    i64 10, label %169
  ]
160:
  br i1 %159, label %161, label %223
161:
  %162 = getelementptr inbounds i8, ptr %96, i64 16
  %163 = load i64, ptr %162, align 8
  %164 = icmp ult i64 %163, 2
  br i1 %164, label %223, label %165
165:
  %166 = ptrtoint ptr %96 to i64
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @member to i64), i64 %166, i64 %163, i64 %76)
  %167 = getelementptr inbounds i8, ptr %96, i64 8
  %168 = load i64, ptr %167, align 8
  br label %223
169:
  br i1 %159, label %170, label %223
170:
  %171 = load i64, ptr %36, align 8
  %172 = icmp eq i64 %171, 0
  br i1 %172, label %176, label %173
173:
  %174 = load i64, ptr %34, align 8
  %175 = icmp eq i64 %174, 0
  br i1 %175, label %223, label %176
176:
  %177 = ptrtoint ptr %96 to i64
  %178 = getelementptr inbounds i8, ptr %96, i64 16
  %179 = load i64, ptr %178, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @part to i64), i64 %177, i64 %179, i64 %76)
  %180 = getelementptr inbounds i8, ptr %96, i64 8
  %181 = load i64, ptr %180, align 8
  br label %223
182:
  %183 = getelementptr inbounds i8, ptr %96, i64 16
  %184 = load i64, ptr %183, align 8
  %185 = icmp ugt i64 %184, 1
  %186 = select i1 %159, i1 %185, i1 false
  br i1 %186, label %187, label %192
187:
  %188 = getelementptr inbounds i8, ptr %96, i64 8
  %189 = load i64, ptr %188, align 8
  %190 = getelementptr inbounds i8, ptr %96, i64 24
  %191 = load i64, ptr %190, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 %189, i64 %191, i64 %184, i64 %76)
  br label %223
192:
  %193 = icmp eq i64 %184, 0
  br i1 %193, label %223, label %194
194:
  %195 = load i64, ptr %9, align 8
  %196 = load i64, ptr %40, align 8
  %197 = getelementptr inbounds i8, ptr %96, i64 24
  %198 = load i64, ptr %197, align 8
  %199 = getelementptr inbounds i8, ptr %96, i64 8
  %200 = load i64, ptr %199, align 8
  %201 = icmp eq i64 %195, 0
  %202 = inttoptr i64 %196 to ptr
  %203 = inttoptr i64 %200 to ptr
  %204 = inttoptr i64 %198 to ptr
  br label %205
205:
  %206 = phi i64 [ 0, %194 ], [ %221, %220 ]
  br i1 %201, label %220, label %207
207:
  %208 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %209 = icmp eq i64 %208, 0
  br i1 %209, label %212, label %210
210:
  %211 = call fastcc i32 @is_watched()
  br label %217
212:
  %213 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %214 = icmp eq i64 %213, 0
  br i1 %214, label %220, label %215
215:
  %216 = call fastcc i32 @call_handler(i64 %213)
  br label %217
217:
  %218 = phi i32 [ %211, %210 ], [ %216, %215 ]
  %219 = icmp eq i32 %218, 0
  br i1 %219, label %220, label %223
220:
  call void %203(ptr %204, ptr %202, i64 %206)
  %221 = add nuw i64 %206, 1
  %222 = icmp eq i64 %221, %184
  br i1 %222, label %223, label %205
223:
  %224 = phi i64 [ 0, %187 ], [ %168, %165 ], [ 0, %160 ], [ %181, %176 ], [ 0, %169 ], [ 0, %161 ], [ 0, %173 ], [ 0, %192 ], [ 0, %217 ], [ 0, %220 ]
  %225 = add i64 %224, %97
  br label %226
226:
  %227 = phi i64 [ %225, %223 ], [ %97, %108 ], [ %97, %120 ], [ %97, %154 ], [ %97, %104 ]
  %228 = load i64, ptr %36, align 8
  %229 = icmp eq i64 %228, 0
  br i1 %229, label %242, label %230
230:
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %231 = call i32 @clock_gettime(i32 6, ptr nonnull %2)
  %232 = load i64, ptr %2, align 8
  %233 = mul nsw i64 %232, 1000000000
  %234 = load i64, ptr %41, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %235 = load i64, ptr %36, align 8
  %236 = inttoptr i64 %235 to ptr
  %237 = getelementptr inbounds i64, ptr %236, i64 %44
  %238 = load i64, ptr %237, align 8
  %239 = sub i64 %234, %95
  %240 = add i64 %239, %233
  %241 = add i64 %240, %238
  store i64 %241, ptr %237, align 8
  br label %242
242:
  %243 = phi i64 [ %227, %226 ], [ %227, %230 ], [ %119, %118 ]
  %244 = load i64, ptr %9, align 8
  br label %42
245:
  %246 = phi i64 [ -1, %59 ], [ %117, %115 ], [ -1, %156 ], [ 0, %64 ]
  %247 = load i64, ptr %9, align 8
  %248 = icmp eq i64 %247, 0
  br i1 %248, label %250, label %249
249:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %250
250:
  call void @llvm.write_register.i64(metadata !3, i64 %7)
  ret i64 %246
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
declare void @llvm.aarch64.hint(i32)
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
  tail call void @llvm.aarch64.hint(i32 1)
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
  call void @llvm.aarch64.hint(i32 1)
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
!3 = !{!"fpcr"}
