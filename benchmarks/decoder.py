"""A decoder of ten million parameters and one training step of it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, WORDS, CONTEXT = 384, 6, 6, 256, 64


class Block(nn.Module):
    """Attention and a feed-forward network, each after a norm and added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attend, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) in and out."""
        query, key, value = self.attend(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(2, 3)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).flatten(-2))
        return x + self.narrow(functional.gelu(self.widen(self.norms[1](x))))


class Decoder(nn.Module):
    """Predicts each next word; its forward gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The mean loss of (batch, CONTEXT + 1) words."""
        given, wanted = words[:, :-1], words[:, 1:]
        logits = self.head(self.norm(self.blocks(self.words(given) + self.places.weight)))
        return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


class Training:
    """A decoder, its AdamW and one batch of `tokens` tokens. Calling it makes one update."""

    def __init__(self, tokens: int) -> None:
        torch.manual_seed(0)
        self.model = Decoder()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.words = torch.randint(WORDS, (tokens // CONTEXT, CONTEXT + 1))

    def __call__(self) -> None:
        self.model(self.words).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
