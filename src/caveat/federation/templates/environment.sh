# Settings of all processes of this federation. For the flwr command: . ./environment.sh
FEDERATION="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export FEDERATION
export FLWR_HOME="$FEDERATION/.flower"
export FLWR_TELEMETRY_ENABLED=0                         # else to telemetry.flower.ai
export FLWR_DISABLE_UPDATE_CHECK=1                      # else to api.flower.ai
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1   # else the server installs from package indices before each run
export RAY_USAGE_STATS_ENABLED=0                        # else to usage-stats.ray.io
export OMP_NUM_THREADS=1                                # sums in the same order on every machine
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.3            # seconds between two polls for tasks; else 1
