%struct.watch = type { i64, i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.share = type { i64, i64, [48 x i8] }
%struct.step = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%struct.move = type { i64, i64, i64, i64, i64, i64 }
@einsmith_watch = external global %struct.watch, align 8
define hidden i64 @einsmith_fp_enter() nounwind {
  ret i64 0
}
define hidden void @einsmith_fp_leave(i64 %0) nounwind {
  ret void
}
define hidden i32 @einsmith_look() nounwind {
  %1 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) acquire, align 8
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
  %1 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 56) monotonic, align 8
  %2 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 8) monotonic, align 8
  %3 = icmp eq i64 %2, 1
  br i1 %3, label %21, label %4
4:
  %5 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 48) monotonic, align 8
  %6 = trunc i64 %5 to i32
  %7 = inttoptr i32 %6 to ptr
  %8 = icmp ne i32 %6, 0
  %9 = icmp ugt i64 %1, 1
  %10 = select i1 %8, i1 %9, i1 false
  br i1 %10, label %14, label %21
11:
  %12 = add nuw i64 %15, 1
  %13 = icmp ult i64 %12, %1
  br i1 %13, label %14, label %21
14:
  %15 = phi i64 [ %12, %11 ], [ 1, %4 ]
  %16 = trunc i64 %15 to i32
  %17 = getelementptr inbounds %struct.share, ptr %7, i32 %16
  %18 = getelementptr inbounds i8, ptr %17, i32 456
  %19 = load atomic i64, ptr %18 monotonic, align 8
  %20 = icmp eq i64 %19, 1
  br i1 %20, label %21, label %11
21:
  %22 = phi i32 [ 1, %0 ], [ 0, %4 ], [ 1, %14 ], [ 0, %11 ]
  ret i32 %22
}
define internal fastcc i32 @call_handler(i64 %0) nounwind {
  %2 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 8) monotonic, align 8
  %3 = icmp ne i64 %2, 1
  %4 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 16), align 8
  %5 = icmp sgt i64 %4, 0
  %6 = select i1 %3, i1 true, i1 %5
  br i1 %6, label %16, label %7
7:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  store i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 40), align 8
  %8 = trunc i64 %0 to i32
  %9 = inttoptr i32 %8 to ptr
  %10 = tail call i32 %9()
  store i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 40), align 8
  %11 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 64), align 8
  store i64 %11, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 16), align 8
  store atomic i64 %0, ptr @einsmith_watch monotonic, align 8
  %12 = icmp ne i32 %10, 0
  br i1 %12, label %13, label %14
13:
  store atomic i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) release, align 8
  br label %14
14:
  %15 = zext i1 %12 to i32
  br label %16
16:
  %17 = phi i32 [ %15, %14 ], [ 0, %1 ]
  ret i32 %17
}
define hidden void @einsmith_worker(ptr %0, i64 %1, i64 %2) nounwind {
  %4 = trunc i64 %2 to i32
  %5 = trunc i64 %1 to i32
  %6 = getelementptr %struct.share, ptr %0, i32 %5
  %7 = getelementptr i8, ptr %6, i32 456
  store atomic i64 1, ptr %7 monotonic, align 8
  %8 = getelementptr inbounds i8, ptr %0, i32 256
  br label %9
9:
  %10 = phi i32 [ %4, %3 ], [ %20, %23 ]
  br label %15
11:
  %12 = add nuw nsw i32 %16, 1
  %13 = icmp eq i32 %12, 32
  %14 = select i1 %13, i32 0, i32 %12
  br label %15
15:
  %16 = phi i32 [ %14, %11 ], [ 0, %9 ]
  %17 = load atomic i32, ptr %0 acquire, align 4
  %18 = icmp eq i32 %17, %10
  br i1 %18, label %11, label %19
19:
  %20 = load atomic i32, ptr %0 acquire, align 64
  %21 = load atomic i32, ptr %8 acquire, align 64
  %22 = icmp eq i32 %21, 0
  br i1 %22, label %23, label %24
23:
  tail call fastcc void @drain(ptr nonnull %0, i64 %1)
  br label %9
24:
  ret void
}
define internal fastcc void @drain(ptr %0, i64 %1) nounwind {
  %3 = getelementptr inbounds i8, ptr %0, i32 320
  %4 = getelementptr inbounds i8, ptr %0, i32 352
  %5 = load atomic i64, ptr %4 monotonic, align 8
  %6 = icmp ult i64 %1, %5
  br i1 %6, label %7, label %96
7:
  %8 = getelementptr inbounds i8, ptr %0, i32 448
  %9 = getelementptr inbounds i8, ptr %0, i32 328
  %10 = getelementptr inbounds i8, ptr %0, i32 336
  %11 = getelementptr inbounds i8, ptr %0, i32 344
  %12 = getelementptr inbounds i8, ptr %0, i32 360
  %13 = getelementptr inbounds i8, ptr %0, i32 368
  %14 = getelementptr inbounds i8, ptr %0, i32 376
  br label %15
15:
  %16 = phi i64 [ %5, %7 ], [ %89, %88 ]
  %17 = phi i32 [ 0, %7 ], [ %62, %88 ]
  %18 = phi i64 [ 0, %7 ], [ %20, %88 ]
  br label %19
19:
  %20 = phi i64 [ %18, %15 ], [ %55, %54 ]
  %21 = phi i64 [ %16, %15 ], [ %56, %54 ]
  %22 = icmp ult i64 %20, %21
  br i1 %22, label %23, label %58
23:
  %24 = add i64 %20, %1
  %25 = icmp ult i64 %24, %21
  %26 = select i1 %25, i64 0, i64 %21
  %27 = sub i64 %24, %26
  %28 = trunc i64 %27 to i32
  %29 = getelementptr inbounds %struct.share, ptr %8, i32 %28
  %30 = load atomic i64, ptr %29 acquire, align 64
  %31 = load atomic i64, ptr %9 monotonic, align 8
  %32 = load atomic i64, ptr %10 monotonic, align 8
  %33 = load atomic i64, ptr %11 monotonic, align 8
  %34 = load atomic i64, ptr %4 monotonic, align 8
  %35 = load atomic i64, ptr %12 monotonic, align 8
  %36 = load atomic i64, ptr %13 monotonic, align 8
  fence acquire
  %37 = load atomic i64, ptr %3 monotonic, align 8
  %38 = lshr i64 %30, 32
  %39 = icmp eq i64 %37, %38
  %40 = icmp eq i64 %34, %21
  %41 = select i1 %39, i1 %40, i1 false
  br i1 %41, label %42, label %58
42:
  %43 = and i64 %30, 4294967295
  %44 = add i64 %27, 1
  %45 = mul i64 %33, %44
  %46 = udiv i64 %45, %21
  %47 = icmp ult i64 %43, %46
  br i1 %47, label %50, label %48
48:
  %49 = add nuw i64 %20, 1
  br label %54
50:
  %51 = add i64 %30, 1
  %52 = cmpxchg ptr %29, i64 %30, i64 %51 acq_rel monotonic, align 64
  %53 = extractvalue { i64, i1 } %52, 1
  br i1 %53, label %61, label %54
54:
  %55 = phi i64 [ %20, %50 ], [ %49, %48 ]
  %56 = load atomic i64, ptr %4 monotonic, align 8
  %57 = icmp ult i64 %1, %56
  br i1 %57, label %19, label %58
58:
  %59 = phi i32 [ %17, %23 ], [ %17, %54 ], [ %17, %19 ], [ %62, %88 ]
  %60 = icmp eq i32 %59, 0
  br i1 %60, label %96, label %91
61:
  %62 = add i32 %17, 1
  %63 = icmp eq i32 %17, 0
  br i1 %63, label %64, label %66
64:
  %65 = load atomic i64, ptr %14 monotonic, align 8
  br label %66
66:
  %67 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) acquire, align 8
  %68 = icmp eq i64 %67, 0
  br i1 %68, label %71, label %69
