"""Pages that hold everything they show, and the drawings and tables on them."""
