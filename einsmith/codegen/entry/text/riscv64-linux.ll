%struct.watch = type { i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.share = type { i64, i64, [48 x i8] }
%struct.duration = type { i64, i64 }
%struct.polled = type { i32, i16, i16 }
%struct.step = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.move = type { i64, i64, i64, i64, i64, i64 }
@einsmith_watch = external global %struct.watch, align 8
define i64 @einsmith_fp_enter() nounwind {
  ret i64 0
}
define void @einsmith_fp_leave(i64 %0) nounwind {
  ret void
}
define signext i32 @einsmith_look() nounwind {
  %1 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %2 = icmp eq i64 %1, 0
  br i1 %2, label %5, label %3
3:
  %4 = tail call fastcc signext i32 @is_watched()
  br label %10
5:
  %6 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %7 = icmp eq i64 %6, 0
  br i1 %7, label %10, label %8
8:
  %9 = tail call fastcc signext i32 @call_handler(i64 %6)
  br label %10
10:
  %11 = phi i32 [ %4, %3 ], [ %9, %8 ], [ 0, %5 ]
  ret i32 %11
}
define internal fastcc signext i32 @is_watched() nounwind {
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
declare void @llvm.lifetime.start.p0(ptr)
define internal fastcc signext i32 @call_handler(i64 %0) nounwind {
  %2 = alloca %struct.duration, align 8
  %3 = alloca %struct.duration, align 8
  %4 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  %5 = tail call ptr @pthread_self()
  %6 = ptrtoint ptr %5 to i64
  %7 = icmp eq i64 %4, %6
  br i1 %7, label %8, label %32
8:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %9 = call signext i32 @clock_gettime(i32 signext 6, ptr nonnull %3)
  %10 = load i64, ptr %3, align 8
  %11 = mul nsw i64 %10, 1000000000
  %12 = getelementptr inbounds i8, ptr %3, i64 8
  %13 = load i64, ptr %12, align 8
  %14 = add nsw i64 %11, %13
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %15 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  %16 = icmp slt i64 %14, %15
  br i1 %16, label %32, label %17
17:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  store i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  %18 = inttoptr i64 %0 to ptr
  %19 = call signext i32 %18()
  store i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %20 = call signext i32 @clock_gettime(i32 signext 6, ptr nonnull %2)
  %21 = load i64, ptr %2, align 8
  %22 = mul nsw i64 %21, 1000000000
  %23 = getelementptr inbounds i8, ptr %2, i64 8
  %24 = load i64, ptr %23, align 8
  %25 = add nsw i64 %22, %24
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %26 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %27 = add i64 %25, %26
  store i64 %27, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store atomic i64 %0, ptr @einsmith_watch monotonic, align 8
  %28 = icmp ne i32 %19, 0
  br i1 %28, label %29, label %30
29:
  store atomic i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) release, align 8
  br label %30
30:
  %31 = zext i1 %28 to i32
  br label %32
32:
  %33 = phi i32 [ %31, %30 ], [ 0, %8 ], [ 0, %1 ]
  ret i32 %33
}
declare void @llvm.lifetime.end.p0(ptr)
define void @einsmith_worker(ptr %0, i64 %1, i64 %2) nounwind {
  %4 = alloca %struct.duration, align 8
  %5 = alloca [16 x i64], align 8
  %6 = alloca [16 x i64], align 8
  %7 = alloca %struct.duration, align 8
  %8 = alloca %struct.duration, align 8
  %9 = trunc i64 %2 to i32
  %10 = getelementptr %struct.share, ptr %0, i64 %1
  %11 = getelementptr i8, ptr %10, i64 456
  %12 = tail call ptr @pthread_self()
  %13 = ptrtoint ptr %12 to i64
  store atomic i64 %13, ptr %11 monotonic, align 8
  %14 = getelementptr inbounds i8, ptr %8, i64 8
  %15 = getelementptr inbounds i8, ptr %7, i64 8
  %16 = getelementptr inbounds i8, ptr %0, i64 64
  %17 = getelementptr inbounds i8, ptr %0, i64 256
  %18 = getelementptr inbounds i8, ptr %0, i64 262592
  %19 = getelementptr inbounds i32, ptr %18, i64 %1
  %20 = icmp eq i64 %1, 0
  %21 = getelementptr inbounds i8, ptr %4, i64 8
  br label %22
22:
  %23 = phi i64 [ 0, %3 ], [ %120, %119 ]
  %24 = phi i32 [ %9, %3 ], [ %57, %119 ]
  call void @llvm.lifetime.start.p0(ptr nonnull %8)
  %25 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %8)
  %26 = load i64, ptr %8, align 8
  %27 = load i64, ptr %14, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %8)
  br label %33