69:
  %70 = tail call fastcc i32 @is_watched()
  br label %76
71:
  %72 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %73 = icmp eq i64 %72, 0
  br i1 %73, label %79, label %74
74:
  %75 = tail call fastcc i32 @call_handler(i64 %72)
  br label %76
76:
  %77 = phi i32 [ %70, %69 ], [ %75, %74 ]
  %78 = icmp eq i32 %77, 0
  br i1 %78, label %79, label %88
79:
  %80 = trunc i64 %31 to i32
  %81 = inttoptr i32 %80 to ptr
  %82 = trunc i64 %32 to i32
  %83 = inttoptr i32 %82 to ptr
  %84 = mul i64 %36, %1
  %85 = add i64 %84, %35
  %86 = trunc i64 %85 to i32
  %87 = inttoptr i32 %86 to ptr
  tail call void %81(ptr %83, ptr %87, i64 %43)
  br label %88
88:
  %89 = load atomic i64, ptr %4 monotonic, align 8
  %90 = icmp ult i64 %1, %89
  br i1 %90, label %15, label %58
91:
  %92 = getelementptr inbounds i8, ptr %0, i32 128
  %93 = atomicrmw add ptr %92, i32 %59 seq_cst, align 64
  %94 = getelementptr inbounds i8, ptr %0, i32 192
  %95 = load atomic i32, ptr %94 seq_cst, align 64
  br label %96
96:
  ret void
}
define hidden void @einsmith_stop(ptr %0) nounwind {
  %2 = getelementptr inbounds i8, ptr %0, i32 256
  store atomic i32 1, ptr %2 seq_cst, align 64
  %3 = atomicrmw add ptr %0, i32 1 seq_cst, align 64
  %4 = getelementptr inbounds i8, ptr %0, i32 64
  %5 = load atomic i32, ptr %4 seq_cst, align 64
  ret void
}
define hidden i64 @einsmith_run(ptr readonly %0) nounwind {
  %2 = getelementptr inbounds i8, ptr %0, i32 104
  %3 = load i64, ptr %2, align 8
  %4 = icmp eq i64 %3, 0
  br i1 %4, label %11, label %5
5:
  store atomic i64 1, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 8) monotonic, align 8
  %6 = load i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 64), align 8
  store i64 %6, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 16), align 8
  store i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 24), align 8
  %7 = getelementptr inbounds i8, ptr %0, i32 16
  %8 = load i64, ptr %7, align 8
  store atomic i64 %8, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 48) monotonic, align 8
  %9 = getelementptr inbounds i8, ptr %0, i32 24
  %10 = load i64, ptr %9, align 8
  store atomic i64 %10, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 56) monotonic, align 8
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) monotonic, align 8
  store atomic i64 %3, ptr @einsmith_watch release, align 8
  br label %11
11:
  %12 = load i64, ptr %0, align 8
  %13 = trunc i64 %12 to i32
  %14 = inttoptr i32 %13 to ptr
  %15 = getelementptr inbounds i8, ptr %0, i32 112
  %16 = getelementptr inbounds i8, ptr %0, i32 8
  %17 = getelementptr inbounds i8, ptr %0, i32 120
  %18 = getelementptr inbounds i8, ptr %0, i32 24
  %19 = getelementptr inbounds i8, ptr %0, i32 48
  %20 = zext i32 ptrtoint (ptr @part to i32) to i64
  %21 = getelementptr inbounds i8, ptr %0, i32 16
  %22 = getelementptr inbounds i8, ptr %0, i32 32
  %23 = getelementptr inbounds i8, ptr %0, i32 40
  %24 = zext i32 ptrtoint (ptr @member to i32) to i64
  br label %25
