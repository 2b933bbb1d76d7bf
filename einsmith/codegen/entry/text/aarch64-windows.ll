%struct.watch = type { i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.share = type { i64, i64, [48 x i8] }
%struct.step = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.move = type { i64, i64, i64, i64, i64, i64 }
@einsmith_watch = external global %struct.watch, align 8
define i64 @einsmith_fp_enter() nounwind {
  %1 = tail call i64 @llvm.read_volatile_register.i64(metadata !7)
  %2 = or i64 %1, 16777216
  tail call void @llvm.write_register.i64(metadata !7, i64 %2)
  ret i64 %1
}
declare void @llvm.lifetime.start.p0(ptr)
declare i64 @llvm.read_volatile_register.i64(metadata)
declare void @llvm.write_register.i64(metadata, i64)
declare void @llvm.lifetime.end.p0(ptr)
define void @einsmith_fp_leave(i64 %0) nounwind {
  tail call void @llvm.write_register.i64(metadata !7, i64 %0)
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
  %2 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  %3 = tail call i32 @GetCurrentThreadId()
  %4 = zext i32 %3 to i64
  %5 = icmp eq i64 %2, %4
  br i1 %5, label %6, label %25
6:
  %7 = tail call i64 @GetTickCount64()
  %8 = mul i64 %7, 1000000
  %9 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  %10 = icmp slt i64 %8, %9
  br i1 %10, label %25, label %11
11:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  store i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  %12 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  tail call void @llvm.write_register.i64(metadata !7, i64 %12)
  %13 = inttoptr i64 %0 to ptr
  %14 = tail call i32 %13()
  %15 = tail call i64 @llvm.read_volatile_register.i64(metadata !7)
  %16 = or i64 %15, 16777216
  tail call void @llvm.write_register.i64(metadata !7, i64 %16)
  store i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 40), align 8
  %17 = tail call i64 @GetTickCount64()
  %18 = mul i64 %17, 1000000
  %19 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %20 = add i64 %18, %19
  store i64 %20, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store atomic i64 %0, ptr @einsmith_watch monotonic, align 8
  %21 = icmp ne i32 %14, 0
  br i1 %21, label %22, label %23
22:
  store atomic i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) release, align 8
  br label %23
23:
  %24 = zext i1 %21 to i32
  br label %25
