"""The roles of an actor process: explore for a learner, evaluate for it, or evaluate alone."""
