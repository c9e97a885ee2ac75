# Settings of all processes of this federation. For the flwr command: . ./environment.sh
FEDERATION="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export FEDERATION
export FLWR_HOME="$FEDERATION/.flower"
export FLWR_TELEMETRY_ENABLED=0                         # 1 sends usage data to telemetry.flower.ai
export FLWR_DISABLE_UPDATE_CHECK=1                      # 0 asks api.flower.ai for updates
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1   # 0 lets the server install packages before each run
export RAY_USAGE_STATS_ENABLED=0                        # 1 sends usage data to usage-stats.ray.io
export OMP_NUM_THREADS=1                                # sums in the same order on every machine
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.3            # seconds between two polls for tasks; by default 1
