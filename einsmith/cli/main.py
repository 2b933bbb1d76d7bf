"""Define the command line of `einsmith`: its commands, error messages and exit statuses."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from einsmith.base import environment
from einsmith.base.errors import ArgumentError, EinsmithError, KnobError

OK, FAILED, WRONG_USE = 0, 1, 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def app() -> None:
    """Einsmith: a training compiler."""


_UNIT = "What a token of text is.  [default: word; gpt_small: character]"
_DECAY = click.FloatRange(min=0, max=1, max_open=True)


class _Size(click.ParamType):
    """Parameter type of a number of bytes, as 800MB."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from einsmith.base.sizes import size_of

        try:
            return size_of(value, "size")
        except ArgumentError as e:
            self.fail(str(e), param, ctx)


_LIMIT = "Most memory of a step, as 800MB: some results are computed again.  [default: no limit]"
_MODE = "dynamic: kernels are tuned while they train.  [default: static, or as saved]"
_memory_limit = click.option("--memory-limit", type=_Size(), help=_LIMIT)


@app.command("train")
@click.argument("model")
@click.option("--data", metavar="NAME|DIR", help="What to learn, see below.  [default: the first of those below]")
@click.option("--epochs", type=click.IntRange(min=1), help="How many in all.  [default: 5, or as saved]")
@click.option("--batch", type=click.IntRange(min=1), help="Samples or columns of text.  [default: the task's]")
@click.option("--set", "arguments", multiple=True, metavar="width=128", help="An argument of the model.")
@click.option("--steps", type=click.IntRange(min=1), help="Tokens of a window of text.  [default: 35; gpt_small: 128]")
@click.option("--vocabulary", type=click.IntRange(min=2), help="Most distinct tokens of a text.  [default: 10000]")
@click.option("--unit", type=click.Choice(["word", "character"]), help=_UNIT)
@click.option("--size", type=click.IntRange(min=1), help="To which images of a folder are scaled.  [default: 32]")
@click.option("--augment", is_flag=True, default=None, help="Move and mirror the images at random.")
@click.option("--optimizer", help="sgd, momentum, adam, adamw or another of es.optim, as lion.  [default: adam]")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), help="Learning rate.  [default: the optimizer's]")
@click.option("--schedule", type=click.Choice(["constant", "cosine"]), help="Of the learning rate.  [default: cosine]")
@click.option("--clip", type=click.FloatRange(min=0, min_open=True), help="Most that the gradients' norm may be.")
@click.option("--accumulate", type=click.IntRange(min=1), help="Batches that make one update.  [default: 1]")
@click.option("--ema", type=_DECAY, help="Decay of an average of the weights, which is then evaluated.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the weights and of the order of the data.  [default: 0]")
@click.option("--save", "save_to", metavar="DIR", help="Save here after every epoch; --resume goes on from it.")
@click.option("--resume", metavar="DIR", help="Go on with the run saved here, with its settings.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: all physical cores]")
@_memory_limit
@click.option("--mode", type=click.Choice(["static", "dynamic"]), help=_MODE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an epoch, and one at the end.")
def train_command(model: str, save_to: str | None, as_json: bool, **options) -> None:
    """Train MODEL and show its accuracy on the test images, or its perplexity on the test text.

    \b
    lenet5, mlp3                 --data mnist, fashion-mnist, or a folder of idx files named as MNIST's
    milstm, scrn, sublstm, lltm  --data mnist-rows, or such a folder: images read row by row
    lstm-lm, gpt_small           --data sotu, moby-dick, or a folder with train.txt and test.txt
    others                       --data cifar10, or a folder with folders train and test of one folder a class

    gpt_small learns characters unless --unit says word; --set width=128 --set layers=4 makes a small one.

    MODEL may also be a FILE.onnx, whose network is trained on; --data is one of the above that fits its input, or a
    .npz file of arrays x and y, and --save writes model.onnx with the new weights too.

    Ctrl-C stops between two steps and leaves a save that can be resumed where --save was given.
    """
    from einsmith.cli.train import train

    train(model, save_to=save_to, as_json=as_json, **options)


_CANDIDATES = "Shown a kernel; and the best of every other pattern."
_OVERRIDE = "What a kernel (its digits, as printed) is compiled to instead; the other genes are the model's choice."


@app.command("explain")
@click.argument("what", metavar="MODEL|FILE")
@click.option("--batch", type=click.IntRange(min=1), help="Samples a step of a MODEL.  [default: as in train]")
@click.option("--shape", "shapes", multiple=True, metavar="A=64,128", help="Of an input of a formula; once an input.")
@click.option("--set", "settings", multiple=True, metavar="stride=2", help="Of a formula, or a MODEL's argument.")
@click.option("--candidates", type=click.IntRange(min=0), default=3, show_default=True, help=_CANDIDATES)
@click.option("--measure", is_flag=True, help="Time each kernel in the program, and its candidates alone.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: all physical cores]")
@_memory_limit
@click.option("--override", "overrides", multiple=True, metavar="KERNEL PATTERN GENE=VALUE...", help=_OVERRIDE)
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a page to look at instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain_command(what: str, **options) -> None:
    """Show the kernels of a program: fused stages, the chosen configuration, rejected ones and their predicted cost.

    MODEL, as in `einsmith train`, means its training step. FILE is a Python file that defines `step`, a TrainStep or a
    function, and `inputs`, the tuple of its arguments; or a .onnx file, whose network is shown in evaluation mode,
    where --shape gives shapes that it leaves open and --set numbers that it takes; any other file is a formula, whose
    inputs' shapes --shape gives.
    """
    from einsmith.cli.explain import explain

    explain(what, **options)


@app.command("run")
@click.argument("what", metavar="FILE.onnx")
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]X.npy", help="An input, in order or by name.")
@click.option("--output", metavar="FILE.npz", type=click.Path(path_type=Path), help="Write the outputs instead.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: all physical cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an output.")
def run_command(what: str, **options) -> None:
    """Show the outputs of an ONNX file's network for arrays, in evaluation mode."""
    from einsmith.cli.onnx_files import run

    run(what, **options)


