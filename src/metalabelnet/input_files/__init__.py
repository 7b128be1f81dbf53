"""Safe reading of files from strangers: regular files only, and arrays no larger than the file that holds them."""