28:
  %29 = add nuw nsw i32 %34, 1
  %30 = icmp eq i32 %29, 32
  br i1 %30, label %37, label %31
31:
  %32 = phi i32 [ %29, %28 ], [ 0, %48 ], [ 0, %46 ]
  br label %33
33:
  %34 = phi i32 [ 0, %22 ], [ %32, %31 ]
  %35 = load atomic i32, ptr %0 acquire, align 4
  %36 = icmp eq i32 %35, %24
  br i1 %36, label %28, label %56
37:
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  %38 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %7)
  %39 = load i64, ptr %7, align 8
  %40 = load i64, ptr %15, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  %41 = sub i64 %39, %26
  %42 = mul i64 %41, 1000000000
  %43 = sub i64 %40, %27
  %44 = add i64 %43, %42
  %45 = icmp slt i64 %44, 50001
  br i1 %45, label %46, label %50
46:
  %47 = icmp sgt i64 %44, 5000
  br i1 %47, label %48, label %31
48:
  %49 = call signext i32 @sched_yield()
  br label %31
50:
  %51 = atomicrmw add ptr %16, i32 1 seq_cst, align 64
  %52 = call i64 (i64, ...) @syscall(i64 98, ptr nonnull %0, i64 128, i32 signext %24, ptr null, ptr null, i64 0)
  %53 = atomicrmw sub ptr %16, i32 1 seq_cst, align 64
  %54 = load atomic i32, ptr %0 acquire, align 64
  %55 = icmp eq i32 %54, %24
  br i1 %55, label %50, label %56
56:
  %57 = load atomic i32, ptr %0 acquire, align 64
  %58 = load atomic i32, ptr %17 acquire, align 64
  %59 = icmp eq i32 %58, 0
  br i1 %59, label %60, label %121
60:
  %61 = call signext i32 @sched_getcpu()
  %62 = load atomic i32, ptr %19 monotonic, align 4
  %63 = icmp eq i32 %62, %61
  br i1 %63, label %65, label %64
64:
  store atomic i32 %61, ptr %19 monotonic, align 4
  br label %65
65:
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  br i1 %20, label %119, label %66
66:
  %67 = phi i64 [ %72, %71 ], [ 0, %65 ]
  %68 = getelementptr inbounds i32, ptr %18, i64 %67
  %69 = load atomic i32, ptr %68 monotonic, align 4
  %70 = icmp eq i32 %69, %61
  br i1 %70, label %74, label %71
71:
  %72 = add nuw i64 %67, 1
  %73 = icmp eq i64 %72, %1
  br i1 %73, label %119, label %66
74:
  %75 = icmp eq i64 %67, %1
  br i1 %75, label %119, label %76
76:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  %77 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %4)
  %78 = load i64, ptr %4, align 8
  %79 = mul nsw i64 %78, 1000000000
  %80 = load i64, ptr %21, align 8
  %81 = add nsw i64 %79, %80
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %82 = sub nsw i64 %81, %23
  %83 = icmp slt i64 %82, 1000000
  br i1 %83, label %119, label %84
84:
  %85 = call signext i32 @sched_getaffinity(i32 signext 0, i64 128, ptr nonnull %5)
  %86 = icmp eq i32 %85, 0
  br i1 %86, label %87, label %119
87:
  %88 = phi i64 [ %92, %87 ], [ 0, %84 ]
  %89 = getelementptr inbounds i64, ptr %5, i64 %88
  %90 = load i64, ptr %89, align 8
  %91 = getelementptr inbounds i64, ptr %6, i64 %88
  store i64 %90, ptr %91, align 8
  %92 = add nuw nsw i64 %88, 1
  %93 = icmp eq i64 %92, 16
  br i1 %93, label %94, label %87