@app.command("export")
@click.argument("what", metavar="MODEL|DIR")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--batch", type=click.IntRange(min=1), help="Samples a step.  [default: as in train]")
@click.option("--set", "settings", multiple=True, metavar="width=128", help="An argument of the MODEL.")
@click.option("--name", help="That the C functions begin with.  [default: the model's]")
@click.option("--target", default="host", help="x86-64 to x86-64-v4, or aarch64.  [default: this machine]")
@click.option("--schedule", type=click.IntRange(min=1), help="Steps whose learning rates are written, too.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: all physical cores]")
@click.option("--compiler", metavar="CC", help="The C compiler that links.  [default: cc, gcc or clang]")
@click.option("--overwrite", is_flag=True, help="Replace an export.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export_command(what: str, folder: Path, **options) -> None:
    """Write a training step into FOLDER as a library for C that needs no Python: header, object file, shared library,
    weights and a manifest.

    MODEL, as in `einsmith train`, has new weights and Adam's rule; DIR is a run that `einsmith train --save` wrote,
    which continues from its last step (its schedule of learning rates needs --schedule).
    """
    from einsmith.cli.export import export_command

    export_command(what, folder, **options)


@app.command("calibrate")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate_command(as_json: bool) -> None:
    """Measure this machine anew (3 seconds, or up to 9) and store the figures, by which kernels are chosen.

    This happens automatically at the first use on a machine. Figures that were disturbed by other work are not stored:
    earlier figures stay valid, and programs that find none measure again. New figures may lead to other choices, and so
    to other rounding: a run that was saved before does not continue bitwise as it would have.
    """
    from einsmith.cli.info import calibrate

    calibrate(as_json)


_KERNEL = "Remove what is kept of a kernel (its digits, as --list prints them, or the first four and more), or of all."


_SECONDS = "That the search may take."
_GRAPH = "First find out, in half of the time, which passes the program is faster without."


@app.command("tune")
@click.argument("what", metavar="[MODEL|FILE]", required=False)
@click.option("--seconds", type=click.FloatRange(min=1, max=7 * 86400), default=60.0, show_default=True, help=_SECONDS)
@click.option("--batch", type=click.IntRange(min=1), help="Samples a step of a MODEL.  [default: as in train]")
@click.option("--shape", "shapes", multiple=True, metavar="A=64,128", help="Of an input of a formula; once an input.")
@click.option("--set", "settings", multiple=True, metavar="stride=2", help="Of a formula, or a MODEL's argument.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: all physical cores]")
@_memory_limit
@click.option("--graph", is_flag=True, help=_GRAPH)
@click.option("--picture", metavar="FILE", type=click.Path(path_type=Path), help="Draw the search, as a PNG.")
@click.option("--list", "listed", is_flag=True, help="Show what tuning has found.")
@click.option("--forget", metavar="KERNEL|all", help=_KERNEL)
@click.option("--export", "export_to", metavar="FILE", type=click.Path(path_type=Path), help="Write it to a file.")
@click.option("--import", "import_from", metavar="FILE", type=click.Path(path_type=Path), help="Take such a file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.pass_context
def tune_command(context: click.Context, what: str | None, as_json: bool, **options) -> None:
    """Find faster configurations of a program's kernels by measuring them, and store the results.

    MODEL and FILE are as in `einsmith explain`. Programs that are compiled later use the results of this machine,
    unless EINSMITH_TUNED is 0. Results from a file of another machine only seed a search.
    """
    stored = {name: options.pop(name) for name in ("listed", "forget", "export_to", "import_from")}
    if what is None:
        unused = [
            o.opts[0] for o in context.command.params
            if o.name in options and context.get_parameter_source(o.name) is ParameterSource.COMMANDLINE
        ]  # fmt: skip
        if unused:
            raise click.UsageError(f"{', '.join(unused)}: options of a search, which needs a MODEL or FILE")
        from einsmith.cli.tune import manage

        manage(**stored, as_json=as_json)
    elif any(value not in (None, False) for value in stored.values()):
        raise click.UsageError("--list, --forget, --export and --import are about what was found, not about a program")
    else:
        from einsmith.cli.search import search

        search(what, as_json=as_json, **options)


@app.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info_command(as_json: bool) -> None:
    """Show versions, the machine as Einsmith sees it, folders and environment variables."""
    from einsmith.cli.info import info

    info(as_json)


@app.command("cache")
@click.option("--clear", is_flag=True, help="Remove the compiled code; fetched data stays.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cache_command(clear: bool, as_json: bool) -> None:
    """Show the files in the cache, or remove the compiled code."""
    from einsmith.cli.info import cache

    cache(clear, as_json)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, 1 (failed), 2 (wrong use)."""
    try:
        app.main(args=None if arguments is None else list(arguments), prog_name="einsmith", standalone_mode=False)
        return OK
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.UsageError as e:
        e.show()
        return WRONG_USE
    except click.ClickException as e:
        return _failed(e.format_message(), FAILED)
    except (KeyboardInterrupt, click.Abort):
        return _failed("interrupted", FAILED)
    except KnobError as e:
        return _failed(str(e), WRONG_USE)
    except EinsmithError as e:
        return _failed(str(e), FAILED)
    except BrokenPipeError:
        # The reader of the output has gone; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as e:
        return _failed(f"{type(e).__name__}: {e} (a fault of Einsmith; EINSMITH_DEBUG=1 shows the trace)", FAILED)


def _failed(message: str, status: int) -> int:
    try:
        traced = environment.debug() > 0
    except KnobError:
        traced = False
    if traced:
        traceback.print_exc()
    click.echo(f"error: {message}", err=True)
    return status


def main() -> None:
    """Run the console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()
