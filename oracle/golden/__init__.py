"""Goldens: small committed files that say when a trainer, or what it runs on, moves."""
