/* Loops: how their pointers are placed and moved. A loop places its pointers from their bases each time it begins, so
   nothing has to be restored when it ends, and a base may itself be moved by the loop around it. */

static uint64_t *word(uint64_t address) {
    return POINTER(address);
}

/* Puts a loop's pointers at its first turn: 0, or the step to go on with where it has no turn. */
static uint64_t loop_begin(struct step *loop) {
    const int64_t wanted = (int64_t)*word(loop->what), most = (int64_t)loop->tasks;
    const int64_t stop = wanted < most ? wanted : most;
    int64_t start = loop->start ? (int64_t)*word(loop->start) : 0;
    start = start > 0 ? start : 0;
    loop->left = (uint64_t)(stop - start);
    if (stop - start <= 0)
        return loop->after;
    const int64_t last = stop - 1;
    const uint64_t first = (uint64_t)(loop->kind == LOOP_DOWN ? last : start);
    const struct move *moves = POINTER(loop->pointers);
    for (uint64_t k = 0; k < loop->code; k++) {
        const struct move *m = &moves[k];
        const uint64_t far = m->start + m->delta * first;
        *word(m->target) = *word(m->base) + m->offset + (m->ring ? far % m->ring : far);
    }
    return 0;
}

/* Ends a turn of a loop: whether there is another, with the pointers put there. */
static int loop_turn(struct step *loop) {
    if ((int64_t)--loop->left <= 0)
        return 0;
    const struct move *moves = POINTER(loop->pointers);
    for (uint64_t k = 0; k < loop->code; k++) {
        const struct move *m = &moves[k];
        uint64_t to = *word(m->target) + (loop->kind == LOOP_DOWN ? -m->delta : m->delta);
        if (m->ring) {
            const int64_t way = (int64_t)(to - *word(m->base) - m->offset);
            to += way < 0 ? m->ring : way >= (int64_t)m->ring ? -m->ring : 0;
        }
        *word(m->target) = to;
    }
    return 1;
}

/* Returns the step that follows step n, which begins or ends a loop. */
static uint64_t after_loop_step(struct step *steps, uint64_t n) {
    struct step *step = &steps[n];
    if (step->kind == LOOP_END)
        return loop_turn(&steps[step->what]) ? step->what + 1 : n + 1;
    const uint64_t after = loop_begin(step);
    return after ? after : n + 1;
}