25:
  %26 = phi i64 [ %3, %11 ], [ %303, %301 ]
  %27 = phi i64 [ 0, %11 ], [ %302, %301 ]
  %28 = icmp eq i64 %26, 0
  br i1 %28, label %47, label %29
29:
  %30 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) acquire, align 8
  %31 = icmp eq i64 %30, 0
  br i1 %31, label %34, label %32
32:
  %33 = tail call fastcc i32 @is_watched()
  br label %39
34:
  %35 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %36 = icmp eq i64 %35, 0
  br i1 %36, label %39, label %37
37:
  %38 = tail call fastcc i32 @call_handler(i64 %35)
  br label %39
39:
  %40 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) monotonic, align 8
  %41 = icmp eq i64 %40, 0
  br i1 %41, label %43, label %42
42:
  store atomic i64 0, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) monotonic, align 8
  br label %304
43:
  %44 = load i64, ptr %15, align 8
  %45 = icmp ult i64 %27, %44
  br i1 %45, label %47, label %46
46:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %47
47:
  %48 = load i64, ptr %16, align 8
  %49 = icmp ult i64 %27, %48
  br i1 %49, label %50, label %304
50:
  %51 = load i64, ptr %17, align 8
  %52 = icmp ne i64 %51, 0
  br i1 %52, label %53, label %58
53:
  %54 = load i64, ptr %18, align 8
  %55 = shl i64 %27, 4
  %56 = mul i64 %55, %54
  %57 = add i64 %56, %51
  br label %58
58:
  %59 = phi i64 [ %57, %53 ], [ 0, %50 ]
  %60 = load i64, ptr %19, align 8
  %61 = icmp eq i64 %60, 0
  %62 = trunc i64 %27 to i32
  %63 = getelementptr inbounds %struct.step, ptr %14, i32 %62
  %64 = add nuw i64 %27, 1
  %65 = load i64, ptr %63, align 8
  switch i64 %65, label %85 [
    i64 1, label %66
    i64 2, label %66
    i64 3, label %66
    i64 4, label %83
    i64 6, label %83
    i64 5, label %83
    i64 8, label %301
    i64 9, label %301
  ]
66:
  %67 = icmp eq i64 %65, 3
  %68 = getelementptr inbounds i8, ptr %63, i32 8
  %69 = load i64, ptr %68, align 8
  %70 = trunc i64 %69 to i32
  %71 = inttoptr i32 %70 to ptr
  br i1 %67, label %72, label %76
72:
  %73 = load i64, ptr %71, align 8
  %74 = and i64 %73, 9218868437227405312
  %75 = icmp eq i64 %74, 9218868437227405312
  br i1 %75, label %298, label %301
76:
  %77 = load i32, ptr %71, align 4
  %78 = icmp eq i64 %65, 2
  %79 = and i32 %77, 2139095040
  %80 = icmp eq i32 %79, 2139095040
  %81 = icmp ne i32 %77, 0
  %82 = select i1 %78, i1 %80, i1 %81
  br i1 %82, label %298, label %301
83:
  %84 = tail call fastcc i64 @after_loop_step(ptr nonnull %14, i64 %27)
  br label %301
85:
  %86 = load i64, ptr %18, align 8
  %87 = icmp ugt i64 %86, 1
  switch i64 %65, label %200 [
    i64 7, label %88
    i64 10, label %144
  ]
88:
  br i1 %87, label %89, label %295
89:
  %90 = getelementptr inbounds i8, ptr %63, i32 16
  %91 = load i64, ptr %90, align 8
  %92 = icmp ult i64 %91, 2
  br i1 %92, label %295, label %93
93:
  %94 = ptrtoint ptr %63 to i32
  %95 = zext i32 %94 to i64
  %96 = load i64, ptr %21, align 8
  %97 = trunc i64 %96 to i32
  %98 = inttoptr i32 %97 to ptr
  %99 = getelementptr inbounds i8, ptr %98, i32 320
  %100 = load atomic i64, ptr %99 monotonic, align 8
  %101 = add i64 %100, 1
  %102 = and i64 %101, 4294967295
  store atomic i64 %102, ptr %99 monotonic, align 8
  fence release
  %103 = getelementptr inbounds i8, ptr %98, i32 328
  store atomic i64 %24, ptr %103 monotonic, align 8
  %104 = getelementptr inbounds i8, ptr %98, i32 336
  store atomic i64 %95, ptr %104 monotonic, align 8
  %105 = getelementptr inbounds i8, ptr %98, i32 344
  store atomic i64 %91, ptr %105 monotonic, align 8
  %106 = getelementptr inbounds i8, ptr %98, i32 352
  store atomic i64 %86, ptr %106 monotonic, align 8
  %107 = getelementptr inbounds i8, ptr %98, i32 360
  %108 = load i64, ptr %22, align 8
  store atomic i64 %108, ptr %107 monotonic, align 8
  %109 = getelementptr inbounds i8, ptr %98, i32 368
  %110 = load i64, ptr %23, align 8
  store atomic i64 %110, ptr %109 monotonic, align 8
  %111 = getelementptr inbounds i8, ptr %98, i32 376
  store atomic i64 %59, ptr %111 monotonic, align 8
  %112 = getelementptr inbounds i8, ptr %98, i32 128
  store atomic i32 0, ptr %112 monotonic, align 64
  %113 = getelementptr inbounds i8, ptr %98, i32 448
  %114 = shl nuw i64 %102, 32
  br label %135
