package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/daemon/reach"
	"flannel/pkg/dataplane"
)

// idleRows are the rows of the table of measureIdle: the key of the figure, its title, the value
// that we want to reach ("": none), and flannel's ("": not known). A pass is one comparison of
// everything with the desired state.
var idleRows = []row{
	{"idle_cpu_percent", "idle CPU, % of a core", "0.1", ""},
	{"idle_wakes", "its threads wake up, times a second", "", ""},
	{"idle_answers", "probes that peers answer, a second", "", ""},
	{"idle_passes", "passes, a minute", "", ""},
}

// measureIdle measures a daemon to which nothing happens but probes, with vxlan and the
// guard's default mode, after --settle. All peers answer probes: see answerProbes. (With
// probes, nodes find out whether their peers are reachable; the guard looks for tunnel
// packets that no peer may send.)
func measureIdle(ctx context.Context, o Options, peers int) (column, error) {
	c := column{Store: "etcd", Backend: "vxlan", Peers: peers}
	fmt.Fprintf(os.Stderr, "vxlan, %d peers: idle for %v\n", peers, o.idle)
	b, err := newBench(ctx, o, "vxlan", peers)
	if err != nil {
		return c, err
	}
	defer b.close()
	stop, err := b.answerProbes(ctx) // before the daemon starts, which firstSync does
	if err != nil {
		return c, err
	}
	defer stop()
	for _, step := range []func(context.Context) error{b.firstSync, b.settled, b.idleWithPeers} {
		if err := step(ctx); err != nil {
			return c, fmt.Errorf("%w; end of the log of the daemon: %s", err, logEnd(b.node.Log()))
		}
	}
	c.Figures = b.figures
	return c, nil
}

// idleWithPeers measures the CPU time for --idle, and how often things happen on which it
// is spent. A metric that the daemon does not have counts as 0. The figure of the CPU time is
// idle's, which waits.
func (b *bench) idleWithPeers(ctx context.Context) error {
	type counts struct{ wakes, answers, passes float64 }
	read := func() (c counts, err error) {
		c.answers, _ = b.metric(ctx, `flanneld_probes_total{result="answered"}`)
		c.passes, _ = b.metric(ctx, "flanneld_sync_seconds_count")
		c.wakes, err = wakes(b.node.PID())
		return c, err
	}
	before, err := read()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.idle(ctx, b.options.idle); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := read()
	b.figures["idle_wakes"] = (after.wakes - before.wakes) / took.Seconds()
	b.figures["idle_answers"] = (after.answers - before.answers) / took.Seconds()
	b.figures["idle_passes"] = (after.passes - before.passes) / took.Minutes()
	return err
}

// wakes returns how often the threads of a process have given up their processor to wait,
// and were woken up again (voluntary_ctxt_switches of proc_pid_status(5)).
func wakes(pid int) (sum float64, err error) {
	threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "status"))
	if err != nil {
		return 0, err
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		line, _, _ := strings.Cut(rest, "\n")
		n, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		sum += n
	}
	return sum, nil
}

// vxlanPort is the UDP port of VXLAN on Linux.
const vxlanPort = 8472

// Where the parts of a VXLAN packet begin, without the outer headers, in bytes.
const (
	vxlanEther = 8 // behind the header of VXLAN
	vxlanIP    = vxlanEther + 14
	vxlanICMP  = vxlanIP + ipv4.HeaderLen
	vxlanBody  = vxlanICMP + 8
)

// answerProbes makes the lab's second node stand for all peers until stop is called: it has
// their addresses on the underlay, and answers the probes that the daemon sends to them. After
// each, another peer sends a probe to the daemon, as in a cluster of nodes that all probe. The
// outer addresses of all of these packets are those of the peers, as the guard wants it.
func (b *bench) answerProbes(ctx context.Context) (stop func(), err error) {
	second := b.lab.Nodes[1]
	// 172.16.0.0/12 is the network of nodesNet, with the public IPs of all peers. The local route
	// makes them addresses of the second node. onLink has given every node the address nodesNet:
	// the first one, on which the daemon runs, keeps it.
	script := fmt.Sprintf("ip address delete %s dev %s; ip route add local 172.16.0.0/12 dev %[2]s", nodesNet, lab.Uplink)
	if _, err := second.Run(ctx, "sh", "-ec", script); err != nil {
		return nil, err
	}
	var socket net.PacketConn
	if err := second.Do(func() (err error) { socket, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", vxlanPort)); return err }); err != nil {
		return nil, err
	}
	conn := ipv4.NewPacketConn(socket)
	if err := conn.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return nil, err
	}
	go func() {
		buffer := make([]byte, 1<<16)
		for i := 0; ; i = (i + 1) % len(b.peers) { // i: the peer that sends a probe next
			n, to, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return // closed
			}
			if n < vxlanBody+48 || buffer[vxlanICMP] != 8 { // not a probe, which is an echo request with 48 bytes
				continue
			}
			// Errors are ignored: a lost probe or answer does not matter.
			// answer and request change the frame in place, so that request gets the answer.
			frame, daemon := buffer[:n], &net.UDPAddr{IP: from.(*net.UDPAddr).IP, Port: vxlanPort}
			_, _ = conn.WriteTo(answer(frame), &ipv4.ControlMessage{Src: to.Dst}, daemon)
			_, _ = conn.WriteTo(b.peers[i].request(frame), &ipv4.ControlMessage{Src: b.peers[i].publicIP().AsSlice()}, daemon)
		}
	}()
	return func() { _ = socket.Close() }, nil
}

// answer turns a probe that was sent to a peer into the peer's answer, an echo reply. The
// checksum of the IP header stays right, since addresses only change places.
func answer(frame []byte) []byte {
	swap(frame[vxlanEther:], 6) // MAC addresses
	swap(frame[vxlanIP+12:], 4) // IP addresses
	frame[vxlanICMP] = 0        // echo reply
	setSum(frame[vxlanICMP:], 2)
	return frame
}

// request turns an answer into a probe that p sends to the same daemon: of the answer, only
// the addresses of the daemon remain. The body says that p has not heard of the daemon; its
// format is that of message in pkg/daemon/reach.
func (p peer) request(frame []byte) []byte {
	copy(frame[vxlanEther+6:], []byte{2, 0xbe, 0, p.version, byte(p.number >> 8), byte(p.number)}) // sender, as mac returns it
	frame[vxlanIP+8] = 64                                                                          // TTL, as Linux has it
	copy(frame[vxlanIP+12:], p.base().AsSlice())                                                   // sender
	setSum(frame[vxlanIP:vxlanICMP], 10)
	body := frame[vxlanBody:]
	clear(body)
	copy(body, reach.Magic[:])
	body[4], body[5], body[6] = 1, 24, 4 // version, length of the subnet, IPv4
	copy(body[8:], p.base().AsSlice())   // p's subnet
	copy(body[24:], "\xff\xff\xff\xff")  // how long ago p has heard of the daemon: never
	frame[vxlanICMP] = 8                 // an echo request
	setSum(frame[vxlanICMP:], 2)
	return frame
}

// swap exchanges two fields of n bytes.
func swap(b []byte, n int) {
	for i := range n {
		b[i], b[n+i] = b[n+i], b[i]
	}
}

// setSum sets the checksum of a header, or of a message of ICMP, at an offset.
func setSum(b []byte, at int) {
	binary.BigEndian.PutUint16(b[at:], 0)
	binary.BigEndian.PutUint16(b[at:], dataplane.Checksum(b))
}
