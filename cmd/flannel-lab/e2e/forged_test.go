package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// vxlanFrame returns the payload of a datagram that a VXLAN device with VNI 1
// and the address mac takes for a packet of from: UDP to the port 9999 of to.
func vxlanFrame(mac net.HardwareAddr, from, to netip.Addr, text string) []byte {
	b := []byte{8, 0, 0, 0, 0, 0, 1, 0} // flags: a VNI follows; the VNI
	b = append(b, mac...)
	b = append(b, 2, 0, 0, 0, 0, 0x66, 8, 0) // the sender's MAC; IPv4
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(20+8+len(text)))
	ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum&0xffff+sum>>16))
	b = append(b, ip...)
	for _, field := range []int{9998, 9999, 8 + len(text), 0} { // ports, length, no checksum
		b = binary.BigEndian.AppendUint16(b, uint16(field))
	}
	return append(b, text...)
}

// send sends datagrams from the namespaces.
func send(t *testing.T, from machine.Namespaces, to string, payload []byte) {
	t.Helper()
	c, err := from.Dial(t.Context(), "udp4", to)
	must(t, err)
	defer c.Close()
	if _, err := c.Write(payload); err != nil && !strings.Contains(err.Error(), "refused") { // of an earlier datagram
		t.Error(err)
	}
}

// TestForgedFrames sends packets into the pod network that no node has sent:
// from a host on the underlay that is no node, and from a pod without
// privileges. With vxlan they arrive and seem to come from another node's pod;
// with wireguard they do not. Documentation/security.md names this test.
func TestForgedFrames(t *testing.T) {
	t.Parallel()
	for backend, arrives := range map[string]bool{"vxlan": true, "wireguard": false} {
		t.Run(backend, func(t *testing.T) {
			l := start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`"}`)
			a, b := pair(t, l)
			must(t, reach(t.Context(), a, b))
			target := l.Nodes[1]
			mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
			if arrives {
				var err error
				mac, err = net.ParseMAC(strings.TrimSpace(in(t, target.Namespaces, "ip -br link show flannel.1 | awk '{print $3}'")))
				must(t, err)
			}
			claimed := a.IP4.As4()
			claimed[3] = 77 // another pod of the first node
			var pod net.PacketConn
			must(t, b.Do(func() (err error) {
				pod, err = net.ListenPacket("udp4", net.JoinHostPort(b.IP4.String(), "9999"))
				return err
			}))
			defer pod.Close()
			receive := func() (string, error) {
				buf := make([]byte, 100)
				must(t, pod.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
				n, from, err := pod.ReadFrom(buf)
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%s from %s", buf[:n], from.(*net.UDPAddr).IP), nil
			}
			for name, from := range map[string]machine.Namespaces{"outsider": l.Infra.Namespaces, "pod": a.Namespaces} {
				forged := func() {
					for _, port := range []string{"8472", "51820"} {
						send(t, from, net.JoinHostPort(target.IP4.String(), port), vxlanFrame(mac, netip.AddrFrom4(claimed), b.IP4, name))
					}
				}
				want := fmt.Sprintf("%s from %s", name, netip.AddrFrom4(claimed))
				if !arrives {
					want = fmt.Sprintf("honest %s from %s", name, a.IP4)
				}
				within(t, want, func() error {
					forged()
					if !arrives {
						send(t, a.Namespaces, net.JoinHostPort(b.IP4.String(), "9999"), []byte("honest "+name))
					}
					got, err := receive()
					if errors.Is(err, os.ErrDeadlineExceeded) {
						return errors.New("nothing arrives")
					}
					must(t, err)
					if !arrives && !strings.HasPrefix(got, "honest ") {
						t.Fatalf("received %s", got)
					}
					if got != want {
						return fmt.Errorf("received %s", got)
					}
					return nil
				})
			}
		})
	}
}