94:
  %95 = phi i64 [ %110, %109 ], [ 0, %87 ]
  %96 = getelementptr inbounds i32, ptr %18, i64 %95
  %97 = load atomic i32, ptr %96 monotonic, align 4
  %98 = icmp ult i32 %97, 1024
  br i1 %98, label %99, label %109
99:
  %100 = and i32 %97, 63
  %101 = zext i32 %100 to i64
  %102 = shl nuw i64 1, %101
  %103 = xor i64 %102, -1
  %104 = lshr i32 %97, 6
  %105 = zext i32 %104 to i64
  %106 = getelementptr inbounds i64, ptr %6, i64 %105
  %107 = load i64, ptr %106, align 8
  %108 = and i64 %107, %103
  store i64 %108, ptr %106, align 8
  br label %109
109:
  %110 = add nuw i64 %95, 1
  %111 = icmp eq i64 %110, %1
  br i1 %111, label %112, label %94
112:
  %113 = call signext i32 @sched_setaffinity(i32 signext 0, i64 128, ptr nonnull %6)
  %114 = call signext i32 @sched_setaffinity(i32 signext 0, i64 128, ptr nonnull %5)
  %115 = call signext i32 @sched_getcpu()
  %116 = load atomic i32, ptr %19 monotonic, align 4
  %117 = icmp eq i32 %116, %115
  br i1 %117, label %119, label %118
118:
  store atomic i32 %115, ptr %19 monotonic, align 4
  br label %119
119:
  %120 = phi i64 [ %23, %74 ], [ %23, %76 ], [ %23, %84 ], [ %81, %112 ], [ %81, %118 ], [ %23, %65 ], [ %23, %71 ]
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  call fastcc void @drain(ptr nonnull %0, i64 %1)
  br label %22
121:
  ret void
}
define internal fastcc void @drain(ptr %0, i64 %1) nounwind {
  %3 = alloca %struct.duration, align 8
  %4 = alloca %struct.duration, align 8
  %5 = getelementptr inbounds i8, ptr %0, i64 320
  %6 = getelementptr inbounds i8, ptr %0, i64 352
  %7 = load atomic i64, ptr %6 monotonic, align 8
  %8 = icmp ult i64 %1, %7
  br i1 %8, label %9, label %133
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
  %34 = load atomic i64, ptr %33 acquire, align 64
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
  %56 = cmpxchg ptr %33, i64 %34, i64 %55 acq_rel monotonic, align 64
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
  br i1 %65, label %133, label %110
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
  %73 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %4)
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
  %92 = call fastcc signext i32 @is_watched()
  br label %98
93:
  %94 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %95 = icmp eq i64 %94, 0
  br i1 %95, label %101, label %96
96:
  %97 = call fastcc signext i32 @call_handler(i64 %94)
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
  %113 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %3)
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
  %127 = atomicrmw add ptr %126, i32 %63 seq_cst, align 64
  %128 = getelementptr inbounds i8, ptr %0, i64 192
  %129 = load atomic i32, ptr %128 seq_cst, align 64
  %130 = icmp eq i32 %129, 0
  br i1 %130, label %133, label %131
131:
  %132 = call i64 (i64, ...) @syscall(i64 98, ptr nonnull %126, i64 129, i32 signext 2147483647, ptr null, ptr null, i64 0)
  br label %133
133:
  ret void
}
define void @einsmith_stop(ptr %0) nounwind {
  %2 = getelementptr inbounds i8, ptr %0, i64 256
  store atomic i32 1, ptr %2 seq_cst, align 64
  %3 = atomicrmw add ptr %0, i32 1 seq_cst, align 64
  %4 = getelementptr inbounds i8, ptr %0, i64 64
  %5 = load atomic i32, ptr %4 seq_cst, align 64
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %9, label %7
7:
  %8 = tail call i64 (i64, ...) @syscall(i64 98, ptr nonnull %0, i64 129, i32 signext 2147483647, ptr null, ptr null, i64 0)
  br label %9
9:
  ret void
}
define i64 @einsmith_run(ptr readonly %0) nounwind {
  %2 = alloca %struct.duration, align 8
  %3 = alloca %struct.polled, align 4
  %4 = alloca i64, align 8
  %5 = alloca %struct.duration, align 8
  %6 = alloca %struct.duration, align 8
  %7 = getelementptr inbounds i8, ptr %0, i64 104
  %8 = load i64, ptr %7, align 8
  %9 = icmp eq i64 %8, 0
  br i1 %9, label %26, label %10
10:
  %11 = tail call ptr @pthread_self()
  %12 = ptrtoint ptr %11 to i64
  store atomic i64 %12, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %13 = call signext i32 @clock_gettime(i32 signext 6, ptr nonnull %6)
  %14 = load i64, ptr %6, align 8
  %15 = mul nsw i64 %14, 1000000000
  %16 = getelementptr inbounds i8, ptr %6, i64 8
  %17 = load i64, ptr %16, align 8
  %18 = add nsw i64 %15, %17
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %19 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %20 = add i64 %18, %19
  store i64 %20, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  %21 = getelementptr inbounds i8, ptr %0, i64 16
  %22 = load i64, ptr %21, align 8
  store atomic i64 %22, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 48) monotonic, align 8
  %23 = getelementptr inbounds i8, ptr %0, i64 24
  %24 = load i64, ptr %23, align 8
  store atomic i64 %24, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 56) monotonic, align 8
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %25 = load i64, ptr %7, align 8
  store atomic i64 %25, ptr @einsmith_watch release, align 8
  br label %26
