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
	"flannel/pkg/logtest"
)

// HealthPort is where a node's flanneld answers /healthz, /readyz and /metrics.
const HealthPort = 8471

// Node is a machine with a flanneld and pods.
type Node struct {
	*machine.Machine
	IP4, IP6 netip.Addr // on the underlay; zero where the family is off
	Network  int        // which of the underlay's networks the node is on, from 0
	Windows  *Windows   // nil: the node is Linux

	// Env is further environment for flanneld, as "NAME=value".
	Env []string

	lab    *Lab
	host   int // in the addresses of its uplink
	daemon *machine.Process
	pods   map[string]*Pod
}

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

// Plug makes the node's uplink, with the addresses and routes that it has from the start. After Unplug it is a new
// device, of another index.
func (n *Node) Plug() error {
	if err := n.lab.Infra.Do(func() error { return n.lab.plug(n.Machine, n.Network, n.host) }); err != nil {
		return err
	}
	return n.Do(func() error { return n.lab.addressUplink(n.Network, n.host) })
}

// Unplug removes the node's uplink: the device, and with it all that hangs on it.
func (n *Node) Unplug() error { return n.Do(unplug) }

// Args are the arguments with which Start calls flanneld; all are flannel's own.
func (n *Node) Args() []string {
	common := []string{"-iface=" + Uplink, "-ip-masq", fmt.Sprintf("-healthz-port=%d", HealthPort)}
	if n.Windows != nil {
		common[0] = "-iface=" + Adapter
	}
	if n.lab.Kube != nil {
		return append([]string{"-kube-subnet-mgr", "-kubeconfig-file=" + n.path(kubeconfigFile), "-net-config-path=" + n.path(netConfFile)}, common...)
	}
	return append([]string{"-etcd-endpoints=" + n.lab.Etcd.Endpoint(), "-etcd-prefix=" + n.lab.opts.Prefix}, common...)
}

// path is a path of the node as its programs know it.
func (n *Node) path(path string) string {
	if n.Windows != nil {
		return "C:" + strings.ReplaceAll(path, "/", `\`)
	}
	return path
}

// Start starts flanneld with Args and more, of which the last of a kind wins. It does not wait until it is ready.
func (n *Node) Start(more ...string) error { return n.StartWith(append(n.Args(), more...)...) }

// StartWith starts flanneld with these arguments alone.
func (n *Node) StartWith(args ...string) error { return n.StartIn(n.flanneld(), args...) }

func (n *Node) flanneld() string {
	if n.Windows != nil {
		return n.lab.opts.flanneldExe()
	}
	return n.lab.opts.Flanneld
}

// Program is the name of the flanneld that Start starts.
func (n *Node) Program() string { return filepath.Base(n.flanneld()) }

// StartIn starts another program that becomes flanneld, such as what stands for a container.
func (n *Node) StartIn(program string, args ...string) error {
	if n.Running() {
		return fmt.Errorf("flanneld already runs on %s", n.Name)
	}
	cmd := exec.Command(program, args...)
	if n.Windows != nil {
		cmd = n.Windows.program(program, args...)
	}
	// A variable, for another binary does not know the flag.
	cmd.Env = append(append(cmd.Env, "NODE_NAME="+n.Name, fmt.Sprintf("FLANNELD_RETAIN_PEERS=%d", n.lab.opts.Retain)), n.Env...)
	p, err := machine.StartProcess(n.Machine, cmd, "flanneld.log")
	if err == nil {
		n.daemon = p
	}
	return err
}

// Running tells whether flanneld runs.
func (n *Node) Running() bool { return n.daemon != nil && n.daemon.Running() }

// PID of flanneld as this process sees it, for /proc; 0 before Start.
func (n *Node) PID() int {
	if n.daemon == nil {
		return 0
	}
	return n.daemon.PID()
}

// PIDInside is flanneld's PID in the node, for kill(1) there.
func (n *Node) PIDInside() (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if pids := strings.Fields(line); len(pids) > 1 && pids[0] == "NSpid:" {
			return strconv.Atoi(pids[len(pids)-1])
		}
	}
	return 0, errors.New("the kernel does not tell NSpid")
}

var errNotStarted = errors.New("flanneld was not started")

// Stop ends flanneld with SIGTERM, on Windows with Ctrl-C, and returns its exit status.
func (n *Node) Stop(ctx context.Context) (int, error) {
	if n.Windows != nil {
		return n.end(ctx, syscall.SIGINT) // which Wine makes a Ctrl-C
	}
	return n.end(ctx, syscall.SIGTERM)
}

// Kill ends flanneld with SIGKILL.
func (n *Node) Kill() error {
	_, err := n.end(context.Background(), syscall.SIGKILL)
	return err
}

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

// Wait waits until flanneld ends and returns its exit status; one ended by a signal counts 128 more than the signal.
func (n *Node) Wait(ctx context.Context) (int, error) {
	if n.daemon == nil {
		return -1, errNotStarted
	}
	return n.daemon.Wait(ctx)
}

// Log is what the node's flannelds have written so far (also /run/flanneld.log in the node).
func (n *Node) Log() string {
	if n.daemon == nil {
		return ""
	}
	return n.daemon.Log()
}

// Records returns what flanneld has logged after a mark, which is a length of Log.
func (n *Node) Records(mark int) logtest.Records { return logtest.Parse(n.Log()[mark:]) }

// SubnetEnv reads /run/flannel/subnet.env.
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

// Ask asks flanneld's health port for a path such as /metrics, from within the node.
func (n *Node) Ask(ctx context.Context, path string) (int, string, error) {
	at := netip.MustParseAddr("127.0.0.1")
	if !n.lab.opts.Family.Has4() {
		at = netip.IPv6Loopback()
	}
	return n.Get(ctx, "http://"+net.JoinHostPort(at.String(), fmt.Sprint(HealthPort))+path)
}

// Ready waits until flanneld says so and subnet.env is there. It fails at once when flanneld has ended.
func (n *Node) Ready(ctx context.Context) error {
	_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
		if !n.Running() {
			return machine.Fatal(fmt.Errorf("flanneld on %s ended: %s", n.Name, machine.LastLine(n.Log())))
		}
		code, body, err := n.Ask(ctx, "/readyz")
		if err == nil && code != 200 {
			err = fmt.Errorf("%s says %d %s", n.Name, code, strings.TrimSpace(body))
		}
		if err != nil {
			return err
		}
		_, err = n.SubnetEnv()
		return err
	})
	return err
}

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
