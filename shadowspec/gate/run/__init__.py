"""A gate run: folds new rows into evidence and decides, in transactions under the endpoint's lock.

In: a store session, a policy and a moment.
Out: appended audits, folds, evidence and decisions; overrides that an audit sets; explanations and curves.
Imports: metrics, text, gc_control, types, errors.
"""
