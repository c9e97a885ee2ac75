"""The leaderboard of `caveat bench`: federations, cells, figures, the board and its page."""
