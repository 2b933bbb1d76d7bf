/* Trains a network that examples/train_from_c.py has exported, without Python: one line a step, its loss in C's
   hexadecimal notation, which loses no bit.

       cc -O2 -Iexported -o train examples/train_from_c.c exported/network.o -lpthread -lm
       ./train exported/weights.safetensors exported/batches 100 trained.safetensors

   The file of batches has the inputs and the targets of one batch after the other; it is read again from its beginning
   when it ends. */
#include <stdio.h>
#include <stdlib.h>

#include "network.h"

static int failed(const char *what, int code) {
    fprintf(stderr, "%s: %s\n", what, network_error(code));
    return 1;
}

int main(int count, char **arguments) {
    float *input = malloc(NETWORK_TRAIN_INPUT * sizeof *input);
    int64_t *target = malloc(NETWORK_TRAIN_TARGET * sizeof *target);
    network_model *model = NULL;
    FILE *batches;
    double loss = 0;
    int code;
    long n;
    if (count != 5 || !input || !target) {
        fprintf(stderr, "usage: %s WEIGHTS BATCHES STEPS SAVE\n", arguments[0]);
        return 2;
    }
    batches = fopen(arguments[2], "rb");
    if (!batches) {
        perror(arguments[2]);
        return 1;
    }
    code = network_create(arguments[1], 0, &model);
    if (code)
        return failed("network_create", code);
    for (n = 0; n < strtol(arguments[3], NULL, 10); n++) {
        if (fread(input, sizeof *input, NETWORK_TRAIN_INPUT, batches) != NETWORK_TRAIN_INPUT) {
            rewind(batches);
            if (fread(input, sizeof *input, NETWORK_TRAIN_INPUT, batches) != NETWORK_TRAIN_INPUT)
                return 1;
        }
        if (fread(target, sizeof *target, NETWORK_TRAIN_TARGET, batches) != NETWORK_TRAIN_TARGET)
            return 1;
        code = network_train(model, input, target, &loss);
        if (code)
            return failed("network_train", code);
        printf("%a\n", loss);
    }
    code = network_evaluate(model, input, target, &loss);
    if (code)
        return failed("network_evaluate", code);
    fprintf(stderr, "%ld steps; in evaluation mode the last batch has the loss %.4f\n", (long)network_steps(model),
            loss);
    code = network_save(model, arguments[4]);
    if (code)
        return failed("network_save", code);
    network_destroy(model);
    fclose(batches);
    free(input);
    free(target);
    return 0;
}
