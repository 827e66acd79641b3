#!/bin/bash
# Starts the course's kernel with the settings of a site. A JupyterHub runs this, as kernel.json says:
#     start_kernel.sh SITE PYTHON -f CONNECTION_FILE
# A hub uses no login shell. Therefore this script loads the site's modules and enters its container before Python starts.
# https://docs.nersc.gov/services/jupyter/how-to-guides/ ("customize a kernel with a helper shell script")
# https://docs.jupyter-jsc.fz-juelich.de/github/FZJ-JSC/jupyter-jsc-notebooks/
course=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
site=$1
python=$2
shift 2

# The command `module` is a function that /etc/profile defines. That file also sets PATH, so the old PATH is added again.
# https://lmod.readthedocs.io/en/latest/030_installing.html
if ! type module >/dev/null 2>&1; then
    path=$PATH
    source /etc/profile >&2
    export PATH="$PATH:$path"
fi

set -eo pipefail # a module that cannot be loaded, or a missing setting, stops the kernel
source "$course/slurm/sites/$site.sh" >&2
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}" # threads that wait leave their core to others
export PYTHONSTARTUP="$course/hub/startup.py"
export PYTHONPATH="$course${PYTHONPATH:+:$PYTHONPATH}" # an image need not have the course installed
read -r -a container <<<"${DLTUTORIAL_CONTAINER:-}"
exec "${container[@]}" "${DLTUTORIAL_PYTHON:-$python}" -m ipykernel_launcher "$@"
