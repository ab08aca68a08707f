"""What an actor process does: explore for a learner, evaluate for it, or evaluate alone."""
