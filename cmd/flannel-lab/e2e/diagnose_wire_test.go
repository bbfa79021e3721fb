package e2e

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/status"
)

// TestDoctorFindsBrokenChecksums has a network card that does not complete the checksums
// of packets in VXLAN, as it should: pings pass, TCP does not. The fix that the doctor
// names repairs it.
func TestDoctorFindsBrokenChecksums(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`)
	a, b := pair(t, l)
	must(t, reach(t.Context(), a, b))
	n, peer := l.Nodes[0], "--peer="+l.Nodes[1].IP4.String()
	healthy(t, l, n, l.Nodes[1], "the start")
	breakChecksums(t, l)
	reaches(t, "pings pass", a, b.IP4)
	found, all := causes(t, l, n, peer)
	t.Logf("%v", problems(all))
	if want := "FL605 checksum-offload"; len(found) != 1 || found[0] != want {
		t.Errorf("the doctor finds %v, want %s", found, want)
	}
	if found, all = causes(t, l, n); len(found) != 1 {
		t.Errorf("without --peer: %v", problems(all))
	}
	must(t, n.Do(func() error { return setTxChecksum("flannel.1", 0) })) // ethtool -K flannel.1 tx-checksum-ip-generic off
	within(t, "repaired", func() error {
		if found, all := causes(t, l, n, peer); found != nil {
			return fmt.Errorf("the doctor finds %v", problems(all))
		}
		return nil
	})
}

// breakChecksums puts a device of user space between node1 and the bridge, which copies
// frames. It leaves to the next device what the kernel left to it, as a card would
// complete it, except for checksums of packets in VXLAN: these it takes for complete.
func breakChecksums(t *testing.T, l *lab.Lab) {
	t.Helper()
	in(t, l.Infra.Namespaces, `ip link add wire type veth peer name socket; ip link set socket master br0
		ip link set wire up; ip link set socket up; ip link set node1 nomaster; ip link set node1 arp off; ip link set wire arp off`)
	var node, wire int
	must(t, l.Infra.Do(func() (err error) {
		if node, err = frameSocket("node1"); err == nil {
			wire, err = frameSocket("wire")
		}
		return err
	}))
	var stopped atomic.Bool
	var running sync.WaitGroup
	running.Go(func() { copyFrames(wire, node, &stopped) })
	running.Go(func() { copyFrames(node, wire, &stopped) })
	t.Cleanup(func() {
		stopped.Store(true)
		running.Wait()
		must(t, unix.Close(node))
		must(t, unix.Close(wire))
	})
}

// virtioHeader is the length of struct virtio_net_hdr, in bytes. It has what is left to
// a network card.
const virtioHeader = 10

// frameSocket opens a socket for the frames of a device, with a virtio header.
func frameSocket(device string) (int, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for _, option := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1)
		}
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	}
	if err == nil {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index})
	}
	return fd, err
}

// setTxChecksum does what ethtool -K DEVICE tx does.
func setTxChecksum(device string, on uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	value := struct{ command, value uint32 }{unix.ETHTOOL_STXCSUM, on}
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

func copyFrames(from, to int, stopped *atomic.Bool) {
	buffer := make([]byte, virtioHeader+1<<17)
	for !stopped.Load() {
		n, err := unix.Read(from, buffer)
		if err != nil || n < virtioHeader {
			continue
		}
		// A checksum behind the header of IPv4 is one of the packet outside. The field is
		// csum_start.
		if at := binary.NativeEndian.Uint16(buffer[6:]); at > 14+20 {
			clear(buffer[:virtioHeader])
		}
		_, _ = unix.Write(to, buffer[:n]) // what the other device does not take is lost
	}
}

// TestDoctorNamesTheCauseOfOthers does the same as TestDoctorNamesTheCause with other
// backends. The network of host-gw drops packets with addresses of pods, as that of a
// cloud does.
func TestDoctorNamesTheCauseOfOthers(t *testing.T) {
	t.Parallel()
	for backend, faults := range map[string][]pathFault{
		"host-gw": {
			on("infra", "to pods", "FL607 cloud-route", bridged, "ip daddr 10.5.0.0/16 drop"),
			on("infra", "from pods", "FL607 cloud-route", bridged, "ip saddr 10.5.0.0/16 drop"),
			on("infra", "path MTU", "FL604 mtu", bridged, "meta length > 1400 drop"),
			{name: "cut", node: "infra", fault: "ip link set node2 down", repair: "ip link set node2 up", want: "FL601 peer-down"},
		},
		"udp": {
			{name: "stopped", node: "node2", stop: true, fault: "true", repair: "true", want: "FL602 port-closed", byError: true},
			on("node2", "drop at the peer", "FL603 port-filtered", iptables, "INPUT -p udp --dport 8285 -j DROP"),
			on("node1", "own firewall", "FL609 own-firewall", iptables, "INPUT -p udp --dport 8285 -j DROP"),
		},
		"wireguard": {
			{name: "no device", node: "node2", stop: true, fault: "ip link delete flannel-wg", repair: "true", want: "FL602 port-closed", byError: true},
			on("node2", "drop at the peer", "FL603 port-filtered", iptables, "INPUT -p udp --dport 51820 -j DROP"),
			{name: "another preshared key", node: "node2", stop: true, fault: `wg genpsk >/run/psk
				set -- $(wg show flannel-wg dump | awk 'NF == 8 {print $1, $3, $4}')
				wg set flannel-wg peer $1 remove
				wg set flannel-wg peer $1 endpoint $2 allowed-ips $3 preshared-key /run/psk
				tcpdump -c 1 -ni eth0 'src host 192.168.100.11 and udp port 51820 and udp[8] = 1' # it wants new keys`, repair: "true", want: "FL611 wireguard-keys"},
			on("infra", "path MTU", "FL604 mtu", bridged, "meta length > 1400 drop"),
		},
	} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l := start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`"}`)
			if backend == "host-gw" { // its probes ask the pods' bridge, if there is one
				pair(t, l)
				for i, n := range l.Nodes {
					asked(t, l, n, l.Nodes[1-i], status.ViaPods)
				}
			}
			examine(t, l, faults)
		})
	}
}