25:
  %26 = phi i32 [ %24, %23 ], [ 0, %6 ], [ 0, %1 ]
  ret i32 %26
}
define void @einsmith_worker(ptr %0, i64 %1, i64 %2) nounwind {
  %4 = alloca i32, align 4
  %5 = tail call i64 @llvm.read_volatile_register.i64(metadata !7)
  %6 = or i64 %5, 16777216
  tail call void @llvm.write_register.i64(metadata !7, i64 %6)
  %7 = trunc i64 %2 to i32
  %8 = getelementptr %struct.share, ptr %0, i64 %1
  %9 = getelementptr i8, ptr %8, i64 456
  %10 = tail call i32 @GetCurrentThreadId()
  %11 = zext i32 %10 to i64
  store atomic i64 %11, ptr %9 monotonic, align 8
  %12 = getelementptr inbounds i8, ptr %0, i64 64
  %13 = getelementptr inbounds i8, ptr %0, i64 256
  br label %14
14:
  %15 = phi i32 [ %7, %3 ], [ %25, %28 ]
  %16 = call fastcc i32 @spin(ptr nonnull %0, i32 %15, i32 0)
  %17 = icmp eq i32 %16, 0
  br i1 %17, label %18, label %24
18:
  %19 = atomicrmw add ptr %12, i32 1 seq_cst, align 64
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  store i32 %15, ptr %4, align 4
  %20 = call i32 @WaitOnAddress(ptr nonnull %0, ptr nonnull %4, i64 4, i32 -1)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %21 = atomicrmw sub ptr %12, i32 1 seq_cst, align 64
  %22 = load atomic i32, ptr %0 acquire, align 64
  %23 = icmp eq i32 %22, %15
  br i1 %23, label %18, label %24
24:
  %25 = load atomic i32, ptr %0 acquire, align 64
  %26 = load atomic i32, ptr %13 acquire, align 64
  %27 = icmp eq i32 %26, 0
  br i1 %27, label %28, label %29
28:
  call fastcc void @drain(ptr nonnull %0, i64 %1)
  br label %14
29:
  call void @llvm.write_register.i64(metadata !7, i64 %5)
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
  br i1 %10, label %11, label %148
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
  %21 = phi i64 [ %9, %11 ], [ %117, %116 ]
  %22 = phi i64 [ 0, %11 ], [ %97, %116 ]
  %23 = phi i32 [ 0, %11 ], [ %68, %116 ]
  %24 = phi i64 [ 0, %11 ], [ %26, %116 ]
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
  %64 = phi i32 [ %23, %29 ], [ %23, %59 ], [ %23, %25 ], [ %68, %116 ]
  %65 = phi i64 [ %22, %29 ], [ %22, %59 ], [ %22, %25 ], [ %97, %116 ]
  %66 = icmp eq i32 %64, 0
  br i1 %66, label %148, label %119
67:
  %68 = add i32 %23, 1
  %69 = icmp eq i32 %23, 0
  br i1 %69, label %70, label %96
70:
  %71 = load atomic i64, ptr %18 monotonic, align 8
  %72 = icmp eq i64 %71, 0
  br i1 %72, label %96, label %73
73:
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  %74 = call i32 @QueryPerformanceCounter(ptr nonnull %5)
  %75 = call i32 @QueryPerformanceFrequency(ptr nonnull %6)
  %76 = load i64, ptr %5, align 8
  %77 = load i64, ptr %6, align 8
  %78 = freeze i64 %76
  %79 = freeze i64 %77
  %80 = udiv i64 %78, %79
  %81 = mul i64 %80, 1000000000
  %82 = mul i64 %80, %79
  %83 = sub i64 %78, %82
  %84 = mul i64 %83, 1000000000
  %85 = udiv i64 %84, %77
  %86 = add i64 %85, %81
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  %87 = inttoptr i64 %71 to ptr
  %88 = getelementptr inbounds i8, ptr %87, i64 %19
  %89 = load i64, ptr %88, align 8
  %90 = icmp eq i64 %89, 0
  br i1 %90, label %91, label %92
91:
  store i64 %86, ptr %88, align 8
  br label %92
92:
  %93 = getelementptr inbounds i8, ptr %88, i64 8
  %94 = load i64, ptr %93, align 8
  %95 = sub nsw i64 %94, %86
  store i64 %95, ptr %93, align 8
  br label %96
96:
  %97 = phi i64 [ %22, %67 ], [ %71, %92 ], [ 0, %70 ]
  %98 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %99 = icmp eq i64 %98, 0
  br i1 %99, label %102, label %100
100:
  %101 = call fastcc i32 @is_watched()
  br label %107
102:
  %103 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %104 = icmp eq i64 %103, 0
  br i1 %104, label %110, label %105
105:
  %106 = call fastcc i32 @call_handler(i64 %103)
  br label %107
107:
  %108 = phi i32 [ %101, %100 ], [ %106, %105 ]
  %109 = icmp eq i32 %108, 0
  br i1 %109, label %110, label %116
110:
  %111 = inttoptr i64 %36 to ptr
  %112 = inttoptr i64 %37 to ptr
  %113 = mul i64 %41, %1
  %114 = add i64 %113, %40
  %115 = inttoptr i64 %114 to ptr
  call void %111(ptr %112, ptr %115, i64 %48)
  br label %116
116:
  %117 = load atomic i64, ptr %8 monotonic, align 8
  %118 = icmp ult i64 %1, %117
  br i1 %118, label %20, label %63
119:
  %120 = icmp eq i64 %65, 0
  br i1 %120, label %141, label %121
121:
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  %122 = call i32 @QueryPerformanceCounter(ptr nonnull %3)
  %123 = call i32 @QueryPerformanceFrequency(ptr nonnull %4)
  %124 = load i64, ptr %3, align 8
  %125 = load i64, ptr %4, align 8
  %126 = freeze i64 %124
  %127 = freeze i64 %125
  %128 = udiv i64 %126, %127
  %129 = mul i64 %128, 1000000000
  %130 = mul i64 %128, %127
  %131 = sub i64 %126, %130
  %132 = mul i64 %131, 1000000000
  %133 = udiv i64 %132, %125
  %134 = add i64 %133, %129
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  %135 = inttoptr i64 %65 to ptr
  %136 = shl i64 %1, 4
  %137 = getelementptr inbounds i8, ptr %135, i64 %136
  %138 = getelementptr inbounds i8, ptr %137, i64 8
  %139 = load i64, ptr %138, align 8
  %140 = add nsw i64 %134, %139
  store i64 %140, ptr %138, align 8
  br label %141
141:
  %142 = getelementptr inbounds i8, ptr %0, i64 128
  %143 = atomicrmw add ptr %142, i32 %64 seq_cst, align 64
  %144 = getelementptr inbounds i8, ptr %0, i64 192
  %145 = load atomic i32, ptr %144 seq_cst, align 64
  %146 = icmp eq i32 %145, 0
  br i1 %146, label %148, label %147
147:
  call void @WakeByAddressAll(ptr nonnull %142)
  br label %148
148:
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
  %2 = alloca i64, align 8
  %3 = alloca i64, align 8
  %4 = alloca i32, align 4
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  %8 = tail call i64 @llvm.read_volatile_register.i64(metadata !7)
  %9 = or i64 %8, 16777216
  tail call void @llvm.write_register.i64(metadata !7, i64 %9)
  %10 = getelementptr inbounds i8, ptr %0, i64 104
  %11 = load i64, ptr %10, align 8
  %12 = icmp eq i64 %11, 0
  br i1 %12, label %25, label %13
13:
  %14 = tail call i32 @GetCurrentThreadId()
  %15 = zext i32 %14 to i64
  store atomic i64 %15, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 8) monotonic, align 8
  %16 = tail call i64 @GetTickCount64()
  %17 = mul i64 %16, 1000000
  %18 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 64), align 8
  %19 = add i64 %17, %18
  store i64 %19, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 16), align 8
  store i64 %8, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 24), align 8
  %20 = getelementptr inbounds i8, ptr %0, i64 16
  %21 = load i64, ptr %20, align 8
  store atomic i64 %21, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 48) monotonic, align 8
  %22 = getelementptr inbounds i8, ptr %0, i64 24
  %23 = load i64, ptr %22, align 8
  store atomic i64 %23, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 56) monotonic, align 8
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %24 = load i64, ptr %10, align 8
  store atomic i64 %24, ptr @einsmith_watch release, align 8
  br label %25
