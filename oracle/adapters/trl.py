"""TRL: `SFTTrainer` on a model of transformers, whole or with PEFT's adapters, and tokenised samples."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from oracle.adapters import transformers as base
from oracle.adapters.arguments import one_process, told
from oracle.errors import TrainerError

PREPARED = {"dataset_kwargs": {"skip_prepare_dataset": True}}
"""The samples are tokenised already."""


def remedies_of(adapter: Any) -> dict[str, dict[str, Any]]:
    """What `TrainingArguments` restores, as arguments of `SFTConfig`."""
    return {
        key: {name.replace("TrainingArguments.", "SFTConfig."): value for name, value in arguments.items()}
        for key, arguments in adapter.remedies.items()
        if not any(name.startswith("Trainer.") for name in arguments)
    }


class Adapter:
    """Trains a job with `SFTTrainer`, which computes the loss of a causal language model itself."""

    name = "trl"
    package = "trl"
    remedies: ClassVar = remedies_of(base.Adapter)

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        return {
            name.replace("TrainingArguments.", "SFTConfig.").replace("Trainer.", "SFTTrainer."): value
            for name, value in base.Adapter().passes(recipe).items()
        } | {f"SFTConfig.{name}": value for name, value in PREPARED.items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with `SFTTrainer`; None where it can."""
        return one_process(recipe) or base.Adapter().refuse(recipe)

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that `SFTTrainer` does not have, or the task's model is none of
                transformers'.
        """
        os.environ.update({"HF_HUB_OFFLINE": "1"}, **told("environ", self.arguments))
        import transformers
        import trl

        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'trl': {reason}")
        model = job.model()
        if not isinstance(model, transformers.PreTrainedModel) and not hasattr(model, "peft_config"):
            raise TrainerError(
                f"trainer 'trl': SFTTrainer trains models of transformers, found {type(model).__name__}: "
                "give a task whose model is one, such as 'llama'"
            )
        extra: dict[str, Any] = {}
        if recipe.evaluate is not None:
            extra["eval_dataset"] = tokenised(job.eval_data(), "eval")
        if not base.by_arguments(recipe.optimizer):
            extra["optimizers"] = (job.optimizer(model), None)
        kind = base.in_float16(trl.SFTTrainer) if self.arguments.get("float16.on_cpu") else trl.SFTTrainer
        arguments = base.training_arguments(job) | PREPARED | told("SFTConfig", self.arguments)
        trainer = kind(
            model=model,
            args=trl.SFTConfig(**arguments),
            train_dataset=tokenised(job.train_data(), "train"),
            processing_class=tokenizer(model),
            callbacks=[base.reporter(job)],
            **extra,
        )
        if job.resume_from is None:
            trainer.train()
        else:
            trainer.train(resume_from_checkpoint=base.last_checkpoint(job.resume_from))


def tokenised(data: Any, name: str) -> Any:
    """The samples as a data set of `datasets`, as lists of numbers.

    name: stands for the content where `datasets` would compute a hash, which fails beside some versions of pyarrow.

    Raises:
        TrainerError: they are not tokenised.
    """
    from datasets import Dataset
    from datasets.table import InMemoryTable

    samples = [data[index] for index in range(len(data))]
    if absent := [name for name in ("input_ids", "labels") if name not in samples[0]]:
        raise TrainerError(f"trainer 'trl': the task's samples have no {absent[0]}: give them 'input_ids' and 'labels'")
    rows = [{key: value.tolist() for key, value in sample.items()} for sample in samples]
    return Dataset(InMemoryTable.from_pylist(rows), fingerprint=name)


def tokenizer(model: Any) -> Any:
    """A tokenizer with the model's vocabulary, whose tokens are their numbers: `SFTTrainer` asks for the padding."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    size = model.config.vocab_size
    vocabulary = {str(number): number for number in range(size)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="0")), pad_token=str(size - 1), eos_token="0"
    )
