"""Many runs: compared, reproduced from papers, audited."""
