"""The pages: of a run, of a comparison, of an audit."""