25:
  %26 = phi i64 [ %24, %13 ], [ 0, %1 ]
  %27 = load i64, ptr %0, align 8
  %28 = inttoptr i64 %27 to ptr
  %29 = getelementptr inbounds i8, ptr %0, i64 112
  %30 = getelementptr inbounds i8, ptr %0, i64 8
  %31 = getelementptr inbounds i8, ptr %0, i64 120
  %32 = getelementptr inbounds i8, ptr %0, i64 24
  %33 = getelementptr inbounds i8, ptr %0, i64 48
  %34 = getelementptr inbounds i8, ptr %0, i64 32
  br label %35
35:
  %36 = phi i64 [ %26, %25 ], [ %276, %274 ]
  %37 = phi i64 [ 0, %25 ], [ %275, %274 ]
  %38 = icmp eq i64 %36, 0
  br i1 %38, label %57, label %39
39:
  %40 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %41 = icmp eq i64 %40, 0
  br i1 %41, label %44, label %42
42:
  %43 = call fastcc i32 @is_watched()
  br label %49
44:
  %45 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %46 = icmp eq i64 %45, 0
  br i1 %46, label %49, label %47
47:
  %48 = call fastcc i32 @call_handler(i64 %45)
  br label %49
49:
  %50 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %51 = icmp eq i64 %50, 0
  br i1 %51, label %53, label %52
52:
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %277
53:
  %54 = load i64, ptr %29, align 8
  %55 = icmp ult i64 %37, %54
  br i1 %55, label %57, label %56
56:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %57
57:
  %58 = load i64, ptr %30, align 8
  %59 = icmp ult i64 %37, %58
  br i1 %59, label %60, label %277
60:
  %61 = load i64, ptr %31, align 8
  %62 = icmp eq i64 %61, 0
  br i1 %62, label %68, label %63
63:
  %64 = load i64, ptr %32, align 8
  %65 = shl i64 %37, 4
  %66 = mul i64 %65, %64
  %67 = add i64 %66, %61
  br label %68
68:
  %69 = phi i64 [ %67, %63 ], [ 0, %60 ]
  %70 = load i64, ptr %33, align 8
  %71 = icmp eq i64 %70, 0
  br i1 %71, label %95, label %72
