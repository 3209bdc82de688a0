"""ms-swift: its `Seq2SeqTrainer` on a model of transformers, with a template that passes tokenised samples on."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from oracle.adapters import transformers as base
from oracle.adapters import trl
from oracle.adapters.arguments import one_process, told
from oracle.errors import TrainerError

OFFLINE: dict[str, Any] = {"check_model": False, "report_to": []}
"""It would ask a hub for a newer model, and write for TensorBoard."""

OWN = "Seq2SeqTrainingArguments"


class Adapter:
    """Trains a job with `Seq2SeqTrainer`; its template, made by ms-swift for the saved model, puts batches together."""

    name = "swift"
    package = "ms-swift"
    remedies: ClassVar = {
        key: {name.replace("SFTConfig.", f"{OWN}."): value for name, value in arguments.items()}
        for key, arguments in trl.Adapter.remedies.items()
    }

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments  # by "Class.argument"

    def passes(self, recipe: Any) -> dict[str, Any]:
        """What is passed for a recipe, by "Class.argument"."""
        found = {
            name.replace("TrainingArguments.", f"{OWN}.").replace("Trainer.", "Seq2SeqTrainer."): value
            for name, value in base.Adapter().passes(recipe).items()
        }
        return found | {f"{OWN}.{name}": value for name, value in {**OFFLINE, **order(recipe)}.items()}

    def refuse(self, recipe: Any) -> str | None:
        """Why a recipe cannot be trained with `Seq2SeqTrainer`; None where it can."""
        return one_process(recipe) or base.Adapter().refuse(recipe)

    def train(self, job: Any) -> None:
        """Train the job.

        Raises:
            TrainerError: the recipe asks for something that `Seq2SeqTrainer` does not have, or the task's model is none
                of transformers'.
        """
        os.environ.update({"HF_HUB_OFFLINE": "1"}, **told("environ", self.arguments))
        recipe = job.recipe
        if reason := self.refuse(recipe):
            raise TrainerError(f"trainer 'swift': {reason}")
        from swift.trainers import Seq2SeqTrainer, Seq2SeqTrainingArguments
        from transformers import PreTrainedModel

        model = job.model()
        if not isinstance(model, PreTrainedModel):
            raise TrainerError(
                f"trainer 'swift': Seq2SeqTrainer trains models of transformers, found {type(model).__name__}: "
                "give a task whose model is one, such as 'llama'"
            )
        extra: dict[str, Any] = {}
        if recipe.evaluate is not None:
            extra["eval_dataset"] = trl.tokenised(job.eval_data(), "eval")
        if not base.by_arguments(recipe.optimizer):
            extra["optimizers"] = (job.optimizer(model), None)
        kind = base.in_float16(Seq2SeqTrainer) if self.arguments.get("float16.on_cpu") else Seq2SeqTrainer
        arguments = base.training_arguments(job) | OFFLINE | order(recipe) | told(OWN, self.arguments)
        trainer = kind(
            model=model,
            args=Seq2SeqTrainingArguments(**arguments),
            template=template(job, model),
            train_dataset=trl.tokenised(job.train_data(), "train"),
            **extra,
        )
        trainer.add_callback(base.reporter(job))
        if job.resume_from is None:
            trainer.train()
        else:
            trainer.train(resume_from_checkpoint=base.last_checkpoint(job.resume_from))


def order(recipe: Any) -> dict[str, Any]:
    """ms-swift's own argument for the order of samples, which it reads in place of `Trainer`'s."""
    return {"train_dataloader_shuffle": recipe.shuffle}


def template(job: Any, model: Any) -> Any:
    """ms-swift's template for the model, which it knows by the folder that it lies in; it says nothing to the samples.

    The model gets what ms-swift notes on those that it loads itself.
    """
    from swift.model import get_model_processor
    from swift.template import get_template

    folder = str(job.workdir / "model")
    model.save_pretrained(folder)
    trl.tokenizer(model).save_pretrained(folder)
    _, processor = get_model_processor(folder, model_type=model.config.model_type, load_model=False)
    model.model_meta, model.model_info, model.model_dir = processor.model_meta, processor.model_info, folder
    found = get_template(processor, template_type="dummy")
    found.set_mode("train")
    return found
