#!/bin/sh
# Exit code 0 once EC2 has announced that it takes this spot instance back, two minutes ahead: preempt.notice=tools/launch/ec2-notice.sh
url=${PERDURE_METADATA:-http://169.254.169.254}/latest
token=$(curl -sf -m 2 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$url/api/token") || exit 1
# Returns 404 until there is an action: stop, terminate or hibernate.
exec curl -sf -m 2 -o /dev/null -H "X-aws-ec2-metadata-token: $token" "$url/meta-data/spot/instance-action"
