"""What a training minimises, and how: losses, the optimizer and its learning rates, the teacher, fine-tuning."""
