package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// commands is a configuration whose commands do what host-gw does, without a
// shell. The script refuses one subnet, and records what it is given.
const commands = `{"Type":"extension", "PreStartupCommand":"hostname", "PostStartupCommand":"/run/script post",
	"SubnetAddCommand":"/run/script add $SUBNET via $PUBLIC_IP", "SubnetRemoveCommand":"ip route del $SUBNET via $PUBLIC_IP"}`

const extensionScript = `#!/bin/sh
if [ "$1" = post ]; then echo "$NETWORK $SUBNET $PUBLIC_IP" >/run/post; exit; fi
echo "$* $(cat)" >>/run/added
[ "$2" != 10.5.9.0/24 ] || { echo refused by the script; exit 4; }
shift; exec ip route replace "$@"
`

func TestExtension(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 2}, commands+apart)
	for _, n := range l.Nodes {
		must(t, n.WriteFile("/run/script", extensionScript))
		in(t, n.Namespaces, "chmod +x /run/script")
	}
	must(t, l.StartAll(t.Context(), atOnce))
	n := l.Nodes[0]
	a, b := pair(t, l)
	talk(t, a, b, a.IP4, b.IP4, lab.Outside4)
	inFullSize(t, a, b, "1500")
	base, _, _ := strings.Cut(extensionKey(t, l, n), "-")
	must(t, says(t, n, "10.5.0.0/16 "+base+"/24 "+n.IP4.String(), "cat", "/run/post")) // nodes are ready after that

	// What a peer publishes is input of the command, and nothing else. A peer whose
	// command fails is behind, and the node stays ready.
	putRaw(t, l, "10.5.8.0-24", `{"PublicIP":"192.168.100.78","BackendType":"extension","BackendData":"; touch /run/pwned $(touch /run/pwned)"}`)
	within(t, "a peer with shell code as its data", func() error {
		return says(t, n, "add 10.5.8.0/24 via 192.168.100.78 ; touch /run/pwned $(touch /run/pwned)\n", "cat", "/run/added")
	})
	must(t, silent(t, n, "pwned", "ls", "/run")) // the command has begun with the data
	mark := len(n.Log())
	putRaw(t, l, "10.5.9.0-24", `{"PublicIP":"192.168.100.79","BackendType":"extension"}`)
	putRaw(t, l, "10.5.10.0-24", `{"PublicIP":"192.168.100.80","BackendType":"extension","BackendData":{"VNI":1}}`)
	loggedNaming(t, n, mark, "peer-refused", "reason", "SubnetAddCommand", "4:")
	logged(t, n, mark, "cause=peer-rejected", "peer="+leasePrefix+"10.5.10.0-24")
	becomesReady(t, n)
	reaches(t, "beside a peer that fails", a, b.IP4)
	want := words(fmt.Sprintf("10.5.8.0/24 via 192.168.100.78 dev eth0\n%s/24 via %s dev eth0", baseOf(t, l, l.Nodes[1]), l.Nodes[1].IP4))
	podRoutes := func(ctx context.Context) (string, error) {
		out, err := try(ctx, n.Namespaces, "ip route show root 10.5.0.0/16 | grep -v cni0 || true")
		return words(out), err
	}
	eventually(t, "routes by commands", want, podRoutes)

	// A restart loses no packet, and adds every peer again.
	in(t, n.Namespaces, "rm /run/added")
	stop := expectNoLoss(t, a, b.IP4)
	must(t, n.Kill())
	must(t, n.Start(atOnce))
	must(t, n.Ready(t.Context()))
	stop()
	must(t, says(t, n, "add 10.5.8.0/24 ", "cat", "/run/added")) // a node is ready after that
	putRaw(t, l, "10.5.8.0-24", "")
	eventually(t, "a peer is gone", words(fmt.Sprintf("%s/24 via %s dev eth0", baseOf(t, l, l.Nodes[1]), l.Nodes[1].IP4)), podRoutes)

	// From and to another backend.
	for _, c := range []struct{ backend, device string }{{`{"Type":"vxlan"}`, "flannel.1"}, {commands, ""}} {
		must(t, l.SetConfig(t.Context(), l.Config(c.backend+apart)))
		for _, n := range l.Nodes {
			eventually(t, "the devices of "+c.backend, c.device, func(ctx context.Context) (string, error) {
				return try(ctx, n.Namespaces, "ls /sys/class/net | grep ^flannel || true")
			})
		}
		reaches(t, c.backend, a, b.IP4)
		reaches(t, c.backend, b, a.IP4)
	}
}

// extensionKey returns the key of a node's lease, and checks its data.
func extensionKey(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	key, value := leaseOf(t, l, n)
	if want := strings.TrimSpace(in(t, n.Namespaces, "hostname")); !strings.Contains(value, `"BackendType":"extension","BackendData":"`+want+`"`) {
		t.Errorf("the lease is %s", value)
	}
	return key
}

// baseOf returns the base address of a node's subnet.
func baseOf(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	key, _ := leaseOf(t, l, n)
	return address(t, key).String()
}

// putRaw writes a lease as another node would. "" deletes it.
func putRaw(t *testing.T, l *lab.Lab, key, value string) {
	t.Helper()
	c := etcdClient(t, l)
	var err error
	if value == "" {
		_, err = c.Delete(t.Context(), leasePrefix+key)
	} else {
		_, err = c.Put(t.Context(), leasePrefix+key, value)
	}
	must(t, err)
}
