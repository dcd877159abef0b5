#!/bin/sh
# After a job, as root on each node: slurm.conf has Epilog=/etc/slurm/zeus-core-epilog.sh, a copy of this file.
# Restores what the job may have left, and adds the runs that it has recorded to the catalogue, also of programs that were killed. It never fails.
# Runs with ZEUS_TAGS=none do not name their job: one that goes on in another job is recorded again.
# Only files of the job's own user count: anybody may write to the folder `new`, which has the mode 1777.
ZEUS_CORE=${ZEUS_CORE:-/opt/zeus-core/bin/python -I -m zeus_core}
CATALOGUE=${CATALOGUE:-/shared/zeus-core}

records() {
    find "$CATALOGUE/new" -maxdepth 1 -type f -uid "$SLURM_JOB_UID" \
        \( -name "$SLURM_JOB_ID-*.json" -o -name "none-*.json" \) "$@"
}

{
    $ZEUS_CORE restore --stale
    # What cannot be added stays where it is, and the log says why.
    # shellcheck disable=SC2086  # several words
    [ -z "$(records)" ] || { records -exec $ZEUS_CORE runs add --ended "$CATALOGUE" {} + && records -delete; }
} 2>&1 | logger -t zeus-core 2>/dev/null
exit 0
