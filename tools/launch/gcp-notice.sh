#!/bin/sh
# Exit code 0 once Compute Engine preempts this VM, 30 seconds ahead: preempt.notice=tools/launch/gcp-notice.sh
url=${PERDURE_METADATA:-http://metadata.google.internal}/computeMetadata/v1/instance/preempted
[ "$(curl -sf -m 2 -H "Metadata-Flavor: Google" "$url")" = TRUE ]
