"""Evaluation: what every seed answers, how an answer is made of logits, and measures of it."""