26:
  %27 = phi i64 [ %25, %10 ], [ 0, %1 ]
  %28 = load i64, ptr %0, align 8
  %29 = inttoptr i64 %28 to ptr
  %30 = getelementptr inbounds i8, ptr %0, i64 112
  %31 = getelementptr inbounds i8, ptr %0, i64 8
  %32 = getelementptr inbounds i8, ptr %0, i64 120
  %33 = getelementptr inbounds i8, ptr %0, i64 24
  %34 = getelementptr inbounds i8, ptr %0, i64 48
  %35 = getelementptr inbounds i8, ptr %5, i64 8
  %36 = getelementptr inbounds i8, ptr %3, i64 4
  %37 = getelementptr inbounds i8, ptr %3, i64 6
  %38 = getelementptr inbounds i8, ptr %0, i64 32
  %39 = getelementptr inbounds i8, ptr %2, i64 8
  br label %40
40:
  %41 = phi i64 [ %27, %26 ], [ %242, %240 ]
  %42 = phi i64 [ 0, %26 ], [ %241, %240 ]
  %43 = icmp eq i64 %41, 0
  br i1 %43, label %62, label %44
44:
  %45 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %46 = icmp eq i64 %45, 0
  br i1 %46, label %49, label %47
47:
  %48 = call fastcc signext i32 @is_watched()
  br label %54
49:
  %50 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %51 = icmp eq i64 %50, 0
  br i1 %51, label %54, label %52
52:
  %53 = call fastcc signext i32 @call_handler(i64 %50)
  br label %54
54:
  %55 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %56 = icmp eq i64 %55, 0
  br i1 %56, label %58, label %57
57:
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %243
58:
  %59 = load i64, ptr %30, align 8
  %60 = icmp ult i64 %42, %59
  br i1 %60, label %62, label %61
61:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %62
62:
  %63 = load i64, ptr %31, align 8
  %64 = icmp ult i64 %42, %63
  br i1 %64, label %65, label %243
65:
  %66 = load i64, ptr %32, align 8
  %67 = icmp eq i64 %66, 0
  br i1 %67, label %73, label %68
68:
  %69 = load i64, ptr %33, align 8
  %70 = shl i64 %42, 4
  %71 = mul i64 %70, %69
  %72 = add i64 %71, %66
  br label %73
73:
  %74 = phi i64 [ %72, %68 ], [ 0, %65 ]
  %75 = load i64, ptr %34, align 8
  %76 = icmp eq i64 %75, 0
  br i1 %76, label %92, label %77
77:
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %78 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %5)
  %79 = load i64, ptr %5, align 8
  %80 = mul nsw i64 %79, 1000000000
  %81 = load i64, ptr %35, align 8
  %82 = add nsw i64 %80, %81
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %83 = load i64, ptr %34, align 8
  %84 = icmp ne i64 %83, 0
  %85 = icmp ne i64 %74, 0
  %86 = select i1 %84, i1 %85, i1 false
  br i1 %86, label %87, label %92
87:
  %88 = inttoptr i64 %74 to ptr
  %89 = load i64, ptr %88, align 8
  %90 = icmp eq i64 %89, 0
  br i1 %90, label %91, label %92