115:
  %116 = atomicrmw add ptr %98, i32 1 seq_cst, align 64
  %117 = getelementptr inbounds i8, ptr %98, i32 64
  %118 = load atomic i32, ptr %117 seq_cst, align 64
  tail call fastcc void @drain(ptr nonnull %98, i64 0)
  %119 = trunc i64 %91 to i32
  br label %123
120:
  %121 = add nuw nsw i32 %124, 1
  %122 = icmp eq i32 %121, 64
  br i1 %122, label %131, label %123
123:
  %124 = phi i32 [ 0, %115 ], [ %121, %120 ]
  %125 = load atomic i32, ptr %112 acquire, align 64
  %126 = icmp eq i32 %125, %119
  br i1 %126, label %292, label %120
127:
  %128 = add nuw nsw i32 %132, 1
  %129 = icmp eq i32 %128, 32
  %130 = select i1 %129, i32 0, i32 %128
  br label %131
131:
  %132 = phi i32 [ %130, %127 ], [ 0, %120 ]
  %133 = load atomic i32, ptr %112 acquire, align 4
  %134 = icmp eq i32 %133, %119
  br i1 %134, label %292, label %127
135:
  %136 = phi i64 [ 0, %93 ], [ %142, %135 ]
  %137 = mul i64 %136, %91
  %138 = udiv i64 %137, %86
  %139 = trunc i64 %136 to i32
  %140 = getelementptr inbounds %struct.share, ptr %113, i32 %139
  %141 = or i64 %138, %114
  store atomic i64 %141, ptr %140 release, align 64
  %142 = add nuw i64 %136, 1
  %143 = icmp eq i64 %142, %86
  br i1 %143, label %115, label %135
144:
  %145 = or i1 %52, %61
  %146 = select i1 %87, i1 %145, i1 false
  br i1 %146, label %147, label %295
147:
  %148 = ptrtoint ptr %63 to i32
  %149 = zext i32 %148 to i64
  %150 = getelementptr inbounds i8, ptr %63, i32 16
  %151 = load i64, ptr %150, align 8
  %152 = load i64, ptr %21, align 8
  %153 = trunc i64 %152 to i32
  %154 = inttoptr i32 %153 to ptr
  %155 = getelementptr inbounds i8, ptr %154, i32 320
  %156 = load atomic i64, ptr %155 monotonic, align 8
  %157 = add i64 %156, 1
  %158 = and i64 %157, 4294967295
  store atomic i64 %158, ptr %155 monotonic, align 8
  fence release
  %159 = getelementptr inbounds i8, ptr %154, i32 328
  store atomic i64 %20, ptr %159 monotonic, align 8
  %160 = getelementptr inbounds i8, ptr %154, i32 336
  store atomic i64 %149, ptr %160 monotonic, align 8
  %161 = getelementptr inbounds i8, ptr %154, i32 344
  store atomic i64 %151, ptr %161 monotonic, align 8
  %162 = getelementptr inbounds i8, ptr %154, i32 352
  store atomic i64 %86, ptr %162 monotonic, align 8
  %163 = getelementptr inbounds i8, ptr %154, i32 360
  %164 = load i64, ptr %22, align 8
  store atomic i64 %164, ptr %163 monotonic, align 8
  %165 = getelementptr inbounds i8, ptr %154, i32 368
  %166 = load i64, ptr %23, align 8
  store atomic i64 %166, ptr %165 monotonic, align 8
  %167 = getelementptr inbounds i8, ptr %154, i32 376
  store atomic i64 %59, ptr %167 monotonic, align 8
  %168 = getelementptr inbounds i8, ptr %154, i32 128
  store atomic i32 0, ptr %168 monotonic, align 64
  %169 = getelementptr inbounds i8, ptr %154, i32 448
  %170 = shl nuw i64 %158, 32
  br label %191
171:
  %172 = atomicrmw add ptr %154, i32 1 seq_cst, align 64
  %173 = getelementptr inbounds i8, ptr %154, i32 64
  %174 = load atomic i32, ptr %173 seq_cst, align 64
  tail call fastcc void @drain(ptr nonnull %154, i64 0)
  %175 = trunc i64 %151 to i32
  br label %179
176:
  %177 = add nuw nsw i32 %180, 1
  %178 = icmp eq i32 %177, 64
  br i1 %178, label %187, label %179
179:
  %180 = phi i32 [ 0, %171 ], [ %177, %176 ]
  %181 = load atomic i32, ptr %168 acquire, align 64
  %182 = icmp eq i32 %181, %175
  br i1 %182, label %292, label %176
183:
  %184 = add nuw nsw i32 %188, 1
  %185 = icmp eq i32 %184, 32
  %186 = select i1 %185, i32 0, i32 %184
  br label %187
187:
  %188 = phi i32 [ %186, %183 ], [ 0, %176 ]
  %189 = load atomic i32, ptr %168 acquire, align 4
  %190 = icmp eq i32 %189, %175
  br i1 %190, label %292, label %183
191:
  %192 = phi i64 [ 0, %147 ], [ %198, %191 ]
  %193 = mul i64 %192, %151
  %194 = udiv i64 %193, %86
  %195 = trunc i64 %192 to i32
  %196 = getelementptr inbounds %struct.share, ptr %169, i32 %195
  %197 = or i64 %194, %170
  store atomic i64 %197, ptr %196 release, align 64
  %198 = add nuw i64 %192, 1
  %199 = icmp eq i64 %198, %86
  br i1 %199, label %171, label %191
200:
  %201 = getelementptr inbounds i8, ptr %63, i32 16
  %202 = load i64, ptr %201, align 8
  %203 = icmp ugt i64 %202, 1
  %204 = select i1 %87, i1 %203, i1 false
  br i1 %204, label %205, label %258
