"""Export of models of finished runs to one file that predicts and abstains without caveat."""