91:
  store i64 %82, ptr %88, align 8
  br label %92
92:
  %93 = phi i64 [ %82, %77 ], [ %82, %91 ], [ %82, %87 ], [ 0, %73 ]
  %94 = getelementptr inbounds %struct.step, ptr %29, i64 %42
  %95 = add nuw i64 %42, 1
  %96 = load i64, ptr %94, align 8
  switch i64 %96, label %155 [
    i64 1, label %97
    i64 2, label %97
    i64 3, label %97
    i64 4, label %116
    i64 6, label %116
    i64 5, label %116
    i64 8, label %118
    i64 9, label %126
  ]
97:
  %98 = icmp eq i64 %96, 3
  %99 = getelementptr inbounds i8, ptr %94, i64 8
  %100 = load i64, ptr %99, align 8
  %101 = inttoptr i64 %100 to ptr
  br i1 %98, label %102, label %106
102:
  %103 = load i64, ptr %101, align 8
  %104 = and i64 %103, 9218868437227405312
  %105 = icmp eq i64 %104, 9218868437227405312
  br i1 %105, label %113, label %224
106:
  %107 = load i32, ptr %101, align 4
  %108 = icmp eq i64 %96, 2
  %109 = and i32 %107, 2139095040
  %110 = icmp eq i32 %109, 2139095040
  %111 = icmp ne i32 %107, 0
  %112 = select i1 %108, i1 %110, i1 %111
  br i1 %112, label %113, label %224
113:
  %114 = getelementptr inbounds i8, ptr %94, i64 32
  %115 = load i64, ptr %114, align 8
  br label %243
116:
  %117 = call fastcc i64 @after_loop_step(ptr nonnull %29, i64 %42)
  br label %240
118:
  %119 = getelementptr inbounds i8, ptr %94, i64 16
  %120 = load i64, ptr %119, align 8
  %121 = trunc i64 %120 to i32
  %122 = getelementptr inbounds i8, ptr %94, i64 8
  %123 = load i64, ptr %122, align 8
  %124 = inttoptr i64 %123 to ptr
  %125 = call i64 @write(i32 signext %121, ptr %124, i64 1)
  br label %224
126:
  %127 = getelementptr inbounds i8, ptr %94, i64 16
  %128 = load i64, ptr %127, align 8
  %129 = trunc i64 %128 to i32
  %130 = load i64, ptr %7, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  store i32 %129, ptr %3, align 4
  store i16 1, ptr %36, align 4
  store i16 0, ptr %37, align 2
  %131 = call signext i32 @poll(ptr nonnull %3, i64 1, i32 signext 50)
  %132 = icmp slt i32 %131, 1
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  br i1 %132, label %133, label %152
133:
  %134 = icmp eq i64 %130, 0
  br label %135
135:
  br i1 %134, label %149, label %136
136:
  %137 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %138 = icmp eq i64 %137, 0
  br i1 %138, label %141, label %139
139:
  %140 = call fastcc signext i32 @is_watched()
  br label %146
141:
  %142 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %143 = icmp eq i64 %142, 0
  br i1 %143, label %146, label %144
144:
  %145 = call fastcc signext i32 @call_handler(i64 %142)
  br label %146
146:
  %147 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %148 = icmp eq i64 %147, 0
  br i1 %148, label %149, label %154
149:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  store i32 %129, ptr %3, align 4
  store i16 1, ptr %36, align 4
  store i16 0, ptr %37, align 2
  %150 = call signext i32 @poll(ptr nonnull %3, i64 1, i32 signext 50)
  %151 = icmp slt i32 %150, 1
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  br i1 %151, label %135, label %152
152:
  %153 = call i64 @read(i32 signext %129, ptr nonnull %4, i64 1)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  br label %224
154:
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %243
155:
  %156 = load i64, ptr %33, align 8
  %157 = icmp ugt i64 %156, 1
  switch i64 %96, label %180 [
    i64 7, label %158
    i64 10, label %167
  ]
158:
  br i1 %157, label %159, label %221
159:
  %160 = getelementptr inbounds i8, ptr %94, i64 16
  %161 = load i64, ptr %160, align 8
  %162 = icmp ult i64 %161, 2
  br i1 %162, label %221, label %163
