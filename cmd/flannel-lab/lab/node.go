package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/logtest"
)

// HealthPort is the TCP port on which a node's flanneld serves /healthz,
// /readyz and /metrics.
const HealthPort = 8471

// Node is a machine that runs flanneld and pods.
type Node struct {
	*machine.Machine
	IP4, IP6 netip.Addr // on the underlay; invalid if the lab does not use the family
	Network  int        // index of the underlay network that the node is on
	Windows  *Windows   // nil on a Linux node

	// Env holds further environment variables of flanneld, as "NAME=value".
	Env []string

	lab    *Lab
	host   int              // last number of its underlay addresses
	daemon *machine.Process // the flanneld that was started last; nil before the first start
	pods   map[string]*Pod  // by name; guarded by Lab.podsMu
}

// newNode creates the node with index i, connects it, and turns it into a
// Windows node if it is one of the last Options.Windows.
func (l *Lab) newNode(ctx context.Context, i int) (*Node, error) {
	m, err := machine.New(fmt.Sprintf("node%d", i+1))
	if err != nil {
		return nil, err
	}
	n := &Node{Machine: m, lab: l, host: 11 + i, Network: i % l.opts.Subnets, pods: map[string]*Pod{}}
	if l.opts.Family.Has4() {
		n.IP4 = address(false, n.Network, n.host).Addr()
	}
	if l.opts.Family.Has6() {
		n.IP6 = address(true, n.Network, n.host).Addr()
	}
	if err := n.Plug(); err != nil || i < l.opts.Nodes-l.opts.Windows {
		return n, err
	}
	return n, n.becomeWindows(ctx)
}

// Plug creates the node's uplink, with its addresses and routes. After Unplug
// this is a new device with another interface index.
func (n *Node) Plug() error {
	if err := n.lab.Infra.Do(func() error { return n.lab.underlay().Plug(n.Machine, n.Network, n.host) }); err != nil {
		return err
	}
	return n.Do(func() error { return n.lab.underlay().Configure(n.Network, n.host) })
}

// Unplug deletes the node's uplink, and with it all devices, addresses and
// routes on it.
func (n *Node) Unplug() error { return n.Do(unplug) }

// Args returns the arguments with which Start runs flanneld. Every
// flannel-compatible binary knows these flags.
func (n *Node) Args() []string {
	common := []string{"-iface=" + Uplink, "-ip-masq", fmt.Sprintf("-healthz-port=%d", HealthPort)}
	if n.Windows != nil {
		common[0] = "-iface=" + Adapter
	}
	if n.lab.Kube != nil {
		return append([]string{"-kube-subnet-mgr", "-kubeconfig-file=" + n.path(kubeconfigFile),
			"-net-config-path=" + n.path(netConfFile)}, common...)
	}
	return append([]string{"-etcd-endpoints=" + n.lab.Etcd.Endpoint(), "-etcd-prefix=" + n.lab.opts.Prefix}, common...)
}