205:
  %206 = getelementptr inbounds i8, ptr %63, i32 8
  %207 = load i64, ptr %206, align 8
  %208 = getelementptr inbounds i8, ptr %63, i32 24
  %209 = load i64, ptr %208, align 8
  %210 = load i64, ptr %21, align 8
  %211 = trunc i64 %210 to i32
  %212 = inttoptr i32 %211 to ptr
  %213 = getelementptr inbounds i8, ptr %212, i32 320
  %214 = load atomic i64, ptr %213 monotonic, align 8
  %215 = add i64 %214, 1
  %216 = and i64 %215, 4294967295
  store atomic i64 %216, ptr %213 monotonic, align 8
  fence release
  %217 = getelementptr inbounds i8, ptr %212, i32 328
  store atomic i64 %207, ptr %217 monotonic, align 8
  %218 = getelementptr inbounds i8, ptr %212, i32 336
  store atomic i64 %209, ptr %218 monotonic, align 8
  %219 = getelementptr inbounds i8, ptr %212, i32 344
  store atomic i64 %202, ptr %219 monotonic, align 8
  %220 = getelementptr inbounds i8, ptr %212, i32 352
  store atomic i64 %86, ptr %220 monotonic, align 8
  %221 = getelementptr inbounds i8, ptr %212, i32 360
  %222 = load i64, ptr %22, align 8
  store atomic i64 %222, ptr %221 monotonic, align 8
  %223 = getelementptr inbounds i8, ptr %212, i32 368
  %224 = load i64, ptr %23, align 8
  store atomic i64 %224, ptr %223 monotonic, align 8
  %225 = getelementptr inbounds i8, ptr %212, i32 376
  store atomic i64 %59, ptr %225 monotonic, align 8
  %226 = getelementptr inbounds i8, ptr %212, i32 128
  store atomic i32 0, ptr %226 monotonic, align 64
  %227 = getelementptr inbounds i8, ptr %212, i32 448
  %228 = shl nuw i64 %216, 32
  br label %249
229:
  %230 = atomicrmw add ptr %212, i32 1 seq_cst, align 64
  %231 = getelementptr inbounds i8, ptr %212, i32 64
  %232 = load atomic i32, ptr %231 seq_cst, align 64
  tail call fastcc void @drain(ptr nonnull %212, i64 0)
  %233 = trunc i64 %202 to i32
  br label %237
234:
  %235 = add nuw nsw i32 %238, 1
  %236 = icmp eq i32 %235, 64
  br i1 %236, label %245, label %237
237:
  %238 = phi i32 [ 0, %229 ], [ %235, %234 ]
  %239 = load atomic i32, ptr %226 acquire, align 64
  %240 = icmp eq i32 %239, %233
  br i1 %240, label %295, label %234
241:
  %242 = add nuw nsw i32 %246, 1
  %243 = icmp eq i32 %242, 32
  %244 = select i1 %243, i32 0, i32 %242
  br label %245
245:
  %246 = phi i32 [ %244, %241 ], [ 0, %234 ]
  %247 = load atomic i32, ptr %226 acquire, align 4
  %248 = icmp eq i32 %247, %233
  br i1 %248, label %295, label %241
249:
  %250 = phi i64 [ 0, %205 ], [ %256, %249 ]
  %251 = mul i64 %250, %202
  %252 = udiv i64 %251, %86
  %253 = trunc i64 %250 to i32
  %254 = getelementptr inbounds %struct.share, ptr %227, i32 %253
  %255 = or i64 %252, %228
  store atomic i64 %255, ptr %254 release, align 64
  %256 = add nuw i64 %250, 1
  %257 = icmp eq i64 %256, %86
  br i1 %257, label %229, label %249
258:
  %259 = icmp eq i64 %202, 0
  br i1 %259, label %295, label %260
260:
  %261 = load i64, ptr %2, align 8
  %262 = load i64, ptr %22, align 8
  %263 = getelementptr inbounds i8, ptr %63, i32 24
  %264 = load i64, ptr %263, align 8
  %265 = getelementptr inbounds i8, ptr %63, i32 8
  %266 = load i64, ptr %265, align 8
  %267 = icmp eq i64 %261, 0
  %268 = trunc i64 %262 to i32
  %269 = inttoptr i32 %268 to ptr
  %270 = trunc i64 %266 to i32
  %271 = inttoptr i32 %270 to ptr
  %272 = trunc i64 %264 to i32
  %273 = inttoptr i32 %272 to ptr
  br label %274
274:
  %275 = phi i64 [ 0, %260 ], [ %290, %289 ]
  br i1 %267, label %289, label %276
276:
  %277 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) acquire, align 8
  %278 = icmp eq i64 %277, 0
  br i1 %278, label %281, label %279
279:
  %280 = tail call fastcc i32 @is_watched()
  br label %286
281:
  %282 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %283 = icmp eq i64 %282, 0
  br i1 %283, label %289, label %284
284:
  %285 = tail call fastcc i32 @call_handler(i64 %282)
  br label %286
286:
  %287 = phi i32 [ %280, %279 ], [ %285, %284 ]
  %288 = icmp eq i32 %287, 0
  br i1 %288, label %289, label %295
289:
  tail call void %271(ptr %273, ptr %269, i64 %275)
  %290 = add nuw i64 %275, 1
  %291 = icmp eq i64 %290, %202
  br i1 %291, label %295, label %274
292:
  %293 = getelementptr inbounds i8, ptr %63, i32 8
  %294 = load i64, ptr %293, align 8
  br label %295
295:
  %296 = phi i64 [ 0, %144 ], [ 0, %258 ], [ 0, %88 ], [ 0, %237 ], [ 0, %245 ], [ 0, %89 ], [ %294, %292 ], [ 0, %286 ], [ 0, %289 ]
  %297 = add i64 %296, %64
  br label %301