163:
  %164 = ptrtoint ptr %94 to i64
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @member to i64), i64 %164, i64 %161, i64 %74)
  %165 = getelementptr inbounds i8, ptr %94, i64 8
  %166 = load i64, ptr %165, align 8
  br label %221
167:
  br i1 %157, label %168, label %221
168:
  %169 = load i64, ptr %34, align 8
  %170 = icmp eq i64 %169, 0
  br i1 %170, label %174, label %171
171:
  %172 = load i64, ptr %32, align 8
  %173 = icmp eq i64 %172, 0
  br i1 %173, label %221, label %174
174:
  %175 = ptrtoint ptr %94 to i64
  %176 = getelementptr inbounds i8, ptr %94, i64 16
  %177 = load i64, ptr %176, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @part to i64), i64 %175, i64 %177, i64 %74)
  %178 = getelementptr inbounds i8, ptr %94, i64 8
  %179 = load i64, ptr %178, align 8
  br label %221
180:
  %181 = getelementptr inbounds i8, ptr %94, i64 16
  %182 = load i64, ptr %181, align 8
  %183 = icmp ugt i64 %182, 1
  %184 = select i1 %157, i1 %183, i1 false
  br i1 %184, label %185, label %190
185:
  %186 = getelementptr inbounds i8, ptr %94, i64 8
  %187 = load i64, ptr %186, align 8
  %188 = getelementptr inbounds i8, ptr %94, i64 24
  %189 = load i64, ptr %188, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 %187, i64 %189, i64 %182, i64 %74)
  br label %221
190:
  %191 = icmp eq i64 %182, 0
  br i1 %191, label %221, label %192
192:
  %193 = load i64, ptr %7, align 8
  %194 = load i64, ptr %38, align 8
  %195 = getelementptr inbounds i8, ptr %94, i64 24
  %196 = load i64, ptr %195, align 8
  %197 = getelementptr inbounds i8, ptr %94, i64 8
  %198 = load i64, ptr %197, align 8
  %199 = icmp eq i64 %193, 0
  %200 = inttoptr i64 %194 to ptr
  %201 = inttoptr i64 %198 to ptr
  %202 = inttoptr i64 %196 to ptr
  br label %203
203:
  %204 = phi i64 [ 0, %192 ], [ %219, %218 ]
  br i1 %199, label %218, label %205
205:
  %206 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %207 = icmp eq i64 %206, 0
  br i1 %207, label %210, label %208
208:
  %209 = call fastcc signext i32 @is_watched()
  br label %215
210:
  %211 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %212 = icmp eq i64 %211, 0
  br i1 %212, label %218, label %213
213:
  %214 = call fastcc signext i32 @call_handler(i64 %211)
  br label %215
215:
  %216 = phi i32 [ %209, %208 ], [ %214, %213 ]
  %217 = icmp eq i32 %216, 0
  br i1 %217, label %218, label %221
218:
  call void %201(ptr %202, ptr %200, i64 %204)
  %219 = add nuw i64 %204, 1
  %220 = icmp eq i64 %219, %182
  br i1 %220, label %221, label %203
221:
  %222 = phi i64 [ 0, %185 ], [ %166, %163 ], [ 0, %158 ], [ %179, %174 ], [ 0, %167 ], [ 0, %159 ], [ 0, %171 ], [ 0, %190 ], [ 0, %215 ], [ 0, %218 ]
  %223 = add i64 %222, %95
  br label %224
224:
  %225 = phi i64 [ %223, %221 ], [ %95, %106 ], [ %95, %118 ], [ %95, %152 ], [ %95, %102 ]
  %226 = load i64, ptr %34, align 8
  %227 = icmp eq i64 %226, 0
  br i1 %227, label %240, label %228
228:
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %229 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %2)
  %230 = load i64, ptr %2, align 8
  %231 = mul nsw i64 %230, 1000000000
  %232 = load i64, ptr %39, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %233 = load i64, ptr %34, align 8
  %234 = inttoptr i64 %233 to ptr
  %235 = getelementptr inbounds i64, ptr %234, i64 %42
  %236 = load i64, ptr %235, align 8
  %237 = sub i64 %232, %93
  %238 = add i64 %237, %231
  %239 = add i64 %238, %236
  store i64 %239, ptr %235, align 8
  br label %240
