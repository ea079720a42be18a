"""Whether a grader pays for nothing: answers that must not be paid, and what they are paid."""