72:
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  call void @llvm.lifetime.start.p0(ptr nonnull %7)
  %73 = call i32 @QueryPerformanceCounter(ptr nonnull %6)
  %74 = call i32 @QueryPerformanceFrequency(ptr nonnull %7)
  %75 = load i64, ptr %6, align 8
  %76 = load i64, ptr %7, align 8
  %77 = freeze i64 %75
  %78 = freeze i64 %76
  %79 = udiv i64 %77, %78
  %80 = mul i64 %79, 1000000000
  %81 = mul i64 %79, %78
  %82 = sub i64 %77, %81
  %83 = mul i64 %82, 1000000000
  %84 = udiv i64 %83, %76
  %85 = add i64 %84, %80
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %86 = load i64, ptr %33, align 8
  %87 = icmp ne i64 %86, 0
  %88 = icmp ne i64 %69, 0
  %89 = select i1 %87, i1 %88, i1 false
  br i1 %89, label %90, label %95
90:
  %91 = inttoptr i64 %69 to ptr
  %92 = load i64, ptr %91, align 8
  %93 = icmp eq i64 %92, 0
  br i1 %93, label %94, label %95
94:
  store i64 %85, ptr %91, align 8
  br label %95
95:
  %96 = phi i64 [ %85, %72 ], [ %85, %94 ], [ %85, %90 ], [ 0, %68 ]
  %97 = getelementptr inbounds %struct.step, ptr %28, i64 %37
  %98 = add nuw i64 %37, 1
  %99 = load i64, ptr %97, align 8
  switch i64 %99, label %181 [
    i64 1, label %100
    i64 2, label %100
    i64 3, label %100
    i64 4, label %119
    i64 6, label %119
    i64 5, label %119
    i64 8, label %121
    i64 9, label %129
  ]
100:
  %101 = icmp eq i64 %99, 3
  %102 = getelementptr inbounds i8, ptr %97, i64 8
  %103 = load i64, ptr %102, align 8
  %104 = inttoptr i64 %103 to ptr
  br i1 %101, label %105, label %109
105:
  %106 = load i64, ptr %104, align 8
  %107 = and i64 %106, 9218868437227405312
  %108 = icmp eq i64 %107, 9218868437227405312
  br i1 %108, label %116, label %250
109:
  %110 = load i32, ptr %104, align 4
  %111 = icmp eq i64 %99, 2
  %112 = and i32 %110, 2139095040
  %113 = icmp eq i32 %112, 2139095040
  %114 = icmp ne i32 %110, 0
  %115 = select i1 %111, i1 %113, i1 %114
  br i1 %115, label %116, label %250
116:
  %117 = getelementptr inbounds i8, ptr %97, i64 32
  %118 = load i64, ptr %117, align 8
  br label %277
119:
  %120 = call fastcc i64 @after_loop_step(ptr nonnull %28, i64 %37)
  br label %274
121:
  %122 = getelementptr inbounds i8, ptr %97, i64 16
  %123 = load i64, ptr %122, align 8
  %124 = trunc i64 %123 to i32
  %125 = getelementptr inbounds i8, ptr %97, i64 8
  %126 = load i64, ptr %125, align 8
  %127 = inttoptr i64 %126 to ptr
  %128 = call i32 @_write(i32 %124, ptr %127, i32 1)
  br label %250
129:
  %130 = getelementptr inbounds i8, ptr %97, i64 16
  %131 = load i64, ptr %130, align 8
  %132 = trunc i64 %131 to i32
  %133 = load i64, ptr %10, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %134 = call i64 @_get_osfhandle(i32 %132)
  %135 = call i64 @GetTickCount64()
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  store i32 0, ptr %4, align 4
  %136 = call i32 @PeekNamedPipe(i64 %134, ptr null, i32 0, ptr null, ptr nonnull %4, ptr null)
  %137 = icmp eq i32 %136, 0
  %138 = load i32, ptr %4, align 4
  %139 = icmp ne i32 %138, 0
  %140 = select i1 %137, i1 true, i1 %139
  br i1 %140, label %178, label %141
141:
  %142 = icmp eq i64 %133, 0
  br label %143
143:
  %144 = phi i64 [ %135, %141 ], [ %172, %170 ]
  %145 = phi i64 [ %134, %141 ], [ %171, %170 ]
  br label %146
