"""Public trainers, each driven as its documentation drives it; the framework is imported when a job is trained.

An adapter passes on what the recipe states and leaves everything else at the trainer's defaults, since a default that
nobody asked for is what a user wants to see. It builds nothing that the trainer would build itself.
"""
