"""Numbers of the parts of a data set, for sources that list the samples of all parts in one table."""

TRAIN, CLEAN, TEST, SECOND_TEST, LEFT_OUT = range(5)  # samples that are left out belong to no part
