"""Tuning of whole programs: before training, during training (dynamic mode), and of their graphs."""
