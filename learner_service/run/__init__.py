"""The life of a run: its identity, its environment, its evaluations and its end.

A module calls only modules above it in this list. It learns the rest from return values.

identity      the files that identify a run: id, spec, time
outcome       the outcome of a run, and the commands of operators, on disk
evaluations   the log of evaluations
best_policy   keeps the policy with the best evaluation
scaling       how many actors the run can use
records       what is known of the run: members, evaluations, resources, time, training
judge         checks and stores evaluations, and compares them with the target return
lifecycle     training begins; the run ends, or is left to the next learner
preparation   builds the training for the environment, and resets it
connections   actors and evaluators: they join, open streams, and send evaluations
run           makes all of these; pause, resume and save
"""
