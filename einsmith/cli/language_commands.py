"""Define the commands for published language models: `einsmith finetune` and `einsmith generate`."""

from __future__ import annotations

from pathlib import Path

import click

from einsmith.base.precisions import KEPT
from einsmith.cli import common_options
from einsmith.cli.common_options import BATCH, COUNT, POSITIVE, SEED

_FOLDER = click.Path(path_type=Path, file_okay=False)
_DATA = (
    'Training data: a .jsonl file of rows {"text"}, {"prompt", "completion"} or {"tokens"}, or a .txt file.  '
    "[default: as saved]"
)
_TARGETS = (
    "Layers that are adapted: names with commas, a regular expression, or all-linear, as PEFT's target_modules.  "
    "[default: all-linear]"
)
_VALIDATION = "Fraction of the documents, as 0.05, or a file, whose loss is shown after every epoch."
_LENGTH = "Tokens in a row.  [default: 512, or as many as the model reads]"
_LR = "Highest learning rate, after the warm-up.  [default: 0.0002; --full: 0.00002]"
_WEIGHTS = "How frozen weights are kept in memory; products widen them.  [default: fp32]"
_PAD = "One document in a row, instead of as many as fit."


@click.command("finetune")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--data", metavar="FILE", help=_DATA)
@click.option("--lora", "rank", metavar="RANK", type=COUNT, help="Train adapters of this rank.")
@click.option("--full", is_flag=True, default=None, help="Train all weights instead.")
@click.option(
    "--save", "save_to", metavar="OUT", required=True, help="Folder of the adapter, or of the model (--full)."
)
@click.option("--resume", is_flag=True, help="Continue the run that is saved in OUT, with its settings.")
@click.option("--targets", help=_TARGETS)
@click.option("--alpha", type=POSITIVE, help="Adapters count alpha/RANK times.  [default: RANK]")
@click.option("--dora", is_flag=True, default=None, help="Learn the norms of the adapted rows, too (DoRA).")
@click.option(
    "--dropout", type=click.FloatRange(min=0, max=1, max_open=True), help="Dropout before adapters.  [default: 0]"
)
@click.option("--epochs", type=COUNT, help="Number of epochs in all.  [default: 3, or as saved]")
@click.option("--batch", type=BATCH, help="Rows in a batch.  [default: 4]")
@click.option("--length", type=COUNT, help=_LENGTH)
@click.option("--lr", type=POSITIVE, help=_LR)
@click.option("--accumulate", type=COUNT, help="Batches per update.  [default: 1]")
@click.option("--clip", type=POSITIVE, help="Largest norm of the gradients.  [default: 1]")
@click.option("--validation", metavar="SHARE|FILE", help=_VALIDATION)
@click.option("--pad", "is_padded", is_flag=True, default=None, help=_PAD)
@click.option(
    "--divide", "is_divided", is_flag=True, default=None, help="Blank lines divide a .txt file into documents."
)
@click.option("--seed", type=SEED, help="Seed of adapters, order and held-out part.  [default: 0]")
@common_options.precision
@click.option("--weights", "keep", type=click.Choice(("fp32", *KEPT)), help=_WEIGHTS)
@common_options.threads
@common_options.memory_limit
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per epoch, and one at the end.")
def finetune_command(folder: Path, save_to: str, as_json: bool, **options) -> None:
    """Fine-tune the language model in DIR: train adapters of low rank (LoRA), or all weights.

    DIR is a published folder: config.json, safetensors files and, for texts, tokenizer.json. OUT becomes an adapter
    that PEFT and `einsmith generate --adapter` read, or, with --full, a folder like DIR; its folder `run` holds what
    --resume needs.

    A row of prompt and completion teaches the completion only. Rows of the data are joined to rows of the same length,
    in which documents do not see each other.

    The learning rate rises over the first 5 % of the updates and falls along a cosine to a hundredth (AdamW).

    Ctrl-C stops between two steps and leaves a save that --resume continues, bitwise as if nothing had been.
    """
    from einsmith.cli.finetune import finetune

    finetune(folder, save_to=save_to, as_json=as_json, **options)


_TEMPERATURE = "Divisor of the logits of drawn tokens; 0 takes the most likely token.  [default: 0]"


@click.command("generate")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("text")
@click.option("--max-tokens", type=COUNT, help="Tokens that follow at most.  [default: 128]")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, help=_TEMPERATURE)
@click.option("--top-k", type=COUNT, help="Draw one of so many most likely tokens.")
@click.option(
    "--top-p", type=click.FloatRange(0, 1), help="Draw one of the tokens that have this probability together."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the draws.")
@click.option("--adapter", metavar="OUT", type=_FOLDER, help="Folder of an adapter, of `einsmith finetune` or PEFT.")
@click.option("--weights", "keep", type=click.Choice(("fp32", *KEPT)), default="fp32", help=_WEIGHTS)
@common_options.threads
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def generate_command(folder: Path, text: str, as_json: bool, **options) -> None:
    """Continue a TEXT with the language model in a folder.

    DIR holds a published model: config.json, safetensors files and tokenizer.json, of GPT-2, Llama, SmolLM, Mistral,
    Qwen2 or Qwen3. The text is printed as it grows, until the model ends it.
    """
    from einsmith.cli.generate import generate

    generate(folder, text, as_json, **options)
