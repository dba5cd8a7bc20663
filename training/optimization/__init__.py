"""Losses, the optimizer and its learning rates, the teacher of a distillation, and fine-tuning."""