298:
  %299 = getelementptr inbounds i8, ptr %63, i32 32
  %300 = load i64, ptr %299, align 8
  br label %304
301:
  %302 = phi i64 [ %84, %83 ], [ %297, %295 ], [ %64, %76 ], [ %64, %58 ], [ %64, %58 ], [ %64, %72 ]
  %303 = load i64, ptr %2, align 8
  br label %25
304:
  %305 = phi i64 [ -1, %42 ], [ %300, %298 ], [ 0, %47 ]
  %306 = load i64, ptr %2, align 8
  %307 = icmp eq i64 %306, 0
  br i1 %307, label %309, label %308
308:
  store atomic i64 0, ptr @einsmith_watch monotonic, align 8
  br label %309
309:
  ret i64 %305
}
define hidden i64 @einsmith_run_team(ptr %0) nounwind {
  %2 = getelementptr inbounds i8, ptr %0, i32 16
  %3 = load i64, ptr %2, align 8
  %4 = trunc i64 %3 to i32
  %5 = inttoptr i32 %4 to ptr
  %6 = getelementptr inbounds i8, ptr %5, i32 256
  store atomic i32 0, ptr %6 seq_cst, align 64
  %7 = load atomic i32, ptr %5 seq_cst, align 64
  %8 = zext i32 %7 to i64
  %9 = getelementptr inbounds i8, ptr %0, i32 72
  store i64 %8, ptr %9, align 8
  %10 = getelementptr inbounds i8, ptr %0, i32 56
  %11 = load i64, ptr %10, align 8
  %12 = trunc i64 %11 to i32
  %13 = inttoptr i32 %12 to ptr
  %14 = getelementptr inbounds i8, ptr %0, i32 24
  %15 = load i64, ptr %14, align 8
  %16 = trunc i64 %15 to i32
  tail call void %13(ptr nonnull @team_member, ptr %0, i32 %16, i32 0)
  %17 = getelementptr inbounds i8, ptr %0, i32 88
  %18 = load i64, ptr %17, align 8
  %19 = sub i64 0, %18
  %20 = getelementptr inbounds i8, ptr %0, i32 96
  store i64 %19, ptr %20, align 8
  %21 = getelementptr inbounds i8, ptr %0, i32 80
  %22 = load i64, ptr %21, align 8
  ret i64 %22
}
define internal void @team_member(ptr %0) nounwind {
  %2 = getelementptr inbounds i8, ptr %0, i32 16
  %3 = load i64, ptr %2, align 8
  %4 = trunc i64 %3 to i32
  %5 = inttoptr i32 %4 to ptr
  %6 = getelementptr inbounds i8, ptr %0, i32 64
  %7 = load i64, ptr %6, align 8
  %8 = trunc i64 %7 to i32
  %9 = inttoptr i32 %8 to ptr
  %10 = tail call i32 %9()
  %11 = icmp eq i32 %10, 0
  br i1 %11, label %35, label %12
12:
  %13 = sext i32 %10 to i64
  %14 = getelementptr inbounds i8, ptr %0, i32 72
  %15 = load i64, ptr %14, align 8
  %16 = trunc i64 %15 to i32
  %17 = getelementptr %struct.share, ptr %5, i32 %10
  %18 = getelementptr i8, ptr %17, i32 456
  store atomic i64 1, ptr %18 monotonic, align 8
  %19 = getelementptr inbounds i8, ptr %5, i32 256
  br label %20
20:
  %21 = phi i32 [ %16, %12 ], [ %31, %34 ]
  br label %26
22:
  %23 = add nuw nsw i32 %27, 1
  %24 = icmp eq i32 %23, 32
  %25 = select i1 %24, i32 0, i32 %23
  br label %26
26:
  %27 = phi i32 [ %25, %22 ], [ 0, %20 ]
  %28 = load atomic i32, ptr %5 acquire, align 4
  %29 = icmp eq i32 %28, %21
  br i1 %29, label %22, label %30
30:
  %31 = load atomic i32, ptr %5 acquire, align 64
  %32 = load atomic i32, ptr %19 acquire, align 64
  %33 = icmp eq i32 %32, 0
  br i1 %33, label %34, label %43
34:
  tail call fastcc void @drain(ptr nonnull %5, i64 %13)
  br label %20
35:
  %36 = tail call i64 @einsmith_run(ptr nonnull %0)
  %37 = getelementptr inbounds i8, ptr %0, i32 80
  store i64 %36, ptr %37, align 8
  %38 = getelementptr inbounds i8, ptr %0, i32 88
  store i64 0, ptr %38, align 8
  %39 = getelementptr inbounds i8, ptr %5, i32 256
  store atomic i32 1, ptr %39 seq_cst, align 64
  %40 = atomicrmw add ptr %5, i32 1 seq_cst, align 64
  %41 = getelementptr inbounds i8, ptr %5, i32 64
  %42 = load atomic i32, ptr %41 seq_cst, align 64
  br label %43
43:
  ret void
}
define internal fastcc i64 @after_loop_step(ptr %0, i64 %1) nounwind {
  %3 = trunc i64 %1 to i32
  %4 = getelementptr inbounds %struct.step, ptr %0, i32 %3
  %5 = load i64, ptr %4, align 8
  %6 = icmp eq i64 %5, 5
  %7 = getelementptr inbounds i8, ptr %4, i32 8
  %8 = load i64, ptr %7, align 8
  %9 = trunc i64 %8 to i32
  br i1 %6, label %10, label %68
10:
  %11 = getelementptr inbounds %struct.step, ptr %0, i32 %9
  %12 = getelementptr inbounds i8, ptr %11, i32 56
  %13 = load i64, ptr %12, align 8
  %14 = add i64 %13, -1
  store i64 %14, ptr %12, align 8
  %15 = icmp slt i64 %14, 1
  br i1 %15, label %65, label %16
16:
  %17 = getelementptr inbounds i8, ptr %11, i32 24
  %18 = load i64, ptr %17, align 8
  %19 = trunc i64 %18 to i32
  %20 = inttoptr i32 %19 to ptr
  %21 = getelementptr inbounds i8, ptr %11, i32 32
  %22 = load i64, ptr %21, align 8
  %23 = icmp eq i64 %22, 0
  br i1 %23, label %65, label %24
24:
  %25 = phi i64 [ %60, %58 ], [ 0, %16 ]
  %26 = trunc i64 %25 to i32
  %27 = getelementptr inbounds %struct.move, ptr %20, i32 %26
  %28 = load i64, ptr %27, align 8
  %29 = trunc i64 %28 to i32
  %30 = inttoptr i32 %29 to ptr
  %31 = load i64, ptr %30, align 8
  %32 = load i64, ptr %11, align 8
  %33 = icmp eq i64 %32, 6
  %34 = getelementptr inbounds i8, ptr %27, i32 24
  %35 = load i64, ptr %34, align 8
  %36 = sub i64 0, %35
  %37 = select i1 %33, i64 %36, i64 %35
  %38 = add i64 %37, %31
  %39 = getelementptr inbounds i8, ptr %27, i32 32
  %40 = load i64, ptr %39, align 8
  %41 = icmp eq i64 %40, 0
  br i1 %41, label %58, label %42
42:
  %43 = getelementptr inbounds i8, ptr %27, i32 8
  %44 = load i64, ptr %43, align 8
  %45 = trunc i64 %44 to i32
  %46 = inttoptr i32 %45 to ptr
  %47 = load i64, ptr %46, align 8
  %48 = getelementptr inbounds i8, ptr %27, i32 16
  %49 = load i64, ptr %48, align 8
  %50 = add i64 %47, %49
  %51 = sub i64 %38, %50
  %52 = icmp slt i64 %51, 0
  %53 = icmp slt i64 %51, %40
  %54 = sub i64 0, %40
  %55 = select i1 %53, i64 0, i64 %54
  %56 = select i1 %52, i64 %40, i64 %55
  %57 = add i64 %56, %38
  br label %58
58:
  %59 = phi i64 [ %57, %42 ], [ %38, %24 ]
  store i64 %59, ptr %30, align 8
  %60 = add nuw i64 %25, 1
  %61 = load i64, ptr %21, align 8
  %62 = icmp ult i64 %60, %61
  br i1 %62, label %24, label %63
63:
  %64 = load i64, ptr %7, align 8
  br label %65
65:
  %66 = phi i64 [ %1, %10 ], [ %64, %63 ], [ %8, %16 ]
  %67 = add i64 %66, 1
  br label %139
68:
  %69 = inttoptr i32 %9 to ptr
  %70 = load i64, ptr %69, align 8
  %71 = getelementptr inbounds i8, ptr %4, i32 16
  %72 = load i64, ptr %71, align 8
  %73 = tail call i64 @llvm.smin.i64(i64 %70, i64 %72)
  %74 = getelementptr inbounds i8, ptr %4, i32 40
  %75 = load i64, ptr %74, align 8
  %76 = icmp eq i64 %75, 0
  br i1 %76, label %82, label %77
77:
  %78 = trunc i64 %75 to i32
  %79 = inttoptr i32 %78 to ptr
  %80 = load i64, ptr %79, align 8
  %81 = tail call i64 @llvm.smax.i64(i64 %80, i64 0)
  br label %82
82:
  %83 = phi i64 [ %81, %77 ], [ 0, %68 ]
  %84 = sub nsw i64 %73, %83
  %85 = getelementptr inbounds i8, ptr %4, i32 56
  store i64 %84, ptr %85, align 8
  %86 = icmp slt i64 %84, 1
  br i1 %86, label %132, label %87
87:
  %88 = add nsw i64 %73, -1
  %89 = icmp eq i64 %5, 6
  %90 = select i1 %89, i64 %88, i64 %83
  %91 = getelementptr inbounds i8, ptr %4, i32 24
  %92 = load i64, ptr %91, align 8
  %93 = trunc i64 %92 to i32
  %94 = inttoptr i32 %93 to ptr
  %95 = getelementptr inbounds i8, ptr %4, i32 32
  %96 = load i64, ptr %95, align 8
  %97 = icmp eq i64 %96, 0
  br i1 %97, label %130, label %98
98:
  %99 = phi i64 [ %127, %121 ], [ 0, %87 ]
  %100 = trunc i64 %99 to i32
  %101 = getelementptr inbounds %struct.move, ptr %94, i32 %100
  %102 = getelementptr inbounds i8, ptr %101, i32 40
  %103 = load i64, ptr %102, align 8
  %104 = getelementptr inbounds i8, ptr %101, i32 24
  %105 = load i64, ptr %104, align 8
  %106 = mul i64 %105, %90
  %107 = add i64 %106, %103
  %108 = getelementptr inbounds i8, ptr %101, i32 8
  %109 = load i64, ptr %108, align 8
  %110 = trunc i64 %109 to i32
  %111 = inttoptr i32 %110 to ptr
  %112 = load i64, ptr %111, align 8
  %113 = getelementptr inbounds i8, ptr %101, i32 16
  %114 = load i64, ptr %113, align 8
  %115 = add i64 %114, %112
  %116 = getelementptr inbounds i8, ptr %101, i32 32
  %117 = load i64, ptr %116, align 8
  %118 = icmp eq i64 %117, 0
  br i1 %118, label %121, label %119
119:
  %120 = urem i64 %107, %117
  br label %121
121:
  %122 = phi i64 [ %120, %119 ], [ %107, %98 ]
  %123 = add i64 %115, %122
  %124 = load i64, ptr %101, align 8
  %125 = trunc i64 %124 to i32
  %126 = inttoptr i32 %125 to ptr
  store i64 %123, ptr %126, align 8
  %127 = add nuw i64 %99, 1
  %128 = load i64, ptr %95, align 8
  %129 = icmp ult i64 %127, %128
  br i1 %129, label %98, label %130
130:
  %131 = add i64 %1, 1
  br label %139
132:
  %133 = getelementptr inbounds i8, ptr %4, i32 48
  %134 = load i64, ptr %133, align 8
  %135 = freeze i64 %134
  %136 = icmp eq i64 %135, 0
  %137 = add i64 %1, 1
  %138 = select i1 %136, i64 %137, i64 %135
  br label %139
139:
  %140 = phi i64 [ %67, %65 ], [ %138, %132 ], [ %131, %130 ]
  ret i64 %140
}
define internal void @member(ptr readonly %0, ptr %1, i64 %2) nounwind {
  %4 = getelementptr inbounds i8, ptr %0, i32 80
  %5 = load i64, ptr %4, align 8
  %6 = icmp ult i64 %2, %5
  br i1 %6, label %16, label %7
7:
  %8 = phi i64 [ %14, %7 ], [ %5, %3 ]
  %9 = phi i64 [ %12, %7 ], [ %2, %3 ]
  %10 = phi ptr [ %11, %7 ], [ %0, %3 ]
  %11 = getelementptr inbounds i8, ptr %10, i32 64
  %12 = sub nuw i64 %9, %8
  %13 = getelementptr inbounds i8, ptr %10, i32 144
  %14 = load i64, ptr %13, align 8
  %15 = icmp ult i64 %12, %14
  br i1 %15, label %16, label %7
16:
  %17 = phi ptr [ %0, %3 ], [ %11, %7 ]
  %18 = phi i64 [ %2, %3 ], [ %12, %7 ]
  %19 = getelementptr inbounds i8, ptr %17, i32 72
  %20 = load i64, ptr %19, align 8
  %21 = trunc i64 %20 to i32
  %22 = inttoptr i32 %21 to ptr
  %23 = getelementptr inbounds i8, ptr %17, i32 88
  %24 = load i64, ptr %23, align 8
  %25 = trunc i64 %24 to i32
  %26 = inttoptr i32 %25 to ptr
  tail call void %22(ptr %26, ptr %1, i64 %18)
  ret void
}
define internal void @part(ptr %0, ptr %1, i64 %2) nounwind {
  %4 = getelementptr inbounds i8, ptr %0, i32 40
  %5 = load i64, ptr %4, align 8
  %6 = trunc i64 %5 to i32
  %7 = sub i32 0, %6
  %8 = getelementptr inbounds %struct.step, ptr %0, i32 %7
  %9 = add i64 %5, 1
  %10 = getelementptr inbounds i8, ptr %0, i32 24
  %11 = load i64, ptr %10, align 8
  %12 = mul i64 %11, %2
  %13 = add i64 %9, %12
  %14 = add i64 %13, %11
  %15 = icmp ult i64 %13, %14
  br i1 %15, label %16, label %61
16:
  %17 = phi i64 [ %59, %58 ], [ %13, %3 ]
  %18 = trunc i64 %17 to i32
  %19 = getelementptr inbounds %struct.step, ptr %8, i32 %18
  %20 = load i64, ptr %19, align 8
  %21 = add i64 %20, -4
  %22 = icmp ult i64 %21, 3
  br i1 %22, label %30, label %23
23:
  %24 = getelementptr inbounds i8, ptr %19, i32 16
  %25 = load i64, ptr %24, align 8
  %26 = icmp eq i64 %25, 0
  br i1 %26, label %56, label %27
27:
  %28 = getelementptr inbounds i8, ptr %19, i32 8
  %29 = getelementptr inbounds i8, ptr %19, i32 24
  br label %32
30:
  %31 = tail call fastcc i64 @after_loop_step(ptr nonnull %8, i64 %17)
  br label %58
32:
  %33 = phi i64 [ 0, %27 ], [ %53, %46 ]
  %34 = load atomic i64, ptr getelementptr inbounds (i8, ptr @einsmith_watch, i32 32) acquire, align 8
  %35 = icmp eq i64 %34, 0
  br i1 %35, label %38, label %36
36:
  %37 = tail call fastcc i32 @is_watched()
  br label %43
38:
  %39 = load atomic i64, ptr @einsmith_watch acquire, align 8
  %40 = icmp eq i64 %39, 0
  br i1 %40, label %46, label %41
41:
  %42 = tail call fastcc i32 @call_handler(i64 %39)
  br label %43
43:
  %44 = phi i32 [ %37, %36 ], [ %42, %41 ]
  %45 = icmp eq i32 %44, 0
  br i1 %45, label %46, label %61
46:
  %47 = load i64, ptr %28, align 8
  %48 = trunc i64 %47 to i32
  %49 = inttoptr i32 %48 to ptr
  %50 = load i64, ptr %29, align 8
  %51 = trunc i64 %50 to i32
  %52 = inttoptr i32 %51 to ptr
  tail call void %49(ptr %52, ptr %1, i64 %33)
  %53 = add nuw i64 %33, 1
  %54 = load i64, ptr %24, align 8
  %55 = icmp ult i64 %53, %54
  br i1 %55, label %32, label %56
56:
  %57 = add i64 %17, 1
  br label %58
58:
  %59 = phi i64 [ %31, %30 ], [ %57, %56 ]
  %60 = icmp ult i64 %59, %14
  br i1 %60, label %16, label %61
61:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
