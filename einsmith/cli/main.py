"""Define the command line of `einsmith`: its commands, error messages and exit statuses."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
from click.core import ParameterSource

from einsmith.base import environment
from einsmith.base.errors import EinsmithError, KnobError
from einsmith.cli import common_options
from einsmith.cli.common_options import BATCH, COUNT, PATH, POSITIVE, SEED
from einsmith.cli.language_commands import finetune_command, generate_command
from einsmith.cost.microarchitectures import VECTORS

OK, FAILED, WRONG_USE = 0, 1, 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def app() -> None:
    """Einsmith: a training compiler."""


_UNIT = "Unit of a text's tokens.  [default: word; gpt_small: character]"
_DECAY = click.FloatRange(min=0, max=1, max_open=True)
_MODE = "dynamic tunes the kernels during training.  [default: static, or as saved]"


@app.command("train")
@click.argument("model")
@click.option("--data", metavar="NAME|DIR", help="Training data, listed above.  [default: the first one of the MODEL]")
@click.option("--epochs", type=COUNT, help="Number of epochs in all.  [default: 5, or as saved]")
@click.option("--batch", type=BATCH, help="Batch size: samples, or columns of text.  [default: by the task]")
@click.option("--set", "arguments", multiple=True, metavar="width=128", help="Set an argument of the model.")
@click.option("--steps", type=COUNT, help="Length of a window of text, in tokens.  [default: 35; gpt_small: 128]")
@click.option("--vocabulary", type=click.IntRange(min=2), help="Largest size of a text's vocabulary.  [default: 10000]")
@click.option("--unit", type=click.Choice(["word", "character"]), help=_UNIT)
@click.option("--size", type=COUNT, help="Pixels a side to which a folder's images are scaled.  [default: 32]")
@click.option("--augment", is_flag=True, default=None, help="Shift and mirror the images at random.")
@click.option("--optimizer", help="sgd, momentum, adam, adamw, or another of es.optim such as lion.  [default: adam]")
@click.option("--lr", type=POSITIVE, help="Learning rate.  [default: the optimizer's]")
@click.option(
    "--schedule", type=click.Choice(["constant", "cosine"]), help="Learning rate schedule.  [default: cosine]"
)
@click.option("--clip", type=POSITIVE, help="Largest norm of the gradients; larger ones are clipped.")
@click.option("--accumulate", type=COUNT, help="Batches per update, whose gradients are accumulated.  [default: 1]")
@click.option(
    "--ema",
    type=_DECAY,
    help="Decay of an exponential moving average of the weights, which is evaluated in their place.",
)
@common_options.precision
@click.option("--seed", type=SEED, help="Seed of the initial weights and of the data's order.  [default: 0]")
@click.option("--save", "save_to", metavar="DIR", help="Save to this folder after every epoch, for --resume.")
@click.option("--resume", metavar="DIR", help="Continue the run saved in this folder, with its settings.")
@common_options.threads
@click.option("--device", metavar="NAME", help="cpu, cuda, or a card by its number, as in cuda:1.")
@common_options.memory_limit
@common_options.max_stored
@click.option("--mode", type=click.Choice(["static", "dynamic"]), help=_MODE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per epoch, and one at the end.")
def train_command(model: str, save_to: str | None, as_json: bool, **options) -> None:
    """Train MODEL and show its accuracy on the test images, or its perplexity on the test text.

    \b
    lenet5, mlp3                 --data mnist, fashion-mnist, or a folder of idx files named as MNIST's
    milstm, scrn, sublstm, lltm  --data mnist-rows, or such a folder: images read row by row
    lstm-lm, gpt_small           --data sotu, moby-dick, or a folder with train.txt and test.txt
    others                       --data cifar10, or a folder with train and test, which hold a folder per class

    gpt_small learns characters unless --unit says word; --set width=128 --set layers=4 makes a small one.

    MODEL may also be a FILE.onnx, whose network is trained further; --data is one of the above that fits its input, or
    a .npz file of arrays x and y, and --save writes model.onnx with the new weights too.

    Ctrl-C stops between two steps and leaves a save that can be resumed where --save was given.
    """
    from einsmith.cli.train import train

    train(model, save_to=save_to, as_json=as_json, **options)


app.add_command(finetune_command)
app.add_command(generate_command)


_CANDIDATES = "Candidates shown per kernel, besides the best of every other pattern."
_OVERRIDE = (
    "Compile a kernel (its hexadecimal digits, as printed) to this configuration; the cost model chooses missing genes."
)


@app.command("explain")
@click.argument("what", metavar="MODEL|FILE")
@click.option("--batch", type=BATCH, help="Batch size of a MODEL's step.  [default: as in train]")
@common_options.shapes
@common_options.settings
@click.option("--candidates", type=click.IntRange(min=0), default=3, show_default=True, help=_CANDIDATES)
@click.option("--measure", is_flag=True, help="Measure each kernel within the program, and its candidates alone.")
@common_options.threads
@click.option("--device", metavar="NAME", help="cpu, cuda, cuda:1, or a card that need not be there: h100, h200.")
@click.option("--target", type=click.Choice(list(VECTORS)), help="Choose kernels for another CPU; nothing runs.")
@click.option("--counts", is_flag=True, help="Count the instructions of each candidate, and of scalar code.")
@common_options.memory_limit
@common_options.max_stored
@click.option("--override", "overrides", multiple=True, metavar="KERNEL PATTERN GENE=VALUE...", help=_OVERRIDE)
@click.option("--html", metavar="FILE", type=PATH, help="Write an HTML report to this file instead.")
@click.option(
    "--dump",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the graph after every pass, the plan and the program to this folder too (es.load_graph reads it).",
)
@click.option(
    "--trace",
    metavar="FILE",
    type=PATH,
    help="Write the phases of compilation and a run to this file too, as Chrome trace events for Perfetto.",
)
@click.option("--ranks", type=COUNT, help="Predict a MODEL's step on up to so many processes instead.")
@click.option(
    "--network", default="25 Gb/s, 10 us", show_default=True, help="Bandwidth and latency of each process, for --ranks."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain_command(what: str, ranks: int | None, network: str, **options) -> None:
    """Show the kernels of a program: fused stages, the chosen configuration, rejected ones and their predicted cost.

    MODEL, as in `einsmith train`, means its training step. FILE is a Python file that defines `step`, a TrainStep or a
    function, and `inputs`, the tuple of its arguments; or a .onnx file, whose network is shown in evaluation mode,
    where --shape gives shapes that it leaves open and --set numbers that it takes; any other file is a formula, whose
    inputs' shapes --shape gives.
    """
    if ranks is not None:
        from einsmith.cli.scaling import scale

        shared = {n: options[n] for n in ("batch", "settings", "threads", "as_json")}
        others = (
            "shapes",
            "measure",
            "device",
            "target",
            "counts",
            "memory_limit",
            "max_stored",
            "overrides",
            "html",
            "dump",
            "trace",
        )
        if unused := [n for n in others if options[n]]:
            raise click.UsageError(f"--ranks goes without {', '.join('--' + n.rstrip('s') for n in unused)}")
        scale(what, ranks=ranks, network=network, **shared)
        return
    from einsmith.cli.explain import explain

    explain(what, **options)


@app.command("run")
@click.argument("what", metavar="FILE.onnx")
@click.option(
    "--input", "inputs", multiple=True, metavar="[NAME=]X.npy", help="Array for an input, in order or by name."
)
@click.option(
    "--output", metavar="FILE.npz", type=PATH, help="Write the outputs to this file instead of printing them."
)
@common_options.threads
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per output.")
def run_command(what: str, **options) -> None:
    """Show the outputs of an ONNX file's network for arrays, in evaluation mode."""
    from einsmith.cli.onnx_files import run

    run(what, **options)


