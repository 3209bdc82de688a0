"""The loop that the PyTorch documentation teaches, written by hand for the default semantics.

It shares nothing with the plan, its operations or its arithmetic, and is bit-identical to them: each proves the other.
"""

import torch
from torch.utils.data import DataLoader


def train(task, recipe, make_optimizer, make_schedule, on_update=lambda update, model, optimizer, scaler: None):
    """Train `task` as `recipe` asks, with torch's own optimizer, schedule, clip and scaler; returns the model."""
    torch.manual_seed(recipe.seed)
    model = task.model()
    torch.manual_seed(recipe.seed)
    loader = DataLoader(task.train_data(), recipe.batch_size, shuffle=recipe.shuffle, drop_last=recipe.drop_last)
    optimizer = make_optimizer(model)
    scheduler = make_schedule(optimizer, len(loader))
    dtype = getattr(torch, recipe.precision.dtype)
    options = vars(recipe.scaler) if recipe.scaler else {}
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16, **options)
    update, epoch = 0, 0
    while epoch < recipe.epochs if recipe.updates is None else update < recipe.updates:
        model.train()
        for index, batch in enumerate(loader):
            left = len(loader) - index // recipe.accumulation * recipe.accumulation
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                loss = task.loss(model, batch, "mean")
            scaler.scale(loss / min(recipe.accumulation, left)).backward()
            if (index + 1) % recipe.accumulation and index + 1 < len(loader):
                continue
            scaler.unscale_(optimizer)
            if recipe.clip and recipe.clip.max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip.max_norm)
            elif recipe.clip:
                torch.nn.utils.clip_grad_value_(model.parameters(), recipe.clip.max_value)
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scale:  # a skipped update does not move the schedule
                scheduler.step()
            optimizer.zero_grad()
            on_update(update, model, optimizer, scaler)
            update += 1
            if recipe.evaluate and update % recipe.evaluate.every == 0 and task.metrics:
                model.eval()
                with torch.no_grad():
                    task.metrics(model, DataLoader(task.eval_data(), recipe.batch_size))
                model.train()
            if update == recipe.updates:
                break
        epoch += 1
    return model
