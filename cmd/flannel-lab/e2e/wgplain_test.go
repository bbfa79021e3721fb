package e2e

import (
	"fmt"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// Nothing between pods leaves a node in plain text: neither what was decrypted for pods of a node that has none yet, nor
// what pods send to a subnet of no node.
func TestWireGuardPlainText(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"separate", "auto"} {
		t.Run(mode, func(t *testing.T) {
			l := start(t, lab.Options{Nodes: 2, Family: lab.Dual}, `{"Type":"wireguard","Mode":"`+mode+`"}`+apart)
			empty, first := l.Nodes[0], pod(t, l.Nodes[1], "first")
			four, six, _ := strings.Cut(ours(t, l, empty)[0], "&")
			four, six = strings.TrimSuffix(four, "0-24")+"9", strings.TrimSuffix(six, "-64")+"9"
			in(t, l.Infra.Namespaces, "tcpdump -nlpi any 'net 10.5.0.0/16 or net fd05::/48 or (icmp and dst 192.168.100.1)' >/run/plain 2>/run/tcpdump &")
			in(t, empty.Namespaces, fmt.Sprintf("tcpdump -nlpi any 'dst %s or dst %s' >/run/decrypted 2>/run/tcpdump &", four, six))
			for _, ns := range []machine.Namespaces{l.Infra.Namespaces, empty.Namespaces} {
				within(t, "tcpdump listens", func() error {
					_, err := try(t.Context(), ns, "grep listening /run/tcpdump")
					return err
				})
			}
			for _, to := range []string{four, six} {
				within(t, "a packet to "+to+" is decrypted", func() error {
					in(t, first.Namespaces, "ping -c1 -W1 "+to+" || true")
					_, err := try(t.Context(), empty.Namespaces, "grep -F '> %s: ' /run/decrypted", to)
					return err
				})
				within(t, "a packet whose hop limit is over is answered", func() error {
					_, err := try(t.Context(), first.Namespaces, "ping -c1 -W1 -t2 %s | grep exceeded", to)
					return err
				})
			}
			in(t, first.Namespaces, "ping -c3 -i0.2 -W1 10.5.0.1 || true; ping -c3 -i0.2 -W1 fd05:0:0:1::1 || true")
			for _, n := range l.Nodes { // the capture has it after whatever the node sent before
				shell(t, n.Namespaces, "ping -c1 192.168.100.1")
				within(t, "the last packet is captured", func() error {
					_, err := try(t.Context(), l.Infra.Namespaces, "grep -F '%s > 192.168.100.1: ' /run/plain", n.IP4)
					return err
				})
			}
			if out := in(t, l.Infra.Namespaces, "grep -v '> 192.168.100.1: ' /run/plain || true"); out != "" {
				t.Errorf("unencrypted packets: %.4000s", out)
			}
		})
	}
}