240:
  %241 = phi i64 [ %225, %224 ], [ %225, %228 ], [ %117, %116 ]
  %242 = load i64, ptr %7, align 8
  br label %40
243:
  %244 = phi i64 [ -1, %57 ], [ %115, %113 ], [ -1, %154 ], [ 0, %62 ]
  %245 = load i64, ptr %7, align 8
  %246 = icmp eq i64 %245, 0
  br i1 %246, label %248, label %247
247:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %248
248:
  ret i64 %244
}
define i64 @einsmith_run_team(ptr %0) nounwind {
  %2 = alloca %struct.duration, align 8
  %3 = alloca %struct.duration, align 8
  %4 = getelementptr inbounds i8, ptr %0, i64 16
  %5 = load i64, ptr %4, align 8
  %6 = inttoptr i64 %5 to ptr
  %7 = getelementptr inbounds i8, ptr %6, i64 256
  store atomic i32 0, ptr %7 seq_cst, align 64
  %8 = load atomic i32, ptr %6 seq_cst, align 64
  %9 = zext i32 %8 to i64
  %10 = getelementptr inbounds i8, ptr %0, i64 72
  store i64 %9, ptr %10, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %11 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %3)
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
  call void %17(ptr nonnull @team_member, ptr %0, i32 signext %20, i32 signext 0)
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %21 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %2)
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
  %10 = tail call signext i32 %9()
  %11 = icmp eq i32 %10, 0
  br i1 %11, label %16, label %12
12:
  %13 = sext i32 %10 to i64
  %14 = getelementptr inbounds i8, ptr %0, i64 72
  %15 = load i64, ptr %14, align 8
  tail call void @einsmith_worker(ptr %6, i64 %13, i64 %15)
  br label %39
16:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %17 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %3)
  %18 = load i64, ptr %3, align 8
  %19 = getelementptr inbounds i8, ptr %3, i64 8
  %20 = load i64, ptr %19, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %21 = call i64 @einsmith_run(ptr nonnull %0)
  %22 = getelementptr inbounds i8, ptr %0, i64 80
  store i64 %21, ptr %22, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  %23 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %2)
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
  store atomic i32 1, ptr %32 seq_cst, align 64
  %33 = atomicrmw add ptr %6, i32 1 seq_cst, align 64
  %34 = getelementptr inbounds i8, ptr %6, i64 64
  %35 = load atomic i32, ptr %34 seq_cst, align 64
  %36 = icmp eq i32 %35, 0
  br i1 %36, label %39, label %37
37:
  %38 = call i64 (i64, ...) @syscall(i64 98, ptr nonnull %6, i64 129, i32 signext 2147483647, ptr null, ptr null, i64 0)
  br label %39
39:
  ret void
}
declare signext i32 @clock_gettime(i32 signext, ptr)
declare ptr @pthread_self()
declare signext i32 @sched_yield()
declare i64 @syscall(i64, ...)
declare signext i32 @sched_getaffinity(i32 signext, i64, ptr)
declare signext i32 @sched_setaffinity(i32 signext, i64, ptr)
declare signext i32 @sched_getcpu()
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
declare i64 @write(i32 signext, ptr, i64)
declare signext i32 @poll(ptr, i64, i32 signext)
declare i64 @read(i32 signext, ptr, i64)
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
  store atomic i32 0, ptr %29 monotonic, align 64
  %30 = icmp eq i64 %17, 0
  br i1 %30, label %34, label %31
31:
  %32 = getelementptr inbounds i8, ptr %11, i64 448
  %33 = shl nuw i64 %15, 32
  br label %107
34:
  %35 = tail call signext i32 @sched_getcpu()
  %36 = getelementptr inbounds i8, ptr %11, i64 262592
  %37 = load atomic i32, ptr %36 monotonic, align 4
  %38 = icmp eq i32 %37, %35
  br i1 %38, label %40, label %39
39:
  store atomic i32 %35, ptr %36 monotonic, align 4
  br label %40
40:
  %41 = atomicrmw add ptr %11, i32 1 seq_cst, align 64
  %42 = getelementptr inbounds i8, ptr %11, i64 64
  %43 = load atomic i32, ptr %42 seq_cst, align 64
  %44 = icmp eq i32 %43, 0
  br i1 %44, label %47, label %45
