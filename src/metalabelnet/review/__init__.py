"""The review page: check suspects, build a clean set, export both.

source              samples, labels and predictions, from a finished run or from data alone
array_samples       the samples of data that is arrays
run_label_table     the label table of a run
sample_display      images, texts and table cells of samples
informativeness     which samples to review first
store               the SQLite file with samples and verdicts
verdicts            adding and undoing verdicts, and their history
filters             the filtered and paged list of samples
clean_set_sampling  the next sample for a clean set, and the progress of the set
noise_rate          the estimated noise rate and its confidence interval
exports             clean set, corrected labels and verdicts as CSV
request_forms, access, app, server   forms, access control, pages, and the web server
browser             opening the page without showing its token to other users

Only `app`, `access` and `server` need the extra `review`; exporting from the command line works without it.
"""