// path returns a path of the node as its programs write it: /run/x is C:\run\x
// on Windows.
func (n *Node) path(path string) string {
	if n.Windows != nil {
		return "C:" + strings.ReplaceAll(path, "/", `\`)
	}
	return path
}

// Start starts flanneld with Args and more. A flag in more overrides the same
// flag in Args. Start does not wait; see Ready.
func (n *Node) Start(more ...string) error { return n.StartWith(append(n.Args(), more...)...) }

// StartWith starts flanneld with exactly these arguments.
func (n *Node) StartWith(args ...string) error { return n.StartIn(n.flanneld(), args...) }

// flanneld returns the path of the binary that Start runs.
func (n *Node) flanneld() string {
	if n.Windows != nil {
		return n.lab.opts.flanneldExe()
	}
	return n.lab.opts.Flanneld
}

// Program returns the file name of the flanneld that Start runs.
func (n *Node) Program() string { return filepath.Base(n.flanneld()) }

// StartIn starts a program that becomes or contains flanneld, such as a script
// that sets up a container. Stop, Log and the like then apply to it.
func (n *Node) StartIn(program string, args ...string) error {
	if n.Running() {
		return fmt.Errorf("flanneld is already running on %s", n.Name)
	}
	cmd := exec.Command(program, args...)
	if n.Windows != nil {
		cmd = n.Windows.program(program, args...)
	}
	// --retain-peers as a variable, because other flannel binaries do not know the flag.
	cmd.Env = append(append(cmd.Env, "NODE_NAME="+n.Name, fmt.Sprintf("FLANNELD_RETAIN_PEERS=%d", n.lab.opts.Retain)),
		n.Env...)
	p, err := machine.StartProcess(n.Machine, cmd, "flanneld.log")
	if err == nil {
		n.daemon = p
	}
	return err
}

// Running reports whether flanneld is running.
func (n *Node) Running() bool { return n.daemon != nil && n.daemon.Running() }

// PID returns flanneld's PID in the PID namespace of this process, for /proc; 0
// before Start.
func (n *Node) PID() int {
	if n.daemon == nil {
		return 0
	}
	return n.daemon.PID()
}

// PIDInside returns flanneld's PID in the node's PID namespace, for kill(1)
// there.
func (n *Node) PIDInside() (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		// "NSpid: 812 17": the PID in each PID namespace, the innermost last.
		if pids := strings.Fields(line); len(pids) > 1 && pids[0] == "NSpid:" {
			return strconv.Atoi(pids[len(pids)-1])
		}
	}
	return 0, errors.New("no NSpid in /proc/PID/status")
}

var errNotStarted = errors.New("flanneld has not been started")

// Stop ends flanneld with SIGTERM, or on Windows with Ctrl-C, and returns its
// exit status: see Wait. The status is -1 after an error.
func (n *Node) Stop(ctx context.Context) (int, error) {
	if n.Windows != nil {
		return n.end(ctx, syscall.SIGINT) // Wine turns it into Ctrl-C
	}
	return n.end(ctx, syscall.SIGTERM)
}

// Kill ends flanneld with SIGKILL.
func (n *Node) Kill() error {
	_, err := n.end(context.Background(), syscall.SIGKILL)
	return err
}

// end sends a signal to flanneld, waits until it has ended, and returns its
// exit status.
func (n *Node) end(ctx context.Context, s syscall.Signal) (int, error) {
	if n.daemon == nil {
		return -1, errNotStarted
	}
	return n.daemon.Stop(ctx, s)
}

// Signal sends flanneld a signal.
func (n *Node) Signal(s syscall.Signal) error {
	if n.daemon == nil {
		return errNotStarted
	}
	return n.daemon.Signal(s)
}

// Wait waits until flanneld has ended and returns its exit status, which is 128
// plus the signal number if a signal ended it.
func (n *Node) Wait(ctx context.Context) (int, error) {
	if n.daemon == nil {
		return -1, errNotStarted
	}
	return n.daemon.Wait(ctx)
}

// Log returns the output of every flanneld that the node has run (also
// /run/flanneld.log in the node).
func (n *Node) Log() string {
	if n.daemon == nil {
		return ""
	}
	return n.daemon.Log()
}

// Records returns the log records that flanneld wrote after mark, in bytes: the
// length of Log at an earlier time.
func (n *Node) Records(mark int) logtest.Records { return logtest.Parse(n.Log()[mark:]) }

// SubnetEnv returns the variables in /run/flannel/subnet.env. It fails if there
// is no such file.
func (n *Node) SubnetEnv() (map[string]string, error) {
	data, err := n.ReadFile("/run/flannel/subnet.env")
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[name] = value
		}
	}
	return env, nil
}

// Ask sends a GET request for a path such as /metrics to flanneld's health
// port, from inside the node. It returns the HTTP status and the body.
func (n *Node) Ask(ctx context.Context, path string) (status int, body string, err error) {
	at := netip.MustParseAddr("127.0.0.1")
	if !n.lab.opts.Family.Has4() {
		at = netip.IPv6Loopback()
	}
	return n.Get(ctx, "http://"+net.JoinHostPort(at.String(), fmt.Sprint(HealthPort))+path)
}

// Ready waits until /readyz answers 200 and subnet.env exists. It fails at once
// if flanneld has ended.
func (n *Node) Ready(ctx context.Context) error {
	_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
		if !n.Running() { // Fatal: Until calls this function no more
			return machine.Fatal(fmt.Errorf("flanneld on %s ended: %s", n.Name, machine.LastLine(n.Log())))
		}
		code, body, err := n.Ask(ctx, "/readyz")
		if err == nil && code != 200 {
			err = fmt.Errorf("/readyz of %s: status %d: %s", n.Name, code, strings.TrimSpace(body))
		}
		if err != nil {
			return err
		}
		_, err = n.SubnetEnv()
		return err
	})
	return err
}

// close powers the node off. On a Windows node it first closes the connection to
// the simulated machine.
func (n *Node) close() error {
	if n.Windows == nil {
		return n.Machine.PowerOff()
	}
	return errors.Join(n.Windows.close(), n.Machine.PowerOff())
}

// StartAll starts flanneld on every node and waits until each is ready.
func (l *Lab) StartAll(ctx context.Context, more ...string) error {
	for _, n := range l.Nodes {
		if err := n.Start(more...); err != nil {
			return err
		}
	}
	for _, n := range l.Nodes {
		if err := n.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}