45:
  %46 = tail call i64 (i64, ...) @syscall(i64 98, ptr nonnull %11, i64 129, i32 signext 2147483647, ptr null, ptr null, i64 0)
  br label %47
47:
  tail call fastcc void @drain(ptr nonnull %11, i64 0)
  %48 = trunc i64 %3 to i32
  br label %52
49:
  %50 = add nuw nsw i32 %53, 1
  %51 = icmp eq i32 %50, 64
  br i1 %51, label %56, label %52
52:
  %53 = phi i32 [ 0, %47 ], [ %50, %49 ]
  %54 = load atomic i32, ptr %29 acquire, align 64
  %55 = icmp eq i32 %54, %48
  br i1 %55, label %106, label %49
56:
  call void @llvm.lifetime.start.p0(ptr nonnull %8)
  %57 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %8)
  %58 = load i64, ptr %8, align 8
  %59 = getelementptr inbounds i8, ptr %8, i64 8
  %60 = load i64, ptr %59, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %8)
  %61 = getelementptr inbounds i8, ptr %7, i64 8
  br label %67
62:
  %63 = add nuw nsw i32 %68, 1
  %64 = icmp eq i32 %63, 32
  br i1 %64, label %71, label %65
65:
  %66 = phi i32 [ %63, %62 ], [ 0, %82 ], [ 0, %80 ]
  br label %67
67:
  %68 = phi i32 [ 0, %56 ], [ %66, %65 ]
  %69 = load atomic i32, ptr %29 acquire, align 4
  %70 = icmp eq i32 %69, %48
  br i1 %70, label %106, label %62
71:
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  %72 = call signext i32 @clock_gettime(i32 signext 1, ptr nonnull %7)
  %73 = load i64, ptr %7, align 8
  %74 = load i64, ptr %61, align 8
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  %75 = sub i64 %73, %58
  %76 = mul i64 %75, 1000000000
  %77 = sub i64 %74, %60
  %78 = add i64 %77, %76
  %79 = icmp slt i64 %78, 50001
  br i1 %79, label %80, label %84
80:
  %81 = icmp sgt i64 %78, 5000
  br i1 %81, label %82, label %65
82:
  %83 = call signext i32 @sched_yield()
  br label %65
84:
  %85 = getelementptr inbounds i8, ptr %11, i64 192
  store atomic i32 1, ptr %85 seq_cst, align 64
  %86 = load atomic i32, ptr %29 seq_cst, align 64
  %87 = icmp eq i32 %86, %48
  br i1 %87, label %90, label %88
88:
  %89 = getelementptr inbounds i8, ptr %6, i64 8
  br label %91
90:
  store atomic i32 0, ptr %85 seq_cst, align 64
  br label %106
91:
  %92 = phi i32 [ %86, %88 ], [ %104, %103 ]
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  store i64 0, ptr %6, align 8
  store i64 50000000, ptr %89, align 8
  %93 = call i64 (i64, ...) @syscall(i64 98, ptr nonnull %29, i64 128, i32 signext %92, ptr nonnull %6, ptr null, i64 0)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %94 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %95 = icmp eq i64 %94, 0
  br i1 %95, label %98, label %96
96:
  %97 = call fastcc signext i32 @is_watched()
  br label %103
98:
  %99 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %100 = icmp eq i64 %99, 0
  br i1 %100, label %103, label %101
101:
  %102 = call fastcc signext i32 @call_handler(i64 %99)
  br label %103
103:
  %104 = load atomic i32, ptr %29 seq_cst, align 64
  %105 = icmp eq i32 %104, %48
  br i1 %105, label %90, label %91
106:
  ret void
107:
  %108 = phi i64 [ 0, %31 ], [ %113, %107 ]
  %109 = mul i64 %108, %3
  %110 = udiv i64 %109, %17
  %111 = getelementptr inbounds %struct.share, ptr %32, i64 %108
  %112 = or i64 %110, %33
  store atomic i64 %112, ptr %111 release, align 64
  %113 = add nuw i64 %108, 1
  %114 = icmp eq i64 %113, %17
  br i1 %114, label %34, label %107
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
  %35 = tail call fastcc signext i32 @is_watched()
  br label %41
36:
  %37 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %38 = icmp eq i64 %37, 0
  br i1 %38, label %44, label %39
39:
  %40 = tail call fastcc signext i32 @call_handler(i64 %37)
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
