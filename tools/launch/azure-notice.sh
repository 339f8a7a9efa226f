#!/bin/sh
# Exit code 0 once Azure has scheduled the eviction of this spot VM, 30 seconds ahead: preempt.notice=tools/launch/azure-notice.sh
url=${PERDURE_METADATA:-http://169.254.169.254}/metadata
name=$(curl -sf -m 2 -H "Metadata: true" "$url/instance/compute/name?api-version=2021-02-01&format=text") || exit 1
# Events of all VMs of a scale set or an availability set, one a line.
curl -sf -m 2 -H "Metadata: true" "$url/scheduledevents?api-version=2020-07-01" | tr -d '\n' | tr '}' '\n' |
  grep -E '"EventType": *"(Preempt|Terminate)"' | grep -qF "\"$name\""
