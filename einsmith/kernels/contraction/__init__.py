"""Compile sums of products: matrix products, convolutions in every direction, attention's scores, capsules.

    out[batch, left, right] = epilogue(sum over k of left operand[batch, left, k] * right operand[batch, k, right])

Follow a kernel through the package:

1. *What it is.* `schedule.contraction_problem` matches each piece of a kernel's root as such a sum: two operands, each
   a product of factors under guards, and axes sorted into batch, left, right and K. `words` restates a problem of 8- or
   16-bit operands with several points of K in a word, for instructions that multiply words (VNNI, AMX). `sums` decides
   which side's points are the elements of sums that the epilogue takes (means and variances of the results). `rounding`
   belongs to the choice of precision, before kernels are compiled.

2. *How it may run.* `config` defines the two forms:

   - *Tiled* (Goto and van de Geijn 2008): a register tile has `mr` rows of the M side, whose elements are broadcast,
     and `nv` vectors of the N side; either operand may be M. A tile reads each operand in place ("inline"), from a
     panel that the task packs, or from a buffer that an earlier launch packs. Loops over tiles of M, panels of N and
     blocks of K surround it. `row_offsets` says which tiles can read rows of M in place, `k_vectorization` when lanes
     hold several points of K.
   - *Direct*: lanes run along any axis, an unrolled box of results and points of K shares loads, nothing is packed.
     For operands with few rows or with an axis in common.

   In both forms a task may first evaluate an operand into a *halo copy* (`halo`), which spares guards and repeated
   reads. `companions` finds pairs of pieces whose results interleave, to be computed tile by tile together.

3. *Which way is best.* `search` lists the settings (halo copies, sides) and register tiles worth pricing, `table` adds
   every sensible way to reach the operands and numbers of tasks, one column for each configuration. `features` computes
   what all configurations of a setting share, with strides and streams from `traffic` and the part of K that guards
   leave from `k_bounds`; `contraction_cost` predicts the seconds of all columns at once. `direct_boxes` lists the
   direct form's configurations, by loads and masks from `direct_loads`; `direct_cost` prices them.
   `contraction_pattern` takes the lowest rank. `space` states every legal configuration, for a search by measurement.

4. *The code.* `emission/launches` makes up to four launches: packing once for all runs, packing, multiplying, adding
   the partial sums of parts of K. `geometry` derives all sizes and layouts of a tiled configuration, which
   `emission/frame` binds to a function's memory. `emission/blocked` emits the loops, `emission/pack` the packing,
   `emission/microkernel` the tile's loop over K, `emission/prefetch` its prefetches. `emission/direct` is the direct
   form. `emission/nan_repair` computes sums again that are NaN because a guard zeroes one operand only.

5. *What follows the sums.* `epilogue` computes and stores results row by row and chooses the form in which a tile does
   so; `emission/tile_epilogue` emits it: straight from registers, stacked rows, transposed, through scratch, or in
   whole cache lines (`units`, `emission/whole_lines`). `emission/taken_sums` adds the values to the epilogue's
   sums.
"""
