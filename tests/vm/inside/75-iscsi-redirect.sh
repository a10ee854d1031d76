#!/bin/bash
# A target that redirects a login (RFC 7143, section 11.13.5: "Target moved temporarily"): where the portal that it names is not allowed,
# the volume is refused by name and no session stays; where it is allowed, the volume is used by way of it.
# about 15 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

target_name=iqn.2026-11.dev.example:one
machine=iqn.2026-11.dev.example:machine
lio_start
lio_disk one 64M
lio_target $target_name 127.0.0.2:3260
lio_lun $target_name 0 one
lio_acl $target_name $machine
initiator_start $machine

# Answers each login at 127.0.0.1:3261 by a redirect to the target.
cat >redirector.pl <<'PERL'
use strict;
use warnings;
use Socket;
$| = 1;
socket(my $server, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
setsockopt($server, SOL_SOCKET, SO_REUSEADDR, 1);
bind($server, sockaddr_in(3261, inet_aton('127.0.0.1'))) or die "bind: $!";
listen($server, 5) or die "listen: $!";
print "ready\n";
sub received {
    my ($client, $length) = @_;
    my $bytes = '';
    while (length $bytes < $length) {
        sysread($client, $bytes, $length - length $bytes, length $bytes) or return;
    }
    return $bytes;
}
while (accept(my $client, $server)) {
    my $request = received($client, 48) // next;
    my $length = unpack('N', "\0" . substr($request, 5, 3));
    received($client, $length + -$length % 4) if $length;
    my $text = "TargetAddress=127.0.0.2:3260,1\0";
    my $command = substr($request, 24, 4);
    # Login Response: opcode, flags, versions; length; ISID and TSIH; task tag; StatSN, ExpCmdSN, MaxCmdSN; status class and detail.
    my $answer = pack('C4', 0x23, 0, 0, 0) . pack('N', length $text) . substr($request, 8, 8) . substr($request, 16, 4) . pack('N', 0)
        . pack('N', 0) . $command . $command . pack('C2', 1, 1) . ("\0" x 10);
    syswrite($client, $answer . $text . "\0" x (-length($text) % 4));
    print "redirected\n";
    close $client;
}
PERL
perl redirector.pl >redirected 2>redirector.err &
redirector=$!
within 10 grep -q ready redirected

stage_it() {
    mkdir -p "$staging"
    call stage-volume it --staging "$staging" --fs=ext4 --context targetPortal=127.0.0.1:3261 --context portals=127.0.0.1:3261 --context iqn=$target_name \
        --context lun=0 >stage.log 2>&1
}

printf 'backends:\n  - {name: san, type: iscsi, allowedPortals: [127.0.0.1/32]}\n' >config.yaml
start_driver
if stage_it; then fail "staged by way of a portal that is not allowed"; fi
grep -q redirected redirected || fail "no login was redirected: $(cat stage.log)"
grep -q 'PERMISSION_DENIED.*redirected the login to 127.0.0.2:3260, which is not among' stage.log || fail "refused: $(cat stage.log)"
nothing_is_connected "after the refusal"

# Allowed by a reload, while the driver runs.
printf 'backends:\n  - {name: san, type: iscsi, allowedPortals: [127.0.0.0/8]}\n' >config.yaml
longshore reload --endpoint "$endpoint" || fail "not reloaded"
stage_it || fail "not staged: $(cat stage.log)"
is "$target_name 127.0.0.1:3261 $machine LOGGED_IN" "$(iscsi_sessions)" "its session"
echo 'by a redirect' >"$staging/file"
sync -f "$staging"
stage_it || fail "not staged again: $(cat stage.log)"
is 'by a redirect' "$(cat "$staging/file")" "what the volume holds"
unstage it
nothing_is_connected "after the unstage"

stop_driver
kill $redirector
wait $redirector 2>/dev/null || true
initiator_stop
lio_stop
