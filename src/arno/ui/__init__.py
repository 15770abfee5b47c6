"""The live view: a local web page over a folder of runs."""