146:
  %147 = call i64 @GetTickCount64()
  %148 = sub i64 %147, %144
  %149 = icmp ugt i64 %148, 49
  br i1 %149, label %156, label %150
150:
  call void @Sleep(i32 1)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  store i32 0, ptr %4, align 4
  %151 = call i32 @PeekNamedPipe(i64 %145, ptr null, i32 0, ptr null, ptr nonnull %4, ptr null)
  %152 = icmp eq i32 %151, 0
  %153 = load i32, ptr %4, align 4
  %154 = icmp ne i32 %153, 0
  %155 = select i1 %152, i1 true, i1 %154
  br i1 %155, label %178, label %146
156:
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  br i1 %142, label %170, label %157
157:
  %158 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %159 = icmp eq i64 %158, 0
  br i1 %159, label %162, label %160
160:
  %161 = call fastcc i32 @is_watched()
  br label %167
162:
  %163 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %164 = icmp eq i64 %163, 0
  br i1 %164, label %167, label %165
165:
  %166 = call fastcc i32 @call_handler(i64 %163)
  br label %167
167:
  %168 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  %169 = icmp eq i64 %168, 0
  br i1 %169, label %170, label %180
170:
  %171 = call i64 @_get_osfhandle(i32 %132)
  %172 = call i64 @GetTickCount64()
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  store i32 0, ptr %4, align 4
  %173 = call i32 @PeekNamedPipe(i64 %171, ptr null, i32 0, ptr null, ptr nonnull %4, ptr null)
  %174 = icmp eq i32 %173, 0
  %175 = load i32, ptr %4, align 4
  %176 = icmp ne i32 %175, 0
  %177 = select i1 %174, i1 true, i1 %176
  br i1 %177, label %178, label %143
178:
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %179 = call i32 @_read(i32 %132, ptr nonnull %5, i32 1)
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  br label %250
180:
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) monotonic, align 8
  br label %277
181:
  %182 = load i64, ptr %32, align 8
  %183 = icmp ugt i64 %182, 1
  switch i64 %99, label %206 [
    i64 7, label %184
    i64 10, label %193
  ]
184:
  br i1 %183, label %185, label %247
185:
  %186 = getelementptr inbounds i8, ptr %97, i64 16
  %187 = load i64, ptr %186, align 8
  %188 = icmp ult i64 %187, 2
  br i1 %188, label %247, label %189
189:
  %190 = ptrtoint ptr %97 to i64
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @member to i64), i64 %190, i64 %187, i64 %69)
  %191 = getelementptr inbounds i8, ptr %97, i64 8
  %192 = load i64, ptr %191, align 8
  br label %247
193:
  br i1 %183, label %194, label %247
194:
  %195 = load i64, ptr %33, align 8
  %196 = icmp eq i64 %195, 0
  br i1 %196, label %200, label %197
197:
  %198 = load i64, ptr %31, align 8
  %199 = icmp eq i64 %198, 0
  br i1 %199, label %247, label %200
200:
  %201 = ptrtoint ptr %97 to i64
  %202 = getelementptr inbounds i8, ptr %97, i64 16
  %203 = load i64, ptr %202, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 ptrtoint (ptr @part to i64), i64 %201, i64 %203, i64 %69)
  %204 = getelementptr inbounds i8, ptr %97, i64 8
  %205 = load i64, ptr %204, align 8
  br label %247
206:
  %207 = getelementptr inbounds i8, ptr %97, i64 16
  %208 = load i64, ptr %207, align 8
  %209 = icmp ugt i64 %208, 1
  %210 = select i1 %183, i1 %209, i1 false
  br i1 %210, label %211, label %216
211:
  %212 = getelementptr inbounds i8, ptr %97, i64 8
  %213 = load i64, ptr %212, align 8
  %214 = getelementptr inbounds i8, ptr %97, i64 24
  %215 = load i64, ptr %214, align 8
  call fastcc void @fork_join(ptr nonnull readonly %0, i64 %213, i64 %215, i64 %208, i64 %69)
  br label %247
216:
  %217 = icmp eq i64 %208, 0
  br i1 %217, label %247, label %218
218:
  %219 = load i64, ptr %10, align 8
  %220 = load i64, ptr %34, align 8
  %221 = getelementptr inbounds i8, ptr %97, i64 24
  %222 = load i64, ptr %221, align 8
  %223 = getelementptr inbounds i8, ptr %97, i64 8
  %224 = load i64, ptr %223, align 8
  %225 = icmp eq i64 %219, 0
  %226 = inttoptr i64 %220 to ptr
  %227 = inttoptr i64 %224 to ptr
  %228 = inttoptr i64 %222 to ptr
  br label %229
