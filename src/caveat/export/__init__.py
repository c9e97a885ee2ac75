"""Models of finished runs that go elsewhere, as one file that abstains as the run does."""
