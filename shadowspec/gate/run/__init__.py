"""A gate run: folds new rows into evidence and decides, in transactions under the endpoint's lock.

In: a store session, a policy and a moment.
Out: appended folds, evidence and decisions; explanations and curves of stored ones.
Imports: metrics, gc_control, types, errors.
"""