229:
  %230 = phi i64 [ 0, %218 ], [ %245, %244 ]
  br i1 %225, label %244, label %231
231:
  %232 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i64 32) acquire, align 8
  %233 = icmp eq i64 %232, 0
  br i1 %233, label %236, label %234
234:
  %235 = call fastcc i32 @is_watched()
  br label %241
236:
  %237 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %238 = icmp eq i64 %237, 0
  br i1 %238, label %244, label %239
239:
  %240 = call fastcc i32 @call_handler(i64 %237)
  br label %241
241:
  %242 = phi i32 [ %235, %234 ], [ %240, %239 ]
  %243 = icmp eq i32 %242, 0
  br i1 %243, label %244, label %247
244:
  call void %227(ptr %228, ptr %226, i64 %230)
  %245 = add nuw i64 %230, 1
  %246 = icmp eq i64 %245, %208
  br i1 %246, label %247, label %229
247:
  %248 = phi i64 [ 0, %211 ], [ %192, %189 ], [ 0, %184 ], [ %205, %200 ], [ 0, %193 ], [ 0, %185 ], [ 0, %197 ], [ 0, %216 ], [ 0, %241 ], [ 0, %244 ]
  %249 = add i64 %248, %98
  br label %250
250:
  %251 = phi i64 [ %249, %247 ], [ %98, %109 ], [ %98, %121 ], [ %98, %178 ], [ %98, %105 ]
  %252 = load i64, ptr %33, align 8
  %253 = icmp eq i64 %252, 0
  br i1 %253, label %274, label %254
254:
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %255 = call i32 @QueryPerformanceCounter(ptr nonnull %2)
  %256 = call i32 @QueryPerformanceFrequency(ptr nonnull %3)
  %257 = load i64, ptr %2, align 8
  %258 = load i64, ptr %3, align 8
  %259 = freeze i64 %257
  %260 = freeze i64 %258
  %261 = udiv i64 %259, %260
  %262 = mul i64 %261, 1000000000
  %263 = mul i64 %261, %260
  %264 = sub i64 %259, %263
  %265 = mul i64 %264, 1000000000
  %266 = udiv i64 %265, %258
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %267 = load i64, ptr %33, align 8
  %268 = inttoptr i64 %267 to ptr
  %269 = getelementptr inbounds i64, ptr %268, i64 %37
  %270 = load i64, ptr %269, align 8
  %271 = sub i64 %262, %96
  %272 = add i64 %271, %266
  %273 = add i64 %272, %270
  store i64 %273, ptr %269, align 8
  br label %274
274:
  %275 = phi i64 [ %251, %250 ], [ %251, %254 ], [ %120, %119 ]
  %276 = load i64, ptr %10, align 8
  br label %35
277:
  %278 = phi i64 [ -1, %52 ], [ %118, %116 ], [ -1, %180 ], [ 0, %57 ]
  %279 = load i64, ptr %10, align 8
  %280 = icmp eq i64 %279, 0
  br i1 %280, label %282, label %281
281:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %282
282:
  call void @llvm.write_register.i64(metadata !7, i64 %8)
  ret i64 %278
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
  %17 = freeze i64 %15
  %18 = freeze i64 %16
  %19 = udiv i64 %17, %18
  %20 = mul i64 %19, %18
  %21 = sub i64 %17, %20
  %22 = mul i64 %21, 1000000000
  %23 = udiv i64 %22, %16
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %24 = getelementptr inbounds i8, ptr %0, i64 56
  %25 = load i64, ptr %24, align 8
  %26 = inttoptr i64 %25 to ptr
  %27 = getelementptr inbounds i8, ptr %0, i64 24
  %28 = load i64, ptr %27, align 8
  %29 = trunc i64 %28 to i32
  call void %26(ptr nonnull @team_member, ptr %0, i32 %29, i32 0)
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %30 = call i32 @QueryPerformanceCounter(ptr nonnull %2)
  %31 = call i32 @QueryPerformanceFrequency(ptr nonnull %3)
  %32 = load i64, ptr %2, align 8
  %33 = load i64, ptr %3, align 8
  %34 = freeze i64 %32
  %35 = freeze i64 %33
  %36 = udiv i64 %34, %35
  %37 = mul i64 %36, %35
  %38 = sub i64 %34, %37
  %39 = mul i64 %38, 1000000000
  %40 = udiv i64 %39, %33
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %41 = getelementptr inbounds i8, ptr %0, i64 88
  %42 = load i64, ptr %41, align 8
  %43 = sub i64 %36, %19
  %44 = mul i64 %43, 1000000000
  %45 = add i64 %40, %44
  %46 = add i64 %23, %42
  %47 = sub i64 %45, %46
  %48 = getelementptr inbounds i8, ptr %0, i64 96
  store i64 %47, ptr %48, align 8
  %49 = getelementptr inbounds i8, ptr %0, i64 80
  %50 = load i64, ptr %49, align 8
  ret i64 %50
}
define internal void @team_member(ptr %0) nounwind {
  %2 = alloca i64, align 8
  %3 = alloca i64, align 8
  %4 = alloca i64, align 8
  %5 = alloca i64, align 8
  %6 = alloca i32, align 4
  %7 = getelementptr inbounds i8, ptr %0, i64 16
  %8 = load i64, ptr %7, align 8
  %9 = inttoptr i64 %8 to ptr
  %10 = getelementptr inbounds i8, ptr %0, i64 64
  %11 = load i64, ptr %10, align 8
  %12 = inttoptr i64 %11 to ptr
  %13 = tail call i32 %12()
  %14 = icmp eq i32 %13, 0
  br i1 %14, label %44, label %15
15:
  %16 = sext i32 %13 to i64
  %17 = getelementptr inbounds i8, ptr %0, i64 72
  %18 = load i64, ptr %17, align 8
  %19 = tail call i64 @llvm.read_volatile_register.i64(metadata !7)
  %20 = or i64 %19, 16777216
  tail call void @llvm.write_register.i64(metadata !7, i64 %20)
  %21 = trunc i64 %18 to i32
  %22 = getelementptr %struct.share, ptr %9, i64 %16
  %23 = getelementptr i8, ptr %22, i64 456
  %24 = tail call i32 @GetCurrentThreadId()
  %25 = zext i32 %24 to i64
  store atomic i64 %25, ptr %23 monotonic, align 8
  %26 = getelementptr inbounds i8, ptr %9, i64 64
  %27 = getelementptr inbounds i8, ptr %9, i64 256
  br label %28
28:
  %29 = phi i32 [ %21, %15 ], [ %39, %42 ]
  %30 = call fastcc i32 @spin(ptr nonnull %9, i32 %29, i32 0)
  %31 = icmp eq i32 %30, 0
  br i1 %31, label %32, label %38
32:
  %33 = atomicrmw add ptr %26, i32 1 seq_cst, align 64
  call void @llvm.lifetime.start.p0(ptr nonnull %6)
  store i32 %29, ptr %6, align 4
  %34 = call i32 @WaitOnAddress(ptr nonnull %9, ptr nonnull %6, i64 4, i32 -1)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  %35 = atomicrmw sub ptr %26, i32 1 seq_cst, align 64
  %36 = load atomic i32, ptr %9 acquire, align 64
  %37 = icmp eq i32 %36, %29
  br i1 %37, label %32, label %38
38:
  %39 = load atomic i32, ptr %9 acquire, align 64
  %40 = load atomic i32, ptr %27 acquire, align 64
  %41 = icmp eq i32 %40, 0
  br i1 %41, label %42, label %43
42:
  call fastcc void @drain(ptr nonnull %9, i64 %16)
  br label %28
43:
  call void @llvm.write_register.i64(metadata !7, i64 %19)
  br label %80
44:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %45 = call i32 @QueryPerformanceCounter(ptr nonnull %4)
  %46 = call i32 @QueryPerformanceFrequency(ptr nonnull %5)
  %47 = load i64, ptr %4, align 8
  %48 = load i64, ptr %5, align 8
  %49 = freeze i64 %47
  %50 = freeze i64 %48
  %51 = udiv i64 %49, %50
  %52 = mul i64 %51, %50
  %53 = sub i64 %49, %52
  %54 = mul i64 %53, 1000000000
  %55 = udiv i64 %54, %48
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %56 = call i64 @einsmith_run(ptr nonnull %0)
  %57 = getelementptr inbounds i8, ptr %0, i64 80
  store i64 %56, ptr %57, align 8
  call void @llvm.lifetime.start.p0(ptr nonnull %2)
  call void @llvm.lifetime.start.p0(ptr nonnull %3)
  %58 = call i32 @QueryPerformanceCounter(ptr nonnull %2)
  %59 = call i32 @QueryPerformanceFrequency(ptr nonnull %3)
  %60 = load i64, ptr %2, align 8
  %61 = load i64, ptr %3, align 8
  %62 = freeze i64 %60
  %63 = freeze i64 %61
  %64 = udiv i64 %62, %63
  %65 = mul i64 %64, %63
  %66 = sub i64 %62, %65
  %67 = mul i64 %66, 1000000000
  %68 = udiv i64 %67, %61
  call void @llvm.lifetime.end.p0(ptr nonnull %3)
  call void @llvm.lifetime.end.p0(ptr nonnull %2)
  %69 = sub i64 %64, %51
  %70 = mul i64 %69, 1000000000
  %71 = sub i64 %68, %55
  %72 = add i64 %71, %70
  %73 = getelementptr inbounds i8, ptr %0, i64 88
  store i64 %72, ptr %73, align 8
  %74 = getelementptr inbounds i8, ptr %9, i64 256
  store atomic i32 1, ptr %74 seq_cst, align 64
  %75 = atomicrmw add ptr %9, i32 1 seq_cst, align 64
  %76 = getelementptr inbounds i8, ptr %9, i64 64
  %77 = load atomic i32, ptr %76 seq_cst, align 64
  %78 = icmp eq i32 %77, 0
  br i1 %78, label %80, label %79
79:
  call void @WakeByAddressAll(ptr nonnull %9)
  br label %80
80:
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
  %12 = freeze i64 %10
  %13 = freeze i64 %11
  %14 = udiv i64 %12, %13
  %15 = mul i64 %14, %13
  %16 = sub i64 %12, %15
  %17 = mul i64 %16, 1000000000
  %18 = udiv i64 %17, %11
  call void @llvm.lifetime.end.p0(ptr nonnull %7)
  call void @llvm.lifetime.end.p0(ptr nonnull %6)
  br label %19
19:
  %20 = phi i32 [ 0, %3 ], [ %29, %28 ]
  %21 = load atomic i32, ptr %0 acquire, align 4
  %22 = icmp eq i32 %21, %1
  %23 = zext i1 %22 to i32
  %24 = icmp eq i32 %2, %23
  br i1 %24, label %51, label %25
25:
  call void @llvm.aarch64.hint(i32 1)
  %26 = add nuw nsw i32 %20, 1
  %27 = icmp eq i32 %26, 32
  br i1 %27, label %30, label %28
28:
  %29 = phi i32 [ %26, %25 ], [ 0, %47 ], [ 0, %49 ]
  br label %19
30:
  call void @llvm.lifetime.start.p0(ptr nonnull %4)
  call void @llvm.lifetime.start.p0(ptr nonnull %5)
  %31 = call i32 @QueryPerformanceCounter(ptr nonnull %4)
  %32 = call i32 @QueryPerformanceFrequency(ptr nonnull %5)
  %33 = load i64, ptr %4, align 8
  %34 = load i64, ptr %5, align 8
  %35 = freeze i64 %33
  %36 = freeze i64 %34
  %37 = udiv i64 %35, %36
  %38 = mul i64 %37, %36
  %39 = sub i64 %35, %38
  %40 = mul i64 %39, 1000000000
  %41 = udiv i64 %40, %34
  call void @llvm.lifetime.end.p0(ptr nonnull %5)
  call void @llvm.lifetime.end.p0(ptr nonnull %4)
  %42 = sub i64 %37, %14
  %43 = mul i64 %42, 1000000000
  %44 = sub i64 %41, %18
  %45 = add i64 %44, %43
  %46 = icmp slt i64 %45, 50001
  br i1 %46, label %47, label %51
47:
  %48 = icmp sgt i64 %45, 5000
  br i1 %48, label %49, label %28
49:
  %50 = call i32 @SwitchToThread()
  br label %28
51:
  %52 = phi i32 [ 1, %19 ], [ 0, %30 ]
  ret i32 %52
}
declare void @llvm.aarch64.hint(i32)
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
  tail call void @llvm.aarch64.hint(i32 1)
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
!7 = !{!"fpcr"}
