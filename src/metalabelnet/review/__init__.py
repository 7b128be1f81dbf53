"""The page where a person looks at labels: checks suspects, builds a clean set, takes both away.

source       where samples, their labels and what a run thinks of them come from
contents     what a sample looks like
informative  which samples are worth a look
store        the SQLite file: samples, read once, and verdicts, never changed
verdicts     a verdict, its undoing, its history
pages        filters, and the list a page at a time
draw         which sample is next for a clean set, and how far it is
noise_rate   how many given labels are wrong, and how sure that is
take         the clean set, the corrected labels, the verdicts as CSV
forms, guard, app, server   what a browser sends, who may ask, what is answered, and where

Only `app` and `server` need more than training does; the commands that take results away run without them.
"""