@app.command("export")
@click.argument("what", metavar="MODEL|DIR")
@click.argument("folder", metavar="FOLDER|FILE.onnx", type=PATH)
@click.option("--batch", type=BATCH, help="Batch size of the step.  [default: as in train]")
@click.option("--set", "settings", multiple=True, metavar="width=128", help="Set an argument of the MODEL.")
@click.option("--name", help="Prefix of the C functions' names.  [default: the model's name]")
@click.option(
    "--target", default="host", help="x86-64 to x86-64-v4, aarch64, wasm or wasm-relaxed.  [default: this machine]"
)
@click.option("--schedule", type=COUNT, help="Number of steps whose scheduled learning rates are written as a table.")
@common_options.threads
@click.option(
    "--compiler",
    metavar="CC",
    help="C compiler that links the library.  [default: cc, gcc or clang; for wasm clang or zig]",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing export.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export_command(what: str, folder: Path, **options) -> None:
    """Write a training step into FOLDER as a library for C that needs no Python: header, object file, shared library,
    weights and a manifest; with --target wasm as a module of WebAssembly, with JavaScript that loads it.

    MODEL, as in `einsmith train`, has new weights and Adam's rule; DIR is a run that `einsmith train --save` wrote,
    which continues from its last step (its schedule of learning rates needs --schedule).

    A FOLDER that ends in .onnx is an ONNX file: the network in evaluation mode, for batches of any size, or of the size
    that --batch gives.
    """
    from einsmith.cli.export import export_command

    export_command(what, folder, **options)


@app.command("bench")
@click.argument("what", metavar="[MODEL ...]", nargs=-1)
@click.option("--batch", type=BATCH, help="Batch size.  [default: 4; mlp3, lenet5: 64]")
@click.option("--peers", help="Some of torch, compile, comma-separated.  [default: all]")
@common_options.threads
@click.option(
    "--cap",
    type=click.FloatRange(min=1),
    help="Seconds that a peer may take for a model, compilation included.  [default: 180; mlp3, lenet5: 60]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per model.")
def bench_command(what: tuple[str, ...], **options) -> None:
    """Compare training steps on this machine with PyTorch, eager and by torch.compile.

    MODEL is a name of `einsmith train`, of all but recurrent networks; without one, mlp3 and lenet5 are compared. Each
    library runs in a process of its own, with caches that start empty, and PyTorch's programs have the layers of the
    model. Losses and updated weights are compared with PyTorch in float64 before anything is timed; then all take turns
    in every round. A checkout compares recurrent networks, single operators and more libraries (benchmarks/).
    """
    from einsmith.cli.bench import bench

    bench(what, **options)


@app.command("shrink")
@click.argument("file", metavar="FILE.py", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--gradients", is_flag=True, help="Look at the gradients too, if the results are right.")
@click.option("--seconds", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Time limit.")
@click.option("--output", metavar="FILE", type=PATH, help="Write the smaller file here instead of printing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def shrink_command(file: Path, **options) -> None:
    """Find the smallest formula and sizes that fail as those of FILE.py do, and print them as a file to run.

    FILE.py defines `op`, a formula (es.op), `inputs`, a tuple of its arrays or a dictionary of them by name, and
    perhaps `parameters`, a dictionary. It fails if it raises an error, or if its results differ from those of the
    reference evaluator by more than roundings. A smaller one fails in the same way: by an error of the same class, or
    by results.
    """
    from einsmith.cli.shrink import shrink_file

    shrink_file(file, **options)


@app.command("calibrate")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate_command(as_json: bool) -> None:
    """Measure this machine anew (3 to 9 seconds) and store the figures, which the choice of kernels is based on.

    This happens automatically at the first use on a machine. Figures that were disturbed by other work are not stored:
    earlier figures stay valid, and programs that find none measure again. New figures may lead to other choices, and so
    to other rounding: a run that was saved before may continue with other last digits.
    """
    from einsmith.cli.info import calibrate

    calibrate(as_json)


_KERNEL = "Remove the stored results of a kernel (4 or more of the digits that --list prints), or all results."


_SECONDS = "Time limit of the search, in seconds."
_WORKERS = (
    "Measure on other hosts of this kind: mpi (the other processes of mpirun), the address of a Dask scheduler, as "
    "tcp://HOST:8786, or MODULE:FUNCTION, which returns an executor as in concurrent.futures."
)
_GRAPH = "Use half of the time to measure the decisions of the graph passes, before tuning kernels."


@app.command("tune")
@click.argument("what", metavar="[MODEL|FILE]", required=False)
@click.option("--seconds", type=click.FloatRange(min=1, max=7 * 86400), default=60.0, show_default=True, help=_SECONDS)
@click.option("--batch", type=BATCH, help="Batch size of a MODEL's step.  [default: as in train]")
@common_options.shapes
@common_options.settings
@common_options.threads
@common_options.memory_limit
@common_options.max_stored
@click.option("--device", metavar="NAME", help="cpu, cuda, or a card by its number, as in cuda:1.")
@click.option("--graph", is_flag=True, help=_GRAPH)
@click.option("--workers", metavar="SPEC", help=_WORKERS)
@click.option("--picture", metavar="FILE", type=PATH, help="Write a plot of the search to this PNG file.")
@click.option("--list", "listed", is_flag=True, help="Show the stored results of tuning.")
@click.option("--forget", metavar="KERNEL|all", help=_KERNEL)
@click.option("--export", "export_to", metavar="FILE", type=PATH, help="Write the stored results to this file.")
@click.option(
    "--import", "import_from", metavar="FILE", type=PATH, help="Add the results of a file that --export wrote."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.pass_context
def tune_command(context: click.Context, what: str | None, as_json: bool, **options) -> None:
    """Find faster configurations of a program's kernels by measuring them, and store the results.

    MODEL and FILE are as in `einsmith explain`. Programs that are compiled later use the results of this machine,
    unless EINSMITH_TUNED is 0. Results from a file of another machine only seed a search.
    """
    stored = {name: options.pop(name) for name in ("listed", "forget", "export_to", "import_from")}
    if what is None:
        unused = [
            o.opts[0]
            for o in context.command.params
            if o.name in options and context.get_parameter_source(o.name) is ParameterSource.COMMANDLINE
        ]
        if unused:
            raise click.UsageError(f"{', '.join(unused)}: these options belong to a search; name a MODEL or FILE")
        from einsmith.cli.tune import manage

        manage(**stored, as_json=as_json)
    elif any(value not in (None, False) for value in stored.values()):
        raise click.UsageError(
            "--list, --forget, --export and --import manage the stored results; leave out MODEL or FILE"
        )
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
@click.option("--clear", is_flag=True, help="Remove the compiled code; downloaded data sets stay.")
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
        return _report_failure(e.format_message(), FAILED)
    except (KeyboardInterrupt, click.Abort):
        return _report_failure("interrupted", FAILED)
    except KnobError as e:
        return _report_failure(str(e), WRONG_USE)
    except EinsmithError as e:
        return _report_failure(str(e), FAILED)
    except BrokenPipeError:  # the reader of the output has gone
        _drop_output()
        return FAILED
    except MemoryError as e:
        return _report_failure(f"there is not enough memory: {e}" if str(e) else "there is not enough memory", FAILED)
    except Exception as e:
        if isinstance(e, OSError) and e.errno is not None:
            if e.filename is None:  # of the output, such as a full disk
                _drop_output()
            place = "" if e.filename is None else f"{os.fsdecode(e.filename)}: "
            return _report_failure(place + os.strerror(e.errno), FAILED)
        return _report_failure(
            f"{type(e).__name__}: {e} (a fault of Einsmith; EINSMITH_DEBUG=1 shows the trace)", FAILED
        )


def _drop_output() -> None:
    """Have the interpreter write what is left of the output nowhere at its exit: it would complain."""
    with suppress(OSError, ValueError):  # there is no such stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_failure(message: str, status: int) -> int:
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
