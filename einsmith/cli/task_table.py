"""Find the task of a model, by its name and its arguments, or of an ONNX file."""

from __future__ import annotations

from dataclasses import replace

import click

from einsmith.cli.tasks import COLOURS, IMAGES, ROWS, TEXT, WINDOWS, Task, parameters
from einsmith.ops.losses.margin import margin_loss

TASKS: dict[str, Task] = {
    "lstm-lm": TEXT,
    "gpt_small": WINDOWS,
    **dict.fromkeys(("capsulenet", "capsulenet_conv"), replace(IMAGES, loss=margin_loss)),
} | dict.fromkeys(("milstm", "scrn", "sublstm", "lltm"), ROWS)
"""Tasks by model, for models whose arguments do not decide the task (`task_of`)."""


ELSEWHERE = {
    "bert_base": "ids of words",
    "llama": "tokens of a tokenizer",
    "unet": "images with a class for each pixel",
}
"""Models that the command line has no data for, with a description of their inputs."""


def task_of(model: str, data: str | None = None) -> Task:
    """Return the task of a model, or of the network of an ONNX file. data: the value of --data, if given.

    Raises click's usage error where the command line has no data for the model."""
    if model.endswith(".onnx"):
        from einsmith.cli.onnx_files import task_of_file  # reads files only with the package onnx

        return task_of_file(model, data)
    if model in ELSEWHERE:
        raise click.UsageError(
            f"{model} takes {ELSEWHERE[model]}, for which this command has no data set; train it with es.TrainStep"
        )
    known = TASKS.get(model)
    if known is None:  # a network with a choice of classes, or with three channels, is not for digits alone
        arguments = parameters(model)
        colours = "num_classes" in arguments or "channels" in arguments and arguments["channels"].default == 3
        known = COLOURS if colours else IMAGES
    return known
